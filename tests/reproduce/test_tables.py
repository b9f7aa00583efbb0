"""Tables are made of records alone: those of this repository are as the command makes them, and say what has not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.figures import draw_figures
from autodual.reproduce.page import to_markdown, to_page
from autodual.reproduce.rows import ROWS
from autodual.reproduce.tables import build_tables

from .conftest import CASCADE, ROW, kept

ROOT = Path(__file__).parents[2]
MOST_BYTES = 40 * 2**20


def test_the_pages_of_this_repository_are_as_the_command_makes_them() -> None:
    """If this fails, records or wording have changed: run `autodual reproduce tables`."""
    campaign = Campaign(ROOT / "configs", ROOT / "results")
    made = build_tables(campaign), draw_figures(campaign)
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == to_markdown(*made)
    assert (ROOT / "results" / "index.html").read_text(encoding="utf-8") == to_page(*made)


def test_all_results_together_are_small() -> None:
    sizes = {path: path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= MOST_BYTES


def test_every_row_is_there_and_what_has_not_run_says_so(finished: Campaign) -> None:
    text = to_markdown(build_tables(finished))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    for row in ROWS:
        own = [line for line in lines if line.startswith(f"| {row.name} | ")]
        assert own, row.name
        assert any("{:.2f} / {:.2f}".format(*row.paper) in line for line in own)
        if row.name not in (ROW, CASCADE):
            assert all("| not run |" in line for line in own)


def test_figures_are_those_of_the_record(finished: Campaign) -> None:
    record = kept(finished, Task(ROW))
    text = to_markdown(build_tables(finished))
    line = next(line for line in text.splitlines() if line.startswith(f"| {ROW} | paper |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    header = next(line for line in text.splitlines() if line.startswith("| row | recipe |"))
    named = dict(zip((name.strip() for name in header.strip("|").split("|")), cells, strict=True))
    robust, error = map(float, named["robust / error"].removesuffix(" (collapsed)").split(" / "))
    assert (robust, error) == pytest.approx((100 * record["robust_error"], 100 * record["error"]), abs=0.006)
    assert float(named["certified accuracy"]) == pytest.approx(100 - 100 * record["robust_error"], abs=0.006)
    assert float(named["best"]) == pytest.approx(100 * record["robust_error_best"], abs=0.006)
    assert float(named["as run"]) == pytest.approx(100 * record["robust_error_as_run"], abs=0.006)
    assert float(named["PGD"]) == pytest.approx(100 * record["pgd_error"], abs=0.006)
    assert float(named["difference"]) == pytest.approx(100 * record["robust_error"] - 4.99, abs=0.006)


def test_several_seeds_are_averaged_and_their_range_is_shown(finished: Campaign, tmp_path: Path) -> None:
    record = kept(finished, Task(ROW)) | {"pgd_error": 0.03, "pgd_error_exact": 0.03, "engines": {}}
    campaign = Campaign(finished.configs, tmp_path)
    for seed, error in enumerate((0.04, 0.05, 0.06)):
        folder = campaign.result(Task(ROW, seed=seed))
        folder.mkdir(parents=True)
        (folder / "evaluation.json").write_text(json.dumps(record | {"seed": seed, "robust_error": error}))
    text = " ".join(to_markdown(build_tables(campaign)).split())
    assert f"| {ROW} | paper | 95.00 | 5.00 / " in text
    assert f"{ROW} (paper) is the average of 3 seeds, robust error 4.00 to 6.00." in text


def test_an_evaluation_that_is_not_complete_says_so(finished: Campaign, tmp_path: Path) -> None:
    record = kept(finished, Task(ROW))
    campaign = Campaign(finished.configs, tmp_path)
    folder = campaign.result(Task(ROW))
    folder.mkdir(parents=True)
    short = {k: v for k, v in record.items() if "best" not in k}
    (folder / "evaluation.json").write_text(json.dumps(short | {"complete": False}))
    line = next(
        line for line in to_markdown(build_tables(campaign)).splitlines() if line.startswith(f"| {ROW} | paper |")
    )
    assert "| not complete |" in line


def test_the_same_records_make_the_same_pages(finished: Campaign) -> None:
    pages = [to_page(build_tables(finished), draw_figures(finished)) for _ in range(2)]
    assert pages[0] == pages[1]
    assert "proved robust" in pages[0]
    assert "Stage-certified error by number of stages, MNIST 0.1" in pages[0]
    text = to_markdown(build_tables(finished), draw_figures(finished))
    assert "![Cascades by stage, MNIST 0.1](figures/cascades-mnist-0.1.svg)" in text
    assert "cascades-cifar-2" not in text
