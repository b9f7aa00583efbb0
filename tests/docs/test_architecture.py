"""The page on architecture names the files that a call passes through, and no others."""

from __future__ import annotations

import gc
import importlib.util
import re
from pathlib import Path

import autodual

ROOT = Path(__file__).parents[2]
SOURCE = Path(autodual.__file__).parent


def test_the_files_of_one_call_are_those_that_it_passes() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## One call, followed")[2].partition("\n## ")[0]
    named = {f"{name}.py" for name in re.findall(r"`([a-z_/]+)`", section) if (SOURCE / f"{name}.py").exists()}
    found = importlib.util.spec_from_file_location("counts", ROOT / "benchmarks" / "counts.py")
    assert found is not None
    assert found.loader is not None
    counts = importlib.util.module_from_spec(found)
    found.loader.exec_module(counts)
    passed = set[str]()
    for call in (counts._certifying, counts._stepping):
        call()()  # so that neither imports nor caches count
        gc.collect()  # nor what other tests have left behind, which may run code when it is freed
        passed |= set(counts.Trace(SOURCE).during(call()))
    assert named == passed
