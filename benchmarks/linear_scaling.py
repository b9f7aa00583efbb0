"""Time and peak memory of the bounds against the number of hidden units: the paper's figure. [SPAD app. F, "metrics"]

    python benchmarks/linear_scaling.py --device cpu
    PYTHONPATH=src python benchmarks/linear_scaling.py --device cuda --out FOLDER      (needs torch and numpy alone)
    python benchmarks/linear_scaling.py --plot-only                                    (draws the picture from the json files)

10 examples of 1 x 28 x 28, k = 50, l-infinity 0.1 clipped to [0, 1], float32 in PyTorch's default precision, no gradients; the number
of filters varies over two decades. "One at a time" is the paper's way (10 examples, minibatch size 1: the time is for all 10);
"together" is one batch of 10, where memory allows. On the GPU there is a third way, "a training batch": the 50 examples of the paper's
training steps at once, which keep a GPU busy on smaller networks, too; the time is a fifth of theirs.

convolution: Conv2d(1, F, 3, padding=1), whose 784 F outputs enter a ReLU and are bounded; `Projected(50, exact_first=False)`.
two convolutions: Conv2d(1, 4, 3) - ReLU - Conv2d(4, F - 4, 3) - ReLU - Linear(10), both padded, again 784 F hidden units; all margins
    by `Projected(50)`, the estimated bounds and the last exact step. The first convolution stays at 4 filters, so that every filter of
    the second reads 4 channels: with both growing, the network's own cost would be quadratic in its units, and say nothing about
    the method's.

Projections are measured beside two exact engines: `ForwardDual()`, the paper's algorithm, which carries a column per pixel and per
unstable unit, and `Dual()`, which pulls small windows back and is linear on networks as shallow as these. An exact engine goes on
to larger networks until 10 examples would take more than the seconds, or more than the memory, that LIMITS allows.

Time: median of 5 evaluations of all 10 examples after a warm-up (of 3 where one takes over 5 s); random numbers are drawn in every
evaluation; the model is captured beforehand. On the GPU, an evaluation is the mean of as many, one after the other, as take 20 ms,
and the GPU is synchronised before each reading of the clock; projections, which never wait for the device, are replayed as a CUDA
graph, so that launching kernels is not on the clock, and cuDNN tries its algorithms beforehand (`torch.backends.cudnn.benchmark`).
On the CPU, evaluations that other processes disturb are repeated for a while, and the record says what remained. Memory: on the
GPU, the most that PyTorch's allocator held at once during an evaluation less what it held before it (weights, inputs, the
libraries' workspaces), so workspaces of convolutions count. On the CPU, growth of the peak resident set of a fresh process per
point (VmHWM less VmRSS just before), after imports, model, data, a warm-up on a tiny network, and after the C library has given
back the free memory that it kept from these, which would hide growth. Nothing else is subtracted.

Slopes are least squares through log time and log memory over at least the two largest decades of sizes, and on the GPU also over
those up to the paper's largest network, 4,202,240 units; smaller sizes are shown, not fitted. Seconds per unit is the slope of a
line with intercept through the same points; the paper has 2.26e-7 for one convolution on a Titan X. Writes
linear_scaling_cpu|cuda.json and .md into benchmarks/results or FOLDER; the pictures are docs/figures/linear-scaling-*.svg.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from machine import RESULTS, describe
from measuring import in_fresh_process, measured, quiet_turns, take_turn
from scaling_report import EXAMPLES, TRAINING, K, draw_all, fits, show
from torch import Tensor, nn

import autodual as ad
from autodual.dual import build
from autodual.runs.folder import without_place
from autodual.spec import margins

FIRST = 4
"""Filters of the first of two convolutions."""
GIBIBYTE = 1 << 30
LONG = 5.0
"""Seconds of an evaluation that is repeated three times instead of five."""
READING = 0.02
"""Seconds of work between two looks at the clock on the GPU, where a look takes as long as a small network."""
PATIENCE = 30.0
"""Seconds to wait for undisturbed evaluations, per point."""


@dataclass(frozen=True)
class Limits:
    """What a point may cost: bytes for projections, seconds and bytes for exact engines."""

    projected_bytes: int
    exact_seconds: float
    exact_bytes: int


LIMITS = {"cpu": Limits(4 * GIBIBYTE, 20.0, 8 * GIBIBYTE), "cuda": Limits(100 * GIBIBYTE, 5.0, 60 * GIBIBYTE)}

SIZES = {
    "cpu": (24, 36, 53, 84, 128, 196, 300, 450, 690, 1050, 1600, 2400),
    "cuda": (16, 32, 48, 80, 128, 192, 288, 448, 704, 1072, 1632, 2496, 3824, 5360),
}
BELOW: dict[str, tuple[int, ...]] = {"cpu": (6, 10, 16), "cuda": ()}
"""Smaller ones for the exact engines, of which one does not get far."""
BEYOND: dict[str, tuple[int, ...]] = {"cpu": (3600, 5360), "cuda": (8160, 12500, 19000, 32000, 53600)}
"""For projections of one example at a time: on the CPU up to the paper's sizes, on the GPU ten times as far."""
QUICK = {"cpu": (28, 50, 90, 160), "cuda": (48, 160, 512, 1600, 5360)}
"""Filters in all; on the GPU a multiple of 16, which its convolutions prefer. 5360 filters are the paper's 4,202,240 units."""
QUICK_SECONDS = 1.0
"""Budget of the exact engines in a smoke run."""


@dataclass(frozen=True)
class Point:
    """One thing to measure."""

    network: str
    method: str
    batch: int
    filters: int

    @property
    def units(self) -> int:
        return 784 * self.filters

    @property
    def examples(self) -> int:
        return max(EXAMPLES, self.batch)

    def parts(self) -> list[slice]:
        """The examples that are bounded at once."""
        return [slice(start, start + self.batch) for start in range(0, self.examples, self.batch)]


def make_network(kind: str, filters: int) -> nn.Sequential:
    if kind == "convolution":
        return nn.Sequential(nn.Conv2d(1, filters, 3, padding=1), nn.ReLU())
    rest = filters - FIRST
    return nn.Sequential(
        nn.Conv2d(1, FIRST, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(FIRST, rest, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(784 * rest, 10),
    )


def make_engine(kind: str, method: str, limits: Limits) -> ad.BoundEngine:
    if method == "projected":
        return ad.Projected(K, exact_first=kind != "convolution")
    return (ad.Dual if method == "dual" else ad.ForwardDual)(max_bytes=limits.exact_bytes)


def evaluation(point: Point, device: str, limits: Limits) -> Callable[[slice], Tensor]:
    """A function that bounds some of the examples."""
    torch.manual_seed(0)
    model = make_network(point.network, point.filters).eval().to(device)
    x, labels = torch.rand(point.examples, 1, 28, 28, device=device), torch.arange(point.examples, device=device) % 10
    network = ad.capture(model, x[:1])
    engine, ball = make_engine(point.network, point.method, limits), ad.LinfBall(0.1, clip=(0.0, 1.0))

    def evaluate(part: slice) -> Tensor:
        dual, region = build(network), ball.around(x[part])
        if point.network == "convolution":
            return engine.preactivations(dual, region).intervals[dual.activations[0]].lower
        return engine.minimum(dual, region, margins(labels[part], 10, x.dtype)).lower

    return evaluate


# --------------------------------------------------------------------------------------------------------
# One point


def measure(point: Point, device: str, limits: Limits) -> dict[str, Any]:
    """Seconds for all examples and peak bytes; or "over", which says what was too much."""
    warm_up(point, device, limits)
    try:
        evaluate = evaluation(point, device, limits)
        parts = point.parts()
        cost = measured_on_gpu(evaluate, parts[0]) if device == "cuda" else measured_on_cpu(evaluate, point.batch)
        over = beyond(point, cost, limits)
        if over:
            return {"over": over}
        rounds = 3 if cost["seconds"] * len(parts) > LONG else 5
        if device == "cuda":
            seconds, disturbance = repeat_on_gpu(evaluate, parts, rounds, as_graph=point.method == "projected")
        else:
            seconds, disturbance = repeat_on_cpu(evaluate, parts, rounds)
        seconds = [s * EXAMPLES / point.examples for s in seconds]
    except (ad.MemoryBudgetError, torch.OutOfMemoryError):
        return {"over": "memory"}
    except RuntimeError as error:  # keep what was measured before, and say what happened
        return {"over": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "repeats": len(seconds),
        "bytes": cost["growth_bytes"],
        "cores_busy_elsewhere": disturbance,
    }


def warm_up(point: Point, device: str, limits: Limits) -> None:
    """Loads whatever the libraries load on first use, with a network of a few filters."""
    small = Point(point.network, point.method, 1, 2 * FIRST)
    evaluation(small, device, limits)(slice(0, 1))


def measured_on_cpu(evaluate: Callable[[slice], Tensor], batch: int) -> dict[str, Any]:
    """Of the first examples: one batch of 10, or two one after the other."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    cost = measured(lambda: evaluate(slice(0, batch)))
    if batch == 1:
        again = measured(lambda: evaluate(slice(1, 2)))
        cost["growth_bytes"] = max(cost["growth_bytes"], again["growth_bytes"])
        cost["seconds"] = again["seconds"]
    return cost


def measured_on_gpu(evaluate: Callable[[slice], Tensor], part: slice) -> dict[str, Any]:
    evaluate(part)  # libraries choose their algorithms and take their workspaces
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, begin = torch.cuda.memory_allocated(), time.perf_counter()
    result = evaluate(part)
    torch.cuda.synchronize()
    return {
        "seconds": time.perf_counter() - begin,
        "growth_bytes": torch.cuda.max_memory_allocated() - before,
        "finite": bool(result.isfinite().all()),
    }


def beyond(point: Point, cost: dict[str, Any], limits: Limits) -> str:
    """What exceeds the limits, if anything does; all examples are judged by the first batch."""
    if not cost["finite"]:
        sys.exit(f"{point}: the bounds are not finite; the figures would mean nothing")
    if point.method == "projected":
        return "memory" if cost["growth_bytes"] > limits.projected_bytes else ""
    if cost["growth_bytes"] > limits.exact_bytes:
        return "memory"
    return "time" if cost["seconds"] * len(point.parts()) > limits.exact_seconds else ""


def repeat_on_cpu(evaluate: Callable[[slice], Tensor], parts: list[slice], rounds: int) -> tuple[list[float], float]:
    """Seconds of evaluations of all examples, and how many cores were busy elsewhere."""
    works = {"all": lambda: torch.cat([evaluate(part)[:, :1] for part in parts])}
    turns = quiet_turns(lambda: take_turn(works), rounds, PATIENCE)
    return [t.wall["all"] for t in turns], max(t.disturbance for t in turns)


def repeat_on_gpu(
    evaluate: Callable[[slice], Tensor], parts: list[slice], rounds: int, as_graph: bool
) -> tuple[list[float], float]:
    def work() -> None:
        for part in parts:
            evaluate(part)

    repeated = _captured(work) if as_graph else work

    def reading(times: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            repeated()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times

    times = math.ceil(READING / reading(1))
    return [reading(times) for _ in range(rounds)], 0.0


def _captured(work: Callable[[], None]) -> Callable[[], None]:
    """The same work as a CUDA graph, which takes the launches of kernels off the clock; random numbers are drawn in every replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    return graph.replay


# --------------------------------------------------------------------------------------------------------
# All points


def measure_apart(point: Point, device: str, limits: Limits, threads: int) -> dict[str, Any]:
    """On a CPU in a fresh process, for the sake of its memory."""
    if device == "cpu":
        words = (point.network, point.method, str(point.batch), str(point.filters))
        options = ("--threads", str(threads), "--exact-seconds", str(limits.exact_seconds))
        return in_fresh_process(__file__, *words, *options)
    try:
        return measure(point, device, limits)
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def series(ascending: list[Point], device: str, limits: Limits, threads: int) -> list[dict[str, Any]]:
    """Points of ascending size, up to the first that is too much."""
    found: list[dict[str, Any]] = []
    for point in ascending:
        too_much = (
            point.method == "projected" and bool(found) and expected_bytes(point, found[-1]) > limits.projected_bytes
        )
        cost = {"over": "memory"} if too_much else measure_apart(point, device, limits, threads)
        found.append(asdict(point) | {"units": point.units} | cost)
        print(_brief(found[-1]), flush=True)
        if "over" in cost:
            break
    return found


def expected_bytes(point: Point, smaller: dict[str, Any]) -> float:
    """What projections will take, whose memory is linear: no need to try."""
    return float(smaller["bytes"] * point.units / smaller["units"])


def _brief(row: dict[str, Any]) -> str:
    name = f"{row['network']}, {row['method']}, batch {row['batch']}, {row['units']:,} units"
    return (
        f"{name}: stopped by {row['over']}"
        if "over" in row
        else f"{name}: {row['seconds']:.4g} s, {row['bytes']:,} bytes"
    )


SERIES = {
    "cpu": [("projected", 1), ("projected", EXAMPLES), ("dual", 1), ("forward", 1)],
    "cuda": [("projected", 1), ("projected", EXAMPLES), ("projected", TRAINING), ("dual", 1), ("forward", 1)],
}


def points(network: str, method: str, batch: int, device: str, quick: bool) -> list[Point]:
    """In ascending size."""
    below = () if method == "projected" else BELOW[device]
    above = BEYOND[device] if (method, batch) == ("projected", 1) else ()
    sizes = (*below, *QUICK[device]) if quick else (*below, *SIZES[device], *above)
    return [Point(network, method, batch, filters) for filters in sizes]


def measure_all(
    device: str, quick: bool, limits: Limits, threads: int, before: dict[str, Any] | None
) -> dict[str, Any]:
    """`before`: the record of an earlier run, of which the rows of exact engines are kept instead of measured."""
    rows = [] if before is None else [row for row in before["rows"] if row["method"] != "projected"]
    exact_limits = {"seconds": limits.exact_seconds, "bytes": limits.exact_bytes}
    rows += [
        row
        for network in ("convolution", "two convolutions")
        for method, batch in SERIES[device]
        if before is None or method == "projected"
        for row in series(points(network, method, batch, device, quick), device, limits, threads)
    ]
    return {
        "command": " ".join(["python benchmarks/linear_scaling.py", *map(without_place, sys.argv[1:])]),
        "machine": describe() | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "device": device,
        "k": K,
        "tf32_in_convolutions": torch.backends.cudnn.allow_tf32,
        "exact_limits": exact_limits if before is None else before["exact_limits"],
        "projected_limit_bytes": limits.projected_bytes,
        "rows": rows,
        "fits": fits(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", choices=("full", "quick"), default="full", help="quick: a smoke run")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder to write to")
    parser.add_argument("--exact-seconds", type=float, help="budget of the exact engines")
    parser.add_argument("--projections-only", action="store_true", help="keep the exact engines' rows of the json file")
    parser.add_argument("--plot-only", action="store_true", help="draw the pictures from the json files in the folder")
    parser.add_argument("--measure", nargs=4, metavar="WHAT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = True
    if options.plot_only:
        draw_all(options.out)
        return
    limits = LIMITS[options.device]
    seconds = options.exact_seconds or (limits.exact_seconds if options.sizes == "full" else QUICK_SECONDS)
    limits = replace(limits, exact_seconds=seconds)
    with torch.no_grad():
        if options.measure:
            network, method, batch, filters = options.measure
            print(json.dumps(measure(Point(network, method, int(batch), int(filters)), "cpu", limits)))
            return
        stem = options.out / f"linear_scaling_{options.device}"
        before = None
        if options.projections_only:
            before = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
        record = measure_all(options.device, options.sizes == "quick", limits, options.threads, before)
    options.out.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(show(record), encoding="utf-8")
    print(show(record))


if __name__ == "__main__":
    main()
