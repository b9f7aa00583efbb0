"""Config and environment, as they were; or what happened to a run that has measured nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autodual.report.blocks import Block, Lines, Note, Section, Table
from autodual.report.files import CONFIG, ENVIRONMENT, RunFiles
from autodual.report.sections import absence
from autodual.report.values import Record, text

# Config and environment, as they were.


def settings(run: RunFiles, others: Sequence[RunFiles] = ()) -> Section:
    """Lines of the config that some other run lacks are marked."""
    blocks: list[Block] = []
    if run.config.strip():
        kept = [set(other.config.splitlines()) for other in others if other.config.strip()]
        lines = [(line, any(line not in lines for lines in kept)) for line in run.config.strip("\n").splitlines()]
        blocks.append(Lines(CONFIG, lines))
    else:
        blocks.append(absence(run, CONFIG, "No config to show."))
    if run.environment:
        table = Table(
            ["Environment", "Value"], [list(row) for row in _flat(run.environment)], frozenset({"Environment", "Value"})
        )
        blocks.append(table)
    else:
        blocks.append(absence(run, ENVIRONMENT, "No environment to show."))
    return Section("settings", "Config and environment", blocks)


def _flat(record: Record, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in record.items():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


# What happened to a run that has measured nothing.

NOTHING = "Nothing was trained and nothing was measured: this run ended before the first epoch did."

UNTOLD = "It left no word why: it was stopped or killed, or still runs. `autodual train --resume` goes on with it."


def outcome(run: RunFiles) -> Section:
    """Says why there is nothing to show, if the run has left word."""
    ended = text(run.failure, "error")
    why = f"It failed: {ended}" if ended else UNTOLD
    return Section("result", "Result", [Note(f"{NOTHING} {why}")])
