"""The paper's figures that records can be drawn from. A figure whose rows have not run is not drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from autodual._files import write_text
from autodual.report.plots import ERROR_AXIS, Axis, Series, Spot, line_chart, price_of_proof
from autodual.report.svg import Svg
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.rows import MODERN, PROBLEMS, RECIPES, ROWS, DataAndEps, Row
from autodual.reproduce.tables import percent
from autodual.runs.folder import Run
from autodual.runs.records import EpochLine
from autodual.runs.row_records import CascadeFigures, NetworkFigures

TONES = {
    "run-1": "#0b5cad", "run-2": "#b3420a", "run-3": "#00705a", "run-4": "#8a3b8f", "run-5": "#775a00", "run-6": "#4b535d",
}  # fmt: skip
STYLE = "".join([
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.tick,.name{fill:#57606a}.rule{stroke:#d8dee4}.axis,.mark{stroke:#6e7781}",
    ".line{fill:none;stroke-width:2;stroke-linejoin:round}.halo{stroke:#fff;stroke-width:4px;paint-order:stroke}.hover{fill:none}",
    *(f".f-{tone}{{fill:{colour}}}.s-{tone}{{stroke:{colour}}}text.t-{tone}{{fill:{colour}}}" for tone, colour in TONES.items()),
    ".f-published{fill:#afb8c1}",
])  # fmt: skip
"""Style sheet of a picture that stands alone, on white."""


@dataclass(frozen=True)
class Drawing:
    """A figure of the paper; `chart` is None where none of its rows has run."""

    name: str
    title: str
    rows: Sequence[str]
    chart: Svg | None


TONE_OF = dict(zip(PROBLEMS, TONES, strict=True))


def draw_figures(campaign: Campaign) -> list[Drawing]:
    training = ("mnist-small-0.1", "mnist-small-exact-0.1")
    pictures = [
        *_prices(campaign),
        Drawing("projections", "Projections against the exact bound", training, _training(campaign, training)),
    ]
    for (data, eps), name in PROBLEMS.items():
        rows, title = [row for row in ROWS if row.is_cascade and (row.data, row.eps) == (data, eps)], f"{data} {eps}"
        chart, names = _by_stage(campaign, title, rows), [row.name for row in rows]
        pictures.append(Drawing(f"cascades-{name}", f"Cascades by stage, {title}", names, chart))
    return pictures


def write_figures(campaign: Campaign, folder: Path) -> dict[str, Path | None]:
    """Writes FOLDER/NAME.svg for every picture that can be drawn; None for the others, whose file is removed."""
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


PRICE = "Accuracy against certified accuracy"


def _prices(campaign: Campaign) -> Iterator[Drawing]:
    """All single networks, and those with equal data and eps by themselves, where there are several. Grey is what the paper prints."""
    rows = [row for row in ROWS if not row.is_cascade]
    ours, theirs = dict[DataAndEps, list[Spot]](), dict[DataAndEps, list[Spot]]()
    for row in rows:
        for recipe in RECIPES:
            record, problem = campaign.record(Task(row.name, recipe)), (row.data, row.eps)
            if record is None or not isinstance(record.figures, NetworkFigures):
                continue
            label, tone = f"{row.network}{', best' if recipe == 'best' else ''}", TONE_OF[problem]
            errors, full = (record.figures.error, record.figures.robust_error), f"{row.data} {row.eps}, {label}"
            ours.setdefault(problem, []).append(_spot(label, tone, full, *errors))
            if recipe == "paper":
                printed = _spot("", "published", f"The paper's {full}", row.paper[1] / 100, row.paper[0] / 100)
                theirs.setdefault(problem, []).append(printed)
    for name, (about, _) in MODERN.items():
        record = campaign.record(Task(name, "modern"))
        if record is not None and isinstance(record.figures, NetworkFigures):
            problem = next(problem for problem, short in PROBLEMS.items() if short == about)
            robust, _ = record.figures.least_robust_errors
            spot = _spot(name, TONE_OF[problem], name, record.figures.error, robust)
            ours.setdefault(problem, []).append(spot)
    # Among all, a problem is named once.
    every = [
        replace(one, label="" if n else " ".join(problem)) for problem in ours for n, one in enumerate(ours[problem])
    ]
    grey = [spot for spots in theirs.values() for spot in spots]
    chart = price_of_proof("all rows", [*grey, *every]) if every else None
    yield Drawing(
        "price-of-proof", f"{PRICE}; grey: the paper's; on the line both are equal", [row.name for row in rows], chart
    )
    for problem, name in PROBLEMS.items():
        title, spots = " ".join(problem), ours.get(problem, [])
        chart = price_of_proof(title, [*theirs.get(problem, []), *spots]) if len(spots) > 1 else None
        names = [row.name for row in rows if (row.data, row.eps) == problem]
        yield Drawing(f"price-of-proof-{name}", f"{PRICE}, {title}; grey: the paper's", names, chart)


def _spot(label: str, tone: str, full: str, error: float, robust: float) -> Spot:
    told = f"{full}: accuracy {percent(1 - error)}, certified accuracy {percent(1 - robust)}"
    return Spot(label, 1 - error, 1 - robust, tone, told)


def _training(campaign: Campaign, rows: Sequence[str]) -> Svg | None:
    """Robust error on the training images, epoch by epoch, as training estimates it."""
    series = []
    for (tone, row), label in zip(zip(TONES, rows, strict=False), ("k = 50", "exact"), strict=True):
        lines = (line for line in Run(campaign.result(Task(row))).metrics() if isinstance(line, EpochLine))
        points = [(float(line.epoch + 1), line.robust_error) for line in lines if line.stage == 0]
        series += [Series(label, points, tone)] if points else []
    title, across = "Robust error while training, MNIST small 0.1", Axis("epoch", zero=False)
    return line_chart(title, across, ERROR_AXIS, series) if series else None


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
    words, across = f"Stage-certified error by number of stages, {title}", Axis("stages", zero=False, whole=True)
    return line_chart(words, across, ERROR_AXIS, series) if series else None
