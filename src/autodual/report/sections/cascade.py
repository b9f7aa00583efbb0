"""Cascade stages: who certifies what, what that promises, and what it does not."""

from __future__ import annotations

from autodual.report.blocks import Block, Note, Section, Table, Text, Tiles, Wide
from autodual.report.charts.bars import Bar, Segment, bar_chart
from autodual.report.files import CASCADE, RunFiles
from autodual.report.sections import absence, section
from autodual.report.values import Record, count, records, text, whole
from autodual.report.verdicts import Rates, conditions, rates_chart, rates_tiles

PAPER = (
    "What stage-certified accuracy does not promise: a stage's certificate says that this stage's label is the same everywhere "
    "within eps of the received input. It does not say that the cascade is robust: where an earlier stage mislabels the clean "
    "input without certifying it, an attacker looks for a point nearby where that stage does certify, and the cascade then answers "
    "wrongly, with a certificate. So the truth lies between soundly certified accuracy and accuracy under attack, and may lie below "
    "stage-certified accuracy."
)
SOUND = (
    "This combination's certificate covers the answer of the whole cascade over the whole set: no attack goes below its soundly "
    "certified accuracy."
)
NAMES = {"paper": "the paper's cascade", "routed": "routed cascade", "sum": "sum of logits"}


@section(place=10)
def cascade(run: RunFiles) -> Section | None:
    """The cascade as a whole; nothing for a single network."""
    record = run.cascade
    if run.is_single():
        return None
    if not record:
        words = (
            "The cascade was not evaluated." if run.is_cascade() else "A single network, or a cascade not evaluated."
        )
        return Section("cascade", "Cascade", [absence(run, CASCADE, words)])
    how = " \N{MIDDLE DOT} ".join(part for part in (cascade_name(record).capitalize(), conditions(record)) if part)
    given_up = text(record, "collapsed")
    doubts = [*([] if given_up is None else [f"The cascade has {given_up}."]), *cascade_contradictions(record)]
    blocks: list[Block] = [Text(how), *map(Note, doubts), *_rates(run)]
    blocks.append(Text(SOUND if text(record, "kind") in ("routed", "sum") else PAPER))
    blocks += _stages(record, whole(record, "examples"))
    return Section("cascade", "Result of the cascade", blocks)


def _rates(run: RunFiles) -> list[Block]:
    """Figures that stand together are about the same examples: all of them, or those that were attacked, if these are fewer."""
    every, attacked = cascade_rates(run), Rates.of_attacked("", run.cascade)
    if attacked is None:
        return [_tiles(every), _chart(every)] if every.known() else [_tiles(every)]
    words = f"Attacked: the first {count(attacked.examples)} examples only. The figures of the same examples beside it:"
    if attacked.error is None and attacked.robust is None:
        words = f"Attacked: the first {count(attacked.examples)} examples only; the other figures of these were not recorded."
        return [_tiles(every), _chart(every), Text(words), _tiles(attacked)]
    return [_tiles(every), _chart(every), Text(words), _tiles(attacked), _chart(attacked)]


def cascade_rates(run: RunFiles, name: str = "") -> Rates:
    return Rates.of_cascade(name, run.cascade, run.is_sample(whole(run.cascade, "examples")))


def _tiles(rates: Rates) -> Tiles:
    """The number that the page is about is that of all examples."""
    name = "Soundly certified accuracy"
    return rates_tiles(rates, "as the networks run", name, "attacked error", large=not rates.part)


def _chart(rates: Rates) -> Block:
    return rates_chart("Soundly certified accuracy, accuracy under attack and accuracy of the cascade", [rates])


def cascade_contradictions(record: Record) -> list[str]:
    """What cannot be true of a sound proof and a real attack."""
    found = []
    together = Rates.of_attacked("", record) or Rates.of_cascade("", record)
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
                (
                    wrong,
                    "wrong",
                    f"{name} certifies {wrong} wrongly: another label than the right one",
                    f"wrong: {wrong}",
                )
            )
    segments, start = [], 0
    for size, tone, words, label in parts:
        segments.append(Segment(start, start + max(size, 0), tone, words, label))
        start += max(size, 0)
    total = max(examples or start, start, 1)
    rest = total - start
    return [*segments, Segment(start, total, "unproved", f"certified by no stage: {rest}", f"none: {rest}")]
