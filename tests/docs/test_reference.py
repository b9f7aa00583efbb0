"""The reference has every public name, and public functions say what they take, return and raise, with an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from pydoc import locate
from typing import Any

import pytest

import autodual as ad
from autodual.dual import REGISTRY

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
LISTED = re.findall(r"^::: autodual\.([\w.]+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
NOT_LISTED = {"models", "testing", "__version__"}
"""Modules, of which the page has the functions."""


def _named(name: str) -> Any:
    return locate(f"autodual.{name}")


FUNCTIONS = [name for name in LISTED if inspect.isroutine(_named(name))]


def test_every_public_name_is_listed_under_that_name() -> None:
    public = {name for name in ad.__all__ if name not in NOT_LISTED}
    assert public - set(LISTED) == set()
    assert [name for name in LISTED if _named(name) is None] == []
    assert len(FUNCTIONS) >= 15


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_say_what_they_take_return_and_raise(name: str) -> None:
    function: Callable[..., Any] = _named(name)
    text = inspect.getdoc(function) or ""
    sections = dict(re.findall(r"^(Args|Returns|Raises|Examples):\n(.*?)(?=^\w|\Z)", text, re.DOTALL | re.MULTILINE))
    taken = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
    assert re.findall(r"^    \*?(\w+): ", sections.get("Args", ""), re.MULTILINE) == taken
    returned = inspect.signature(function).return_annotation not in (None, "None")
    assert ("Returns" in sections) == returned
    assert "Raises" in sections or not taken or name == "rewrite"
    assert ">>> " in sections["Examples"]


@pytest.mark.parametrize("name", [name for name in LISTED if ">>> " in (inspect.getdoc(_named(name)) or "")])
def test_examples_run(name: str) -> None:
    builders, rewrites, bodies = dict(REGISTRY.builders), dict(REGISTRY.rewrites), dict(REGISTRY.bodies)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for example in doctest.DocTestFinder(recurse=False).find(_named(name), name, globs={"__name__": name}):
        runner.run(example, out=report.append)
    for table, before in ((REGISTRY.builders, builders), (REGISTRY.rewrites, rewrites), (REGISTRY.bodies, bodies)):
        table.clear()
        table.update(before)  # type: ignore[arg-type]
    assert runner.summarize(verbose=False).attempted > 0
    assert report == []
