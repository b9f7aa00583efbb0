"""The scripts of benchmarks/ as modules, for the time of one test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a script by its name; whatever it imports from its own folder is forgotten afterwards."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    own = {path.stem for path in BENCHMARKS.glob("*.py")}
    for name in own & (set(sys.modules) - before):
        del sys.modules[name]
