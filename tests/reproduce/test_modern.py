"""Rows of later methods: every one has a config and a place in the table, and engines that its network can pay for."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodual._errors import ArgumentError
from autodual.evaluation.processes import Watch
from autodual.reproduce import evaluation
from autodual.reproduce.campaign import Campaign, Task, chosen_tasks
from autodual.reproduce.evaluation import engines_of
from autodual.reproduce.one_row import work_on
from autodual.reproduce.rows import MODERN
from autodual.reproduce.tables import build_tables
from autodual.runs.config import TrainConfig, dump_yaml

from .conftest import TINY, kept

CONFIGS = Path(__file__).parents[2] / "configs"
TASK = Task("mnist-0.3-ibp", "modern")


@pytest.fixture
def modern(campaign: Campaign) -> Campaign:
    """A campaign that has one row of a later method, too."""
    folder = campaign.configs / "modern"
    folder.mkdir()
    options = TINY | {"engine": "ibp", "k": None, "evaluate_engine": "best-ibp"}
    (folder / f"{TASK.row}.yaml").write_text(
        dump_yaml({name: value for name, value in options.items() if value is not None})
    )
    return campaign


def _row(campaign: Campaign, name: str) -> list[str] | None:
    """The row of the table about what came after the paper; None where it has none."""
    table = next(table for table in build_tables(campaign) if table.key == "modern")
    return next((list(cells) for cells in table.rows if cells[0] == name), None)


def test_every_config_is_a_row_and_every_row_has_a_config() -> None:
    assert set(MODERN) == {path.stem for path in (CONFIGS / "modern").glob("*.yaml")}
    tasks = chosen_tasks(["all"], "modern", [0], Campaign(CONFIGS))
    assert [task.row for task in tasks] == list(MODERN)


@pytest.mark.parametrize(
    ("own", "small", "names"),
    [
        ("dual", False, ["dual", "ibp", "crown"]),
        ("best-ibp", True, ["best-ibp", "dual", "ibp", "crown"]),
        ("best-ibp", False, ["best-ibp", "ibp"]),
        ("best", True, ["best", "dual", "ibp", "crown"]),
        ("best", False, ["best-ibp", "dual", "ibp", "crown"]),
    ],
)
def test_engines_of_a_row(own: str, small: bool, names: list[str]) -> None:
    assert list(engines_of(TrainConfig(evaluate_engine=own), small)) == names  # type: ignore[arg-type]


def test_the_table_shows_what_the_best_of_the_engines_certifies(modern: Campaign) -> None:
    assert _row(modern, TASK.row) is None
    waiting = next(table for table in build_tables(modern) if table.key == "modern").text[-1]
    assert waiting.startswith("Not run yet:")
    assert TASK.row in waiting
    work_on(modern, TASK, Watch())
    record = kept(modern, TASK)
    assert record["complete"]
    cells = _row(modern, TASK.row)
    assert cells is not None
    wanted = [record[name] for name in ("error", "robust_error_best", "robust_error_best_as_run", "pgd_error")]
    assert [float(cell) for cell in cells[2:6]] == pytest.approx([100 - 100 * error for error in wanted], abs=0.006)
    assert cells[6].endswith("(cpu)")


def test_the_papers_networks_by_our_recipe_stand_beside_later_methods(modern: Campaign) -> None:
    (modern.configs / "best").mkdir(exist_ok=True)
    (modern.configs / "best" / "mnist-small-0.3.yaml").write_text(dump_yaml(TINY))
    assert _row(modern, "best/mnist-small-0.3") is None
    work_on(modern, Task("mnist-small-0.3", "best"), Watch())
    cells = _row(modern, "best/mnist-small-0.3")
    assert cells is not None
    assert cells[1] == "small"
    assert float(cells[3]) == pytest.approx(
        100 - 100 * kept(modern, Task("mnist-small-0.3", "best"))["robust_error_best"], abs=0.006
    )


def test_where_intervals_are_as_good_as_any_no_dear_engine_runs_on_a_large_network(
    modern: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "WHOLE_UNITS", 10)
    work_on(modern, TASK, Watch())
    record = kept(modern, TASK)
    assert record["complete"]
    assert list(record["engines"]) == ["best-ibp", "ibp"]


def test_tables_of_the_paper_have_no_such_rows(modern: Campaign) -> None:
    with pytest.raises(ArgumentError, match="have no rows of later methods; name rows, or all"):
        chosen_tasks(["table2"], "modern", [0], modern)
    with pytest.raises(ArgumentError, match="is a row of later methods; ask for it by --recipe modern"):
        modern.config(Task(TASK.row))
