"""Error, attacked error and certified robust error: the truth lies between the attack and the proof."""

from __future__ import annotations

from dataclasses import replace

from autodual.certify.collapse import collapse
from autodual.report.absence import absence
from autodual.report.blocks import Block, Note, Section, Text, Tile, Tiles
from autodual.report.files import EVALUATION, Run
from autodual.report.sandwich import Sandwich, sandwich_chart
from autodual.report.values import (
    Record,
    count,
    flags,
    integers,
    mapping,
    number,
    numbers,
    out_of,
    percent,
    short,
    text,
    whole,
)


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
