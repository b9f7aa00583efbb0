"""Step functions are drawn as steps, on the side on which they hold; samples have intervals of confidence."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pages import change, page_of
from synthetic_run import EPS, config, epoch_line, write_run

from autodual.report.blocks import clopper_pearson, interval, likely, size
from autodual.report.plots import Axis, Points, Series, line_chart, stairs
from autodual.report.sections.curves import Curve, History
from autodual.runs.records import Evaluation, parse

pytest.importorskip("jinja2", reason="the report needs Jinja2")


def test_a_value_holds_from_the_point_before_or_up_to_the_point_after() -> None:
    points = [(0.0, 3.0), (1.0, 2.0), (4.0, 1.0)]
    assert stairs(points, "") == points
    assert stairs(points, "after") == [(0.0, 3.0), (1.0, 3.0), (1.0, 2.0), (4.0, 2.0), (4.0, 1.0)]
    assert stairs(points, "before") == [(0.0, 3.0), (0.0, 2.0), (1.0, 2.0), (1.0, 1.0), (4.0, 1.0)]
    assert stairs([(1.0, 2.0)], "after") == [(1.0, 2.0)]
    chart = line_chart("t", Axis("x"), Axis("y"), [Series("", points, "run-1", steps="before")])
    corners = [tuple(map(float, corner.split(","))) for corner in re.search(r'points="([^"]+)"', chart)[1].split()]
    assert len(corners) == 5
    assert all(x == next_x or y == next_y for (x, y), (next_x, next_y) in pairwise(corners))


def at(points: Points, eps: float, how: str) -> float:
    """The step function's value there."""
    if how == "before":
        return next(y for x, y in points if x >= eps)
    return [y for x, y in points if x <= eps][-1]


def test_between_measured_sizes_a_proof_holds_for_smaller_and_an_attack_for_larger_ones(run: Path) -> None:
    """Against the radii and the curve themselves, at sizes where nothing was measured."""
    record = json.loads((run / "evaluation.json").read_text())
    curve = Curve.of(parse(Evaluation, record))
    radii = np.array(record["radii"])
    for eps in np.linspace(0.001, 0.199, 97):
        proved = at(curve.proved, eps, "before")
        larger = max(1 - point["robust_error"] for point in record["curve"] if point["eps"] >= eps)
        assert proved == pytest.approx(max((radii >= eps).mean(), larger))
        assert at(curve.broken, eps, "after") == pytest.approx(
            min([1 - point["pgd_error"] for point in record["curve"] if point["eps"] <= eps], default=curve.clean)
        )
    assert [y for _, y in curve.proved] == sorted((y for _, y in curve.proved), reverse=True)
    without = Curve.of(parse(Evaluation, record | {"radii": []}))
    assert without.proved[1:] == without.certified
    assert without.proved[0] == (0.0, without.certified[0][1])


def test_what_does_not_change_during_an_epoch_is_drawn_as_steps(run: Path) -> None:
    html = page_of(run)[1]
    for title in ("Learning rate", "Epsilon schedule"):
        chart = html.partition(f"<h3>{title}</h3>")[2].partition("</figure>")[0]
        corners = [tuple(map(float, c.split(","))) for c in re.search(r'<polyline points="([^"]+)"', chart)[1].split()]
        assert all(x == next_x or y == next_y for (x, y), (next_x, next_y) in pairwise(corners)), title
    lines = [epoch_line(stage, epoch, lr=1.0 - epoch) for stage in (0, 1) for epoch in (0, 1)]
    points = History.of(lines).during("lr")
    assert math.isnan(points[3][1])  # between the stages
    assert [*points[:3], *points[4:]] == [(0, 1), (1, 1), (2, 0), (2, 1), (3, 1), (4, 0)]


@pytest.mark.parametrize(
    ("successes", "trials", "wanted"),
    [
        (0, 10, (0.0, 0.3085)),
        (10, 10, (0.6915, 1.0)),
        (1, 1, (0.025, 1.0)),
        (5, 10, (0.1871, 0.8129)),
        (95, 100, (0.8872, 0.9836)),
        (950, 1000, (0.9346, 0.9627)),
    ],
)
def test_intervals_are_those_of_clopper_and_pearson(successes: int, trials: int, wanted: tuple[float, float]) -> None:
    """From published tables; at the ends, the probability of what was seen is 2.5 %."""
    low, high = clopper_pearson(successes, trials)
    assert (low, high) == pytest.approx(wanted, abs=1e-4)
    for p, seen in ((low, range(successes, trials + 1)), (high, range(successes + 1))):
        if 0 < p < 1:
            tail = sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in seen) if trials <= 100 else 0.025
            assert tail == pytest.approx(0.025, abs=1e-6)


def test_an_interval_is_rounded_outwards_and_absurd_counts_have_none() -> None:
    assert likely(0.95, 1000) == "93.4\N{EN DASH}96.3\N{NO-BREAK SPACE}%"
    for examples in (0, -5, 10**300):
        assert interval(0.5, examples) is None


def test_only_samples_have_intervals(run: Path) -> None:
    """The curve was measured on 200 of 360 examples, then on all; the result on all, then on 100 of those that there are."""
    (run / "cascade.json").unlink()
    words = "Clopper-Pearson"
    for of, sections in ((200, {"epsilon", "margins"}), (360, {"margins"})):
        change(run, "evaluation.json", curve_examples=of)
        page = page_of(run)[0]
        found = {key.removeprefix("run-1-") for key, text in page.sections.items() if words in text}
        assert found - {"training"} == sections
    (run / "config.yaml").write_text(config(limit_test=360))
    page = page_of(run)[0]
    found = {key.removeprefix("run-1-") for key, text in page.sections.items() if words in text}
    assert found - {"training"} == {"result", "epsilon", "margins"}
    change(run, "evaluation.json", examples=100)
    section = page_of(run)[0].sections["run-1-result"]
    robust = json.loads((run / "evaluation.json").read_text())["robust_error"]
    assert f"Clopper-Pearson interval: {likely(1 - robust, 100)}" in section


def test_intervals_are_drawn_where_the_table_has_them(run: Path) -> None:
    change(run, "evaluation.json", curve_examples=200)
    html = page_of(run)[1].partition('id="run-1-epsilon"')[2].partition("</section>")[0]
    record = json.loads((run / "evaluation.json").read_text())
    points = len(record["curve"])
    assert html.count('class="interval s-proved"') == html.count('class="interval s-broken"') == 3 * points
    for point in record["curve"]:
        assert f"<td>{likely(1 - point['robust_error'], 200)}</td>" in html


@pytest.mark.parametrize(
    ("eps", "words"),
    [
        (2 / 255, "2/255"),
        (0.5 / 255, "0.5/255"),
        (0.1, "0.1"),
        (0.1 * 1.5, "0.15"),
        (1.58, "1.58"),
        (0.123456, "0.1235"),
    ],
)
def test_sizes_are_written_as_people_write_them(eps: float, words: str) -> None:
    assert size(eps) == words


@pytest.mark.parametrize("factor", [1.0, 2 / 255 / EPS])
def test_every_axis_names_where_it_begins_and_ends(tmp_path: Path, factor: float) -> None:
    """A tick with a label stands at both ends of every horizontal axis, and at both ends of every vertical one."""
    run = write_run(tmp_path / "run", stages=2)
    record = json.loads((run / "evaluation.json").read_text())
    curve = [point | {"eps": factor * point["eps"]} for point in record["curve"]]
    sizes = {key: factor * record[key] for key in ("eps", "radius_limit")}
    radii = [factor * radius for radius in record["radii"]]
    change(run, "evaluation.json", curve=curve, radii=radii, **sizes)
    charts = [chart for chart in re.findall(r"<svg viewBox=.*?</svg>", page_of(run)[1]) if 'class="axis"' in chart]
    assert len(charts) >= 7
    for chart in charts:
        line = r'<line x1="([\d.]+)" x2="([\d.]+)" y1="([\d.]+)" y2="([\d.]+)" class="axis">'
        lines = [tuple(map(float, found)) for found in re.findall(line, chart)]
        left, right, floor = next((x1, x2, y1) for x1, x2, y1, y2 in lines if y1 == y2)
        ticks = [
            (float(x), text)
            for x, y, text in re.findall(
                r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="middle" class="tick">(.*?)<', chart
            )
        ]
        assert {x for x, text in ticks if text} >= {left, right}, chart[:200]
        assert ticks[0][1] != ticks[-1][1]
        heights = [float(y) - 4 for y in re.findall(r'y="([\d.]+)" text-anchor="end" class="tick">[^<]', chart)]
        assert max(heights) == pytest.approx(floor, abs=0.02)
        assert min(heights) == pytest.approx(34, abs=0.02)
