"""The paper's smaller claims, each measured.

    python benchmarks/claims.py --data FOLDER [--device cuda] [--only distance radius ...] [--out FILE.md] [--page docs/claims.md]

distance   the least l2 distance between two MNIST digits: exact, over training images, test images and across (2 minutes, 1 GiB)
radius     eps_2 = sqrt(d / pi) eps_inf, beside the radius of equal volume
filters    filters that robust training leaves at zero: networks of results/paper beside ordinary training (2 minutes)
batchnorm  what batch normalisation does to the bound: short robust trainings of one network, with and without (5 minutes)
memory     the most memory that training the small MNIST network takes, by PyTorch's own count, on the CPU or with --device cuda

FOLDER holds the raw data sets, as for `autodual train`. Times are for one core. FILE.json beside FILE.md keeps the figures: what is
not measured this time stays as it was, and the memory of a CPU and of a GPU stand side by side. --page puts the summary into the
documentation; with --only and no name after it, nothing is measured, and both texts are written again from FILE.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

import claims_measured as measured
import torch
from machine import RESULTS, describe, in_words

Record = dict[str, Any]
NAMES = ("distance", "radius", "filters", "batchnorm", "memory")
DEVICES = ("cpu", "cuda")
BEGIN, END = "<!-- from the record: begin -->", "<!-- from the record: end -->"


def measure(name: str, data: Path, device: str) -> Record:
    """One claim's figures, with the machine and the seconds they took."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    ways: dict[str, Callable[[], Record]] = {
        "distance": lambda: measured.distances(data, _say),
        "radius": lambda: measured.radii(),
        "filters": lambda: measured.filters(data, _say),
        "batchnorm": lambda: measured.batch_norm(data, _say),
        "memory": lambda: measured.memory(data, device, _say),
    }
    machine = describe() | ({"gpu": torch.cuda.get_device_name()} if (name, device) == ("memory", "cuda") else {})
    found = ways[name]()
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
    return found | {"machine": machine, "seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}


def _say(words: str) -> None:
    print(words, flush=True)


def key_of(name: str, device: str) -> str:
    """Where the record keeps a claim: memory has a place for each device."""
    return f"memory_{device}" if name == "memory" else name


# --------------------------------------------------------------------------------------------------------
# Words


def show(record: Record) -> str:
    """The record as Markdown: what was measured, claim by claim."""
    lines = ["# The paper's smaller claims", "", *summary(record), ""]
    parts = {"distance": _distance, "radius": _radius, "filters": _filters, "batchnorm": _batch_norm}
    for name, words in parts.items():
        if name in record:
            lines += [*words(record[name]), "", in_words(record[name]["machine"]), ""]
    for device in DEVICES:
        if f"memory_{device}" in record:
            found = record[f"memory_{device}"]
            where = f"{found['machine']['gpu']}; " if device == "cuda" else ""
            lines += [*_memory(found), "", where + in_words(found["machine"]), ""]
    return "\n".join(lines)


def summary(record: Record) -> list[str]:
    """A list: the paper's claim, what was measured, the option that measures it; the docs would not wrap cells of a table."""
    rows = [
        ("Two MNIST digits are at least 3.24 apart (l2)", _distances_in_short(record.get("distance")), "distance"),
        (
            "eps_2 = sqrt(d / pi) eps_inf has the cube's volume: 1.58 on MNIST, 36/255 on CIFAR",
            _radii_in_short(record.get("radius")),
            "radius",
        ),
        ("Many filters and weights become zero", _filters_in_short(record.get("filters")), "filters"),
        ("Batch normalisation loosens the bound", _batch_norm_in_short(record.get("batchnorm")), "batchnorm"),
        ("MNIST small trains in less than 700 MB at k = 10", _memory_in_short(record), "memory"),
    ]
    entries = [f"- **{claim}** (`--only {name}`). Measured here: {ours}." for claim, ours, name in rows]
    return [
        "`python benchmarks/claims.py --data FOLDER`, or one claim alone:",
        "",
        *(line for entry in entries for line in wrap(entry, 130, subsequent_indent="  ", break_on_hyphens=False)),
    ]


NOT_RUN = "not run"


def _distances_in_short(found: Record | None) -> str:
    if found is None:
        return NOT_RUN
    rows = [row for row in found["rows"] if row["different_labels"]]
    least = min(row["distance"] for row in rows)
    each = ", ".join(f"{row['distance']:.2f} ({row['images']})" for row in rows)
    verdict = "true" if least >= 3.24 else "not so"
    return f"{verdict}; digits of different labels come as near as {each}"


def _radii_in_short(found: Record | None) -> str:
    if found is None:
        return NOT_RUN
    mnist, plane, colour = found["rows"]
    return (
        f"the formula gives {mnist['formula']:.2f} and, for d = 3,072, {255 * colour['formula']:.1f}/255; 36/255 takes d = 1,024. "
        f"Equal volume is {mnist['equal_volume']:.2f} on MNIST, {255 * colour['equal_volume']:.1f}/255 on CIFAR "
        f"({255 * plane['equal_volume']:.1f}/255 for d = 1,024)"
    )


def _filters_in_short(found: Record | None) -> str:
    if found is None:
        return NOT_RUN
    parts = []
    for row in found["rows"]:
        filters = [layer for layer in row["layers"] if layer["kind"] == "Conv2d"]
        silent, of = (sum(layer[key] for layer in filters) for key in ("silent", "filters"))
        parts.append(f"{row['network']}: {silent} of {of}")
    exactly = sum(layer["zero"] for row in found["rows"] for layer in row["layers"])
    return f"{exactly or 'none'} exactly; convolution filters that no test image makes active: {'; '.join(parts)}"


def _batch_norm_in_short(found: Record | None) -> str:
    if found is None:
        return NOT_RUN
    parts = []
    for robust, words in ((True, "robust"), (False, "ordinary")):
        rows = [row for row in found["rows"] if row["robust"] is robust]
        without, with_ = ([row for row in rows if row["batch_norm"] is flag] for flag in (False, True))
        cells = [
            f"{name} {_mean(without, value):.1%} without, {_mean(with_, value):.1%} with"
            for name, value in (
                ("unstable units", _unstable),
                ("undecided images", _undecided),
                ("robust error", _robust_error),
            )
        ]
        parts.append(f"after {words} training (eps {rows[0]['eps']:g}) {'; '.join(cells)}")
    return f"a small trial, {', and '.join(parts)}"


def _mean(rows: list[Record], value: Callable[[Record], float]) -> float:
    return fmean(map(value, rows))


def _unstable(row: Record) -> float:
    return float(row["unstable_units"])


def _undecided(row: Record) -> float:
    return float(row["robust_error"] - row["pgd_error"])


def _robust_error(row: Record) -> float:
    return float(row["robust_error"])


def _memory_in_short(record: Record) -> str:
    parts = []
    for device, where in zip(DEVICES, ("on a CPU", "on a GPU"), strict=True):
        found = record.get(f"memory_{device}")
        sizes = {} if found is None else {row["bounds"]: _megabytes(row["peak_bytes"]) for row in found["rows"]}
        words = ", ".join(f"{size} ({bounds})" for bounds, size in sizes.items())
        parts.append(f"{where} {words or NOT_RUN}")
    return "; ".join(parts)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _distance(found: Record) -> list[str]:
    lines = [
        "## distance",
        "",
        f"All pairs, pixels in [0, 1]; {found['cpu_seconds']:.0f} s of one core.",
        "",
        "| images | labels | pairs | least distance | numbers of the two | their labels |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['images']} | {'different' if row['different_labels'] else 'any'} | {row['compared']:,} | {row['distance']:.4f} "
        f"| {row['first']}, {row['second']} | {row['labels'][0]}, {row['labels'][1]} |"
        for row in found["rows"]
    ]


def _radius(found: Record) -> list[str]:
    lines = [
        "## radius",
        "",
        "Equal volume: pi^(d/2) r^d / Gamma(d/2 + 1) = (2 eps)^d, by log-gamma. The formula's radius is larger by a factor that tends "
        f"to sqrt(e/2) = {found['limit_of_ratio']:.3f}, so the volume is larger by that factor to the power d.",
        "",
        "| data | d | eps_inf | sqrt(d/pi) eps_inf | equal volume | the paper's eps_2 | d that gives the paper's |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        shown = _plain if row["data"] == "MNIST" else _of_255
        cells = [shown(row[key]) for key in ("eps_inf", "formula", "equal_volume", "printed")]
        lines.append(f"| {row['data']} | {row['d']:,} | {' | '.join(cells)} | {row['dimension_of_printed']:.0f} |")
    return lines


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _of_255(value: float) -> str:
    return f"{255 * value:.4g}/255"


def _filters(found: Record) -> list[str]:
    lines = [
        "## filters",
        "",
        "A filter (of a convolution) or row (of a linear layer) is nearly zero if its l1 norm is at most "
        f"{found['small_part']:.0%} of the largest in its layer; weights likewise. Silent: the ReLU behind it is zero on all "
        f"{found['test_images']:,} test images, at all places. Networks without robustness: {found['plain_epochs']} epochs "
        "on clean images with the optimiser of the rows (weight decay on CIFAR-10 only), seed 0.",
        "",
        "| network | error | layer | filters | zero | nearly zero | silent | weights nearly zero |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        for layer in row["layers"]:
            lines.append(
                f"| {row['network']} | {row['error']:.2%} | {layer['layer']} ({layer['kind']}) | {layer['filters']} | {layer['zero']} "
                f"| {layer['nearly_zero']} | {layer.get('silent', '')} | {layer['nearly_zero_weights'] / layer['weights']:.0%} |"
            )
    return lines


def _batch_norm(found: Record) -> list[str]:
    lines = [
        "## batchnorm",
        "",
        f"A small trial: `wide(1)`, the paper's narrowest network, the first {found['train']:,} MNIST training images, "
        f"{found['epochs']} epochs of Adam 1e-3; robust training with k = {found['k']} and l-infinity 0.1 (from 0.01 on, over the "
        "first half), or ordinary training; batch normalisation before every ReLU or none; "
        f"judged on the first {found['test']:,} test images by `Dual()` and PGD. Undecided: neither certified nor attacked. "
        "Unstable: hidden units that may be on either side of zero.",
        "",
        "| training | eps | seed | batch norm | robust error | PGD error | error | undecided | median margin | unstable units |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found["rows"], key=lambda row: (not row["robust"], row["seed"], row["batch_norm"])):
        lines.append(
            f"| {'robust' if row['robust'] else 'ordinary'} | {row['eps']:g} | {row['seed']} | {'yes' if row['batch_norm'] else 'no'} "
            f"| {row['robust_error']:.1%} | {row['pgd_error']:.1%} | {row['error']:.1%} | {_undecided(row):.1%} "
            f"| {row['median_margin']:.2f} | {row['unstable_units']:.1%} |"
        )
    return lines


def _memory(found: Record) -> list[str]:
    whole = found["device"] == "cuda"
    lines = [
        f"## memory ({'GPU' if whole else 'CPU'})",
        "",
        f"MNIST small, batch {found['batch']}, Adam, {found['steps']} steps; the most bytes that PyTorch had allocated at once, "
        "weights, gradients, optimiser and batch included."
        + (
            " Reserved: kept by PyTorch for later. Whole device: with CUDA's own context and whatever else runs there."
            if whole
            else " What libraries take without PyTorch's allocator is not seen."
        ),
        "",
        "| bounds | peak |" + (" reserved | whole device |" if whole else ""),
        "|---|---|" + ("---|---|" if whole else ""),
    ]
    keys = ("peak_bytes", "reserved_bytes", "whole_device_bytes") if whole else ("peak_bytes",)
    return lines + [
        f"| {row['bounds']} | {' | '.join(_megabytes(row[key]) for key in keys)} |" for row in found["rows"]
    ]


def with_summary(page: str, record: Record) -> str:
    """The page with the summary of this record between its two marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise SystemExit(f"the page must have the marks {BEGIN} and {END} once each")
    head, rest = page.split(BEGIN)
    return "\n".join([head + BEGIN, "", *summary(record), "", END + rest.split(END)[1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the raw data sets; when absent, $AUTODUAL_DATA")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="for memory; all else runs on the CPU")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES), metavar="CLAIM", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=RESULTS / "claims.md", help="FILE.md; FILE.json beside it")
    parser.add_argument("--page", type=Path, help=f"a page to put the summary into, such as {Path('docs/claims.md')}")
    options = parser.parse_args()
    kept = options.out.with_suffix(".json")
    record: Record = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for name in options.only:
        print(f"{name}:", flush=True)
        record[key_of(name, options.device)] = measure(name, options.data, options.device)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")  # after each, so that nothing is lost
    options.out.write_text(show(record), encoding="utf-8")
    if options.page is not None:
        options.page.write_text(with_summary(options.page.read_text(encoding="utf-8"), record), encoding="utf-8")
    print("\n".join(summary(record)))


if __name__ == "__main__":
    main()
