"""Wrong, broken, unknown, proved: bars on which the truth lies between the attack and the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autodual.report.bars import Bar, Segment, Tick, bar_chart
from autodual.report.blocks import Wide
from autodual.report.svg import nice_step
from autodual.report.values import SPACE, Record, mapping, percent, rate, whole

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
