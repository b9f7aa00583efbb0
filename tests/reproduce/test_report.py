"""The page of a row's folder: what the record of a row says, instead of the figures of a run that it has not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autodual.report import write_report
from autodual.report.page import comparison_of
from autodual.report.run import RunFiles, read_run
from autodual.report.sections.row import row
from autodual.reproduce.campaign import Campaign, Task

from .conftest import CASCADE, ROW

pytest.importorskip("jinja2", reason="the report needs Jinja2")
KEPT = Path(__file__).resolve().parents[2] / "results"


def text(folder: Path, target: Path) -> str:
    return write_report([folder], target).read_text().replace("\N{NO-BREAK SPACE}", " ")


def test_a_kept_row_shows_its_headline_and_every_engine(tmp_path: Path) -> None:
    folder = KEPT / "best" / "mnist-small-0.3"
    record, page = json.loads((folder / "evaluation.json").read_text()), text(folder, tmp_path / "page.html")
    assert f"{100 - 100 * record['robust_error_best']:.2f} %" in page
    assert "Result of the row" in page
    for word in ("damaged", "missing", "Gallery", "Margins"):
        assert word not in page
    for engine in record["engines"].values():
        assert f"{engine['certified']:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") in page


def test_rows_stand_beside_each_other_with_their_recipes(finished: Campaign) -> None:
    section = comparison_of([read_run(finished.result(Task(ROW, recipe))) for recipe in ("paper", "best")])  # type: ignore[arg-type]
    (accuracies,) = [
        block for block in section.blocks if getattr(block, "header", ("",))[0:2] == ["Run", "Certified accuracy"]
    ]
    assert [cells[0] for cells in accuracies.rows] == [f"A · {ROW} (paper)", f"B · {ROW} (best)"]  # type: ignore[attr-defined]


def test_a_cascades_row_is_shown_as_a_cascade(finished: Campaign, tmp_path: Path) -> None:
    page = text(finished.result(Task(CASCADE)), tmp_path / "page.html")
    for word in ("Result of the cascade", "Stage-certified", "Result of the row"):
        assert word in page
    assert "damaged" not in page


def test_a_row_that_goes_on_says_so_and_one_engine_that_did_not_run(finished: Campaign, tmp_path: Path) -> None:
    folder = tmp_path / "row"
    shutil.copytree(finished.result(Task(ROW)), folder)
    record = json.loads((folder / "evaluation.json").read_text())
    record["complete"] = False
    record["engines"]["alpha"] = {"engine": "AlphaCrown()", "not_run": "too large"}
    (folder / "evaluation.json").write_text(json.dumps(record))
    page = text(folder, tmp_path / "page.html")
    assert "Some engines have not run yet" in page
    assert "not run: too large" in page


def test_a_damaged_row_is_told_in_its_place(finished: Campaign, tmp_path: Path) -> None:
    folder = tmp_path / "row"
    shutil.copytree(finished.result(Task(ROW)), folder)
    record = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").write_text(json.dumps(record | {"pgd_error": 1.5}))
    found: RunFiles = read_run(folder)
    assert found.row is None
    assert row(found) is None
    assert "evaluation.json is damaged: it has an error that is no part of 1" in text(folder, tmp_path / "page.html")
