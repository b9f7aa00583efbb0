"""Cascade stages: who certifies what, what that promises, and what it does not."""

from __future__ import annotations

from dataclasses import replace

from autodual.report.blocks import Block, Note, Section, Table, Text, Tile, Tiles, Tone, Wide
from autodual.report.charts.bars import Bar, Segment, bar_chart
from autodual.report.files import CASCADE, Run
from autodual.report.sections.headline import Sandwich, absence, conditions, sandwich_chart
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
    how = " \N{MIDDLE DOT} ".join(part for part in (cascade_name(record).capitalize(), conditions(record)) if part)
    blocks: list[Block] = [Text(how), *_rates(record)]
    blocks.append(Text(SOUND if text(record, "kind") in ("routed", "sum") else PAPER))
    given_up = text(record, "collapsed")
    blocks += [] if given_up is None else [Note(f"The cascade has {given_up}.")]
    blocks += [Note(sentence) for sentence in cascade_contradictions(record)]
    blocks += _stages(record, whole(record, "examples"))
    return [Section("cascade", "Result of the cascade", blocks)]


def _rates(record: Record) -> list[Block]:
    """Figures that stand together are about the same examples: of all, and of those that were attacked, if these are fewer."""
    every, attacked = Sandwich.of_cascade("", record), Sandwich.of_attacked("", record)
    if attacked is None:
        blocks: list[Block] = [_tiles(every)]
        return [*blocks, _chart(every)] if every.known() else blocks
    words = f"Attacked: the first {count(attacked.examples)} examples only. The figures of the same examples beside it:"
    if attacked.error is None and attacked.robust is None:
        words = f"Attacked: the first {count(attacked.examples)} examples only; the other figures of these were not recorded."
        return [_tiles(every), Text(words), _tiles(attacked)]
    return [_tiles(every), Text(words), _tiles(attacked), _chart(attacked)]


def _tiles(rates: Sandwich) -> Tiles:
    """What was not measured on these examples is left out, unless nothing was."""
    shown: list[tuple[str, float | None, Tone]] = [
        ("Error", rates.error, "ink"),
        ("Stage-certified error", rates.claimed, ""),
        ("Attacked error", rates.attacked, "attack"),
        ("Soundly certified error", rates.robust, "proved"),
    ]
    tiles = [
        Tile(name, percent(value), out_of(value, rates.examples), tone)
        for name, value, tone in shown
        if value is not None or not rates.known()
    ]
    if rates.robust is not None and rates.robust_as_run is not None:  # an older record does not say
        detail, more = f"{tiles[-1].detail} in real numbers", f"as the networks run: {percent(rates.robust_as_run)}"
        tiles[-1] = replace(tiles[-1], detail=detail.strip(), more=more)
    return Tiles(tiles)


def _chart(rates: Sandwich) -> Block:
    return sandwich_chart("Attacked and soundly certified error of the cascade", [rates])


def cascade_contradictions(record: Record) -> list[str]:
    """What cannot be true of a sound proof and a real attack."""
    found = []
    together = Sandwich.of_attacked("", record) or Sandwich.of_cascade("", record)
    if together.contradictory():
        found.append("The attack on the cascade breaks more than its proof allows: do not trust these certificates.")
    broken = whole(record, "broken_proofs") or 0
    if broken > 0:
        found.append(
            f"{count(broken)} examples are soundly certified and yet broken by the attack: do not trust these certificates."
        )
    return found


def cascade_name(record: Record) -> str:
    kind, models = text(record, "kind") or "cascade of unknown kind", whole(record, "models")
    if kind == "sum" and models is not None:
        return f"sum of logits of {count(models)} models"
    return NAMES.get(kind, kind)


def _stages(record: Record, examples: int | None) -> list[Block]:
    found = records(record, "stages")
    if not found:
        return [Note("cascade.json lists no stages.")]
    numbers = [whole(stage, "stage") for stage in found]
    names = [f"stage {index if number is None else number}" for index, number in enumerate(numbers)]
    if text(record, "kind") == "sum":
        names = [cascade_name(record)] * len(found)  # which answers as one
    segments = _segments(names, found, examples)
    chart = bar_chart(
        "Examples certified by each stage", [Bar("", segments)], segments[-1].end, "examples, by who certifies them"
    )
    header = ("Stage", "Trained on", "Answers", "Certified", "Certified wrongly", "Correct")
    keys = ("trained_on", "answers", "certified", "certified_wrong", "correct")
    rows = [
        [name.removeprefix("stage "), *(count(whole(stage, key)) for key in keys)]
        for name, stage in zip(names, found, strict=True)
    ]
    caption = "Trained on: training examples that no earlier stage certified. All others: of the evaluated ones."
    legend = [(segment.tone, segment.words) for segment in segments]
    return [Wide(chart, legend), Table(header, rows, frozenset({"Stage"}), caption=caption)]


def _segments(names: list[str], found: list[Record], examples: int | None) -> list[Segment]:
    """What each stage certifies rightly, then what wrongly, and at the end what no stage certifies."""
    parts: list[tuple[int, str, str, str]] = []
    for index, (name, stage) in enumerate(zip(names, found, strict=True)):
        right, tone = whole(stage, "certified_correct"), f"stage-{index % 3 + 1}"
        if right is None:  # an old record
            certified = whole(stage, "certified") or 0
            parts.append((certified, tone, f"{name} certifies {certified}, rightly or not", f"{name}: {certified}"))
        else:
            parts.append((right, tone, f"{name} certifies {right} rightly", f"{name}: {right}"))
    for name, stage in zip(names, found, strict=True):
        wrong = whole(stage, "certified_wrong") or 0
        if wrong > 0:
            parts.append(
                (wrong, "ink", f"{name} certifies {wrong} wrongly: another label than the right one", f"wrong: {wrong}")
            )
    segments, start = [], 0
    for size, tone, words, label in parts:
        segments.append(Segment(start, start + max(size, 0), tone, words, label))
        start += max(size, 0)
    total = max(examples or start, start, 1)
    rest = total - start
    return [*segments, Segment(start, total, "unknown", f"certified by no stage: {rest}", f"none: {rest}")]
