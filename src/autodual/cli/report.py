"""autodual report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodual.cli.terminal import speaks


def report(
    runs: Annotated[list[Path], typer.Argument(help="one run folder, or several to compare")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="where to write; when not given, report.html in the run's folder, or, of several, comparison.html beside the first"
        ),
    ] = None,
) -> None:
    """One self-contained HTML page: what was reached, how it got there, and what the attack still breaks."""
    if not speaks():
        return
    from autodual.report import write_report

    beside = runs[0].resolve().parent / "comparison.html"
    print(write_report(runs, out or (runs[0] / "report.html" if len(runs) == 1 else beside)))
