"""Kernels are used only where they work; elsewhere plain code runs, and says so once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from autodual import kernels


def _pretend(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """A machine with Triton, whose trial ends so."""
    trial = ModuleType("autodual.kernels.trial")

    def attempt(family: str, device: torch.device) -> None:
        if error is not None:
            raise error

    trial.attempt = attempt  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, trial.__name__, trial)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())


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
