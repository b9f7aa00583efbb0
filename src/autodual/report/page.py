"""One self-contained HTML page: no network, no scripts, everything that comes from files escaped."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autodual._errors import ArgumentError, AutodualError
from autodual._files import replacing
from autodual.report.blocks import Section
from autodual.report.files import FILES, RunFiles, read_run
from autodual.report.sections import makers
from autodual.report.sections.comparison import compare, letter
from autodual.report.sections.settings import outcome, settings
from autodual.report.values import Record, count, mapping, text, whole

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
    name = f"{letter(index)} · {run.name}" if len(runs) > 1 else run.name
    if not run.measured():
        bare = [outcome(run), settings(run, others)]
        return Chapter(f"run-{index + 1}", name, _subtitle(run.environment), run.damaged(), bare)
    sections = []
    for maker in makers():
        made = maker.make(run)
        if made is not None:
            sections.append(replace(made, of="first stage alone") if maker.first_stage and run.is_cascade() else made)
    sections.append(settings(run, others))
    ended = text(run.failure, "error")
    notes = [*([] if ended is None else [f"This run failed: {ended}"]), *run.damaged()]
    return Chapter(f"run-{index + 1}", name, _subtitle(run.environment), notes, sections)


def _subtitle(environment: Record) -> str:
    data = mapping(environment, "data") or {}
    trained = whole(data, "train")
    parts = [
        text(data, "name"),
        f"{count(trained)} training examples" if trained is not None else None,
        text(environment, "device"),
        f"autodual {text(environment, 'autodual')}" if text(environment, "autodual") else None,
        (text(environment, "started") or "").partition("T")[0],
    ]
    return " · ".join(part for part in parts if part)
