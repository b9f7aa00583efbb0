"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, get_args

import pytest
import torch

from autodual import kernels

Watch = Callable[..., list[str]]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """watch(module, *names): the functions of a module that are called from now on, in order."""

    def begin(module: ModuleType, *names: str) -> list[str]:
        calls: list[str] = []
        for family in get_args(kernels.Family):  # tried once in a process, which would be noted too
            kernels.ready(family, torch.device("cuda", 0))
        for name in names:
            monkeypatch.setattr(module, name, _noting(name, getattr(module, name), calls))
        return calls

    return begin


def _noting(name: str, function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        calls.append(name)
        return function(*given)

    return noted
