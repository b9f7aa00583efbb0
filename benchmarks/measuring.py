"""Seconds of things that take turns on a machine that others use too, and the memory of a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import cpu_seconds_of_others
from torch import Tensor

QUIET = 0.1
"""Cores that other processes may keep busy during a turn that counts; two threads on two cores suffer badly from a third."""
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Turn:
    """Seconds of each, on the clock and of CPU time, what each returned, and how many cores other processes kept busy meanwhile."""

    wall: dict[str, float]
    cpu: dict[str, float]
    results: dict[str, Tensor]
    disturbance: float


def take_turn(works: Mapping[str, Callable[[], Tensor]], before: Callable[[], None] = lambda: None) -> Turn:
    """Each once, in the order given; `before` runs ahead of each, off the clock."""
    wall, cpu, results = {}, {}, {}
    others, begin = cpu_seconds_of_others(), time.perf_counter()
    for name, work in works.items():
        before()
        start, start_cpu = time.perf_counter(), time.process_time()
        results[name] = work()
        wall[name], cpu[name] = time.perf_counter() - start, time.process_time() - start_cpu
    return Turn(wall, cpu, results, (cpu_seconds_of_others() - others) / (time.perf_counter() - begin))


def quiet_turns(turn: Callable[[], Turn], rounds: int, patience: float) -> list[Turn]:
    """The first turns that nothing disturbed; when patience runs out, the least disturbed of all."""
    begin = time.perf_counter()
    turns: list[Turn] = []
    while True:
        turns.append(turn())
        quiet = [t for t in turns if t.disturbance <= QUIET]
        if len(quiet) == rounds:
            return quiet
        if len(turns) >= rounds and time.perf_counter() - begin > patience:
            return sorted(turns, key=lambda t: t.disturbance)[:rounds]
        if turns[-1].disturbance > QUIET:
            time.sleep(2.0)


def resident(field: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS is resident now, VmHWM was at most."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    sys.exit(f"/proc/self/status has no {field}: memory can only be measured on Linux")


def measured(work: Callable[[], Tensor]) -> dict[str, Any]:
    """Peak memory and seconds of the work, whose libraries must be warm."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak of the imports
    before = resident("VmRSS")
    begin, begin_cpu, others = time.perf_counter(), time.process_time(), cpu_seconds_of_others()
    result = work()
    seconds = time.perf_counter() - begin
    peak = resident("VmHWM")
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - begin_cpu,
        "cores_busy_elsewhere": (cpu_seconds_of_others() - others) / seconds,
        "growth_bytes": peak - before,
        "peak_bytes": peak,
        "finite": bool(result.isfinite().all()),
    }


def in_fresh_process(script: str, *arguments: str) -> dict[str, Any]:
    """What `python script --measure ...` prints last, as JSON."""
    command = [sys.executable, script, "--measure", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record
