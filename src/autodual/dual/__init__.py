"""GRAPH -> DUAL LAYERS: one small file per family of operations, one registry."""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

from autodual.dual.base import REGISTRY as REGISTRY
from autodual.dual.base import AffineDual as AffineDual
from autodual.dual.base import Band as Band
from autodual.dual.base import DualLayer as DualLayer
from autodual.dual.base import ElementwiseDual as ElementwiseDual
from autodual.dual.base import FreeSlopes as FreeSlopes
from autodual.dual.base import Lines as Lines
from autodual.dual.base import Relaxation as Relaxation
from autodual.dual.base import Window as Window
from autodual.dual.base import register as register
from autodual.dual.base import rewrite as rewrite
from autodual.dual.curved import CurvedDual as CurvedDual
from autodual.dual.network import DualNetwork as DualNetwork
from autodual.dual.network import DualNode as DualNode
from autodual.dual.network import OnDemand as OnDemand
from autodual.dual.network import Pass as Pass
from autodual.dual.network import build as build
from autodual.dual.network import walk as walk
from autodual.dual.products import BilinearDual as BilinearDual

for _file in _iter_modules(__path__):  # importing a file of operations registers them
    _import_module(f"{__name__}.{_file.name}")
