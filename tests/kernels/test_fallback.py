"""Kernels are used only where they work; elsewhere plain code runs, and says so once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

from autodual import kernels
from autodual.kernels import median


def _pretend(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """A machine with Triton, whose trial ends so."""

    def trial(device: torch.device) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(kernels, "start", lambda family: SimpleNamespace(trial=trial))
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


@pytest.fixture(autouse=True)
def _nothing_tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kernels.tried.clear()
    yield
    kernels.tried.clear()


def test_no_triton(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels._works("median", 0)
    assert not recwarn


def test_a_trial_that_succeeds(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    _pretend(monkeypatch, None)
    assert kernels._works("median", 0)
    assert not recwarn


def test_a_compiler_that_fails_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, RuntimeError("no ptxas\nhere"))
    with pytest.warns(UserWarning, match=r"RuntimeError: no ptxas\); plain PyTorch runs instead"):
        assert not kernels._works("median", 0)
    assert not kernels._works("median", 0)  # a second warning would be an error


def test_no_memory_says_nothing_about_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError):
        kernels._works("median", 0)
    _pretend(monkeypatch, None)
    assert kernels._works("median", 0)


def test_nothing_is_tried_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not kernels._works("median", 0)
    kernels.tried["median", 0] = True
    assert kernels._works("median", 0)


def test_tensors_that_kernels_cannot_take() -> None:
    assert not kernels.usable("median", torch.zeros(3))
    assert not kernels.usable("median", torch.zeros(0), torch.zeros(3))


def test_programs_are_made_where_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for Triton: every marked function is compiled once, with its options, in the module that it stands in."""
    made: list[tuple[str, dict[str, object]]] = []

    class Program:
        def __init__(self, function: object, **options: object) -> None:
            made.append((getattr(function, "__name__", ""), options))

    triton, language, extra = (ModuleType(name) for name in ("triton", "triton.language", "triton.language.extra"))
    triton.jit, triton.language = Program, language  # type: ignore[attr-defined]
    language.constexpr, extra.libdevice = lambda number: ("constexpr", number), object()  # type: ignore[attr-defined]
    for module in (triton, language, extra):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names = vars(median)
    before = dict(names)
    try:
        assert kernels.start("median") is median
        assert isinstance(names["_by_comparing"], Program)
        assert names["TINY"] == ("constexpr", torch.finfo(torch.float32).tiny)
        assert (names["triton"], names["tl"]) == (triton, language)
        assert ("_by_comparing", {"do_not_specialize": ["units", "factor"]}) in made
        assert all(names[name] is value for name, value in before.items() if name.startswith(("launch_", "newton_")))
        count = len(made)
        assert kernels.start("median") is median
        assert len(made) == count
    finally:
        names.clear()
        names.update(before)


def test_nothing_imports_triton_before() -> None:
    assert "triton" not in vars(median)
