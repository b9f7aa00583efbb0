"""The paper's tables with our figures beside its own, from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import TypeVar

from autodual.report.verdicts import Rates
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.evaluation import ROW_ENGINES
from autodual.reproduce.rows import BEST, MODERN, PROBLEMS, ROWS, SEEDS, SIZES, PublishedErrors, Recipe, Row
from autodual.runs.recipes import RECIPES as METHODS
from autodual.runs.records import read
from autodual.runs.row_records import CascadeFigures, EngineFigures, NetworkFigures, RowRecord

NOT_RUN, NOT_COMPLETE = "not run", "not complete"
SPEEDS = "speeds.json"
F = TypeVar("F", NetworkFigures, CascadeFigures)


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
        return percent(mean(found)) if found else ""


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
            ends = f"{percent(min(robust))} to {percent(max(robust))}"
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
        *start, percent(1 - robust), f"{percent(robust)} / {_clean(result)}", *theirs, f"{100 * robust - row.paper[0]:+.2f}",
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
        printed = [percent(1 - value / 100) for value in reversed(paper.paper)]
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
    return [name, network, *(percent(1 - each) for each in errors), minutes, what]


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
        "Certified images by engine, and in brackets those certified as run; seed 0. Networks are rounded to float16 first. On "
        "larger networks, images that the attack breaks are not tried, and `Crown()`, the slowest, tries only those that no other "
        "engine certifies, as in 12 (11) of 430. Optimised slopes (`alpha`, see `AlphaCrown`) get no others on any network.",
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
        best = [percent(chosen.sound_certified_error), percent(chosen.sound_certified_error_as_run), chosen.chosen]
    if found.attack is not None:
        beside = percent(found.attack.on_attacked.stage_certified_error)
        attacked = f"{percent(found.attack.attacked_error)} ({beside}; {found.attack.attacked_examples} images)"
    return [
        *start, percent(found.errors.stage_certified_error), attacked, percent(found.errors.sound_certified_error),
        percent(found.errors.sound_certified_error_as_run), *best, _clean(result), str(len(record.weights.sha256)),
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


def _errors(published: PublishedErrors | None) -> str:
    return "" if published is None else f"{published[0]:.2f} / {published[1]:.2f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"
