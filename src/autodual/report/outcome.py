"""What happened to a run that has measured nothing."""

from __future__ import annotations

from autodual.report.blocks import Note, Section
from autodual.report.files import Run
from autodual.report.values import text

NOTHING = "Nothing was trained and nothing was measured: this run ended before the first epoch did."


def outcome(run: Run) -> Section:
    """Says why there is nothing to show, if the run has left word."""
    ended = text(run.failure, "error")
    why = (
        f"It failed: {ended}"
        if ended
        else "It left no word why; `autodual train --resume` begins it, and says what is wrong."
    )
    return Section("headline", "Result", [Note(f"{NOTHING} {why}")])
