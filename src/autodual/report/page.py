"""One self-contained HTML page: no network, no scripts, everything that comes from files escaped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodual._errors import ArgumentError, AutodualError
from autodual._files import replacing
from autodual.report.blocks import (
    DASH,
    INTERVAL,
    Block,
    Figure,
    Figures,
    Lines,
    Note,
    Section,
    Table,
    count,
    duration,
    interval,
    likely,
    percent,
    tidy,
)
from autodual.report.plots import ACCURACY_AXIS, Axis, Points, Series, Spot, Steps, line_chart, price_of_proof
from autodual.report.run import CONFIG, ENVIRONMENT, FILES, RunFiles, read_run
from autodual.report.sections import absence, makers
from autodual.report.sections.curves import EPOCHS, Curve, History, epsilon_axis
from autodual.report.sections.result import cascade_name
from autodual.report.verdicts import Rates, cascade_doubts, doubts, rates_chart
from autodual.runs.records import Environment, plain
from autodual.runs.row_records import NetworkFigures

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"
PAGE = "report.html"
"""A run's own page, in its folder."""


@dataclass(frozen=True)
class Chapter:
    """One run on the page."""

    key: str
    name: str
    subtitle: str
    notes: Sequence[str]
    sections: Sequence[Section]


def write_report(runs: list[Path], target: Path) -> Path:
    """Write one HTML file about one run folder, or several side by side.

    Whatever a folder lacks, the page says so in its place. Several runs never replace the page of a single one, report.html in its
    folder. Needs Jinja2 and Pillow (`pip install autodual[cli]`).

    Args:
        runs: Run folders; the first one is the page's subject.
        target: The file to write.

    Returns:
        The target.

    Raises:
        ArgumentError: There is no run, or the target is a folder.

    Examples:
        >>> from pathlib import Path
        >>> from autodual.report import write_report
        >>> write_report([Path("runs/digits")], Path("report.html"))  # doctest: +SKIP
    """
    if not runs:
        raise ArgumentError("runs: give at least one run folder")
    if target.is_dir():
        raise ArgumentError(f"target: {target} is a folder; give the name of the HTML file")
    if len(runs) > 1 and target.name == PAGE and any((target.parent / file).is_file() for file in FILES):
        raise ArgumentError(
            f"target: {target} is the page of the run {target.parent} alone; give a comparison another name"
        )
    page = render([read_run(Path(folder)) for folder in runs])
    with replacing(target) as temporary:
        temporary.write_bytes(page.encode("utf-8", errors="backslashreplace"))  # JSON may hold lone surrogates
    return target


def render(runs: Sequence[RunFiles]) -> str:
    """Returns the page about these runs as text."""
    several = len(runs) > 1
    return _template().render(
        title=" · ".join(run.name for run in runs[:4]) + (" · \N{HORIZONTAL ELLIPSIS}" if len(runs) > 4 else ""),
        comparison=comparison_of(runs) if several else None,
        chapters=[_chapter(index, runs) for index in range(len(runs))],
    )


def render_sections(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Returns a page about something else than runs as text."""
    return _template().render(title=title, comparison=None, chapters=[Chapter("page", title, subtitle, (), sections)])


@functools.cache
def _template() -> jinja2.Template:
    try:
        import jinja2
    except ImportError:
        raise AutodualError("the report needs Jinja2, which is not installed: pip install 'autodual[cli]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _chapter(index: int, runs: Sequence[RunFiles]) -> Chapter:
    run, others = runs[index], [*runs[:index], *runs[index + 1 :]]
    sections, notes = list[Section](), run.damaged()
    why = None if run.failure is None else run.failure.error
    if run.measured():
        notes = [*([] if why is None else [f"This run failed: {why}"]), *notes]
        for maker in makers():
            if maker.first_stage and run.row is not None:
                continue  # it is about the examples one by one
            made = maker.make(run)
            part = "first stage alone" if maker.first_stage and run.is_cascade() else ""
            sections += [] if made is None else [replace(made, of=part)]
    else:
        told = f"{NOTHING} {UNTOLD if why is None else f'It failed: {why}'}"
        sections.append(Section("result", "Result", [Note(told)]))
    name = f"{letter(index)} · {run.name}" if len(runs) > 1 else run.name
    subtitle = "" if run.environment is None else _subtitle(run.environment)
    return Chapter(f"run-{index + 1}", name, subtitle, notes, [*sections, _settings(run, others)])


NOTHING = "Nothing was trained and nothing was measured: this run ended before the first epoch did."
UNTOLD = "It left no word why: it was stopped or killed, or still runs. `autodual train --resume` goes on with it."


def _subtitle(made: Environment) -> str:
    trained, day = f"{count(made.data.train)} training examples", made.started.partition("T")[0]
    return " · ".join([made.data.name, trained, made.device, f"autodual {made.autodual}", day])


def _settings(run: RunFiles, others: Sequence[RunFiles]) -> Section:
    """Config and environment, as they were. Lines of the config that some other run lacks are marked."""
    blocks: list[Block] = []
    if run.config.strip():
        kept = [set(other.config.splitlines()) for other in others if other.config.strip()]
        lines = [(line, any(line not in lines for lines in kept)) for line in run.config.strip("\n").splitlines()]
        blocks.append(Lines(CONFIG, lines))
    else:
        blocks.append(absence(run, CONFIG, "No config to show."))
    if run.environment is not None:
        header = ("Environment", "Value")
        blocks.append(Table(header, [list(row) for row in _flat(plain(run.environment))], frozenset(header)))
    else:
        blocks.append(absence(run, ENVIRONMENT, "No environment to show."))
    return Section("settings", "Config and environment", blocks)


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


# Several runs side by side: one table, one axis, one letter for each.

DASHES = ("", "7 3", "2 3", "9 3 2 3")
TONES = 6
FEW_POINTS = 10
"""A line of at most this many points shows each of them."""
CASCADES = (
    "A cascade has two rows: all its stages together, and its first stage alone; and a third one for the examples that were attacked, "
    "if these are not all. The certified accuracy of a cascade is the soundly certified one. Stage-certified accuracy is what its "
    "stages claim; it is no bound, and an attack may go below it."
)
AS_RUN = (
    "Certified and under attack: what is proved and broken in real numbers. As run: what is proved for the network as it runs in "
    "float32."
)
PRIME = "\N{PRIME}"


def letter(index: int) -> str:
    """The letter of a run on the page: A ... Z, then A2, B2, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


@dataclass(frozen=True)
class Compared:
    """A run with its letter and its rates: a cascade has its own and those of its first stage, which are never mixed."""

    index: int
    run: RunFiles
    rates: Sequence[Rates]
    history: History

    @classmethod
    def of(cls, index: int, run: RunFiles) -> Compared:
        name, rates = f"{letter(index)} \N{MIDDLE DOT} {run.name}", list[Rates]()
        if run.cascade is not None:
            title = f"{name}, {cascade_name(run.cascade)}"
            for one in Rates.of_cascade(title, run.cascade, run.is_sample(run.cascade.examples)):
                rates.append(replace(one, name=f"{title}, first {count(one.examples)} examples") if one.part else one)
        if run.evaluation is not None:
            whole = f"{name}, first stage alone" if run.is_cascade() else name
            rates.append(Rates.of(whole, run.evaluation, run.is_sample(run.evaluation.examples)))
        if run.row is not None and isinstance(run.row.figures, NetworkFigures):
            rates.append(Rates.of_row(name, run.row.examples, run.row.figures))
        return cls(index, run, rates, History.of(run.metrics))

    @property
    def letter(self) -> str:
        return letter(self.index)

    @property
    def name(self) -> str:
        return f"{self.letter} \N{MIDDLE DOT} {self.run.name}"

    @property
    def tone(self) -> str:
        return f"run-{self.index % TONES + 1}"

    @property
    def data(self) -> str:
        return "" if self.run.environment is None else self.run.environment.data.name

    @property
    def perturbation(self) -> str:
        return "" if self.run.judged is None else tidy(self.run.judged.perturbation)

    @property
    def engine(self) -> str:
        if self.run.evaluation is not None:
            return self.run.evaluation.engine
        return "" if self.run.row is None else "the best of several"


def comparison_of(folders: Sequence[RunFiles]) -> Section:
    """The first section of a page about several runs."""
    runs = [Compared.of(index, run) for index, run in enumerate(folders)]
    rates = [one for run in runs for one in run.rates]
    blocks: list[Block] = [*map(Note, _doubts(runs)), _accuracies(runs), *_natural_against_certified(runs)]
    if rates:
        blocks.append(rates_chart("Certified accuracy, accuracy under attack and accuracy of all runs", rates))
    found = [run.evaluation for run in folders]
    curves = [Curve.of(each) if each is not None and each.curve else None for each in found]
    letters = ", ".join(run.letter for run in runs if run.run.is_cascade())
    first, staged = (
        f"Of each cascade ({letters}): {part}." if letters else ""
        for part in ("its first stage alone", "its stages one after the other")
    )
    exact = all(run.history.validation for run in runs if run.history.epochs)
    how = "On the examples that were looked at exactly." if exact else "On training batches, by the training engine."
    by_epoch = [run.history.certified(exact) for run in runs]
    figures = [
        *_by_problem("Certified accuracy", runs, [c.proved if c else [] for c in curves], first, "before"),
        *_by_problem("Accuracy under attack", runs, [c.broken if c else [] for c in curves], first, "after"),
        *_overlay("Certified accuracy by epoch", EPOCHS, ACCURACY_AXIS, runs, by_epoch, f"{how} {staged}".strip()),
        *_overlay("Loss", EPOCHS, Axis("loss"), runs, [run.history.training("loss") for run in runs], staged),
    ]
    blocks += [Figures(figures)] if figures else []
    return Section("comparison", "Runs side by side", [*blocks, _conditions(runs)])


def _doubts(runs: Sequence[Compared]) -> list[str]:
    """What keeps the numbers of these runs from being compared, or believed."""
    known = [run.run.judged for run in runs if run.run.judged is not None]
    differing: dict[str, set[Any]] = {
        "perturbations": {record.perturbation for record in known},
        "numbers of examples": {record.examples for record in known},
        "engines": {run.engine for run in runs} - {""},
        "data": {run.data for run in runs} - {""},
    }
    found = [name for name, values in differing.items() if len(values) > 1]
    care = f"These runs were evaluated with different {' and '.join(found)}: compare them with care."
    said = [care] if found else []
    said += [f"Run {run.letter} has measured nothing." for run in runs if not run.run.measured()]
    for run in runs:
        own = [] if run.run.evaluation is None else doubts(run.run.evaluation)
        own += [] if run.run.cascade is None else cascade_doubts(run.run.cascade)
        said += [f"Run {run.letter}: {doubt}" for doubt in own]
    return said


def _accuracies(runs: Sequence[Compared]) -> Table:
    """The table of accuracies. Columns that no run has a value for are left out; a run without rates has a row of dashes."""
    rates = [one for run in runs for one in run.rates]
    columns: dict[str, Callable[[Rates], str]] = {"Certified accuracy": lambda one: percent(1 - one.robust)}
    captions = []
    if any(one.sample for one in rates):
        columns["Interval"] = lambda one: likely(1 - one.robust, one.examples) if one.sample else DASH
        captions.append(f"Interval: {INTERVAL} of certified accuracy, where only a sample was used.")
    if any(one.robust_as_run is not None for one in rates):  # published runs do not say
        columns["As run"] = lambda one: _accuracy(one.robust_as_run)
        captions.append(AS_RUN)
    columns["Under attack"] = lambda one: _accuracy(one.broken)
    columns["Accuracy"] = lambda one: percent(1 - one.error)
    if any(run.run.is_cascade() for run in runs):
        columns["Stage-certified"] = lambda one: _accuracy(one.claimed)
        columns["Examples"] = lambda one: count(one.examples)
        captions.insert(0, CASCADES)
    rows = []
    for run in runs:
        rows += [[one.name, *(cell(one) for cell in columns.values())] for one in run.rates]
        rows += [] if run.rates else [[run.name, *[DASH] * len(columns)]]
    return Table(["Run", *columns], rows, frozenset({"Run"}), caption=" ".join(captions))


def _accuracy(error: float | None) -> str:
    return percent(None if error is None else 1 - error)


def _natural_against_certified(runs: Sequence[Compared]) -> list[Block]:
    """Charts of the price of proof: one of all runs, and one for each perturbation that several, but not all, of them share."""
    groups: dict[str, list[Spot]] = {}
    for run in runs:
        spots = [_spot(run, one) for one in run.rates if not one.part]
        if spots:
            groups.setdefault(run.perturbation or "perturbation unknown", []).extend(spots)
    every = [_spot(run, one) for run in runs for one in run.rates if not one.part]
    if not every:
        return []
    caption = (
        "Better is up and to the right. Dashed, where in view: certified accuracy equal to accuracy, its upper limit."
    )
    if any(spot.label.endswith(PRIME) for spot in every):
        caption += " A prime marks a cascade's first stage alone."
    if any(spot.low is not None for spot in every):
        caption += f" Bars: {INTERVAL}s."
    figures = [Figure("Accuracy against certified accuracy", price_of_proof("all runs", every), caption)]
    if len(groups) > 1:
        figures += [
            Figure(f"Those with {name}", price_of_proof(name, own)) for name, own in groups.items() if len(own) > 1
        ]
    return [Figures(figures)]


def _spot(run: Compared, one: Rates) -> Spot:
    accuracy, certified = 1 - one.error, 1 - one.robust
    low, high = (interval(certified, one.examples) if one.sample else None) or (None, None)
    words = f"{one.name}: accuracy {percent(accuracy)}, certified accuracy {percent(certified)}"
    name = f"{run.letter}{PRIME if one.name.endswith('first stage alone') else ''}"
    return Spot(name, accuracy, certified, run.tone, words, low, high)


def _by_problem(
    title: str, runs: Sequence[Compared], points: Sequence[Points], caption: str, steps: Steps
) -> list[Figure]:
    """One figure for each norm and data set: sizes of different ones have no axis in common."""
    problems = [("" if (e := run.run.evaluation) is None else epsilon_axis(e).title, run.data) for run in runs]
    found = list(dict.fromkeys(problem for problem, own in zip(problems, points, strict=True) if own))
    several = [len(set(parts)) > 1 for parts in zip(*found, strict=True)]
    figures = []
    for problem in found:
        own = [one if other == problem else [] for other, one in zip(problems, points, strict=True)]
        full = ", ".join([title, *(part for part, apart in zip(problem, several, strict=True) if part and apart)])
        figures += _overlay(full, Axis(problem[0]), ACCURACY_AXIS, runs, own, caption, steps)
    return figures


def _overlay(
    title: str, across: Axis, up: Axis, runs: Sequence[Compared], points: Sequence[Points], caption: str, steps: Steps = ""
) -> list[Figure]:  # fmt: skip
    """The curves of all runs in one chart; nothing where no run has one."""
    series = []
    for run, found in zip(runs, points, strict=True):
        few, dash = len(found) <= FEW_POINTS and not steps, DASHES[run.index % len(DASHES)]
        full = f"{run.letter} {run.run.name}"
        series.append(Series(run.letter, found, run.tone, dots=few, dash=dash, full=full, steps=steps))
    if not any(points):
        return []
    return [Figure(title, line_chart(f"{title}, all runs", across, up, series), caption)]


def _conditions(runs: Sequence[Compared]) -> Table:
    rows = []
    for run in runs:
        record, seconds = run.run.judged, run.history.seconds()
        examples, time = None if record is None else record.examples, duration(seconds) if seconds else DASH
        rows.append([run.name, count(examples), time, run.data or DASH, run.perturbation or DASH, run.engine or DASH])
    header = ("Run", "Examples", "Training", "Data", "Perturbation", "Engine")
    return Table(header, rows, frozenset({"Run", "Data", "Perturbation", "Engine"}))
