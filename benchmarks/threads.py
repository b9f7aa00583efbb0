"""Eight threads certify, search radii, attack, train and run models at once; every number must be the one of a single thread.

    python benchmarks/threads.py [--seconds 60] [--threads 8]

The work is that of tests/certificates/test_threads.py, which does it for a few seconds. Half of the calls are on models that all
threads share. One more thread only watches whether the methods of nn.Module are PyTorch's own. Writes
benchmarks/results/threads.md, and exits with 1 if anything failed or differed.
"""

from __future__ import annotations

import argparse
import sys

from machine import RESULTS, ROOT, describe, in_words

sys.path.insert(0, str(ROOT / "tests"))

from many_threads import Tally, hammer  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    tally = hammer(options.seconds, options.threads)
    text = report(tally, options.seconds, options.threads)
    print(text)
    (RESULTS / "threads.md").write_text(text, encoding="utf-8")
    raise SystemExit(not tally.clean)


def report(tally: Tally, seconds: float, threads: int) -> str:
    lines = [
        "# Many threads at once",
        "",
        f"`python benchmarks/threads.py --seconds {seconds:g} --threads {threads}`",
        "",
        "| work | calls | other numbers than in one thread |",
        "|---|---|---|",
        *(f"| {name} | {count:,} | {tally.different[name]} |" for name, count in sorted(tally.done.items())),
        "",
        f"Failures: {len(tally.failures)}. A thread that only watches looked {tally.looks:,} times at the methods of nn.Module, "
        f"and saw others than PyTorch's own {tally.patched} times.",
        *(f"- {failure}" for failure in tally.failures[:20]),
        "",
        in_words(describe()),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
