"""Error, attacked error and certified robust error: the truth lies between the attack and the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autodual.certificates.certificate import collapse
from autodual.report.blocks import Block, Note, Section, Text, Tile, Tiles, Wide
from autodual.report.charts.bars import Bar, Segment, Tick, bar_chart
from autodual.report.charts.svg import nice_step
from autodual.report.files import EVALUATION, Run
from autodual.report.values import (
    SPACE,
    Record,
    count,
    flags,
    integers,
    mapping,
    number,
    numbers,
    out_of,
    percent,
    rate,
    short,
    text,
    whole,
)

# What stands in a section that has nothing to show.


def absence(run: Run, file: str, consequence: str) -> Text | Note:
    """One sentence: quiet where a file, or what is needed of it, is not there; a note where it is damaged."""
    reason = run.problems.get(file)
    if reason is None:
        return Text(f"{file} does not hold what is needed here. {consequence}")
    return Note(f"{reason} {consequence}") if reason in run.damaged() else Text(f"{reason} {consequence}")


# Wrong, broken, unknown, proved: bars on which the truth lies between the attack and the proof.

LEGEND = (
    ("ink", "wrong without any attack"),
    ("attack", "broken by the attack"),
    ("unknown", "unknown: neither broken nor proved"),
    ("proved", "proved robust"),
)
CUT_BELOW = 0.25
"""An axis to 100 % shows rates this small as slivers: below this it is cut, with a mark and a sentence that say so."""


@dataclass(frozen=True)
class Sandwich:
    """One classifier's rates; those that were not measured are None."""

    name: str
    error: float | None
    attacked: float | None
    robust: float | None
    claimed: float | None = None
    """Stage-certified error of a cascade: what its stages claim, which is no bound."""
    examples: int | None = None
    """That all of these are about."""
    robust_as_run: float | None = None
    """`robust` is about real numbers; this is about the network as it runs. None in older records."""
    attacked_exact: float | None = None
    """`attacked` is about the network as it runs; this is about real numbers. None in older records."""

    @classmethod
    def of(cls, name: str, record: Record) -> Sandwich:
        """Of a single network, as in evaluation.json."""
        error, attacked, robust = (rate(record, key) for key in ("error", "pgd_error", "robust_error"))
        as_run, exact = rate(record, "robust_error_as_run"), rate(record, "pgd_error_exact")
        return cls(name, error, attacked, robust, None, whole(record, "examples"), as_run, exact)

    @classmethod
    def of_cascade(cls, name: str, record: Record) -> Sandwich:
        """Of a whole cascade on all examples, as in cascade.json; with the attack if that was on all of them, too."""
        every = whole(record, "attacked_examples") in (None, whole(record, "examples"))
        return cls._of_cascade(name, record, rate(record, "attacked_error") if every else None)

    @classmethod
    def of_attacked(cls, name: str, record: Record) -> Sandwich | None:
        """The same on the examples that were attacked, where those are not all; an old record has nothing beside the attack."""
        attacked = whole(record, "attacked_examples")
        if attacked in (None, whole(record, "examples")):
            return None
        rates = {**(mapping(record, "on_attacked") or {}), "examples": attacked}
        return cls._of_cascade(name, rates, rate(record, "attacked_error"))

    @classmethod
    def _of_cascade(cls, name: str, record: Record, attacked: float | None) -> Sandwich:
        error, robust, claimed = (
            rate(record, key) for key in ("error", "sound_certified_error", "stage_certified_error")
        )
        as_run = rate(record, "sound_certified_error_as_run")
        return cls(name, error, attacked, robust, claimed, whole(record, "examples"), as_run)

    def contradictory(self) -> bool:
        """Whether the attack breaks more than the proof allows, in the same arithmetic. An older record does not say in which."""
        pairs = [(self.attacked, self.robust if self.robust_as_run is None else self.robust_as_run)]
        pairs.append((self.attacked_exact, self.robust))
        return any(broken is not None and proof is not None and broken > proof + 1e-9 for broken, proof in pairs)

    def known(self) -> list[float]:
        rates = (self.error, self.attacked, self.robust, self.claimed)
        return [rate for rate in rates if rate is not None]

    def bar(self, high: float) -> Bar:
        """Wrong, broken, unknown, proved; without a proof, the bar ends with what is known."""
        wrong = min(self.error or 0.0, high)
        broken = max(wrong, min(self.attacked if self.attacked is not None else wrong, high))
        segments = [
            Segment(0.0, wrong, "ink", f"wrong without any attack: {percent(self.error)}", "wrong"),
            Segment(wrong, broken, "attack", f"broken by the attack: up to {percent(self.attacked)}", "broken"),
        ]
        if self.robust is not None:
            proof, shown = max(broken, min(self.robust, high)), percent(self.robust)
            segments += [
                Segment(broken, proof, "unknown", f"neither broken nor proved: up to {shown}", "unknown"),
                Segment(proof, high, "proved", f"proved robust: all beyond {shown}", "proved"),
            ]
        claim = (
            [Tick(self.claimed, f"stage-certified error: {percent(self.claimed)}")] if self.claimed is not None else []
        )
        return Bar(self.name, segments, claim)


def sandwich_chart(title: str, sandwiches: Sequence[Sandwich]) -> Wide:
    """Bars on one axis from 0 to 100 %, or visibly cut where all rates are small."""
    high = _end(sandwiches)
    cut = high < 1
    bars = [one.bar(high) for one in sandwiches]
    legend = [*LEGEND, ("pointer", "stage-certified error")] if any(bar.ticks for bar in bars) else LEGEND
    caption = f"Cut at {100 * high:.3g}{SPACE}%: all that follows, up to 100{SPACE}%, is proved robust." if cut else ""
    return Wide(bar_chart(title, bars, high, "% of examples", scale=100.0, cut=cut), legend, caption)


def _end(sandwiches: Sequence[Sandwich]) -> float:
    """1, or a round value soon after the largest rate where that is small."""
    largest = max((rate for one in sandwiches for rate in one.known()), default=1.0)
    room = max(1.2 * largest, 0.005)
    if room > CUT_BELOW or any(one.robust is None for one in sandwiches):  # without a proof, nothing beyond is proved
        return 1.0
    step = nice_step(room, 5)
    return step * -(-room // step)


def headline(run: Run) -> Section:
    record = run.evaluation
    trained = Sandwich.of("", record)
    if not trained.known():
        return Section("headline", "Result", [absence(run, EVALUATION, "No result to show.")])
    blocks: list[Block] = [Text(conditions(record)), Tiles(_tiles(trained, record))]
    bars, words = [trained], [_meaning(trained, record)]
    twin = mapping(record, "standard")
    if twin is not None:
        bars = [
            replace(trained, name="first stage alone" if run.is_cascade() else "this run"),
            Sandwich.of("standard-trained twin", twin),
        ]
        words.append(f"The same network with standard training, under the same proof: {_rates(bars[1])}.")
    title = f"Error {percent(trained.error)}, PGD {percent(trained.attacked)}, certified {percent(trained.robust)}"
    blocks.append(sandwich_chart(title, bars))
    blocks += [Text(sentence) for sentence in words]
    blocks += [Note(sentence) for sentence in (*collapsed(record), *contradictions(record))]
    return Section("headline", "Result", blocks)


def _tiles(rates: Sandwich, record: Record) -> list[Tile]:
    """Error, attack and proof; under the latter two, the other arithmetic, and which one the large number is about."""
    broken, unproved = out_of(rates.attacked, rates.examples), out_of(rates.robust, rates.examples)
    exact = as_run = ""
    if rates.attacked_exact is not None:
        broken, exact = f"{broken} {as_run_of(record)}", f"in real numbers: {percent(rates.attacked_exact)}"
    if rates.robust_as_run is not None:
        unproved, as_run = f"{unproved} in real numbers", f"{as_run_of(record)}: {percent(rates.robust_as_run)}"
    return [
        Tile("Error", percent(rates.error), out_of(rates.error, rates.examples), "ink"),
        Tile("PGD error", percent(rates.attacked), broken.strip(), "attack", exact),
        Tile("Certified robust error", percent(rates.robust), unproved.strip(), "proved", as_run),
    ]


def conditions(record: Record) -> str:
    """What was evaluated, against what and how."""
    examples, eps = whole(record, "examples"), number(record, "eps")
    parts = [
        f"{count(examples)} {text(record, 'split') or ''} examples".replace("  ", " ")
        if examples is not None
        else None,
        text(record, "perturbation") or (f"{text(record, 'norm') or ''} eps {short(eps)}".strip() if eps else None),
        f"engine {text(record, 'engine')}" if text(record, "engine") else None,
        text(record, "dtype"),
    ]
    return " · ".join(part for part in parts if part)


def _rates(rates: Sandwich) -> str:
    attacked = f"PGD error {percent(rates.attacked)}, " if rates.attacked is not None else ""
    return f"error {percent(rates.error)}, {attacked}robust error {percent(rates.robust)}"


def _meaning(rates: Sandwich, record: Record) -> str:
    if rates.attacked is None or rates.robust is None:
        missing = "attack" if rates.attacked is None else "proof"
        return f"There is no {missing} beside this: one side of the truth only."
    if rates.robust_as_run is None or rates.attacked_exact is None:  # an older record
        gap = f"{100 * (rates.robust - rates.attacked):.2f} percentage points"
        return (
            f"The truth lies between the attack and the proof: at least {percent(rates.attacked)} of the examples can be broken, "
            f"at most {percent(rates.robust)}. The gap, {gap}, is what neither settles."
        )
    gap = f"{100 * (rates.robust - rates.attacked_exact):.2f} percentage points"
    return (
        f"The truth lies between the attack and the proof: in real numbers, at least {percent(rates.attacked_exact)} of the examples "
        f"can be broken, at most {percent(rates.robust)}; {as_run_of(record)}, at least {percent(rates.attacked)} and at most "
        f"{percent(rates.robust_as_run)}. The gap, {gap} in real numbers, is what neither settles."
    )


def as_run_of(record: Record) -> str:
    """In plain words: the arithmetic of the network as it runs."""
    return f"as the network runs in {text(record, 'dtype') or 'its own numbers'}"


def _in_both(record: Record, proofs: str, attacks: str) -> int:
    """How many examples have both flags; 0 where the lists are missing or of different lengths."""
    proved, broken = flags(record, proofs), flags(record, attacks)
    if not proved or not broken or len(proved) != len(broken):
        return 0
    return sum(one and other for one, other in zip(proved, broken, strict=True))


def collapsed(record: Record) -> list[str]:
    """A sentence about a network that gives one answer for everything, if the record has each example's."""
    predicted, labels = integers(record, "predicted"), integers(record, "labels")
    if not predicted or not labels or len(predicted) != len(labels):
        return []
    names = record.get("classes")
    classes = names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
    found = collapse(predicted, labels, numbers(record, "margins"), classes)
    return [] if found is None else [f"This network has {found}."]


def contradictions(record: Record) -> list[str]:
    """What cannot be true of a sound proof and a real attack, said aloud rather than drawn over."""
    found = []
    rates = Sandwich.of("", record)
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
