"""Error, attacked error and certified robust error: the truth lies between the attack and the proof."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autodual.report.absence import absence
from autodual.report.bars import Bar, Segment, Tick, bar_chart
from autodual.report.blocks import Block, Note, Section, Text, Tile, Tiles, Wide
from autodual.report.files import EVALUATION, Run
from autodual.report.svg import Svg, nice_step
from autodual.report.values import Record, count, flags, mapping, number, out_of, percent, rate, short, text, whole

LEGEND = (
    ("ink", "wrong without any attack"),
    ("attack", "broken by the attack"),
    ("unknown", "unknown: neither broken nor proved"),
    ("proved", "proved robust"),
)


@dataclass(frozen=True)
class Sandwich:
    """One classifier's rates; those that were not measured are None."""

    name: str
    error: float | None
    attacked: float | None
    robust: float | None
    ticks: tuple[Tick, ...] = ()

    @classmethod
    def of(cls, name: str, record: Record) -> Sandwich:
        return cls(name, rate(record, "error"), rate(record, "pgd_error"), rate(record, "robust_error"))

    def known(self) -> list[float]:
        return [rate for rate in (self.error, self.attacked, self.robust) if rate is not None]

    def bar(self, high: float) -> Bar:
        """Wrong, broken, unknown, proved; a rate that is not known hands its part to `unknown`."""
        wrong = min(self.error or 0.0, high)
        broken = max(wrong, min(self.attacked if self.attacked is not None else wrong, high))
        proof = max(broken, min(self.robust if self.robust is not None else high, high))
        segments = [
            Segment(0.0, wrong, "ink", f"wrong without any attack: {percent(self.error)}", "wrong"),
            Segment(wrong, broken, "attack", f"broken by the attack: up to {percent(self.attacked)}", "broken"),
            Segment(broken, proof, "unknown", f"neither broken nor proved: up to {percent(self.robust)}", "unknown"),
            Segment(proof, high, "proved", f"proved robust: all beyond {percent(self.robust)}", "proved"),
        ]
        return Bar(self.name, segments, self.ticks)


def sandwich_chart(title: str, sandwiches: list[Sandwich]) -> Svg:
    """Bars on one axis of error, which ends soon after the largest rate that it shows."""
    largest = max((rate for one in sandwiches for rate in [*one.known(), *(t.at for t in one.ticks)]), default=1.0)
    if any(one.robust is None for one in sandwiches):
        largest = 1.0  # nothing is proved there: the unknown part reaches to the end
    step = nice_step(max(1.2 * largest, 0.005), 5)
    high = min(1.0, step * -(-1.2 * largest // step) or step)
    return bar_chart(title, [one.bar(high) for one in sandwiches], high, "% of examples", scale=100.0)


def headline(run: Run) -> Section:
    record = run.evaluation
    trained = Sandwich.of("", record)
    if not trained.known():
        return Section("headline", "Result", [absence(run, EVALUATION, "No result to show.")])
    examples = whole(record, "examples")
    tiles = [
        Tile("Error", percent(trained.error), out_of(trained.error, examples), "ink"),
        Tile("PGD error", percent(trained.attacked), out_of(trained.attacked, examples), "attack"),
        Tile("Certified robust error", percent(trained.robust), out_of(trained.robust, examples), "proved"),
    ]
    blocks: list[Block] = [Text(_conditions(record)), Tiles(tiles)]
    bars, words = [trained], [_meaning(trained)]
    twin = mapping(record, "standard")
    if twin is not None:
        bars = [replace(trained, name="this run"), Sandwich.of("standard-trained twin", twin)]
        words.append(f"The same network with standard training, under the same proof: {_rates(bars[1])}.")
    title = f"Error {percent(trained.error)}, PGD {percent(trained.attacked)}, certified {percent(trained.robust)}"
    blocks.append(Wide(sandwich_chart(title, bars), LEGEND))
    blocks += [Text(sentence) for sentence in words]
    blocks += [Note(sentence) for sentence in contradictions(record)]
    return Section("headline", "Result", blocks)


def _conditions(record: Record) -> str:
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


def _meaning(rates: Sandwich) -> str:
    if rates.attacked is None or rates.robust is None:
        missing = "attack" if rates.attacked is None else "proof"
        return f"There is no {missing} beside this: one side of the truth only."
    gap = f"{100 * (rates.robust - rates.attacked):.2f} percentage points"
    return (
        f"The truth lies between the attack and the proof: at least {percent(rates.attacked)} of the examples can be broken, "
        f"at most {percent(rates.robust)}. The gap, {gap}, is what neither settles."
    )


def contradictions(record: Record) -> list[str]:
    """What cannot be true of a sound proof and a real attack, said aloud rather than drawn over."""
    found = []
    rates = Sandwich.of("", record)
    if rates.attacked is not None and rates.robust is not None and rates.attacked > rates.robust + 1e-9:
        found.append(
            "The attack breaks more than the proof allows: one of the two is wrong. Do not trust these certificates."
        )
    elif rates.error is not None and rates.robust is not None and rates.error > rates.robust + 1e-9:
        found.append("The robust error is below the plain error, which cannot be: do not trust this evaluation.")
    certified, attacked = flags(record, "certified"), flags(record, "attacked")
    if certified and attacked and len(certified) == len(attacked):
        both = sum(proved and broken for proved, broken in zip(certified, attacked, strict=True))
        if both:
            found.append(
                f"{both} examples are certified and yet broken by the attack: do not trust these certificates."
            )
    engine = text(record, "engine") or ""
    if engine.startswith("Projected"):
        found.append(f"{engine} gives estimates: what is called proved here is not.")
    if engine.startswith("HighProbability"):
        found.append(f"Each proof by {engine} fails with probability delta at most: it is not certain.")
    return found
