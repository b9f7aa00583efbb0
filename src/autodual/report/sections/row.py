"""What a row of the tables reaches, of which other figures are kept than of a run."""

from __future__ import annotations

from autodual.report.blocks import DASH, Block, Note, Section, Table, Text, count, duration, plural, tidy
from autodual.report.run import RunFiles
from autodual.report.sections import section
from autodual.report.sections.result import DOT
from autodual.report.verdicts import Rates, rates_chart, rates_tiles
from autodual.runs.row_records import EngineFigures, NetworkFigures, RowRecord, WeightsRecord


@section(place=15)
def row(run: RunFiles) -> Section | None:
    """Certified accuracy by the best of the engines, and by each of them; nothing for a run that is no row."""
    record = run.row
    if record is None:
        return None
    figures = record.figures
    how = [
        f"Row {record.row}, recipe {record.recipe}, seed {record.seed}", plural(record.examples, f"{record.split} example"),
        tidy(record.perturbation), record.dtype,
    ]  # fmt: skip
    blocks: list[Block] = [Text(DOT.join(how))]
    if not record.complete:
        blocks.append(Note("Some engines have not run yet: autodual reproduce run goes on with this row."))
    if isinstance(figures, NetworkFigures):
        blocks += _network(figures, record)
    kept = "Verdicts and margins of every image are in certificates.npz."
    blocks.append(Text(f"{_weights(record.weights)} {kept}"))
    return Section("row", "Result of the row", blocks)


def _network(figures: NetworkFigures, record: RowRecord) -> list[Block]:
    rates = Rates.of_row("", record.examples, figures)
    collapsed = [] if figures.collapsed is None else [Note(f"This network has {figures.collapsed}.")]
    meaning = (
        "An example counts as certified if one of the engines certifies it. The truth lies between the proof and the attack: what is "
        "unknown, neither settles."
    )
    return [
        *collapsed,
        rates_tiles(rates, f"as the network runs in {record.dtype}"),
        rates_chart("Certified accuracy, accuracy under attack, accuracy", [rates]),
        Text(meaning),
        _engines(figures.engines),
    ]


def _engines(engines: dict[str, EngineFigures]) -> Table:
    """What each engine certifies, the row's own first."""
    header = ("Name", "Engine", "Examples", "Tried", "Certified", "As run", "Time")
    rows = []
    for name, found in engines.items():
        if found.not_run is not None:
            rows.append([name, f"not run: {found.not_run}", *[DASH] * 5])
            continue
        numbers = (
            found.images,
            found.images if found.tried is None else found.tried,
            found.certified,
            found.certified_as_run,
        )
        time = DASH if found.seconds is None else duration(found.seconds)
        rows.append([name, found.engine, *map(count, numbers), time])
    caption = (
        "Tried: examples that an attack has broken cannot be certified, and large networks are certified without them."
    )
    return Table(header, rows, frozenset({"Name", "Engine"}), caption=caption)


def _weights(weights: WeightsRecord) -> str:
    rounded = f"rounded to {weights.rounded_to}, then certified"
    return f"Weights: {weights.chosen}, epoch {weights.epoch + 1}, {rounded}."
