"""What becomes of an example: proved, unknown, broken by the attack, or wrong. One word and one colour each, on every page.

The truth lies between the proof and the attack: what is proved is robust, what is broken is not, and what is between is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autodual.certificates.certificate import collapse
from autodual.report.blocks import INTERVAL, SPACE, Tile, Tiles, Wide, count, likely, out_of, percent
from autodual.report.svg import Bar, Segment, bar_chart, nice_step
from autodual.runs.records import AttackFigures, CascadeErrors, CascadeSummary, Evaluation
from autodual.runs.row_records import NetworkFigures

LEGEND = (
    ("proved", "proved robust"),
    ("unknown", "unknown: neither proved nor broken"),
    ("broken", "right, but broken by the attack"),
    ("wrong", "wrong without any attack"),
)


# Example by example.


def verdicts(record: Evaluation) -> list[str]:
    """The tone of every example, as in LEGEND."""
    return [
        "proved" if proof else "wrong" if label != answer else "broken" if attack else "unknown"
        for proof, label, answer, attack in zip(
            record.certified, record.labels, record.predicted, record.attacked, strict=True
        )
    ]


# All examples together.

CUT_BELOW = 0.25
"""An axis from 0 shows what is not proved as slivers where it is less than this: the axis is cut, with a mark and a sentence."""


@dataclass(frozen=True)
class Rates:
    """One classifier's rates of error. A rate that was not measured is None."""

    name: str
    error: float
    attacked: float | None
    robust: float
    claimed: float | None = None
    """Stage-certified error of a cascade: what its stages claim, which is no bound."""
    examples: int = 0
    """All rates are about these."""
    robust_as_run: float | None = None
    """`robust` is about real numbers; this is about the network as it runs. None in published runs."""
    attacked_exact: float | None = None
    """`attacked` is about the network as it runs; this is about real numbers. None in published runs."""
    sample: bool = False
    """Whether these examples are a part of those that there are: then intervals of confidence stand beside the rates."""
    part: bool = False
    """Whether the same classifier has rates on more examples."""

    @classmethod
    def of(cls, name: str, record: Evaluation, sample: bool = False) -> Rates:
        """Rates of a single network."""
        return cls(
            name, record.error, record.pgd_error, record.robust_error, None, record.examples, record.robust_error_as_run,
            record.pgd_error_exact, sample,
        )  # fmt: skip

    @classmethod
    def of_row(cls, name: str, examples: int, figures: NetworkFigures) -> Rates:
        """Rates of the single network of a row, by the best of its engines."""
        robust, as_run = figures.least_robust_errors
        return cls(name, figures.error, figures.pgd_error, robust, None, examples, as_run, figures.pgd_error_exact)

    @classmethod
    def of_errors(
        cls, name: str, errors: CascadeErrors, attacked: float | None, examples: int, sample: bool = False, part: bool = False
    ) -> Rates:  # fmt: skip
        """Rates of a whole cascade."""
        return cls(
            name, errors.error, attacked, errors.sound_certified_error, errors.stage_certified_error, examples,
            errors.sound_certified_error_as_run, None, sample, part,
        )  # fmt: skip

    @classmethod
    def of_cascade(cls, name: str, record: CascadeSummary, sample: bool = False) -> list[Rates]:
        """Rates on all examples; and, where only the first of them were attacked, on these, so that all rates are about the same."""
        attack = record.attack
        if attack is None or attack.attacked_examples == record.examples:
            return [cls.of_errors(name, record.errors, attacked_error(attack), record.examples, sample)]
        whole = cls.of_errors(name, record.errors, None, record.examples, sample)
        return [
            whole,
            cls.of_errors(name, attack.on_attacked, attack.attacked_error, attack.attacked_examples, True, True),
        ]

    @property
    def broken(self) -> float | None:
        """Attacked error in the arithmetic of the proof, where that is known."""
        return self.attacked if self.attacked_exact is None else self.attacked_exact

    def contradictory(self) -> bool:
        """Whether the attack breaks more than the proof allows, in the same arithmetic. A published run does not say in which."""
        pairs = [(self.attacked, self.robust if self.robust_as_run is None else self.robust_as_run)]
        pairs.append((self.attacked_exact, self.robust))
        return any(broken is not None and broken > proof + 1e-9 for broken, proof in pairs)

    def segments(self) -> list[Segment]:
        """Proved, unknown, broken, wrong, from 0 to 1: they meet at certified accuracy, accuracy under attack, and accuracy."""
        right = 1 - self.error
        unbroken = right if self.broken is None else min(right, 1 - self.broken)
        proved = min(unbroken, 1 - self.robust)
        why = "neither proved nor broken" if self.broken is not None else "not proved, and not attacked"
        ends = (0.0, proved, unbroken, right, 1.0)
        words = ("proved robust", why, "right, but broken by the attack", "wrong without any attack")
        return [
            Segment(low, high, tone, f"{told}: {percent(high - low)}", tone)
            for low, high, (tone, _), told in zip(ends, ends[1:], LEGEND, words, strict=False)
        ]


def attacked_error(attack: AttackFigures | None) -> float | None:
    return None if attack is None else attack.attacked_error


def rates_chart(title: str, rates: Sequence[Rates]) -> Wide:
    """Bars on one axis from 0 to 100 %, or visibly cut where nearly everything is proved."""
    low = _start(rates)
    bars = []
    for one in rates:
        claim = None if one.claimed is None else 1 - one.claimed
        tick = None if claim is None else (claim, f"stage-certified accuracy: {percent(claim)}")
        bars.append(Bar(one.name, one.segments(), tick))
    shown = {segment.tone for bar in bars for segment in bar.segments if segment.end > segment.start}
    legend = [(tone, words) for tone, words in LEGEND if tone in shown]
    legend += [("pointer", "stage-certified accuracy")] if any(bar.tick for bar in bars) else []
    caption = f"Cut at {100 * low:.4g}{SPACE}%: everything from 0{SPACE}% to there is proved robust." if low else ""
    return Wide(bar_chart(title, bars, 1.0, "% of examples", scale=100.0, low=low), legend, caption)


def _start(rates: Sequence[Rates]) -> float:
    """Where the axis begins: at 0, or at a round value below the smallest certified accuracy where all of them are large."""
    errors = [(one.error, one.attacked, one.robust, one.claimed) for one in rates]
    largest = max(error for known in errors for error in known if error is not None)
    room = max(1.2 * largest, 0.005)
    if not largest or room > CUT_BELOW:
        return 0.0  # there is nothing to see more closely, or enough
    step = nice_step(room, 5)
    return 1 - step * -(-room // step)


def rates_tiles(
    rates: Rates, runs: str, certified: str = "Certified accuracy", attack: str = "PGD error", large: bool = True
) -> Tiles:
    """Certified accuracy in the colour of what is proved, then the other verdicts, which fill it up to 100 %; error rates below each.

    runs: words for the arithmetic of the network as it runs.
    """
    n = rates.examples

    def sure(accuracy: float, of: str = "") -> list[str]:
        return [f"{INTERVAL}{of}: {likely(accuracy, n)}"] if rates.sample else []

    details = [f"certified robust error {percent(rates.robust)}", *sure(1 - rates.robust)]
    if rates.robust_as_run is not None:
        details.insert(0, f"in real numbers; {runs}: {percent(1 - rates.robust_as_run)}")
    names = {"unknown": "Unknown", "broken": "Broken by the attack", "wrong": "Wrong without attack"}
    more = {"unknown": [], "broken": [], "wrong": [f"accuracy {percent(1 - rates.error)}"]}  # type: dict[str, list[str]]
    if rates.broken is None:
        names = {"unknown": "Not proved, not attacked", "wrong": names["wrong"]}
    else:
        exact = "" if rates.attacked_exact is None else f" {runs}, {percent(rates.attacked_exact)} in real numbers"
        told = f"{attack}, with the wrong: {percent(rates.attacked)}{exact}"
        more["broken"] = [told, *sure(1 - rates.broken, " of accuracy under attack")]
    tiles = [Tile(certified, percent(1 - rates.robust), out_of(1 - rates.robust, n), "proved", details, large=large)]
    for segment in rates.segments():
        if segment.tone in names:
            share, tone = segment.end - segment.start, segment.tone
            tiles.append(Tile(names[tone], percent(share), out_of(share, n), tone, more[tone]))  # type: ignore[arg-type]
    if rates.claimed is not None:
        claim = 1 - rates.claimed
        no_bound = ["what the stages claim: no bound", *sure(claim)]
        tiles.append(Tile("Stage-certified", percent(claim), out_of(claim, n), "", no_bound))
    return Tiles(tiles)


# What keeps an evaluation from being believed.


def doubts(record: Evaluation) -> list[str]:
    """Sentences about what keeps an evaluation from being believed: a network that gives one answer for everything, or figures
    that cannot be true of a sound proof and a real attack."""
    gives_up = collapse(record.predicted, record.labels, record.margins, record.classes)
    found = [] if gives_up is None else [f"This network has {gives_up}."]
    if Rates.of("", record).contradictory():
        found.append(
            "The attack breaks more than the proof allows: one of the two is wrong. Do not trust these certificates."
        )
    elif record.error > record.robust_error + 1e-9:
        found.append("The robust error is below the plain error, which cannot be: do not trust this evaluation.")
    pairs = [(record.certified, record.attacked, "")]
    if record.certified_as_run is not None and record.attacked_as_run is not None:
        pairs.append((record.certified_as_run, record.attacked_as_run, " as the network runs"))
    for proved, broken, where in pairs:
        both = sum(one and other for one, other in zip(proved, broken, strict=True))
        if both:
            found.append(
                f"{both} examples are certified{where} and yet broken by the attack: do not trust these certificates."
            )
    if record.engine.startswith("Projected"):
        found.append(f"{record.engine} gives estimates: what is called proved here is not.")
    if record.engine.startswith("HighProbability"):
        found.append(f"Each proof by {record.engine} fails with probability delta at most: it is not certain.")
    return found


def cascade_doubts(record: CascadeSummary) -> list[str]:
    """Sentences about figures that cannot be true of a cascade's sound proof and a real attack."""
    found = []
    if Rates.of_cascade("", record)[-1].contradictory():
        found.append("The attack on the cascade breaks more than its proof allows: do not trust these certificates.")
    broken = 0 if record.attack is None else record.attack.broken_proofs or 0
    if broken > 0:
        found.append(
            f"{count(broken)} examples are soundly certified and yet broken by the attack: do not trust these certificates."
        )
    return found
