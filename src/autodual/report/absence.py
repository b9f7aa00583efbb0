"""What stands in a section that has nothing to show."""

from __future__ import annotations

from autodual.report.blocks import Note, Text
from autodual.report.files import Run


def absence(run: Run, file: str, consequence: str) -> Text | Note:
    """One sentence: quiet where a file, or what is needed of it, is not there; a note where it is damaged."""
    reason = run.problems.get(file)
    if reason is None:
        return Text(f"{file} does not hold what is needed here. {consequence}")
    return Note(f"{reason} {consequence}") if reason in run.damaged() else Text(f"{reason} {consequence}")
