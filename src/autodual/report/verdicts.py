"""What becomes of an example: proved, unknown, broken by the attack, or wrong. One word and one colour each, on every page.

The truth lies between the proof and the attack: what is proved is robust, what is broken is not, and what is between is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autodual.certificates.certificate import collapse
from autodual.report.blocks import Tile, Tiles, Wide
from autodual.report.charts.bars import Bar, Segment, Tick, bar_chart
from autodual.report.charts.svg import nice_step
from autodual.report.values import (
    INTERVAL,
    SPACE,
    Record,
    flags,
    integers,
    likely,
    mapping,
    number,
    numbers,
    out_of,
    percent,
    plural,
    rate,
    size,
    text,
    tidy,
    whole,
)

LEGEND = (
    ("proved", "proved robust"),
    ("unknown", "unknown: neither proved nor broken"),
    ("broken", "right, but broken by the attack"),
    ("wrong", "wrong without any attack"),
)
UNPROVED = ("unproved", "not proved")
"""For records that do not say more of an example."""


# Example by example.


def verdicts(record: Record) -> list[str]:
    """The tone of every example, as in LEGEND; empty where the record does not have what is needed."""
    certified, labels, predicted = flags(record, "certified"), integers(record, "labels"), integers(record, "predicted")
    broken = flags(record, "attacked")
    columns = (certified, labels, predicted, broken)
    if certified is None or labels is None or predicted is None or broken is None:
        return []
    if len({len(column) for column in columns if column is not None}) > 1:
        return []
    return [
        "proved" if proof else "wrong" if label != answer else "broken" if attack else "unknown"
        for proof, label, answer, attack in zip(certified, labels, predicted, broken, strict=True)
    ]


# All examples together.

CUT_BELOW = 0.25
"""An axis from 0 shows what is not proved as slivers where it is less than this: the axis is cut, with a mark and a sentence."""


@dataclass(frozen=True)
class Rates:
    """One classifier's rates of error; those that were not measured are None."""

    name: str
    error: float | None
    attacked: float | None
    robust: float | None
    claimed: float | None = None
    """Stage-certified error of a cascade: what its stages claim, which is no bound."""
    examples: int | None = None
    """All rates are about these."""
    robust_as_run: float | None = None
    """`robust` is about real numbers; this is about the network as it runs. None in older records."""
    attacked_exact: float | None = None
    """`attacked` is about the network as it runs; this is about real numbers. None in older records."""
    sample: bool = False
    """Whether these examples are a part of those that there are: then intervals of confidence stand beside the rates."""
    part: bool = False
    """Whether the same classifier has rates on more examples."""

    @classmethod
    def of(cls, name: str, record: Record, sample: bool = False) -> Rates:
        """Rates of a single network from evaluation.json."""
        error, attacked, robust = (rate(record, key) for key in ("error", "pgd_error", "robust_error"))
        as_run, exact = rate(record, "robust_error_as_run"), rate(record, "pgd_error_exact")
        return cls(name, error, attacked, robust, None, whole(record, "examples"), as_run, exact, sample)

    @classmethod
    def of_cascade(cls, name: str, record: Record, sample: bool = False) -> Rates:
        """Rates of a whole cascade on all examples from cascade.json; with the attack if that was on all of them, too."""
        every = whole(record, "attacked_examples") in (None, whole(record, "examples"))
        rates = cls._of_cascade(name, record, rate(record, "attacked_error") if every else None)
        return replace(rates, sample=sample)

    @classmethod
    def of_attacked(cls, name: str, record: Record) -> Rates | None:
        """Rates of a cascade on the examples that were attacked, where those are not all; an old record has the attack alone."""
        attacked = whole(record, "attacked_examples")
        if attacked in (None, whole(record, "examples")):
            return None
        rates = {**(mapping(record, "on_attacked") or {}), "examples": attacked}
        return replace(cls._of_cascade(name, rates, rate(record, "attacked_error")), sample=True, part=True)

    @classmethod
    def _of_cascade(cls, name: str, record: Record, attacked: float | None) -> Rates:
        error, robust, claimed = (
            rate(record, key) for key in ("error", "sound_certified_error", "stage_certified_error")
        )
        as_run = rate(record, "sound_certified_error_as_run")
        return cls(name, error, attacked, robust, claimed, whole(record, "examples"), as_run)

    @property
    def broken(self) -> float | None:
        """Attacked error in the arithmetic of the proof, where that is known."""
        return self.attacked if self.attacked_exact is None else self.attacked_exact

    def contradictory(self) -> bool:
        """Whether the attack breaks more than the proof allows, in the same arithmetic. An older record does not say in which."""
        pairs = [(self.attacked, self.robust if self.robust_as_run is None else self.robust_as_run)]
        pairs.append((self.attacked_exact, self.robust))
        return any(broken is not None and proof is not None and broken > proof + 1e-9 for broken, proof in pairs)

    def known(self) -> list[float]:
        rates = (self.error, self.attacked, self.robust, self.claimed)
        return [rate for rate in rates if rate is not None]

    def segments(self) -> list[Segment]:
        """Proved, unknown, broken, wrong, from 0 to 1: they meet at certified accuracy, accuracy under attack, and accuracy."""
        right = 1 - (self.error or 0.0)
        unbroken = right if self.broken is None else min(right, 1 - self.broken)
        found = []
        if self.robust is not None:
            proved = min(unbroken, 1 - self.robust)
            why = "neither proved nor broken" if self.broken is not None else "not proved, and not attacked"
            found += [
                Segment(0.0, proved, "proved", f"proved robust: {percent(proved)}", "proved"),
                Segment(proved, unbroken, "unknown", f"{why}: {percent(unbroken - proved)}", "unknown"),
            ]
        what = (
            "right, but broken by the attack" if self.error is not None else "broken by the attack, or wrong without it"
        )
        found.append(Segment(unbroken, right, "broken", f"{what}: {percent(right - unbroken)}", "broken"))
        if self.error is not None:
            found.append(Segment(right, 1.0, "wrong", f"wrong without any attack: {percent(self.error)}", "wrong"))
        return found

    def bar(self) -> Bar:
        claimed = () if self.claimed is None else (Tick(1 - self.claimed, _claim(self.claimed)),)
        return Bar(self.name, self.segments(), claimed)


def _claim(error: float) -> str:
    return f"stage-certified accuracy: {percent(1 - error)}"


def rates_chart(title: str, rates: Sequence[Rates]) -> Wide:
    """Bars on one axis from 0 to 100 %, or visibly cut where nearly everything is proved."""
    low = _start(rates)
    bars = [one.bar() for one in rates]
    shown = {segment.tone for bar in bars for segment in bar.segments if segment.end > segment.start}
    legend = [(tone, words) for tone, words in LEGEND if tone in shown]
    legend += [("pointer", "stage-certified accuracy")] if any(bar.ticks for bar in bars) else []
    caption = f"Cut at {100 * low:.4g}{SPACE}%: everything from 0{SPACE}% to there is proved robust." if low else ""
    return Wide(bar_chart(title, bars, 1.0, "% of examples", scale=100.0, low=low), legend, caption)


def _start(rates: Sequence[Rates]) -> float:
    """0, or a round value before the smallest certified accuracy where all of them are large."""
    largest = max((error for one in rates for error in one.known()), default=1.0)
    room = max(1.2 * largest, 0.005)
    if not largest or room > CUT_BELOW or any(one.robust is None for one in rates):
        return 0.0  # there is nothing to see more closely, or enough; without a proof, nothing before the cut is proved
    step = nice_step(room, 5)
    return 1 - step * -(-room // step)


def rates_tiles(
    rates: Rates, runs: str, certified: str = "Certified accuracy", attack: str = "PGD error", large: bool = True
) -> Tiles:
    """Certified accuracy in the colour of what is proved, then the other verdicts, which fill it up to 100 %; error rates below each.

    runs: words for the arithmetic of the network as it runs.
    """
    n, tiles = rates.examples, []
    if rates.robust is not None:
        details = [f"certified robust error {percent(rates.robust)}"]
        if rates.robust_as_run is not None:
            details = [f"in real numbers; {runs}: {percent(1 - rates.robust_as_run)}", *details]
        if rates.sample:
            details.append(f"{INTERVAL}: {likely(1 - rates.robust, n)}")
        tiles.append(
            Tile(certified, percent(1 - rates.robust), out_of(1 - rates.robust, n), "proved", details, large=large)
        )
    elif not rates.part:
        tiles.append(Tile(certified, "not known", "there is no certain proof", "", large=large))
    for segment in rates.segments():
        share, more = segment.end - segment.start, []
        if segment.tone == "unknown":
            name = "Unknown" if rates.broken is not None else "Not proved, not attacked"
        elif segment.tone == "wrong":
            name, more = "Wrong without attack", [f"accuracy {percent(1 - share)}"]
        elif segment.tone == "broken" and rates.broken is not None:
            name, more = "Broken by the attack", [f"{attack}, with the wrong: {percent(rates.attacked)}"]
            if rates.error is None:
                name, more = "Broken, or wrong without attack", [f"{attack} {percent(rates.attacked)}"]
            if rates.attacked_exact is not None:
                more = [f"{more[0]} {runs}, {percent(rates.attacked_exact)} in real numbers"]
            if rates.sample:
                more.append(f"{INTERVAL} of accuracy under attack: {likely(1 - rates.broken, n)}")
        else:
            continue
        tiles.append(Tile(name, percent(share), out_of(share, n), segment.tone, more))  # type: ignore[arg-type]
    if rates.claimed is not None:
        told = ["what the stages claim: no bound"]
        told += [f"{INTERVAL}: {likely(1 - rates.claimed, n)}"] if rates.sample else []
        tiles.append(Tile("Stage-certified", percent(1 - rates.claimed), out_of(1 - rates.claimed, n), "", told))
    return Tiles(tiles)


# What was evaluated, and what keeps it from being believed.


def conditions(record: Record) -> str:
    """What was evaluated, against what and how."""
    examples, eps = whole(record, "examples"), number(record, "eps")
    norm, split = text(record, "norm") or "", text(record, "split")
    parts = [
        None if examples is None else plural(examples, f"{split} example" if split else "example"),
        tidy(text(record, "perturbation") or "") or (f"{norm} eps {size(eps)}".strip() if eps else None),
        f"engine {text(record, 'engine')}" if text(record, "engine") else None,
        text(record, "dtype"),
    ]
    return " · ".join(part for part in parts if part)


def as_run(record: Record) -> str:
    """In plain words: the arithmetic of the network as it runs."""
    return f"as the network runs in {text(record, 'dtype') or 'its own numbers'}"


def collapsed(record: Record) -> list[str]:
    """A sentence about a network that gives one answer for everything, if the record has each example's."""
    predicted, labels = integers(record, "predicted"), integers(record, "labels")
    if not predicted or not labels or len(predicted) != len(labels):
        told = text(record, "collapsed")
        return [] if told is None else [f"This network has {told}."]
    names = record.get("classes")
    classes = names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
    found = collapse(predicted, labels, numbers(record, "margins"), classes)
    return [] if found is None else [f"This network has {found}."]


def contradictions(record: Record) -> list[str]:
    """What cannot be true of a sound proof and a real attack, said aloud rather than drawn over."""
    found = []
    rates = Rates.of("", record)
    if rates.contradictory():
        found.append(
            "The attack breaks more than the proof allows: one of the two is wrong. Do not trust these certificates."
        )
    elif rates.error is not None and rates.robust is not None and rates.error > rates.robust + 1e-9:
        found.append("The robust error is below the plain error, which cannot be: do not trust this evaluation.")
    pairs = (("certified", "attacked", ""), ("certified_as_run", "attacked_as_run", " as the network runs"))
    for proofs, attacks, where in pairs:
        both = _in_both(record, proofs, attacks)
        if both:
            found.append(
                f"{both} examples are certified{where} and yet broken by the attack: do not trust these certificates."
            )
    engine = text(record, "engine") or ""
    if engine.startswith("Projected"):
        found.append(f"{engine} gives estimates: what is called proved here is not.")
    if engine.startswith("HighProbability"):
        found.append(f"Each proof by {engine} fails with probability delta at most: it is not certain.")
    return found


def _in_both(record: Record, proofs: str, attacks: str) -> int:
    """How many examples have both flags; 0 where the lists are missing or of different lengths."""
    proved, broken = flags(record, proofs), flags(record, attacks)
    if not proved or not broken or len(proved) != len(broken):
        return 0
    return sum(one and other for one, other in zip(proved, broken, strict=True))
