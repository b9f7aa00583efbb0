"""The paper's figures that records of rows can be drawn from, as pictures for the documentation.

Equal records make equal pictures. A figure whose rows have not run is not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from autodual._files import write_text
from autodual.report.plots import ERROR_AXIS, Axis, Series, line_chart
from autodual.report.svg import Svg
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.records import CascadeFigures
from autodual.reproduce.rows import ROWS, Row
from autodual.runs.folder import Run
from autodual.runs.records import EpochLine

TONES = {
    "run-1": "#0b5cad", "run-2": "#b3420a", "run-3": "#00705a", "run-4": "#8a3b8f", "run-5": "#775a00", "run-6": "#4b535d",
}  # fmt: skip
STYLE = "".join([
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.tick,.name{fill:#57606a}.rule{stroke:#d8dee4}.axis,.mark{stroke:#6e7781}",
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}.halo{stroke:#fff;stroke-width:4px;paint-order:stroke}.hover{fill:none}",
    *(f".f-{tone}{{fill:{colour}}}.s-{tone}{{stroke:{colour}}}text.t-{tone}{{fill:{colour}}}" for tone, colour in TONES.items()),
])  # fmt: skip
"""Style sheet of a picture that stands alone, on white."""


@dataclass(frozen=True)
class Picture:
    """A figure of the paper; `chart` is None where none of its rows has run."""

    name: str
    title: str
    rows: Sequence[str]
    chart: Svg | None


def draw_figures(campaign: Campaign) -> list[Picture]:
    training = ("mnist-small-0.1", "mnist-small-exact-0.1")
    pictures = [Picture("projections", "Projections against the exact bound", training, _training(campaign, training))]
    for key, title, chosen in _cascades():
        rows = [row.name for row in chosen]
        pictures.append(
            Picture(f"cascades-{key}", f"Cascades by stage, {title}", rows, _by_stage(campaign, title, chosen))
        )
    return pictures


def write_figures(campaign: Campaign, folder: Path) -> dict[str, Path | None]:
    """FOLDER/NAME.svg for every picture that can be drawn; None for the others, whose file goes."""
    written: dict[str, Path | None] = {}
    for picture in draw_figures(campaign):
        path = folder / f"{picture.name}.svg"
        if picture.chart is None:
            path.unlink(missing_ok=True)
        else:
            write_text(path, alone(picture.chart))
        written[picture.name] = None if picture.chart is None else path
    return written


def alone(chart: Svg) -> str:
    """A chart as a file of its own."""
    head, rest = chart[: chart.index(">")], chart[chart.index(">") + 1 :]
    size = 'xmlns="http://www.w3.org/2000/svg" width="640" height="416"'
    ground = '<rect width="100%" height="100%" fill="#fff"></rect>'
    return f"{head.replace('<svg', f'<svg {size}', 1)}><style>{STYLE}</style>{ground}{rest}\n"


def _training(campaign: Campaign, rows: Sequence[str]) -> Svg | None:
    """Robust error on the training images, epoch by epoch, as training estimates it."""
    series = []
    for (tone, row), label in zip(zip(TONES, rows, strict=False), ("k = 50", "exact"), strict=True):
        lines = (line for line in Run(campaign.result(Task(row))).metrics() if isinstance(line, EpochLine))
        points = [(float(line.epoch + 1), line.robust_error) for line in lines if line.stage == 0]
        series += [Series(label, points, tone)] if points else []
    return (
        line_chart("Robust error while training, MNIST small 0.1", Axis("epoch", zero=False), ERROR_AXIS, series)
        if series
        else None
    )


def _cascades() -> list[tuple[str, str, list[Row]]]:
    """Cascades that share data and eps, in the order of the rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in ROWS:
        if row.is_cascade:
            groups.setdefault((row.data, row.eps), []).append(row)
    names = {("MNIST", "0.1"): "mnist-0.1", ("MNIST", "0.3"): "mnist-0.3", ("MNIST", "1.58"): "mnist-l2"}
    names |= {("CIFAR-10", "2/255"): "cifar-2", ("CIFAR-10", "8/255"): "cifar-8", ("CIFAR-10", "36/255"): "cifar-l2"}
    return [(names[key], " ".join(key), rows) for key, rows in groups.items()]


def _by_stage(campaign: Campaign, title: str, rows: Sequence[Row]) -> Svg | None:
    """Stage-certified error on test images of the first one, two ... stages together."""
    series = []
    for tone, row in zip(TONES, rows, strict=False):
        record = campaign.record(Task(row.name))
        if record is None or not isinstance(record.figures, CascadeFigures):
            continue
        certified = accumulate(stage.certified_correct for stage in record.figures.stages)
        points = [(float(number), 1 - count / record.examples) for number, count in enumerate(certified, 1)]
        series.append(Series(row.network, points, tone, dots=True))
    axis = Axis("stages", zero=False, whole=True)
    return (
        line_chart(f"Stage-certified error by number of stages, {title}", axis, ERROR_AXIS, series) if series else None
    )
