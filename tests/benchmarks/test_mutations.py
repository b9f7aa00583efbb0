"""Mutations are mistakes that can still be made: each one's text occurs exactly once, and leaves a file that Python reads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "graph",
    "sets",
    "dual",
    "engines",
    "certificates",
    "cascades",
    "interchange",
    "data",
    "runs",
    "evaluation",
    "training",
    "report",
    "cli",
)


def test_every_mutation_can_be_made(benchmark_module: Callable[[str], ModuleType]) -> None:
    mutations = benchmark_module("mutation_list").MUTATIONS
    for one in mutations:
        ast.parse(one.applied((ROOT / "src" / "autodual" / one.file).read_text(encoding="utf-8")))
    assert len({one.name for one in mutations}) == len(mutations) >= 40


def test_every_room_has_some(benchmark_module: Callable[[str], ModuleType]) -> None:
    rooms = {one.file.partition("/")[0] for one in benchmark_module("mutation_list").MUTATIONS}
    assert rooms >= set(ROOMS)


def test_every_mutation_names_tests_that_are_there(benchmark_module: Callable[[str], ModuleType]) -> None:
    for one in benchmark_module("mutation_list").MUTATIONS:
        for test in one.tests:
            file, _, name = test.partition("::")
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert f"def {name.partition('[')[0]}(" in text or not name, f"{one.name}: tests/{test}"


@pytest.mark.parametrize("old", ["not there", "twice", "once"])
def test_a_stale_mutation_is_an_error(old: str, benchmark_module: Callable[[str], ModuleType]) -> None:
    source = "once, twice, twice"
    mutation = benchmark_module("mutation_list").mutation("name", "file.py", old, "new", "test.py")
    if old == "once":
        assert mutation.applied(source) == "new, twice, twice"
        return
    with pytest.raises(ValueError, match=r"name: file\.py holds .* times, not once: renew the mutation"):
        mutation.applied(source)
