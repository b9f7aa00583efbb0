"""The paper's tables with our figures beside its own, as Markdown and as one HTML page, from the records alone.

Nothing here depends on the time or the machine: equal records make equal files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TypeVar

from autodual._files import write_text
from autodual.report.blocks import Block, Figure, Figures, Section
from autodual.report.blocks import Table as TableBlock
from autodual.report.blocks import Text as TextBlock
from autodual.report.page import render_sections
from autodual.report.verdicts import Rates, rates_chart
from autodual.reproduce.campaign import Campaign, Recipe, Task
from autodual.reproduce.evaluation import ROW_ENGINES
from autodual.reproduce.figures import Picture, draw_figures
from autodual.reproduce.records import CascadeFigures, EngineFigures, NetworkFigures, RowRecord
from autodual.reproduce.rows import BEST, ROWS, SEEDS, SIZES, Errors, Row, seconds_in_the_paper
from autodual.runs.records import plain, read

NOT_RUN, NOT_COMPLETE = "not run", "not complete"
SPEEDS = "speeds.json"
TITLE = "Results"
F = TypeVar("F", NetworkFigures, CascadeFigures)
SUBTITLE = "the rows of Wong, Schmidt, Metzen and Kolter (2018), reproduced"


@dataclass(frozen=True)
class Table:
    """A part of the page: a few sentences, a table, and the classifiers that a chart can show."""

    key: str
    title: str
    text: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    shown: Sequence[Rates] = field(default=())
    words: frozenset[str] = frozenset({"row", "recipe", "network", "data"})


@dataclass(frozen=True)
class Result:
    """All finished or begun evaluations of a row in one recipe: one for each seed, the first seed first."""

    row: Row
    recipe: Recipe
    records: Sequence[RowRecord]

    @property
    def first(self) -> RowRecord | None:
        return self.records[0] if self.records else None

    def figures(self, kind: type[F]) -> F | None:
        """Those of the first seed; None where it has not run."""
        found = None if self.first is None else self.first.figures
        return found if isinstance(found, kind) else None

    def values(self, name: str) -> list[float]:
        """A figure by seed, of those that have it."""
        found = (getattr(record.figures, name, None) for record in self.records)
        return [value for value in found if value is not None]

    def average(self, name: str) -> float | None:
        found = self.values(name)
        return mean(found) if found else None

    def percent(self, name: str) -> str:
        return _percent(self.average(name))

    def spread(self, name: str) -> str:
        """The average, and the range over several seeds."""
        found = self.values(name)
        if len(found) < 2:
            return self.percent(name)
        return f"{self.percent(name)} ({100 * min(found):.2f} to {100 * max(found):.2f}, {len(found)} seeds)"


def results_of(campaign: Campaign, row: Row) -> list[Result]:
    """The paper's recipe, and ours if the row has one."""
    recipes: list[Recipe] = ["paper", *(["best"] if row.name in BEST else [])]  # type: ignore[list-item]
    found = []
    for recipe in recipes:
        seeds = (campaign.record(Task(row.name, recipe, seed)) for seed in range(SEEDS))
        found.append(Result(row, recipe, [record for record in seeds if record is not None]))
    return found


def build_tables(campaign: Campaign) -> list[Table]:
    """All tables, in the order of the page."""
    every = [result for row in ROWS for result in results_of(campaign, row)]
    single = [result for result in every if not result.row.is_cascade]
    cascades = [result for result in every if result.row.is_cascade]
    return [
        _singles("linf", "Single networks, l-infinity (the paper's table 2)", [r for r in single if r.row.table == 2]),
        _singles("width", "Width and depth (the paper's table 3)", [r for r in single if r.row.table == 3]),
        _singles("l2", "Single networks, l2 (the paper's table 4)", [r for r in single if r.row.table == 4]),
        _engines([result for result in single if result.first is not None]),
        _cascades("cascades", "Cascades, l-infinity (the paper's table 2)", [r for r in cascades if r.row.table == 2]),
        _cascades("cascades-l2", "Cascades, l2 (the paper's table 4)", [r for r in cascades if r.row.table == 4]),
        _speeds(campaign, single),
    ]


SINGLE_TEXT = (
    "Robust error is the part of all test images that the exact bound (`Dual()`) does not certify, certified accuracy the rest; as "
    "run is the statement for the network as it computes in float32. Best counts an image if one of `Dual()`, `Crown()` and interval "
    "bounds certifies it. PGD is an attack on the running network: the true robust error lies between the two. Released are the "
    "authors' weights, evaluated again by others. The difference is that of our robust error to the paper's printed figure."
)
AS_ABOVE = "Columns as in the first table of this kind."


def _singles(key: str, title: str, results: Sequence[Result]) -> Table:
    header = (
        "row", "recipe", "paper: robust / error", "robust error", "difference", "certified accuracy", "as run: robust error",
        "best: robust error", "PGD error", "error", "released: robust / error", "s per epoch (paper)",
    )  # fmt: skip
    rows = [_single(result) for result in results]
    shown = [Rates.of(_name(result), plain(result.first)) for result in results if result.first is not None]
    return Table(key, title, (SINGLE_TEXT if key == "linf" else AS_ABOVE,), header, rows, shown)


def _single(result: Result) -> list[str]:
    row, robust = result.row, result.average("robust_error")
    start, released = [row.name, result.recipe, _errors(row.paper)], _errors(row.released)
    if robust is None:
        return [*start, NOT_RUN, *[""] * 6, released, ""]
    return [
        *start, result.spread("robust_error"), f"{100 * robust - row.paper[0]:+.2f}", f"{100 * (1 - robust):.2f}",
        result.percent("robust_error_as_run"), result.percent("robust_error_best") or NOT_COMPLETE, result.percent("pgd_error"),
        _clean(result), released, _seconds(result),
    ]  # fmt: skip


def _engines(results: Sequence[Result]) -> Table:
    header = ("row", "recipe", "images", *ROW_ENGINES, "best of them", "weights of")
    rows = []
    for result in results:
        record, figures = result.first, result.figures(NetworkFigures)
        assert record is not None
        assert figures is not None
        counts = [_count(figures.engines.get(name), record.examples) for name in ROW_ENGINES]
        best = f"{figures.certified_best} ({figures.certified_best_as_run})" if record.complete else NOT_RUN
        rows.append([result.row.name, result.recipe, str(record.examples), *counts, best, record.weights.chosen])
    text = (
        "Certified images by engine, and in brackets those certified as run; seed 0. Networks are rounded to float16 first. `Crown()` "
        "is slow on larger networks: it gets the images that the attack does not break and no other engine certifies, as in 12 (11) "
        "of 430.",
    )
    return Table(
        "engines", "What each engine certifies", text, header, rows, words=frozenset({"row", "recipe", "weights of"})
    )


def _count(figures: EngineFigures | None, images: int) -> str:
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


def _cascades(key: str, title: str, results: Sequence[Result]) -> Table:
    header = (
        "row", "paper: robust / error", "stage-certified error", "attacked error", "sound error", "sound as run",
        "best sound error", "as run", "which", "error", "stages",
    )  # fmt: skip
    rows = [_cascade(result) for result in results]
    first = [(_name(result), result.first) for result in results if result.first is not None]
    shown = [Rates.of_cascade(name, plain(record)) for name, record in first]
    return Table(
        key, title, (CASCADE_TEXT if key == "cascades" else AS_ABOVE,), header, rows, shown, frozenset({"row", "which"})
    )


def _cascade(result: Result) -> list[str]:
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


def _speeds(campaign: Campaign, results: Sequence[Result]) -> Table:
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
    return Table("speed", "Sizes and speed (the paper's table 1)", text, header, rows)


def _own_seconds(result: Result) -> str:
    training = None if result.first is None else result.first.training
    if training is None or training.seconds_per_epoch is None:
        return ""
    beside = f" ({training.side_by_side} side by side)" if training.side_by_side > 1 else ""
    return f"{training.seconds_per_epoch:.1f}{beside}"


def _seconds(result: Result) -> str:
    paper = seconds_in_the_paper(result.row)
    return f"{_own_seconds(result)}{f' ({paper})' if paper is not None else ''}"


def _clean(result: Result) -> str:
    """Error on clean images; a network that gives one answer to everything is called what it is."""
    collapsed = any(record.figures.collapsed for record in result.records)
    return f"{result.percent('error')}{' (collapsed)' if collapsed else ''}"


def _name(result: Result) -> str:
    return f"{result.row.name}, {result.recipe}"


def _errors(errors: Errors | None) -> str:
    return "" if errors is None else f"{errors[0]:.2f} / {errors[1]:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


INTRODUCTION = (
    "`autodual reproduce tables` builds this page from the records in `results/`; do not edit it.",
    "All figures are per cent of the 10,000 test images unless they say otherwise. The paper chose its networks by their test error, "
    "so its figures are optimistic. Ours are of the last epoch, or of the best one on held-out training images where the table of "
    "engines says so; test images were used once, at the end. Recipe paper: the paper's settings with our estimator. Recipe best: the "
    "same network and eps, trained as well as we can. [Reproduce](reproduce.md) says how to run a row.",
)


def to_markdown(tables: Sequence[Table], pictures: Sequence[Picture] = ()) -> str:
    """pictures: those that were drawn are shown from `figures/`, where `autodual reproduce figures` puts them."""
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


def _wrapped(text: str, width: int = 120) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def to_page(tables: Sequence[Table], pictures: Sequence[Picture] = ()) -> str:
    """One self-contained HTML page, with a chart of what is attacked, unknown and proved where rows have run."""
    about = [TextBlock(text.partition(" [")[0].replace("`", "")) for text in INTRODUCTION]
    sections = [Section("about", "How to read this page", about)]
    for table in tables:
        blocks: list[Block] = [TextBlock(text.replace("`", "")) for text in table.text]
        blocks.append(
            TableBlock(table.header, table.rows, table.words) if table.rows else TextBlock("No row has run yet.")
        )
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
