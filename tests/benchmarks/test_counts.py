"""The script that counts what the source has, on a source whose counts are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = {
    "__init__.py": '"""A package."""\n',
    "walk.py": '''"""Two lines
of a docstring."""

LIMIT = 3
"""What a name means is no code."""


def walk(nodes, values):  # a comment beside code
    """Says what."""
    for node in nodes:
        # a comment alone
        values.append(sum(values[i] for i in node.inputs))

    def inner():
        return """no
docstring"""

    return inner
''',
    "room/other.py": "def one():\n    return [part.shape for part in network.inputs]\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in SOURCE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def counts(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("counts")


def test_what_can_be_read_off_the_text(counts: ModuleType, source: Path) -> None:
    assert counts.measure(source) == {
        "lines": 1 + 18 + 2,
        "lines of code": 8 + 2,
        "files": 3,
        "most files in one folder": 2,
        "functions": 3,
        "median length of a function": 3,
        "files per folder": {".": 2, "room": 1},
        "walks by hand": ["walk.py:12"],
    }


def test_files_that_a_call_passes_through(counts: ModuleType, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "counted_a.py").write_text(
        "import threading\ndef outer():\n    import counted_c\n    from counted_b import inner\n"
        "    thread = threading.Thread(target=inner)\n    thread.start()\n    thread.join()\n"
    )
    (source / "counted_b.py").write_text("def inner(): pass\n")
    (source / "counted_c.py").write_text("class Imported:\n    field = 1\n")
    monkeypatch.syspath_prepend(source)
    outer = __import__("counted_a").outer
    assert counts.Trace(source).during(outer) == ["counted_a.py", "counted_b.py"]


def test_one_column_per_commit(counts: ModuleType, source: Path) -> None:
    calls = {"ad.certify": ["walk.py"], "training step": "ImportError: gone", "autodual train": []}
    one = counts.measure(source) | {"commit": "abc", "duplicates": "4", "calls": calls}
    other = one | {"commit": "def", "files per folder": {"new": 5}, "lines": 12345}
    lines = counts.table([one, other]).splitlines()
    assert lines[0] == "| count | abc | def |"
    assert "| lines | 21 | 12,345 |" in lines
    assert "| walks by hand | 1 | 1 |" in lines
    assert "| files that ad.certify passes | 1 | 1 |" in lines
    assert "| files that training step passes | ImportError: gone | ImportError: gone |" in lines
    assert "| files in `new` |  | 5 |" in lines
    assert "walk.py:12" in counts.places(one)


def test_a_library_that_cannot_be_imported_is_told_of(counts: ModuleType, source: Path) -> None:
    (source / "src" / "autodual").mkdir(parents=True)
    (source / "src" / "autodual" / "__init__.py").write_text("raise RuntimeError('broken')\n")
    assert set(counts.traced(source).values()) == {"RuntimeError: broken"}
