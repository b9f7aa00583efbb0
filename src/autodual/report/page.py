"""One self-contained HTML page: no network, no scripts, everything that comes from files escaped."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodual._errors import ArgumentError, AutodualError
from autodual._files import replacing
from autodual.report.blocks import Block, Lines, Note, Section, Table, count
from autodual.report.comparison import compare, letter
from autodual.report.run import CONFIG, ENVIRONMENT, FILES, RunFiles, read_run
from autodual.report.sections import absence, makers
from autodual.runs.records import Environment
from autodual.runs.schema import plain

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
    """The page as text."""
    several = len(runs) > 1
    return _template().render(
        title=" · ".join(run.name for run in runs[:4]) + (" · \N{HORIZONTAL ELLIPSIS}" if len(runs) > 4 else ""),
        comparison=compare(runs) if several else None,
        chapters=[_chapter(index, runs) for index in range(len(runs))],
    )


def render_sections(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """A page about something else than runs, as text."""
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
