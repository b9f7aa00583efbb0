"""The list of comparisons that selects the middle of k numbers: short, and no business of a compiler."""

from typing import Any

import pytest
import torch

from autodual.kernels import selection
from autodual.kernels.selection import selection_network


def test_a_compiler_calls_the_selection_network_and_does_not_trace_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.compiler.assume_constant_result
    def marked() -> None: ...

    assert vars(selection_network) == vars(marked)  # what selection.py writes itself, not to import the compiler

    def untraceable(k: int) -> Any:
        torch._dynamo.graph_break()  # an error if it is traced; nothing if it is called
        return ((0, 1, True, False),)

    monkeypatch.setattr(selection, "_selection_network", untraceable)
    torch.compiler.reset()
    compiled = torch.compile(selection.middle_in_plain_operations, fullgraph=True, backend="eager")
    assert compiled(torch.tensor([-2.0, 1.0])) == 1.0


def test_the_network_for_few_values_is_short() -> None:
    assert len(selection_network(10)) < 32  # Batcher's network for ten
    assert selection_network(1) == ()
