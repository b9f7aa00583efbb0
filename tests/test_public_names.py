"""The public names are imported when they are used; type checkers, `dir`, `*` and pickle see all of them."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import autodual as ad


def _typed() -> dict[str, str]:
    """Public names, and where from, as a type checker reads them."""
    tree = ast.parse(Path(ad.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    found = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        assert statement.module is not None
        for alias in statement.names:
            assert alias.asname == alias.name  # otherwise it is not public
            found[alias.name] = statement.module
    return found


TYPED = _typed()


def test_type_checkers_and_python_read_the_same_table() -> None:
    modules = {name: f"autodual.{module}" for name, module in ad._MODULE_OF.items()}  # type: ignore[attr-defined]
    assert modules | {"models": "autodual", "testing": "autodual"} == TYPED
    assert sorted(ad.__all__) == sorted(TYPED)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", TYPED)
def test_a_name_is_what_its_module_has(name: str) -> None:
    expected = (
        getattr(import_module(TYPED[name]), name) if TYPED[name] != "autodual" else import_module(f"autodual.{name}")
    )
    assert getattr(ad, name) is expected


def test_all_of_them_by_a_star() -> None:
    found: dict[str, object] = {}
    exec("from autodual import *", found)
    assert {name: getattr(ad, name) for name in TYPED} == {k: v for k, v in found.items() if k != "__builtins__"}


def test_dir_has_them() -> None:
    assert {*TYPED, "__version__", "__doc__"} <= set(dir(ad))


@pytest.mark.parametrize("name", ["nonsense", "__wrapped__", "Certify"])
def test_an_unknown_name_is_refused_as_usual(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'autodual' has no attribute '{name}'$"):
        getattr(ad, name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}' from 'autodual'"):
        exec(f"from autodual import {name}")


def test_pickled_by_name_and_by_value() -> None:
    for name in ("certify", "Certificate", "LinfBall", "ArgumentError"):
        assert pickle.loads(pickle.dumps(getattr(ad, name))) is getattr(ad, name)
    assert pickle.loads(pickle.dumps(ad.TrainConfig(k=7))) == ad.TrainConfig(k=7)


IMPORTS = """
import sys
import autodual
dir(autodual), autodual.__version__, autodual.TrainConfig, autodual.ArgumentError
assert "torch" not in sys.modules, "import autodual"
autodual.sets.LinfBall, autodual.models.small
from autodual import *
slow = {"torch._dynamo", "torch._inductor", "scipy", "matplotlib", "PIL", "rich", "typer"} & set(sys.modules)
assert not slow, slow
"""


def test_import_costs_little() -> None:
    """Neither PyTorch before it is needed, nor its compiler, which takes a second, nor what single commands and charts need."""
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
