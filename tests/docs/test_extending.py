"""The code on the extension page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.dual import REGISTRY

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture
def _restored_registry():
    builders, rewrites = dict(REGISTRY.builders), dict(REGISTRY.rewrites)
    yield
    REGISTRY.builders.clear()
    REGISTRY.builders.update(builders)
    REGISTRY.rewrites.clear()
    REGISTRY.rewrites.update(rewrites)


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.usefixtures("_restored_registry")
def test_every_code_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = _blocks()
    assert len(blocks) >= 4
    names: dict[str, object] = {"__name__": "extending"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    assert "tensor" in capsys.readouterr().out
    assert nn.Softsign in REGISTRY.builders


@pytest.mark.usefixtures("_restored_registry")
def test_the_rewrite_is_needed_and_faithful() -> None:
    """The module has a forward of its own, which no dual layer knows; a rewrite that computes something else is found out."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "ad": ad, "x": torch.rand(2, 4)}
    block = next(b for b in _blocks() if "@ad.rewrite" in b)
    before, _, after = block.partition("@ad.rewrite(Swap)")
    exec(compile(before, str(PAGE), "exec"), names)
    model = nn.Sequential(names["Swap"](), nn.Linear(4, 3)).eval()
    assert torch.equal(names["Swap"]()(torch.arange(4.0)[None]), torch.tensor([[2.0, 3.0, 0.0, 1.0]]))
    with pytest.raises(ad.UnsupportedOperationError, match="take_along_dim"):
        ad.bounds(model, ad.LinfBall(0.1).around(names["x"]))
    with pytest.raises(ad.CaptureError):
        exec(
            compile("@ad.rewrite(Swap)" + after.replace("[second, first]", "[first, second]"), str(PAGE), "exec"), names
        )


@pytest.mark.usefixtures("_restored_registry")
def test_a_dual_layer_that_cannot_be_made_is_refused_when_it_is_registered() -> None:
    class Half(ad.CurvedDual):
        def value(self, z: torch.Tensor) -> torch.Tensor:
            return z

    class Asking(ad.CurvedDual):
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def value(self, z: torch.Tensor) -> torch.Tensor:
            return z

        def derivative(self, z: torch.Tensor) -> torch.Tensor:
            return torch.ones_like(z)

    with pytest.raises(ad.ArgumentError, match="Half: has no derivative; a dual layer must define"):
        ad.register(nn.Softsign)(Half)
    with pytest.raises(ad.ArgumentError, match="Asking: its __init__ asks for arguments; make it a dataclass"):
        ad.register(nn.Softsign)(Asking)
    assert nn.Softsign not in REGISTRY.builders


def test_the_first_example_is_short() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    declaration = block.group(1).split("@ad.register")[1].split("ad.testing")[0]
    assert len([line for line in declaration.splitlines() if line.strip()]) <= 20
