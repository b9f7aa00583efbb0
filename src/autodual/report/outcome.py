"""What happened to a run that has measured nothing."""

from __future__ import annotations

from autodual.report.blocks import Note, Section
from autodual.report.files import Run
from autodual.report.values import text

NOTHING = "Nothing was trained and nothing was measured: this run ended before the first epoch did."

UNTOLD = "It left no word why: it was stopped or killed, or still runs. `autodual train --resume` goes on with it."


def outcome(run: Run) -> Section:
    """Says why there is nothing to show, if the run has left word."""
    ended = text(run.failure, "error")
    why = f"It failed: {ended}" if ended else UNTOLD
    return Section("headline", "Result", [Note(f"{NOTHING} {why}")])
