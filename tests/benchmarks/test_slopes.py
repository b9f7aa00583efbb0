"""The optimum that optimised slopes are measured against lies between every choice of lines and the network's own minimum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import autodual as ad
from autodual.testing.engines import exact_minimum
from small import batch, mlp

pytest.importorskip("scipy")


def test_the_optimum_lies_between_lines_and_the_network(benchmark_module: Callable[[str], ModuleType]) -> None:
    module, model, ball = benchmark_module("slopes"), mlp(4, 6, 6, 3).eval(), ad.LinfBall(0.4)
    x, rows = batch(3, 4), torch.tensor([[1.0, -1.0, 0.0]] * 3).double()
    best = module._by_programs(model, x, ball, rows)
    exact = torch.cat([exact_minimum(model, ball.around(x[i : i + 1]), rows[:1])[0] for i in range(3)])
    found = {e: module._margins(model, x, ball, rows, e) for e in (ad.Dual(), ad.Crown(), ad.AlphaCrown(steps=100))}
    assert all((margins <= best + 1e-7).all() for margins in found.values())
    assert (best <= exact + 1e-7).all()
    assert (found[ad.Crown()] < best - 1e-3).any()
    torch.testing.assert_close(found[ad.AlphaCrown(steps=100)], best, rtol=0, atol=0.02)


def test_tables_that_a_call_does_not_make_are_kept(
    benchmark_module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    module, file = benchmark_module("slopes"), tmp_path / "slopes.md"
    tables = {"one": "## one\n\n| a |\n|---|\n| 1 |\n", "two": "## two\n\nwords\n"}
    file.write_text("\n".join([*module.INTRODUCTION, *tables.values()]))
    assert module._tables(file) == tables
    assert module._tables(tmp_path / "none.md") == {}
