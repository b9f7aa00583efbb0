"""Two versions of the library take turns in one run: is the new one slower?

    python benchmarks/compare_commits.py BASE [HEAD] [--device cpu|cuda] [--rounds 10] [--threads 2] [--quick] [--data FOLDER]
    python benchmarks/compare_commits.py --folders OLD NEW ...            (where there is no git history)

Each version runs in a process of its own that stays alive (compare_cases.py), so imports and warm-up do not count. A round
measures every case in the order old, new, new, old; each neighbouring pair of old and new gives one ratio, old seconds / new
seconds: above 1 the new version is faster. The median of all pairs counts, beside its quartiles and its range. Short calls are
repeated until a turn takes --least seconds, equally often for both.

Seconds are CPU time of the process, which hardly depends on what else runs, and time on the clock. CPU time decides on a CPU, the
clock on a GPU (--clock says otherwise); the new version may be slower by 5 % on a CPU and by 10 % on a GPU. Exit code 1 if it is
slower. --data, or $AUTODUAL_DATA, holds mnist/ and cifar-10-batches-bin/; without them the images of the golden tests serve. Writes
Markdown and JSON to --out, by default benchmarks/results/compare_commits_DEVICE.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from compare_cases import SLOW
from machine import RESULTS, ROOT, describe, in_words, source_digest
from measuring import QUIET

from autodual.runs.folder import without_place

ALLOWED = {"cpu": 0.05, "cuda": 0.10}
"""Part by which the new version may be slower."""
ORDER = ("old", "new", "new", "old")
CLOCKS = {"cpu": "CPU time", "wall": "clock"}


class Worker:
    """A process with one version of the library."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, str(Path(__file__).with_name("compare_cases.py")), "--library", str(folder)]
        command += ["--device", options.device, "--threads", str(options.threads)]
        command += [] if options.data is None else ["--data", str(options.data)]
        surroundings = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": str(options.threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings
        )
        self.cases: list[str] = self._answer()["cases"]

    def measure(self, case: str, repeats: int) -> dict[str, float]:
        assert self.process.stdin is not None
        print(json.dumps({"case": case, "repeats": repeats}), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a worker ended with exit code {self.process.wait()}; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process: it has nothing left to read."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Case:
    """All turns of one case."""

    name: str
    repeats: int
    turns: list[list[dict[str, float]]]
    """Per round, in the order of `ORDER`."""

    def ratios(self, clock: str) -> list[float]:
        """Old seconds / new seconds of neighbouring turns, two per round."""
        pairs = [(a[clock], b[clock]) for a, b, _, _ in self.turns] + [
            (d[clock], c[clock]) for _, _, c, d in self.turns
        ]
        return [old / new for old, new in pairs]

    def seconds(self, who: str, clock: str) -> float:
        return statistics.median(t[clock] for turn in self.turns for w, t in zip(ORDER, turn, strict=True) if w == who)

    def record(self, allowed: float, decisive: str) -> dict[str, Any]:
        spreads = {clock: _spread(self.ratios(clock)) for clock in CLOCKS}
        old, new = self.turns[-1][0]["value"], self.turns[-1][1]["value"]
        return {
            "case": self.name,
            "repeats": self.repeats,
            "seconds": {who: {c: self.seconds(who, c) for c in CLOCKS} for who in ("old", "new")},
            "ratios": spreads,
            "values": {"old": old, "new": new},
            "values_differ_by": abs(old - new) / max(abs(old), 1e-12),
            "cores_busy_elsewhere": statistics.median(t["disturbance"] for turn in self.turns for t in turn),
            "slower": spreads[decisive]["median"] < 1 - allowed,
            "verdict": _verdict(spreads[decisive], allowed),
        }


def _spread(ratios: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "least": min(ratios), "most": max(ratios)}


def _verdict(spread: dict[str, float], allowed: float) -> str:
    limit = 1 - allowed
    word = "slower" if spread["median"] < limit else "ok"
    return f"{word}, within the spread" if spread["low"] < limit <= spread["high"] else word


def compare(workers: dict[str, Worker], names: list[str], options: argparse.Namespace) -> list[Case]:
    cases = []
    for name in names:
        first = [workers[who].measure(name, 1) for who in ("old", "new")]
        cases.append(Case(name, max(1, math.ceil(options.least / max(f["wall"] for f in first))), []))
    for number in range(options.rounds):
        for case in cases:
            case.turns.append([workers[who].measure(case.name, case.repeats) for who in ORDER])
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    return cases


@contextmanager
def versions(options: argparse.Namespace) -> Iterator[dict[str, tuple[str, Path]]]:
    """Name and folder of both versions; commits are unpacked for as long as they are needed."""
    if options.folders:
        old, new = (Path(folder).resolve() for folder in options.folders)
        yield {"old": (old.name, old), "new": (new.name, new)}
        return
    with tempfile.TemporaryDirectory(prefix="compare_commits_") as room:
        found = {}
        for who, commit in (("old", options.base), ("new", options.head)):
            name = _git("rev-parse", "--short", f"{commit}^{{commit}}").decode().strip()
            folder = Path(room) / who
            with tarfile.open(fileobj=BytesIO(_git("archive", name, "src"))) as archive:
                archive.extractall(folder, filter="data")
            found[who] = name, folder
        yield found


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.decode().strip()} (without a history: --folders OLD NEW)")
    return done.stdout


def show(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    decisive = record["clock"]
    busy = max(row["cores_busy_elsewhere"] for row in record["cases"])
    lines = [
        f"# Two versions take turns, {record['device']}",
        "",
        f"`{record['command']}`",
        "",
        f"Old: {record['old']}. New: {record['new']}. {record['rounds']} rounds of old, new, new, old; medians of "
        f"{2 * record['rounds']} ratios old / new: above 1 the new version is faster. {CLOCKS[decisive]} decides; the new version may "
        f"be slower by {record['allowed']:.0%}.",
        "",
        "| case | old, ms | new, ms | ratio, CPU time | quartiles | range | ratio, clock | quartiles | verdict | results differ by |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["cases"]:
        old, new = (1000 * row["seconds"][who][decisive] for who in ("old", "new"))
        cpu, wall = row["ratios"]["cpu"], row["ratios"]["wall"]
        lines.append(
            f"| {row['case']} | {old:.2f} | {new:.2f} | **{cpu['median']:.3f}** | {cpu['low']:.3f} to {cpu['high']:.3f} "
            f"| {cpu['least']:.2f} to {cpu['most']:.2f} | {wall['median']:.3f} | {wall['low']:.3f} to {wall['high']:.3f} "
            f"| {row['verdict']} | {row['values_differ_by']:.0e} |"
        )
    lines += [
        "",
        f"Other processes kept up to {busy:.2f} cores busy (median of the turns of the case that suffered most)"
        + (": the machine was busy, and times on the clock are not to be trusted." if busy > QUIET else "."),
        "",
        in_words(record["machine"]),
        "",
    ]
    return "\n".join(lines)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="the commit that was there before")
    parser.add_argument("head", nargs="?", default="HEAD")
    parser.add_argument("--folders", nargs=2, metavar=("OLD", "NEW"), help="two folders that hold src/autodual")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.3, help="seconds that a turn takes at least")
    parser.add_argument("--clock", choices=tuple(CLOCKS), help="which seconds decide")
    parser.add_argument("--quick", action="store_true", help="without the ResNet")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--data", type=Path, default=os.environ.get("AUTODUAL_DATA"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if (options.base is None) == (options.folders is None):
        parser.error("give a commit to compare with, or --folders OLD NEW")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    options.clock = options.clock or ("cpu" if options.device == "cpu" else "wall")
    options.out = options.out or RESULTS / f"compare_commits_{options.device}.md"
    return options


def main() -> None:
    options = read_options()
    allowed = ALLOWED[options.device]
    with versions(options) as found, ExitStack() as stack:
        workers = {who: Worker(folder, options) for who, (_, folder) in found.items()}
        for worker in workers.values():
            stack.callback(worker.close)
        names = [n for n in workers["new"].cases if options.only in n and not (options.quick and n == SLOW)]
        if not names:
            sys.exit(f"no case is called {options.only!r}; there are: {', '.join(workers['new'].cases)}")
        cases = compare(workers, names, options)
        told = {who: f"{name} (source {source_digest(folder)})" for who, (name, folder) in found.items()}
    record = {
        "command": " ".join(["python benchmarks/compare_commits.py", *map(without_place, sys.argv[1:])]),
        "device": options.device,
        "rounds": options.rounds,
        "clock": options.clock,
        "allowed": allowed,
        **told,
        "cases": [case.record(allowed, options.clock) for case in cases],
        "machine": describe() | {"threads": options.threads},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(show(record), encoding="utf-8")
    options.out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(show(record))
    raise SystemExit(any(row["slower"] for row in record["cases"]))


if __name__ == "__main__":
    main()
