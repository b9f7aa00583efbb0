"""Several models that certify more together than one alone: the paper's cascade, and two combinations whose certificate is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from autodual._errors import ArgumentError
from autodual.cascades.base import Combination
from autodual.cascades.folder import RECORD, record_of
from autodual.cascades.paper import Cascade
from autodual.cascades.routed import RoutedCascade
from autodual.cascades.sum import SumEnsemble

KINDS: dict[str, type[Combination]] = {kind.kind: kind for kind in (Cascade, RoutedCascade, SumEnsemble)}


def load_combination(folder: str | Path, build: Callable[[int], nn.Module]) -> Combination:
    """Whichever combination is saved in the folder; build(stage) makes an untrained module for each stage."""
    kind = record_of(Path(folder)).get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(f"{Path(folder) / RECORD}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind].load(folder, build)
