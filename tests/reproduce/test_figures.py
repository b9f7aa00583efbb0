"""Pictures are made of records alone: those of this repository are as the command makes them; what has not run is not drawn."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.figures import alone, draw_figures, write_figures
from autodual.reproduce.rows import ROWS

from .conftest import CASCADE, ROW, kept

ROOT = Path(__file__).parents[2]


def test_the_pictures_of_this_repository_are_as_the_command_makes_them() -> None:
    """If this fails, records have changed: run `autodual reproduce figures`."""
    drawn = draw_figures(Campaign(ROOT / "configs", ROOT / "results"))
    made = {f"{picture.name}.svg": alone(picture.chart) for picture in drawn if picture.chart is not None}
    ours = {f"{picture.name}.svg" for picture in drawn}  # the other pictures there are drawn by benchmarks
    there = [path for path in (ROOT / "docs" / "figures").glob("*.svg") if path.name in ours]
    assert {path.name: path.read_text() for path in there} == made


def test_what_has_run_is_drawn(finished: Campaign, tmp_path: Path) -> None:
    written = write_figures(finished, tmp_path)
    drawn = [name for name, path in written.items() if path is not None]
    assert drawn == ["price-of-proof", "price-of-proof-mnist-0.1", "projections", "cascades-mnist-0.1"]
    for path in tmp_path.iterdir():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    write_figures(Campaign(finished.configs, tmp_path / "nothing"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_curve_ends_at_the_error_of_the_whole_cascade(finished: Campaign) -> None:
    record = kept(finished, Task(CASCADE))
    picture = next(picture for picture in draw_figures(finished) if CASCADE in picture.rows)
    assert picture.chart is not None
    last = re.findall(r"error, % ([\d.]+) at stages (\d+)", picture.chart)[-1]
    assert int(last[1]) == len(record["stages"])
    assert float(last[0]) == pytest.approx(100 * record["stage_certified_error"], rel=1e-2)


def test_accuracy_stands_against_certified_accuracy(finished: Campaign) -> None:
    """One spot for each recipe of the row that has run, at the place of its two rates, and one for what the paper prints."""
    whole, own = [picture for picture in draw_figures(finished) if picture.name.startswith("price-of-proof")][:2]
    assert len(whole.rows) == len([row for row in ROWS if not row.is_cascade])
    for picture in (whole, own):
        assert picture.chart is not None
        for recipe, label in (("paper", "small"), ("best", "small, best")):
            found = kept(finished, Task(ROW, recipe))
            told = (
                f"accuracy {100 - 100 * found['error']:.2f}, certified accuracy {100 - 100 * found['robust_error']:.2f}"
            )
            assert f"<title>MNIST 0.1, {label}: {told}</title>" in picture.chart
        assert picture.chart.count("f-published") == 1
        assert "The paper's MNIST 0.1, small: accuracy 98.63, certified accuracy 95.01" in unescape(picture.chart)
        assert picture.chart.count("<circle") == 3
    assert whole.chart is not None
    assert re.findall(r"t-run-\d\">([^<]+)</text>", whole.chart) == ["MNIST 0.1"]  # a problem is named once


def test_every_cascade_is_in_one_picture(finished: Campaign) -> None:
    rows = [row for picture in draw_figures(finished) for row in picture.rows if row.endswith("-cascade")]
    assert sorted(rows) == sorted(row.name for row in ROWS if row.is_cascade)
