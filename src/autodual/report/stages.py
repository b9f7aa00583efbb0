"""Cascade stages: who certifies what, what that promises, and what it does not."""

from __future__ import annotations

from autodual.report.absence import absence
from autodual.report.bars import Bar, Segment, bar_chart
from autodual.report.blocks import Block, Note, Section, Table, Text, Tile, Tiles, Wide
from autodual.report.files import CASCADE, Run
from autodual.report.headline import conditions
from autodual.report.sandwich import Sandwich, sandwich_chart
from autodual.report.values import Record, count, out_of, percent, records, text, whole

PAPER = (
    "What stage-certified error does not promise: a stage's certificate says that this stage's label is the same everywhere "
    "within eps of the received input. It does not say that the cascade is robust: where an earlier stage mislabels the clean "
    "input without certifying it, an attacker looks for a point nearby where that stage does certify, and the cascade then answers "
    "wrongly, with a certificate. So the truth lies between the attacked and the soundly certified error, and may lie above the "
    "stage-certified one."
)
SOUND = (
    "This combination's certificate covers the answer of the whole cascade over the whole set: its soundly certified error is a bound "
    "that no attack exceeds."
)
NAMES = {"paper": "the paper's cascade", "routed": "routed cascade", "sum": "sum of logits"}


def stages(run: Run) -> list[Section]:
    """One section, or none of a single network."""
    record = run.cascade
    if run.is_single():
        return []
    if not record:
        words = (
            "The cascade was not evaluated." if run.is_cascade() else "A single network, or a cascade not evaluated."
        )
        return [Section("cascade", "Cascade", [absence(run, CASCADE, words)])]
    kind = text(record, "kind")
    examples, attacked = whole(record, "examples"), whole(record, "attacked_examples")
    rates = Sandwich.of_cascade("", record)
    tiles = [
        Tile("Error", percent(rates.error), out_of(rates.error, examples), "ink"),
        Tile("Stage-certified error", percent(rates.claimed), out_of(rates.claimed, examples)),
        Tile("Attacked error", percent(rates.attacked), out_of(rates.attacked, attacked or examples), "attack"),
        Tile("Soundly certified error", percent(rates.robust), out_of(rates.robust, examples), "proved"),
    ]
    how = " \N{MIDDLE DOT} ".join(part for part in (cascade_name(record).capitalize(), conditions(record)) if part)
    blocks: list[Block] = [Text(how), Tiles(tiles)]
    if rates.known():
        blocks.append(sandwich_chart("Attacked and soundly certified error of the cascade", [rates]))
    if attacked is not None and attacked != examples:
        blocks.append(Text(f"Attacked: the first {count(attacked)} examples only."))
    blocks.append(Text(SOUND if kind in ("routed", "sum") else PAPER))
    blocks += _stages(record, examples)
    return [Section("cascade", "Result of the cascade", blocks)]


def cascade_name(record: Record) -> str:
    kind = text(record, "kind") or "cascade of unknown kind"
    return NAMES.get(kind, kind)


def _stages(record: Record, examples: int | None) -> list[Block]:
    found = records(record, "stages")
    if not found:
        return [Note("cascade.json lists no stages.")]
    numbers = [whole(stage, "stage") for stage in found]
    names = [str(index if number is None else number) for index, number in enumerate(numbers)]
    segments = _segments(names, [max(whole(stage, "certified") or 0, 0) for stage in found], examples)
    chart = bar_chart(
        "Examples certified by each stage", [Bar("", segments)], segments[-1].end, "examples, by who certifies them"
    )
    header = ("Stage", "Trained on", "Answers", "Certified", "Correct")
    keys = ("trained_on", "answers", "certified", "correct")
    rows = [[name, *(count(whole(stage, key)) for key in keys)] for name, stage in zip(names, found, strict=True)]
    caption = "Trained on: training examples that no earlier stage certified. Answers, certified, correct: of the evaluated ones."
    legend = [(segment.tone, segment.words) for segment in segments]
    return [Wide(chart, legend), Table(header, rows, frozenset({"Stage"}), caption=caption)]


def _segments(names: list[str], certified: list[int], examples: int | None) -> list[Segment]:
    """One after the other, and at the end what no stage certifies."""
    segments, start = [], 0
    for index, (name, certifies) in enumerate(zip(names, certified, strict=True)):
        end = start + certifies
        tone, words = f"stage-{index % 3 + 1}", f"stage {name} certifies {certifies}"
        segments.append(Segment(start, end, tone, words, f"stage {name}: {certifies}"))
        start = end
    total = max(examples or start, start, 1)
    rest = total - start
    return [*segments, Segment(start, total, "unknown", f"certified by no stage: {rest}", f"none: {rest}")]
