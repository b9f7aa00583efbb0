"""The parts of the page: scales, labels, bins, images, colours."""

import base64
import io
import itertools
import math
import re

import numpy as np
import pytest
from synthetic_run import epoch_line

from autodual.report.page import TEMPLATES
from autodual.report.plots import Axis, Series, line_chart, make_bins, power_tick, spread
from autodual.report.sections.curves import History
from autodual.report.sections.result import data_uri
from autodual.report.svg import LogScale, Scale, element, nice_step
from autodual.runs.records import TrainedLine


@pytest.mark.parametrize("span", [1e-9, 0.03, 0.7, 1.0, 9.99, 123.0, 5e7])
def test_steps_are_round_and_few(span: float) -> None:
    step = nice_step(span, 5)
    assert step * 5 >= span * (1 - 1e-9)
    assert float(f"{step:.1e}"[:3]) in (1.0, 2.0, 2.5, 5.0)


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 12, 13, 60, 999])
def test_counts_have_ticks_at_whole_numbers_and_at_both_ends(largest: int) -> None:
    for scale in (Scale.around([largest], 0, 1, whole=True), Scale.exactly(0, largest, 0, 1, whole=True)):
        assert all(tick == round(tick) for tick in scale.ticks)
        assert (scale.ticks[0], scale.ticks[-1]) == (scale.low, scale.high)
        assert scale.high >= largest


def test_a_scale_covers_its_values() -> None:
    for values in ([0.03, 0.27], [5.0], [0.0], [-3.0, 8.0], [], [math.nan, 2.0], [1e-30, 1e30]):
        scale = Scale.around(values, 0.0, 100.0)
        assert 1 < len(scale.ticks) <= 8
        assert all(0 <= scale(value) <= 100 for value in scale.ticks)
        assert all(scale.low <= value <= scale.high * (1 + 1e-9) for value in values if math.isfinite(value))


def test_a_logarithmic_scale_covers_its_values_in_powers_of_ten() -> None:
    for values in ([0.03, 270.0], [5.0], [1.0], [1e-3, 1e3], [], [math.nan, 2.0], [0.0, 20.0]):
        scale = LogScale.decades(values, 0.0, 100.0)
        assert len(scale.ticks) > 1
        assert all(math.log10(tick) == pytest.approx(round(math.log10(tick))) for tick in scale.ticks)
        assert all(scale.low <= value <= scale.high * (1 + 1e-9) for value in values if value > 0)
    decade = LogScale.decades([0.1, 100.0], 0.0, 90.0)
    assert [decade(value) for value in (0.0, 0.1, 1.0, 10.0, 100.0, 1e9)] == pytest.approx([0, 0, 30, 60, 90, 90])
    fitted = LogScale.decades([3.0, 500.0], 0.0, 100.0, fit=True)
    assert (fitted(3.0), fitted(500.0), fitted.ticks) == (0.0, 100.0, (10.0, 100.0))


def test_powers_of_ten_are_written_as_powers() -> None:
    assert [power_tick(value) for value in (1e-12, 0.1, 1.0, 1000.0, 250.0, 0.0)] == [
        "10⁻¹²",
        "10⁻¹",
        "10⁰",
        "10³",
        "250",
        "0",
    ]


def test_a_chart_may_have_logarithmic_axes_and_no_places_for_the_pointer() -> None:
    axis = Axis("x", power_tick, log=True)
    chart = line_chart("t", axis, axis, [Series("", [(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)], "wrong", hover=False)])
    (left, low), (x, y), (right, high) = (map(float, p.split(",")) for p in re.findall(r"[\d.]+,[\d.]+", chart))
    assert (x, y) == pytest.approx(((left + right) / 2, (low + high) / 2), abs=0.1)
    assert "<circle" not in chart


def test_labels_are_pushed_apart_and_stay_inside() -> None:
    moved = spread([10.0, 10.0, 11.0, 90.0, 99.0, 99.5], 8.0, 10.0, 100.0)
    assert all(b - a >= 8 - 1e-9 for a, b in itertools.pairwise(moved))
    assert moved[0] >= 10
    assert moved[-1] <= 100


def test_strings_in_charts_are_escaped() -> None:
    bad = '<script>"&'
    chart = line_chart(bad, Axis(bad), Axis(bad), [Series(bad, [(0, 1), (1, 2)], "wrong", full=bad)])
    assert "<script" not in chart
    escaped = "&lt;script&gt;&quot;&amp;"
    assert element("text", bad, class_=bad) == f'<text class="{escaped}">{escaped}</text>'


def test_a_line_has_a_gap_where_a_value_is_missing() -> None:
    chart = line_chart(
        "t", Axis("x"), Axis("y"), [Series("a", [(0, 1), (1, 2), (1.5, math.nan), (2, 1), (3, 1)], "wrong")]
    )
    assert chart.count("<polyline") == 2
    assert "nan" not in chart


@pytest.mark.parametrize(
    ("points", "dots"),
    [
        ([(5, 1)], 1),
        ([(0, 1), (1, 2), (2, 1)], 0),
        ([(0, 1), (0.5, math.nan), (1, 2), (1.5, math.nan), (2, 1)], 3),
        ([(x, 1) for x in range(50)], 0),
        ([*((x, 1) for x in range(50)), (50.5, math.nan), (51, 2)], 1),
        ([(x, 1) for x in range(2000)], 0),
    ],
)
def test_a_point_that_no_line_reaches_is_seen(points: list[tuple[float, float]], dots: int) -> None:
    chart = line_chart("t", Axis("x"), Axis("y"), [Series("a", points, "wrong")])
    assert chart.count('class="dot f-wrong"') == dots
    assert chart.count("<circle") <= 151


@pytest.mark.parametrize("pivot", [0.0, 0.1])
def test_bins_count_every_value_once_and_meet_at_the_pivot(pivot: float) -> None:
    random = np.random.default_rng(0)
    values = [*random.normal(0.1, 1, 500), 1e6, -1e6, pivot]
    bins = make_bins(values, pivot)
    assert sum(bins.counts) == len(values)
    assert bins.beyond == 2
    assert min(abs(edge - pivot) for edge in bins.edges) < 1e-12
    assert len(bins.counts) <= 40
    beyond_pivot = sum(
        number for edge, number in zip(bins.edges[:-1], bins.counts, strict=True) if edge >= pivot - 1e-9
    )
    assert beyond_pivot == sum(value >= pivot for value in values)


def test_far_values_below_the_pivot_are_not_counted_above_it() -> None:
    bins = make_bins([0.0] * 6 + [0.150, 0.151, 0.152, 0.153] * 20, pivot=0.1, most=0.2)
    above = sum(n for edge, n in zip(bins.edges[:-1], bins.counts, strict=True) if edge >= 0.1 - 1e-9)
    assert above == 80
    assert bins.beyond == 6
    whole = make_bins([0.0] * 6 + [0.150, 0.151, 0.152, 0.153] * 20, pivot=0.1, least=0.0, most=0.2)
    assert whole.beyond == 0
    assert (whole.edges[0], whole.edges[-1]) == pytest.approx((0.0, 0.2))


@pytest.mark.parametrize("eps", [0.1, 0.3, 1.58, 2 / 255, 36 / 255])
def test_bins_of_radii_begin_at_zero_meet_at_eps_and_end_at_the_limit(eps: float) -> None:
    """Radii are float32: the largest ones may exceed the limit by rounding."""
    radii = (np.float32(2 * eps) * np.linspace(0, 1, 50, dtype=np.float32)).astype(float)
    bins = make_bins([*radii, float(np.nextafter(np.float32(2 * eps), np.float32(9)))], eps, least=0.0, most=2 * eps)
    assert (bins.edges[0], bins.edges[-1], bins.beyond) == pytest.approx((0.0, 2 * eps, 0))
    assert min(abs(edge - eps) for edge in bins.edges) < 1e-12
    assert sum(bins.counts) == 51


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [-1.0, -1.0], [0.2] * 5 + [0.0]])
def test_bins_of_few_values(values: list[float]) -> None:
    assert sum(make_bins(values).counts) == len(values)


def test_later_stages_go_on_where_earlier_ones_end_and_repeated_epochs_count_once() -> None:
    lines = [epoch_line(s, e, loss=10.0 * s + e) for s in (0, 1) for e in (1, 2, 2, 3)]
    history = History.of([*lines, TrainedLine("trained", 1, 9, 0.1, None)])
    assert list(history.epochs) == [2, 3, 4, 5, 6, 7]  # records count from 0, people from 1
    assert [mark.at for mark in history.stages] == [1, 4]
    finite = [value for _, value in history.training("loss") if math.isfinite(value)]
    assert finite == [1, 2, 3, 11, 12, 13]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_hold_the_pixels(channels: int) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")
    image = np.random.default_rng(0).integers(0, 256, (channels, 5, 7)).astype(np.uint8)
    decoded = np.asarray(pillow.open(io.BytesIO(base64.b64decode(data_uri(image).partition(",")[2]))))
    wanted = image.transpose(1, 2, 0) if channels == 3 else image.mean(0).round()
    assert np.array_equal(decoded, wanted)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(scheme: str) -> None:
    """WCAG AA: 4.5 for text, 3 for what is only drawn."""
    style = (TEMPLATES / "style.css").read_text()
    light, dark = style.split("@media screen", 1)[0], style.split("@media screen", 1)[1].split("* {", 1)[0]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if scheme == "light" else dark))
    assert len(colours) >= 20
    words = ["text", "muted", "link", "wrong", "broken", "unknown", "proved", *(f"run-{i}" for i in range(1, 7))]
    assert min(_contrast(colours[name], colours["paper"]) for name in words) >= 4.5
    assert min(_contrast(colours["text"], colours[ground]) for ground in ("note", "raised", "paper")) >= 4.5
    assert _contrast(colours["on-mark"], colours["mark"]) >= 4.5
    assert min(_contrast(colours[name], colours["paper"]) for name in ("axis", "stage-1", "stage-2", "stage-3")) >= 3
