"""Narrow convolutions, without a GPU: when they are used, and that the numbers around them fit."""

from __future__ import annotations

import pytest
import torch

from autodual import kernels
from autodual._tensor import full_precision, tf32_convolutions
from autodual.kernels.narrow import TAPS, is_narrow, is_narrow_back


def test_never_on_a_cpu() -> None:
    assert not is_narrow(torch.rand(1, 1, 8, 8), torch.rand(4, 1, 3, 3), 1)


def test_few_weights_and_leave_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    x = torch.rand(1, 1, 8, 8)
    assert is_narrow(x, torch.rand(4, TAPS, 1, 1), 1)
    assert not is_narrow(x, torch.rand(4, TAPS + 1, 1, 1), 1)
    assert not is_narrow(x, torch.rand(4, 1, 3, 3), 4)
    assert not is_narrow(x, torch.rand(4, 1, 3), 1)
    assert is_narrow_back(x, torch.rand(4, 1, 3, 3), 1)
    assert not is_narrow_back(x, torch.rand(2, 1, 3, 3), 1)
    with full_precision():
        assert not is_narrow(x, torch.rand(4, 1, 3, 3), 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not is_narrow(x, torch.rand(4, 1, 3, 3), 1)


def test_the_switch_for_tf32_is_heard() -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert not tf32_convolutions()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert tf32_convolutions()
