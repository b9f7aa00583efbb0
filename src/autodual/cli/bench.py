"""autodual bench"""

from __future__ import annotations

import contextlib
import difflib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from autodual._errors import ArgumentError
from autodual._files import write_json, write_text
from autodual.cli.terminal import InterruptedRunError, Signals
from autodual.evaluation.processes import speaks
from autodual.runs.folder import recorded_command
from autodual.speed.measure import COPY, Row, cpu_seconds_of_others, describe
from autodual.speed.trials import AUTHORS, FIRST, INSTALL, PROBLEMS, Bench, authors_version, figure, in_ms
from autodual.training.loop import StoppedError
from autodual.training.setup import make_device

ON_CPU = ("mnist-small", "cifar-small")
BUSY = 0.1
"""Cores that other processes may keep busy while a CPU is measured, before that is told."""
STEP, FLOAT32_STEP = "seconds_per_step", "seconds_per_step_float32"


def bench(
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"of {', '.join(PROBLEMS)}; all on a GPU, {' and '.join(ON_CPU)} on a CPU", show_default=False
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    k: Annotated[int, typer.Option(help="random projections", min=1)] = 50,
    batch: Annotated[int, typer.Option(help="examples per step", min=1)] = 50,
    seconds: Annotated[
        float, typer.Option(help="to time each thing for, per network; warm-up is not included", min=0)
    ] = 3.0,
    float32: Annotated[bool, typer.Option("--float32", help="also with streams of float32, on a GPU")] = False,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="also exact certificates, of networks whose weights are there")
    ] = False,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK=FILE",
            help="weights to certify, safetensors or a run folder; those of results/ when not given. May be repeated",
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="also what takes most time in a step, with shapes")
    ] = False,
    authors: Annotated[bool, typer.Option(help=f"beside the authors' {AUTHORS}, if it can be imported")] = True,
    data_folder: Annotated[
        Path | None, typer.Option(help="where data sets lie; $AUTODUAL_DATA or the user's cache; random images without")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="FILE.md to write the tables to; FILE.json beside has all figures")
    ] = None,
) -> None:
    """Time training steps and exact certificates of the paper's networks on this machine, beside what the machine can do.

    Bandwidth and arithmetic are counted on one step: bytes that operations of PyTorch and kernels of ours read and write, each
    operand and result once, and the operations of matrix products and convolutions. The ceilings are a large copy and large
    matrix products, measured in the same run.
    """
    if not speaks():
        return
    chosen = _known(networks or [])
    files = _weights(weights or [])
    if files and not certificates:
        raise ArgumentError("--weights is for --certificates; add that")
    if out is not None and out.suffix == ".json":
        raise ArgumentError(f"--out is for the tables, such as {out.with_suffix('.md')}; {out} is written beside")
    place = make_device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    theirs = authors_version() if authors else None
    record = {
        "command": recorded_command(sys.argv), "machine": describe(place) | ({} if theirs is None else {AUTHORS: theirs}),
        "settings": {"k": k, "batch": batch, "seconds": seconds}, "networks": {}, "certificates": {}, "notes": [],
    }  # fmt: skip
    with Signals() as signals:
        found = Bench(
            place, k, batch, seconds, theirs is not None, float32, profile, data_folder, _say, signals.stop, record
        )
        if authors and theirs is None:
            found.note(INSTALL)
        if float32 and place.type != "cuda":
            found.note("streams are float32 anyhow where there is no GPU")
        try:
            with _watching_others(found):
                _measure(found, chosen, files if certificates else None)
        except StoppedError:
            found.note("stopped as asked: the rest is missing")
            raise InterruptedRunError("stopped as asked", signals.received or 2) from None
        finally:
            _tell(record, out)


@contextlib.contextmanager
def _watching_others(bench: Bench) -> Iterator[None]:
    """Says how busy others kept a CPU, which makes its times longer."""
    others, begin = cpu_seconds_of_others(), time.perf_counter()
    try:
        yield
    finally:
        spent, now = time.perf_counter() - begin, cpu_seconds_of_others()
        if others is not None and now is not None:
            bench.record["cores_busy_elsewhere"] = busy = max(0.0, (now - others) / spent)
            if busy > BUSY and bench.device.type == "cpu":
                bench.note(
                    f"other processes kept {busy:.1f} cores busy meanwhile: times on a quiet machine are shorter"
                )


def _measure(bench: Bench, chosen: list[str], weights: dict[str, Path] | None) -> None:
    names = chosen or (list(PROBLEMS) if bench.device.type == "cuda" else list(ON_CPU))
    with torch.cuda.device(bench.device) if bench.device.type == "cuda" else contextlib.nullcontext():
        bench.measure_ceilings()
        for name in names:
            bench.measure_step(PROBLEMS[name])
        if weights is None:
            return
        known = _kept() | weights
        for name in [*chosen, *(name for name in weights if name not in chosen)] if chosen else known:
            if name in known:
                bench.measure_certificates(PROBLEMS[name], known[name])
            else:
                bench.note(f"{name}: no weights to certify; name them with --weights {name}=FILE")
        if not chosen and not known:
            bench.note("no weights to certify: results/ is not here; name some with --weights NETWORK=FILE")


def _known(names: list[str]) -> list[str]:
    for name in names:
        if name not in PROBLEMS:
            near = difflib.get_close_matches(name, PROBLEMS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(PROBLEMS)}"
            raise ArgumentError(f"unknown network {name!r}; {hint}")
    return list(dict.fromkeys(names))


def _weights(given: list[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise ArgumentError(f"--weights is NETWORK=FILE, such as cifar-large=runs/cifar-large-2, got {text!r}")
        [name] = _known([name])
        path = Path(file)
        found[name] = path / "model.safetensors" if path.is_dir() else path
        if not found[name].is_file():
            raise ArgumentError(f"--weights {name}: {found[name]}: there is no such file")
    return found


def _kept() -> dict[str, Path]:
    """Weights in results/ of the working folder, or of the source tree that this is run from."""
    roots = (Path("results"), Path(__file__).parents[3] / "results")
    found: dict[str, Path] = {}
    for name, problem in PROBLEMS.items():
        files = [root / problem.kept / "model.safetensors" for root in roots if problem.kept]
        there = [file for file in files if file.is_file()]
        if there:
            found[name] = there[0]
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tell(record: dict[str, Any], out: Path | None) -> None:
    text = markdown(record)
    print(text, end="", flush=True)
    if out is not None:
        write_text(out, text)
        write_json(out.with_suffix(".json"), record)


# --------------------------------------------------------------------------------------------------------
# What is shown

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


def _certificates_table(found: dict[str, Row]) -> str:
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


def _profile_table(rows: list[Row]) -> str:
    cells = [
        [f"{r['ms']:.3f}", f"{100 * r['part']:.1f}", f"{r['calls']:g}", r["name"][:100], " ".join(map(str, r["shapes"]))[:120]]
        for r in rows
    ]  # fmt: skip
    return _table(["ms", "%", "calls", "what", "shapes"], cells)


def _ms_range(row: Row) -> str:
    if "seconds_per_image" not in row:
        return ""
    mean, low, high = (figure(1e3 * row[name]) for name in ("seconds_per_image", "low", "high"))
    return f"{mean} ({low}-{high})"


def _number(value: float | None, unit: float) -> str:
    return "" if value is None else figure(value / unit)
