"""Would the fast tests notice? Puts one mistake at a time into a copy of src/, and runs them.

    python benchmarks/mutations.py --workers 2 --out benchmarks/results/mutations.md
    python benchmarks/mutations.py --only "ramp off by one"

`mutation_list.py` has the mistakes. The tests that each one names are tried first, the rest of the fast suite only if these
pass. In the end, all tests that failed are run without any mistake: a test that fails then, too, has noticed nothing.
Exit code: mutations that no test noticed. The tree itself is never changed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest
import scipy.optimize  # noqa: F401 - like torch, imported once, and not by every child
from machine import ROOT, describe, in_words
from mutation_list import MUTATIONS, Mutation

BY_NAME = {one.name: one for one in MUTATIONS}
SECONDS = 60
"""Seconds that one test may take; a mistake may well run forever."""


@dataclass(frozen=True)
class Outcome:
    """What became of one mutation."""

    mutation: Mutation
    test: str | None
    """The first test that failed; None if none did."""
    seconds: float


class Failures:
    """A plugin of pytest that notes which tests fail, and which files cannot even be collected."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_sessionstart(self) -> None:
        """A failing example is enough: to make it smaller would take minutes."""
        from hypothesis import Phase, settings

        settings.register_profile("first failure", phases=(Phase.explicit, Phase.reuse, Phase.generate))
        settings.load_profile("first failure")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.found.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found.append(report.nodeid)


class NoVerdictError(Exception):
    """Tests ended without saying which of them fail."""


class Copy:
    """A copy of src/ in a folder of its own, in which one mistake at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(ROOT / "src", self.source)  # with its bytecode, and times that keep it valid

    def notices(self, mutation: Mutation, rest: bool) -> str | None:
        """The first test that fails with the mistake in place."""
        path = self.source / "autodual" / mutation.file
        before, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutation.applied(before), encoding="utf-8")
        try:
            first = [f"tests/{test}" for test in mutation.tests]
            failed = self.failing(["-x", *first])
            if not failed and rest:
                failed = self.failing(["-x", "tests", *(f"--deselect={test}" for test in first)])
        finally:
            path.write_text(before, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return failed[0] if failed else None

    def failing(self, arguments: Sequence[str]) -> list[str]:
        """The tests that fail, of the fast ones among these, in a process of their own that knows PyTorch already."""
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        log = self.source.with_name("log")
        child = context.Process(target=_run, args=(self.source, arguments, sender, log))
        child.start()
        sender.close()
        try:
            found: list[str] = receiver.recv()
        except EOFError:
            told = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
            raise NoVerdictError(f"pytest {' '.join(arguments)}: ended without a verdict\n{told}") from None
        finally:
            child.join()
        return found


def _run(source: Path, arguments: Sequence[str], sender: multiprocessing.connection.Connection, log: Path) -> None:
    """Runs tests on the library in `source`, and sends those that fail; nothing is sent where there is no verdict."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests of Ctrl-C need it, also in the background
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    os.chdir(ROOT)
    sys.path.insert(0, str(source))
    import autodual

    assert autodual.__file__ is not None
    assert Path(autodual.__file__).is_relative_to(source), "another copy of the library is in the way"
    failures = Failures()
    options = ["-q", "--tb=no", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", f"--timeout={SECONDS}"]
    code: int | None = None
    try:
        code = pytest.main([*options, *arguments], plugins=[failures])
    finally:  # a mistake may leave something open, about which pytest complains in the end
        if code == pytest.ExitCode.OK or failures.found:
            sender.send(failures.found)


def tried(mutation: Mutation, copies: SimpleQueue[Copy], rest: bool) -> Outcome:
    """Makes one mistake in whichever copy is free, and tells the test that notices it."""
    copy, start = copies.get(), time.monotonic()
    try:
        test = copy.notices(mutation, rest)
    except NoVerdictError as error:
        test = None
        print(error, flush=True)
    finally:
        copies.put(copy)
    outcome = Outcome(mutation, test, time.monotonic() - start)
    print(f"{outcome.seconds:5.0f} s  {mutation.name}: {outcome.test or 'NOT NOTICED'}", flush=True)
    return outcome


def report(outcomes: Sequence[Outcome]) -> str:
    from autodual.runs.folder import without_place  # not before: children inherit what is imported, and want the copy

    missed = [one.mutation.name for one in outcomes if one.test is None]
    lines = [
        "# Mutations",
        "",
        f"`{' '.join(['python benchmarks/mutations.py', *map(without_place, sys.argv[1:])])}`",
        "",
        f"{len(outcomes) - len(missed)} of {len(outcomes)} mistakes are noticed by the fast tests, in "
        f"{sum(one.seconds for one in outcomes) / 60:.0f} minutes of one worker. "
        + (f"Not noticed: {'; '.join(missed)}." if missed else "All tests that failed pass without a mistake."),
        "",
        "| file | mistake | first test that fails | seconds |",
        "|---|---|---|---|",
        *(
            f"| {one.mutation.file} | {one.mutation.name} | {_shown(one.test)} | {one.seconds:.0f} |"
            for one in outcomes
        ),
        "",
        in_words(describe()),
        "",
    ]
    return "\n".join(lines)


def _shown(test: str | None) -> str:
    if test is None:
        return "**none**"
    return "`" + test.removeprefix("tests/").replace("|", "\\|") + "`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only the mutation of this name; may be given again"
    )
    parser.add_argument("--first", action="store_true", help="only the tests that a mutation names, not the rest")
    parser.add_argument("--out", type=Path, help="FILE.md for the table of this run")
    options = parser.parse_args()
    unknown = set(options.only or ()) - BY_NAME.keys()
    if unknown:
        parser.error(f"no mutation is called {', '.join(sorted(unknown))}")
    chosen = [one for name, one in BY_NAME.items() if options.only is None or name in options.only]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.workers):
            copies.put(Copy(Path(folder) / str(number)))
        outcomes = list(pool.map(lambda one: tried(one, copies, not options.first), chosen))
        noticed = sorted({one.test for one in outcomes if one.test is not None})
        broken = set(copies.get().failing(noticed)) if noticed else set()
    for test in sorted(broken):
        print(f"{test}: fails without any mistake, too")
    outcomes = [Outcome(o.mutation, None if o.test in broken else o.test, o.seconds) for o in outcomes]
    missed = sum(one.test is None for one in outcomes)
    if options.out is not None:
        options.out.write_text(report(outcomes), encoding="utf-8")
    print(report(outcomes))
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
