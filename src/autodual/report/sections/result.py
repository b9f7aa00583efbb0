"""Certified accuracy, and what became of all other examples: unknown, broken by the attack, or wrong."""

from __future__ import annotations

from dataclasses import replace

from autodual.report.blocks import Block, Note, Section, Text
from autodual.report.files import EVALUATION, RunFiles
from autodual.report.sections import absence, section
from autodual.report.values import Record, mapping, percent, whole
from autodual.report.verdicts import Rates, as_run, collapsed, conditions, contradictions, rates_chart, rates_tiles


@section(place=20, first_stage=True)
def result(run: RunFiles) -> Section:
    record = run.evaluation
    rates = rates_of(run)
    if not rates.known():
        return Section("result", "Result", [absence(run, EVALUATION, "No result to show.")])
    doubts = [*collapsed(record), *contradictions(record)]
    blocks: list[Block] = [Text(conditions(record)), *map(Note, doubts), rates_tiles(rates, as_run(record))]
    bars, words = [rates], [_meaning(rates, record)]
    twin = mapping(record, "standard")
    if twin is not None:
        standard = Rates.of("standard-trained twin", twin)
        bars = [replace(rates, name="first stage alone" if run.is_cascade() else "this run"), standard]
        words.append(f"The same network with standard training, under the same proof: {_in_words(standard)}.")
    title = (
        f"Certified accuracy {percent(_complement(rates.robust))}, accuracy under attack "
        f"{percent(_complement(rates.broken))}, accuracy {percent(_complement(rates.error))}"
    )
    blocks.append(rates_chart(title, bars))
    return Section("result", "Result", [*blocks, *map(Text, words)])


def rates_of(run: RunFiles, name: str = "") -> Rates:
    """Rates of the run's network, or of its first stage."""
    return Rates.of(name, run.evaluation, run.is_sample(whole(run.evaluation, "examples")))


def _complement(error: float | None) -> float | None:
    return None if error is None else 1 - error


def _in_words(rates: Rates) -> str:
    pairs = (("certified accuracy", rates.robust), ("under attack", rates.attacked), ("accuracy", rates.error))
    return ", ".join(f"{name} {percent(1 - error)}" for name, error in pairs if error is not None)


def _meaning(rates: Rates, record: Record) -> str:
    if rates.attacked is None or rates.robust is None:
        missing = "attack" if rates.attacked is None else "proof"
        return f"There is no {missing} beside this: one side of the truth only."
    gap = f"{100 * (rates.robust - (rates.broken or 0.0)):.2f} percentage points"
    if rates.robust_as_run is None or rates.attacked_exact is None:  # an older record
        return (
            f"The truth lies between the proof and the attack: at least {percent(1 - rates.robust)} of the examples are robust, "
            f"at most {percent(1 - rates.attacked)}. The gap, {gap}, is what neither settles."
        )
    return (
        f"The truth lies between the proof and the attack: in real numbers, at least {percent(1 - rates.robust)} of the examples "
        f"are robust, at most {percent(1 - rates.attacked_exact)}; {as_run(record)}, at least {percent(1 - rates.robust_as_run)} "
        f"and at most {percent(1 - rates.attacked)}. The gap, {gap} in real numbers, is what neither settles."
    )
