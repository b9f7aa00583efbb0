"""The pictures of the documentation that benchmarks draw are as their records make them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch

CASES = {
    "estimator-histograms": ("estimator_histograms", "estimator_histograms"),
    "linear-scaling-cpu": ("scaling_report", "linear_scaling_cpu"),
    "linear-scaling-gpu": ("scaling_report", "linear_scaling_cuda"),
    "two-stage-cascade": ("two_stage_cascade", "two_stage_cascade"),
}
"""By picture: the script that draws it, and the record that it is drawn from."""


@pytest.mark.parametrize("picture", CASES)
def test_a_picture_is_as_its_record_makes_it(picture: str, benchmark_module: Callable[[str], ModuleType]) -> None:
    """If this fails, a record has changed: run the script that is named above with --plot-only."""
    script, record = CASES[picture]
    module, drawing = benchmark_module(script), benchmark_module("drawing")
    path = benchmark_module("machine").RESULTS / f"{record}.json"
    drawn = module.draw(json.loads(path.read_text(encoding="utf-8")))
    assert (drawing.FIGURES / f"{picture}.svg").read_text(encoding="utf-8") == drawn
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_long_legend_takes_several_lines(benchmark_module: Callable[[str], ModuleType]) -> None:
    drawing = benchmark_module("drawing")
    words = {f"an entry of the legend, number {number}": drawing.Key("run-1") for number in range(6)}
    entries, lines = drawing._legend(words, 560.0)
    assert lines == 3
    places = [float(text.get("x")) + 6.4 * len(text.text) for text in ElementTree.fromstring(entries).iter("text")]
    assert max(places) <= 560


def test_regions_of_the_plane_keep_every_cell(benchmark_module: Callable[[str], ModuleType]) -> None:
    module = benchmark_module("two_stage_cascade")
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 2, (module.GRID**2,), generator=generator)
    certified = torch.rand(module.GRID**2, generator=generator) < 0.5
    rows = [
        "".join(int(n) * letter for n, letter in re.findall(r"(\d+)([abAB])", row))
        for row in module._regions(label, certified)
    ]
    expected = ["abAB"[place] for place in (label + 2 * certified).tolist()]
    assert "".join(rows) == "".join(expected)
