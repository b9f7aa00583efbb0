"""The API page names what exists, and what a newcomer needs first."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import autodual as ad

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_entry_exists() -> None:
    entries = re.findall(r"^::: ([\w.]+)\.(\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(entries) > 30
    assert [f"{module}.{name}" for module, name in entries if not hasattr(import_module(module), name)] == []
    listed = {name for _, name in entries}
    assert {"certify", "attack", "fit", "load_run", "TrainedRun", "ImageData", "TrainConfig"} <= listed & set(dir(ad))
