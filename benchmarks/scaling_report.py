"""What linear_scaling.py measured, as slopes, tables and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from drawing import Key, Panel, sheet, write_figure
from measuring import MEBIBYTE, QUIET

from autodual.report.plots import Axis, Series, line_chart, power_tick
from autodual.report.svg import Svg

EXAMPLES = 10
TRAINING = 50
"""Examples of a step of training. [SPAD app. F]"""
K = 50
DECADES = 2.0
PAPER_SECONDS_PER_UNIT = 2.26e-7
"""Of one convolution, for 10 examples one at a time, on a Titan X. [SPAD app. F]"""
PAPER_UNITS = 4_202_240
TARGET_SLOPES = (0.9, 1.1)
TARGET_SPEED = 20.0
NETWORKS = ("convolution", "two convolutions")
NAMES = {
    ("projected", 1): "projections, one at a time",
    ("projected", EXAMPLES): "projections, together",
    ("projected", TRAINING): "projections, a training batch",
    ("dual", 1): "exact, Dual()",
    ("forward", 1): "exact, ForwardDual()",
}

Row = dict[str, Any]


def select(rows: list[Row], network: str, method: str, batch: int) -> list[Row]:
    """The points of one series that were measured."""
    wanted = (network, method, batch)
    return [r for r in rows if (r["network"], r["method"], r["batch"]) == wanted and "over" not in r]


def fits(rows: list[Row]) -> list[Row]:
    """For every series: slopes over its last two decades, and seconds per unit; where it goes beyond the paper's sizes, both."""
    found = []
    for network in NETWORKS:
        for method, batch in NAMES:
            points = select(rows, network, method, batch)
            within = [p for p in points if p["units"] <= PAPER_UNITS]
            for chosen in [within] if len(within) == len(points) else [within, points]:
                if len(chosen) >= 3:
                    found.append({"network": network, "method": method, "batch": batch, **_fit(chosen)})
    return found


def _fit(points: list[Row]) -> Row:
    largest = points[-1]["units"]
    start = max((p["units"] for p in points if p["units"] <= largest / 10**DECADES), default=0)
    points = [p for p in points if p["units"] >= start]
    units, seconds, size = (np.array([float(p[key]) for p in points]) for key in ("units", "seconds", "bytes"))
    return {
        "from_units": points[0]["units"],
        "to_units": largest,
        "time_slope": float(np.polyfit(np.log(units), np.log(seconds), 1)[0]),
        "memory_slope": float(np.polyfit(np.log(units), np.log(size.clip(min=1)), 1)[0]),
        "seconds_per_unit": float(np.polyfit(units, seconds, 1)[0]),
        "seconds_per_unit_at_the_largest": float(seconds[-1] / units[-1]),
        "most_seconds_per_unit": float((seconds / units).max()),
        "bytes_per_unit_at_the_largest": float(size[-1] / units[-1]),
    }


# --------------------------------------------------------------------------------------------------------
# Tables


def show(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine, limits = record["machine"], record["exact_limits"]
    where = f"{machine['gpu']}; " if "gpu" in machine else f"{machine['threads']} threads; "
    lines = [
        f"# Time and memory against hidden units ({'GPU' if record['device'] == 'cuda' else 'CPU'})",
        "",
        f"`{record['command']}`",
        "",
        f"{where}{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']} at the start; "
        f"Python {machine['python']}, torch {machine['torch']}; commit {machine['commit']}, source {machine['source']}.",
        "",
        f"{EXAMPLES} examples of 1 x 28 x 28, k = {record['k']}, float32, no gradients. Slopes of log time and log memory over the "
        f"last two decades, or what there is of them, target {TARGET_SLOPES[0]} to {TARGET_SLOPES[1]} for projections; seconds per "
        f"hidden unit are for all {EXAMPLES} examples, and the last column compares those of one convolution on a GPU with the "
        f"paper's {PAPER_SECONDS_PER_UNIT:.3g} on a Titan X (target {TARGET_SPEED:.0f}); in brackets, for that of the row's networks "
        f"which takes most per unit, everything that does not depend on its size included.",
        "",
        "| network | bounds | hidden units | slope of time | slope of memory | bytes per unit | seconds per unit | faster by |",
        "|---|---|---|---|---|---|---|---|",
        *(_fit_line(fit, record["device"]) for fit in record["fits"]),
        "",
        *_trust(record),
        f"Exact engines go on until {EXAMPLES} examples take more than {limits['seconds']:g} s or {limits['bytes'] >> 30} GiB:",
        "",
        *_endings(record["rows"]),
        "",
        "| network | hidden units | bounds | seconds | MiB |",
        "|---|---|---|---|---|",
        *(_point_line(row) for row in record["rows"] if "over" not in row),
        "",
    ]
    return "\n".join(lines)


def _trust(record: dict[str, Any]) -> list[str]:
    if record["device"] == "cuda":
        return []
    busy = max(row["cores_busy_elsewhere"] for row in record["rows"] if "over" not in row)
    verdict = ": the times are not to be trusted." if busy > QUIET else "."
    return [f"During the timed evaluations other processes kept at most {busy:.2f} cores busy{verdict}", ""]


def _fit_line(fit: Row, device: str) -> str:
    times = [_judged(fit[key], fit["method"]) for key in ("time_slope", "memory_slope")]
    comparable = fit["network"] == "convolution" and device == "cuda"
    factors = [PAPER_SECONDS_PER_UNIT / fit[key] for key in ("seconds_per_unit", "most_seconds_per_unit")]
    paper = f"{factors[0]:.1f} ({factors[1]:.1f})" if comparable else ""
    return (
        f"| {fit['network']} | {NAMES[fit['method'], fit['batch']]} | {fit['from_units']:,} to {fit['to_units']:,} | {times[0]} "
        f"| {times[1]} | {fit['bytes_per_unit_at_the_largest']:,.0f} | {fit['seconds_per_unit']:.2e} | {paper} |"
    )


def _judged(slope: float, method: str) -> str:
    low, high = TARGET_SLOPES
    missed = method == "projected" and not low <= slope <= high
    return f"{slope:.2f}" + (" (missed)" if missed else "")


def _endings(rows: list[Row]) -> list[str]:
    """How far every series got."""
    lines = []
    for network in NETWORKS:
        for (method, batch), name in NAMES.items():
            over = [
                r for r in rows if (r["network"], r["method"], r["batch"]) == (network, method, batch) and "over" in r
            ]
            points = select(rows, network, method, batch)
            reached = f"{points[-1]['units']:,} units" if points else "nothing"
            if over:
                lines.append(
                    f"- {network}, {name}: measured up to {reached}; stopped by {over[0]['over']} at {over[0]['units']:,}"
                )
            elif method != "projected":
                lines.append(f"- {network}, {name}: within budget at all sizes, up to {reached}")
    return lines


def _point_line(row: Row) -> str:
    name = NAMES[row["method"], row["batch"]]
    return f"| {row['network']} | {row['units']:,} | {name} | {row['seconds']:.4g} | {row['bytes'] / MEBIBYTE:,.1f} |"


# --------------------------------------------------------------------------------------------------------
# The picture

KEYS = {
    ("projected", 1): Key("run-1"),
    ("projected", EXAMPLES): Key("run-4", "6 3"),
    ("projected", TRAINING): Key("run-5", "2 3"),
    ("dual", 1): Key("run-3"),
    ("forward", 1): Key("run-2"),
}
PAPER = f"the paper's projections, Titan X: {PAPER_SECONDS_PER_UNIT:.3g} s per unit"
PAPER_KEY = Key("run-6", "1 4")
FIGURES = {"cuda": "linear-scaling-gpu", "cpu": "linear-scaling-cpu"}


def draw(record: dict[str, Any]) -> str:
    """The picture of one device: seconds above, memory below, a column for each network."""
    panels = [
        [Panel(_chart(record, network, *quantity), network) for network in NETWORKS]
        for quantity in (
            ("seconds", f"seconds for {EXAMPLES} examples", 1.0),
            ("bytes", "peak memory, MiB", 1 / MEBIBYTE),
        )
    ]
    known = {(row["method"], row["batch"]) for row in record["rows"] if "over" not in row}
    legend = {name: KEYS[key] for key, name in NAMES.items() if key in known}
    if record["device"] == "cuda":
        legend[PAPER] = PAPER_KEY
    where = record["machine"].get("gpu", "CPU")
    return sheet(f"Bounds of {EXAMPLES} MNIST-sized examples, k = {record['k']}, {where}", panels, legend)


def _chart(record: dict[str, Any], network: str, key: str, title: str, unit: float) -> Svg:
    series = []
    for (method, batch), name in NAMES.items():
        points = [(float(p["units"]), p[key] * unit) for p in select(record["rows"], network, method, batch)]
        look = KEYS[method, batch]
        series.append(Series("", points, look.tone, dots=True, dash=look.dash, full=name))
    if key == "seconds" and network == "convolution" and record["device"] == "cuda":
        units = [float(point[0]) for one in series for point in one.points]
        ends = [(u, PAPER_SECONDS_PER_UNIT * u) for u in (min(units), min(max(units), PAPER_UNITS))]
        series.append(Series("", ends, PAPER_KEY.tone, dash=PAPER_KEY.dash, full=PAPER))
    across, up = Axis("hidden units", power_tick, log=True), Axis(title, power_tick, log=True)
    return line_chart(f"{network}: {title}", across, up, series)


def draw_all(folder: Path) -> None:
    """docs/figures/linear-scaling-*.svg from whichever of the two json files are there."""
    paths = {device: folder / f"linear_scaling_{device}.json" for device in FIGURES}
    found = {device: path for device, path in paths.items() if path.exists()}
    if not found:
        raise SystemExit(f"{folder} holds neither linear_scaling_cpu.json nor linear_scaling_cuda.json: measure first")
    for device, path in found.items():
        print(write_figure(FIGURES[device], draw(json.loads(path.read_text(encoding="utf-8")))))
