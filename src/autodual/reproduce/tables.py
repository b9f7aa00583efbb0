"""The paper's tables with our figures beside its own, as Markdown and as one HTML page, and its figures, from the records alone.

Nothing here depends on the time or the machine: equal records make equal files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import TypeVar

from autodual._files import write_text
from autodual.report.blocks import Block, Figure, Figures, Section, Table, Text
from autodual.report.page import render_sections
from autodual.report.plots import ERROR_AXIS, Axis, Series, Spot, line_chart, price_of_proof
from autodual.report.svg import Svg
from autodual.report.verdicts import Rates, rates_chart
from autodual.reproduce.campaign import (
    BEST,
    MODERN,
    RECIPES,
    ROWS,
    SEEDS,
    SIZES,
    Campaign,
    CascadeFigures,
    EngineFigures,
    Errors,
    NetworkFigures,
    Recipe,
    Row,
    RowRecord,
    Task,
)
from autodual.reproduce.evaluation import ROW_ENGINES
from autodual.runs.folder import Run
from autodual.runs.recipes import RECIPES as METHODS
from autodual.runs.records import EpochLine, read

NOT_RUN, NOT_COMPLETE = "not run", "not complete"
SPEEDS = "speeds.json"
TITLE = "Results"
F = TypeVar("F", NetworkFigures, CascadeFigures)
SUBTITLE = "the rows of Wong, Schmidt, Metzen and Kolter (2018), reproduced"

DataAndEps = tuple[str, str]
PROBLEMS: dict[DataAndEps, str] = {
    ("MNIST", "0.1"): "mnist-0.1", ("CIFAR-10", "2/255"): "cifar-2", ("CIFAR-10", "8/255"): "cifar-8", ("MNIST", "0.3"): "mnist-0.3",
    ("MNIST", "1.58"): "mnist-l2", ("CIFAR-10", "36/255"): "cifar-l2",
}  # fmt: skip
"""Short names of what rows are about, in the order of the rows."""


@dataclass(frozen=True)
class ResultTable:
    """A part of the page: a few sentences, a table, and the classifiers that a chart can show."""

    key: str
    title: str
    text: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    shown: Sequence[Rates] = field(default=())
    words: frozenset[str] = frozenset({"row", "recipe", "network", "data"})


@dataclass(frozen=True)
class RowResults:
    """All finished or begun evaluations of a row in one recipe: one for each seed, the first seed first."""

    row: Row
    recipe: Recipe
    records: Sequence[RowRecord]

    @property
    def first(self) -> RowRecord | None:
        return self.records[0] if self.records else None

    def figures(self, kind: type[F]) -> F | None:
        """Figures of the first seed; None where it has not run."""
        found = None if self.first is None else self.first.figures
        return found if isinstance(found, kind) else None

    def values(self, name: str) -> list[float]:
        """A figure by seed, of those that have it."""
        found = (getattr(record.figures, name, None) for record in self.records)
        return [value for value in found if value is not None]

    def percent(self, name: str) -> str:
        """The average over the seeds; nothing where none has this figure."""
        found = self.values(name)
        return _percent(mean(found)) if found else ""


def build_tables(campaign: Campaign) -> list[ResultTable]:
    """All tables, in the order of the page."""
    single, cascades = list[RowResults](), list[RowResults]()
    for row in ROWS:
        recipes: tuple[Recipe, ...] = ("paper", "best") if row.name in BEST else ("paper",)
        for recipe in recipes:
            seeds = (campaign.record(Task(row.name, recipe, seed)) for seed in range(SEEDS))
            found = RowResults(row, recipe, [record for record in seeds if record is not None])
            (cascades if row.is_cascade else single).append(found)
    return [
        _singles("linf", "Single networks, l-infinity", 2, single),
        _singles("width", "Width and depth", 3, single),
        _singles("l2", "Single networks, l2", 4, single),
        _modern(campaign),
        _engines([result for result in single if result.first is not None]),
        _cascades("cascades", "Cascades, l-infinity", 2, cascades),
        _cascades("cascades-l2", "Cascades, l2", 4, cascades),
        _speeds(campaign, single),
    ]


SINGLE_TEXT = (
    "Certified accuracy is the part of all test images that the exact bound (`Dual()`, unless the config names another "
    "`evaluate_engine`) certifies, robust error the rest, and error that of clean images. The paper's columns are what it prints, and "
    "its released weights evaluated again by others, both as robust error / error; the difference is that of our robust error to the "
    "printed one. Three more robust errors: as run, for the network as it computes in float32; best, where an image counts as "
    "certified if one of that bound, `Crown()`, interval bounds and, where they have run, optimised slopes certifies it; and PGD, an "
    "attack on the running network: the true robust error lies between best and PGD."
)
AS_ABOVE = "Columns as in the first table of this kind."


def _singles(key: str, title: str, number: int, results: Sequence[RowResults]) -> ResultTable:
    header = (
        "row", "recipe", "certified accuracy", "robust / error", "paper", "released", "difference", "as run", "best", "PGD",
    )  # fmt: skip
    rows, shown, spreads = [], [], []
    for result in (result for result in results if result.row.table == number):
        rows.append(_single(result))
        found, robust = result.figures(NetworkFigures), result.values("robust_error")
        if len(robust) > 1:
            ends = f"{_percent(min(robust))} to {_percent(max(robust))}"
            spreads.append(
                f"{result.row.name} ({result.recipe}) is the average of {len(robust)} seeds, robust error {ends}."
            )
        if found is not None and result.first is not None:
            errors, examples = (found.error, found.pgd_error, found.robust_error), result.first.examples
            as_run = (found.robust_error_as_run, found.pgd_error_exact)
            shown.append(Rates(f"{result.row.name}, {result.recipe}", *errors, None, examples, *as_run))
    text = SINGLE_TEXT if key == "linf" else AS_ABOVE
    return ResultTable(key, f"{title} (the paper's table {number})", (" ".join([text, *spreads]),), header, rows, shown)


def _single(result: RowResults) -> list[str]:
    row, found = result.row, result.values("robust_error")
    start, theirs = [row.name, result.recipe], [_errors(row.paper), _errors(row.released)]
    if not found:
        return [*start, NOT_RUN, "", *theirs, *[""] * 4]
    robust = mean(found)
    return [
        *start, _percent(1 - robust), f"{_percent(robust)} / {_clean(result)}", *theirs, f"{100 * robust - row.paper[0]:+.2f}",
        result.percent("robust_error_as_run"), result.percent("robust_error_best") or NOT_COMPLETE, result.percent("pgd_error"),
    ]  # fmt: skip


BEST_OF_THE_FIELD: dict[str, tuple[str, str, str]] = {
    "mnist-0.1": ("", "97.95", "IBP, Shi et al. 2021"),
    "mnist-0.3": ("98.35", "93.63", "IBP, CTRAIN 2026"),
    "cifar-2": ("74.33", "59.56", "MTL-IBP, CTRAIN 2026"),
    "cifar-8": ("52.70", "35.41", "MTL-IBP, CTRAIN 2026"),
}
"""The best that was published for networks of this size without branch and bound: natural and certified accuracy, and by whom."""
MODERN_TEXT = (
    "Networks and methods that came after the paper, in `configs/modern/`, and the paper's own networks trained as well as we can "
    "(best/ROW). An image counts as certified if one of the engines that have run certifies it, without branch and bound; PGD is the "
    "accuracy under attack. Options of later methods are those of the source, mostly tuned on test data; we have not tuned them. "
    "Minutes are those of training, on the device that is named."
)


def _modern(campaign: Campaign) -> ResultTable:
    """What came after the paper, by data and eps: the paper's best network, the best that others published, and ours that have run."""
    header = (
        "row",
        "network",
        "natural",
        "certified",
        "as run",
        "PGD",
        "minutes",
        "what it is: natural / certified there",
    )
    rows, waiting = list[list[str]](), list[str]()
    for problem, (natural, certified, source) in BEST_OF_THE_FIELD.items():
        singles = [row for row in ROWS if PROBLEMS[row.data, row.eps] == problem and not row.is_cascade]
        paper = min(singles, key=lambda row: row.paper[0])
        printed = [_percent(1 - value / 100) for value in reversed(paper.paper)]
        rows.append(
            [f"{problem}: the paper", paper.network, *printed, *[""] * 3, f"its best single network, {paper.name}"]
        )
        rows.append([f"{problem}: the field", "", natural, certified, *[""] * 3, source])
        ours = [
            (Task(row.name, "best"), row.network, "the paper's network, our recipe")
            for row in singles
            if row.name in BEST
        ]
        later = [(name, METHODS[method].rows[problem]) for name, (about, method) in MODERN.items() if about == problem]
        ours += [(Task(name, "modern"), str(known.options.get("model", "")), known.source) for name, known in later]
        for task, network, what in ours:
            record = campaign.record(task)
            if record is not None and isinstance(record.figures, NetworkFigures):
                rows.append(_past_the_paper(task, network, record, record.figures, what))
            elif task.recipe == "modern":
                waiting.append(task.row)
    text = [MODERN_TEXT, *([f"Not run yet: {', '.join(waiting)}."] if waiting else [])]
    return ResultTable("modern", "Past the paper", text, header, rows, words=frozenset({*header[:2], header[-1]}))


def _past_the_paper(task: Task, network: str, record: RowRecord, found: NetworkFigures, what: str) -> list[str]:
    name = task.row if task.recipe == "modern" else f"{task.recipe}/{task.row}"
    errors, seconds = (
        (found.error, *found.least_robust_errors, found.pgd_error),
        record.training.seconds.get("training"),
    )
    minutes = "" if seconds is None else f"{seconds / 60:.1f} ({record.training.device})"
    return [name, network, *(_percent(1 - each) for each in errors), minutes, what]


def _engines(results: Sequence[RowResults]) -> ResultTable:
    ran = [name for result in results for name in getattr(result.figures(NetworkFigures), "engines", ())]
    names = [*dict.fromkeys((*ROW_ENGINES, *ran))]
    header = ("row", "recipe", "images", *names, "best of them", "weights of")
    rows = []
    for result in results:
        record, figures = result.first, result.figures(NetworkFigures)
        assert record is not None
        assert figures is not None
        counts = [_certified(figures.engines.get(name), record.examples) for name in names]
        best = f"{figures.certified_best} ({figures.certified_best_as_run})" if record.complete else NOT_RUN
        rows.append([result.row.name, result.recipe, str(record.examples), *counts, best, record.weights.chosen])
    text = (
        "Certified images by engine, and in brackets those certified as run; seed 0. Networks are rounded to float16 first. `Crown()` "
        "is slow on larger networks: it gets the images that the attack does not break and no other engine certifies, as in 12 (11) "
        "of 430. Optimised slopes (`alpha`, see `AlphaCrown`) get no others on any network.",
    )
    words = frozenset({"row", "recipe", "weights of"})
    return ResultTable("engines", "What each engine certifies", text, header, rows, words=words)


def _certified(figures: EngineFigures | None, images: int) -> str:
    if figures is None or figures.images is None:
        return NOT_RUN
    some = f" of {figures.images}" if figures.images < images else ""
    return f"{figures.certified} ({figures.certified_as_run}){some}"


CASCADE_TEXT = (
    "Stage-certified is the paper's metric: the answering stage certifies its own label. It does not say that the cascade is robust: "
    "the attack looks for inputs that a wrong stage certifies. Attacked error is about the first images only, with the stage-"
    "certified error of the same ones in brackets. Sound is what is proved of the paper's cascade; best sound is the best combination "
    "of the same stages whose certificate is sound, chosen on images that are not tested on."
)


def _cascades(key: str, title: str, number: int, results: Sequence[RowResults]) -> ResultTable:
    header = (
        "row", "paper: robust / error", "stage-certified error", "attacked error", "sound error", "sound as run",
        "best sound error", "as run", "which", "error", "stages",
    )  # fmt: skip
    rows, shown = [], []
    for result in (result for result in results if result.row.table == number):
        rows.append(_cascade(result))
        found = result.figures(CascadeFigures)
        if found is not None and result.first is not None:
            every = found.attack is not None and found.attack.attacked_examples == result.first.examples
            attacked = found.attack.attacked_error if every and found.attack is not None else None
            name = f"{result.row.name}, {result.recipe}"
            shown.append(Rates.of_errors(name, found.errors, attacked, result.first.examples))
    text, words = CASCADE_TEXT if key == "cascades" else AS_ABOVE, frozenset({"row", "which"})
    return ResultTable(key, f"{title} (the paper's table {number})", (text,), header, rows, shown, words)


def _cascade(result: RowResults) -> list[str]:
    record, found = result.first, result.figures(CascadeFigures)
    start = [result.row.name, _errors(result.row.paper)]
    if record is None or found is None:
        return [*start, NOT_RUN, *[""] * 8]
    best, attacked = ["", "", NOT_COMPLETE], NOT_COMPLETE
    if found.best_sound is not None:
        chosen = found.best_sound
        best = [_percent(chosen.sound_certified_error), _percent(chosen.sound_certified_error_as_run), chosen.chosen]
    if found.attack is not None:
        beside = _percent(found.attack.on_attacked.stage_certified_error)
        attacked = f"{_percent(found.attack.attacked_error)} ({beside}; {found.attack.attacked_examples} images)"
    return [
        *start, _percent(found.errors.stage_certified_error), attacked, _percent(found.errors.sound_certified_error),
        _percent(found.errors.sound_certified_error_as_run), *best, _clean(result), str(len(record.weights.sha256)),
    ]  # fmt: skip


@dataclass(frozen=True)
class AuthorsSpeed:
    """How long the authors' code takes for a step, and how many steps make an epoch."""

    ms_per_step: float
    steps: int


@dataclass(frozen=True)
class Speeds:
    """speeds.json in the results: the authors' code, by row."""

    device: str = "the same GPU"
    authors: dict[str, AuthorsSpeed] = field(default_factory=dict)


def _speeds(campaign: Campaign, results: Sequence[RowResults]) -> ResultTable:
    """Table 1: sizes, and seconds of an epoch."""
    file = campaign.results / SPEEDS
    found = read(Speeds, file) if file.exists() else Speeds()
    ours = {result.row.name: result for result in results if result.recipe == "paper"}
    rows = []
    for size in SIZES:
        theirs = found.authors.get(size.row or "")
        measured = "" if theirs is None else f"{theirs.ms_per_step * theirs.steps / 1000:.1f}"
        own = _own_seconds(ours[size.row]) if size.row is not None else ""
        counts = [f"{size.hidden:,}", f"{size.parameters:,}", str(size.seconds)]
        rows.append([size.data, size.network, *counts, measured, own or NOT_RUN, size.row or "no row of the tables"])
    header = (
        "data", "network", "hidden units", "parameters", "s per epoch: paper", f"authors' code, {found.device}", "ours", "row",
    )  # fmt: skip
    text = (
        "Hidden units as the paper prints them; MNIST large has 48,064. Ours is the median over the epochs after the first; several "
        "rows that share the GPU are slower than one alone.",
    )
    return ResultTable("speed", "Sizes and speed (the paper's table 1)", text, header, rows)


def _own_seconds(result: RowResults) -> str:
    training = None if result.first is None else result.first.training
    if training is None or training.seconds_per_epoch is None:
        return ""
    beside = f" ({training.side_by_side} side by side)" if training.side_by_side > 1 else ""
    return f"{training.seconds_per_epoch:.1f}{beside}"


def _clean(result: RowResults) -> str:
    """Error on clean images; a network that gives one answer to everything is called what it is."""
    collapsed = any(record.figures.collapsed for record in result.records)
    return f"{result.percent('error')}{' (collapsed)' if collapsed else ''}"


def _errors(errors: Errors | None) -> str:
    return "" if errors is None else f"{errors[0]:.2f} / {errors[1]:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


# The paper's figures that records can be drawn from. A figure whose rows have not run is not drawn.

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
    told = f"{full}: accuracy {_percent(1 - error)}, certified accuracy {_percent(1 - robust)}"
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


# All of it as Markdown and as a page.

INTRODUCTION = (
    "`autodual reproduce tables` builds this page from the records in `results/`; do not edit it.",
    "All figures are per cent of the 10,000 test images unless they say otherwise. The paper chose its networks by their test error, "
    "so its figures are optimistic. Ours are of the last epoch, or of the best one on held-out training images where the table of "
    "engines says so; test images were used once, at the end. Recipe paper: the paper's settings with our estimator. Recipe best: the "
    "same network and eps, trained as well as we can. [Reproduce](reproduce.md) says how to run a row.",
)


def to_markdown(tables: Sequence[ResultTable], pictures: Sequence[Drawing] = ()) -> str:
    """Tables as Markdown. Pictures that were drawn are shown from `figures/`, where `autodual reproduce figures` puts them."""
    parts = [f"# {TITLE}", *map(_wrapped, INTRODUCTION)]
    for table in tables:
        lines = ["| " + " | ".join(cells) + " |" for cells in (table.header, *table.rows)]
        rule = "|" + "|".join("---" if name in table.words else "---:" for name in table.header) + "|"
        parts += [f"## {table.title}", *map(_wrapped, table.text)]
        parts += ["\n".join([lines[0], rule, *lines[1:]]) if table.rows else "No row has run yet."]
    drawn = [picture for picture in pictures if picture.chart is not None]
    parts += ["## Figures"] if drawn else []
    parts += [f"![{picture.title}](figures/{picture.name}.svg)\n\n{picture.title}." for picture in drawn]
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def to_page(tables: Sequence[ResultTable], pictures: Sequence[Drawing] = ()) -> str:
    """One self-contained HTML page, with a chart of what is attacked, unknown and proved where rows have run."""
    about = [Text(text.partition(" [")[0].replace("`", "")) for text in INTRODUCTION]
    sections = [Section("about", "How to read this page", about)]
    for table in tables:
        blocks: list[Block] = [Text(text.replace("`", "")) for text in table.text]
        blocks.append(Table(table.header, table.rows, table.words) if table.rows else Text("No row has run yet."))
        if table.shown:
            blocks.append(rates_chart(table.title, table.shown))
        sections.append(Section(table.key, table.title, blocks))
    drawn = [Figure(picture.title, picture.chart) for picture in pictures if picture.chart is not None]
    if drawn:
        sections.append(Section("pictures", "Figures", [Figures(drawn)]))
    return render_sections(TITLE, SUBTITLE, sections)


def write_tables(campaign: Campaign, markdown: Path, page: Path) -> None:
    tables, pictures = build_tables(campaign), draw_figures(campaign)
    write_text(markdown, to_markdown(tables, pictures))
    write_text(page, to_page(tables, pictures))
