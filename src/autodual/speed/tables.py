"""What `autodual bench` has measured, as tables in Markdown."""

from __future__ import annotations

from typing import Any

from autodual.speed.measure import COPY, Measured
from autodual.speed.problems import AUTHORS
from autodual.speed.steps import FIRST
from autodual.speed.trials import figure, in_ms

STEP, FLOAT32_STEP = "seconds_per_step", "seconds_per_step_float32"

COUNTED = (
    "GB/s: every operation of PyTorch reads its operands and writes its results once, and so does every kernel of ours; what a cache "
    "holds is counted all the same, so that more than the ceiling is possible. TFLOP/s: products of matrices and convolutions alone. "
    "Per cent: of the ceilings below, which were measured in this run; where products run in several arithmetics, of the time that "
    "each would take at its own ceiling."
)


def markdown(record: dict[str, Any]) -> str:
    """The record as tables, whatever is there of it."""
    settings, machine = record["settings"], record["machine"]
    authors = f", {AUTHORS} {machine[AUTHORS]}" if AUTHORS in machine else ""
    where = f"{machine['device']}, " if "device" in machine else ""
    parts = [
        "# Training steps on this machine",
        f"`{record['command']}`",
        f"{where}{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; Python {machine['python']}, torch "
        f"{machine['torch']}, autodual {machine['autodual']}{authors}. Batch {settings['batch']}, k = {settings['k']}; medians, "
        f"quartiles in brackets. First: the first {FIRST} steps, in which kernels are compiled.",
    ]
    if record["networks"]:
        parts += [_steps_table(record), COUNTED]
    if "ceilings" in record:
        parts.append(_ceilings_table(record["ceilings"]))
    if record["certificates"]:
        parts += ["## Exact certificates", _certificates_table(record["certificates"])]
    for title, row in record["networks"].items():
        for what, found in row.get("profile", {}).items():
            parts += [f"## {title}: {what}, ms per step", _profile_table(found)]
    if record["notes"]:
        parts += ["## Notes", "\n".join(f"- {note}" for note in record["notes"])]
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _steps_table(record: dict[str, Any]) -> str:
    float32 = any(FLOAT32_STEP in row for row in record["networks"].values())
    head = ["", "authors ms/step", "ours ms/step", *(["float32 streams"] if float32 else []), "s/epoch", "faster by", "first s",
            "peak MiB", "authors' peak MiB", "GB/s", "%", "TFLOP/s", "%"]  # fmt: skip
    rows = []
    for title, row in record["networks"].items():
        authors, step = row.get("authors", {}), row.get(STEP)
        rows.append([
            title, in_ms(authors.get(STEP)), in_ms(step), *([in_ms(row.get(FLOAT32_STEP))] if float32 else []),
            "" if step is None else figure(step["median"] * row["epoch"] / record["settings"]["batch"]),
            f"{authors[STEP]['median'] / step['median']:.1f}" if authors and step else "", _number(row.get("first_seconds"), 1),
            _number(row.get("peak_bytes"), 1 << 20), _number(authors.get("peak_bytes"), 1 << 20),
            _number(row.get("bytes_per_second"), 1e9), _number(row.get("part_of_bandwidth"), 1e-2),
            _number(row.get("operations_per_second"), 1e12), _number(row.get("part_of_arithmetic"), 1e-2),
        ])  # fmt: skip
    return _table(head, rows)


def _ceilings_table(found: dict[str, float]) -> str:
    rates = [[f"products, {name}", f"{figure(value / 1e12)} TFLOP/s"] for name, value in found.items() if name != COPY]
    return _table(["ceiling", "measured"], [["copy, read and written", f"{figure(found[COPY] / 1e9)} GB/s"], *rates])


def _certificates_table(found: dict[str, Measured]) -> str:
    head = ["", "ours ms/image", "authors ms/image", "faster by", "images", "at a time", "certified", "peak MiB",
            "same verdicts"]  # fmt: skip
    rows = []
    for title, row in found.items():
        authors, ours = row.get("authors"), row.get("seconds_per_image")
        rows.append([
            title, _ms_range(row), _ms_range(authors or {}), f"{authors['seconds_per_image'] / ours:.1f}" if authors and ours else "",
            str(row.get("images", "")), f"{row.get('batch', '')}" + (f" (authors {authors['batch']})" if authors else ""),
            str(row.get("certified", "")), _number(row.get("peak_bytes"), 1 << 20),
            f"{authors['same_verdicts']} of {authors['compared']}" if authors else "",
        ])  # fmt: skip
    return _table(head, rows)


def _profile_table(rows: list[Measured]) -> str:
    cells = [
        [f"{r['ms']:.3f}", f"{100 * r['part']:.1f}", f"{r['calls']:g}", r["name"][:100], " ".join(map(str, r["shapes"]))[:120]]
        for r in rows
    ]  # fmt: skip
    return _table(["ms", "%", "calls", "what", "shapes"], cells)


def _ms_range(row: Measured) -> str:
    if "seconds_per_image" not in row:
        return ""
    mean, low, high = (figure(1e3 * row[name]) for name in ("seconds_per_image", "low", "high"))
    return f"{mean} ({low}-{high})"


def _number(value: float | None, unit: float) -> str:
    return "" if value is None else figure(value / unit)
