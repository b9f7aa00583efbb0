"""A long hunt for certificates and bounds that do not hold.

Networks, operations, parameters, dtypes, sets, engines, hooks and magnitudes are drawn at random. A case is built so that a claim of
the library would be false: the margin of the true function is just below zero at a known point of the set, in decimal arithmetic
where that is possible. Whatever is certified nevertheless is shrunk to about ten lines of Python. Exit code: distinct findings.

    python benchmarks/hunt.py --minutes 30 --workers 2 --out benchmarks/results/hunt.md
    python benchmarks/hunt.py --minutes 1 --kind folded --seed 7
    python benchmarks/hunt.py --replay folded:123
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from hunting.check import Finding, Shrinker, suspects
from hunting.draws import DRAWS as PLAIN
from hunting.graphs import graphs
from hunting.products import curves, products
from hunting.special import SPECIAL as OTHERS

DRAWS = PLAIN | {"curves": curves, "products": products}
SPECIAL = OTHERS | {"graphs": graphs}
KINDS = (*DRAWS, *SPECIAL)
PER_TURN = 10
"""Seeds of a kind before the next kind has its turn; kinds in `SPECIAL` take one."""


@dataclass
class Tally:
    """What has been tried and found so far."""

    cases: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[str, Finding]] = field(default_factory=dict)
    """By name: where it came from (kind:seed), and the finding."""
    times: Counter[str] = field(default_factory=Counter)
    """By name: how often."""

    def add(self, kind: str, seed: int, count: int, found: Sequence[Finding]) -> list[Finding]:
        """Counts a seed's cases; returns the findings that are new."""
        self.cases[kind] += count
        self.times.update(f.name for f in found)
        new = list({f.name: f for f in found if f.name not in self.findings}.values())
        self.findings.update({f.name: (f"{kind}:{seed}", f) for f in new})
        return new

    def markdown(self) -> str:
        by_kind = Counter(place.split(":")[0] for place, _ in self.findings.values())
        lines = ["| kind | cases tried | distinct findings |", "|---|---|---|"]
        lines += [f"| {kind} | {self.cases[kind]:,} | {by_kind[kind]} |" for kind in KINDS if self.cases[kind]]
        lines.append(f"| all | {sum(self.cases.values()):,} | {len(self.findings)} |")
        for name, (place, found) in self.findings.items():
            lines += [
                "",
                f"## {name}",
                "",
                f"`--replay {place}`, seen {self.times[name]} times",
                "",
                "```python",
                found.script.rstrip(),
                "```",
            ]
        return "\n".join(lines) + "\n"


def try_seed(kind: str, seed: int, shrinker: Shrinker) -> tuple[int, list[Finding]]:
    """How many cases a seed of a kind gave, and what was found; one finding is enough."""
    try:
        return _try(kind, random.Random(f"{kind}:{seed}"), shrinker)
    except Exception as error:  # of the library, or of the hunt: either is to be looked at
        name = f"{type(error).__name__} in {kind}: {str(error)[:60]}"
        told = "".join(f"# {line}\n" for line in traceback.format_exc().splitlines()[-12:])
        return 1, [Finding(name, name, told)]


def _try(kind: str, draw: random.Random, shrinker: Shrinker) -> tuple[int, list[Finding]]:
    torch.manual_seed(draw.getrandbits(32))
    if kind in SPECIAL:
        return SPECIAL[kind](draw, shrinker)
    count = 0
    for cases in DRAWS[kind](draw):
        count += len(cases)
        for case in suspects(cases):
            found = shrinker.finding(case)
            if found is not None:
                return count, [found]
    return count, []


def seeds_in_turn(kinds: Sequence[str], first: int, step: int) -> Iterator[tuple[str, int]]:
    """Kinds take turns; `step` workers share the seeds out."""
    start = first
    while True:
        for kind in kinds:
            for i in range(1 if kind in SPECIAL else PER_TURN):
                yield kind, start + i * step
        start += PER_TURN * step


def hunt(kinds: Sequence[str], seed: int, step: int, until: float) -> Iterator[tuple[str, int, int, list[Finding]]]:
    """Results seed by seed until the time is up."""
    shrinker = Shrinker()
    for kind, number in seeds_in_turn(kinds, seed, step):
        if time.time() >= until:
            return
        yield (kind, number, *try_seed(kind, number, shrinker))


def _work(queue: multiprocessing.Queue, kinds: Sequence[str], seed: int, step: int, until: float) -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(KeyboardInterrupt):
        for result in hunt(kinds, seed, step, until):
            queue.put(result)
    queue.put(None)


def _results(options: argparse.Namespace, until: float) -> Iterator[tuple[str, int, int, list[Finding]]]:
    """From this process, or from several workers."""
    if options.workers == 1:
        yield from hunt(options.kind, options.seed, 1, until)
        return
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    arguments = [(queue, options.kind, options.seed + i, options.workers, until) for i in range(options.workers)]
    workers = [context.Process(target=_work, args=a, daemon=True) for a in arguments]
    for worker in workers:
        worker.start()
    left = len(workers)
    while left:
        result = queue.get()
        left -= result is None
        if result is not None:
            yield result


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", action="append", choices=KINDS, help="one kind only; may be given several times")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--replay", metavar="KIND:SEED", help="one seed again")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table and the findings")
    options = parser.parse_args(given)
    options.kind = options.kind or list(KINDS)
    tally, begin = Tally(), time.time()
    if options.replay:
        kind, _, seed = options.replay.partition(":")
        results = iter([(kind, int(seed), *try_seed(kind, int(seed), Shrinker(30.0)))])
    else:
        results = _results(options, begin + 60 * options.minutes)
    shown = begin
    with contextlib.suppress(KeyboardInterrupt):
        for kind, seed, count, found in results:
            for new in tally.add(kind, seed, count, found):
                print(f"\n--- {new.name}   (--replay {kind}:{seed})\n{new.script}", flush=True)
            if time.time() - shown > 5 and sys.stderr.isatty():
                shown = time.time()
                total = sum(tally.cases.values())
                print(
                    f"\r{shown - begin:5.0f} s {total:8,} cases {len(tally.findings):3} findings",
                    end="",
                    file=sys.stderr,
                )
    table = tally.markdown()
    print(table.split("\n\n##")[0])
    if options.out is not None:
        minutes = (time.time() - begin) / 60
        heading = f"# Hunt\n\n{minutes:.1f} minutes, {options.workers} workers, seed {options.seed}, PyTorch {torch.__version__}\n\n"
        options.out.write_text(heading + table)
    return min(len(tally.findings), 125)


if __name__ == "__main__":
    raise SystemExit(main())
