"""GRAPH -> DUAL LAYERS: one small file per family of operations, one registry."""

from autodual.dual import (
    arithmetic,
    attention,
    conv,
    convex,
    linear,
    normalising,
    piecewise,
    pool,
    recurrent,
    selecting,
    shape,
    smooth,
)
from autodual.dual.base import AffineDual as AffineDual
from autodual.dual.base import Band as Band
from autodual.dual.base import DualLayer as DualLayer
from autodual.dual.base import ElementwiseDual as ElementwiseDual
from autodual.dual.base import Lines as Lines
from autodual.dual.base import Relaxation as Relaxation
from autodual.dual.base import Window as Window
from autodual.dual.building import REGISTRY as REGISTRY
from autodual.dual.building import build as build
from autodual.dual.building import register as register
from autodual.dual.building import rewrite as rewrite
from autodual.dual.curved import CurvedDual as CurvedDual
from autodual.dual.network import DualNetwork as DualNetwork
from autodual.dual.network import DualNode as DualNode
from autodual.dual.network import OnDemand as OnDemand
from autodual.dual.network import Pass as Pass
from autodual.dual.network import walk as walk
from autodual.dual.products import BilinearDual as BilinearDual

FAMILIES = (
    arithmetic, attention, conv, convex, linear, normalising, piecewise, pool, recurrent, selecting, shape, smooth
)  # fmt: skip
"""Importing these fills the registry."""
