"""The code on the extension page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch import nn

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


@pytest.mark.usefixtures("_restored_registry")
def test_every_code_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {"__name__": "extending"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "tensor" in capsys.readouterr().out
    assert nn.Softsign in REGISTRY.builders


def test_the_first_example_is_short() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    declaration = block.group(1).split("@ad.register")[1].split("ad.testing")[0]
    assert len([line for line in declaration.splitlines() if line.strip()]) <= 20
