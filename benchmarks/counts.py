"""How large the source is, and how far one call goes in it, of one commit or of two side by side.

    python benchmarks/counts.py COMMIT [COMMIT] [--json FILE] [--files]

Prints Markdown: lines, files, functions, walks over nodes, duplicated places, and the files that a call passes through. A commit is
unpacked into a folder for as long as it is needed; `.` is the working tree. --files lists the files behind the last three rows.

- A line of code is one that is not blank, not a comment and not part of a docstring.
- A function's length is its lines from `def` to its end, docstring included; functions inside functions count, too.
- A walk by hand gathers the values of a node's operands itself, as in `[values[i] for i in node.inputs]`. Such comprehensions are
  found in the syntax tree: they are places to look at rather than a verdict. The one traversal has one of its own.
- A file is passed through if one of its functions runs during the call. Everything is imported by a call like it before, and the call
  that is traced is about another network, so that neither imports nor caches count. The training step is forward, backward and
  optimiser on one batch with `Projected`; `autodual train` trains two epochs on 60 digits and evaluates 20.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
CALLS = ("ad.certify", "training step", "autodual train")


# What can be read off the text.


def measure(source: Path) -> dict[str, Any]:
    """Counts of the Python files below a folder."""
    files = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    trees = {name: ast.parse(text) for name, text in files.items()}
    lengths = [_length(node) for tree in trees.values() for node in ast.walk(tree) if _is_function(node)]
    folders = Counter(str(Path(name).parent) for name in files)
    return {
        "lines": sum(len(text.splitlines()) for text in files.values()),
        "lines of code": sum(_lines_of_code(text, trees[name]) for name, text in files.items()),
        "files": len(files),
        "most files in one folder": max(folders.values(), default=0),
        "functions": len(lengths),
        "median length of a function": statistics.median(lengths) if lengths else 0,
        "files per folder": dict(sorted(folders.items())),
        "walks by hand": sorted(f"{name}:{line}" for name, tree in trees.items() for line in _walks(tree)),
    }


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _length(node: Any) -> int:
    return int(node.end_lineno - node.lineno + 1)


def _lines_of_code(text: str, tree: ast.Module) -> int:
    passed_over = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in passed_over:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):  # docstrings, also those below a name
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                code -= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return len(code)


def _walks(tree: ast.Module) -> list[int]:
    """Lines of comprehensions such as `[values[i] for i in node.inputs]`."""

    def gathers(node: ast.AST) -> bool:
        if not isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp) or not isinstance(
            node.generators[0].target, ast.Name
        ):
            return False
        over, name = node.generators[0].iter, node.generators[0].target.id
        indices = (part.slice for part in ast.walk(node.elt) if isinstance(part, ast.Subscript))
        own = any(isinstance(index, ast.Name) and index.id == name for index in indices)
        return own and isinstance(over, ast.Attribute) and over.attr == "inputs"

    return [node.lineno for node in ast.walk(tree) if gathers(node)]  # type: ignore[attr-defined]


def duplicates(source: Path) -> str:
    """What the command `duplicates` counts, where there is one."""
    if shutil.which("duplicates") is None:
        return "no such command here"
    told = subprocess.run(
        ["duplicates", "--repo", str(source)], capture_output=True, text=True, timeout=60, check=False
    )
    first = told.stdout.split()
    return first[0] if first and first[0].isdigit() else "0" if told.stdout.startswith("no duplicates") else "?"


# What a call passes through, found in a process of its own.


class Trace:
    """Collects the files of a folder in which a function runs, in every thread, while it is active."""

    def __init__(self, source: Path) -> None:
        self.start, self.files = f"{source}{os.sep}", set[str]()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(self.start):
            self.files.add(code.co_filename[len(self.start) :])

    def during(self, call: Callable[[], object]) -> list[str]:
        self.files.clear()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return sorted(self.files)


def trace_calls(source: Path) -> dict[str, list[str] | str]:
    """The files that each of CALLS passes through; or why that is not known."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[str] | str] = {}
    with tempfile.TemporaryDirectory(prefix="counts_run_") as room:
        for name, prepare in zip(CALLS, (_certifying, _stepping, lambda: _training(Path(room))), strict=True):
            try:
                prepare()()
                found[name] = Trace(source).during(prepare())
            except (
                Exception
            ) as error:  # a commit may have another API: that is said, and the other rows are still found
                found[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return found


def _digits() -> Any:
    import autodual as ad

    images, labels = ad.load_digits("test")
    return ad, ad.load_digits_network(), images[:8], labels[:8]


def _certifying() -> Callable[[], object]:
    ad, model, images, labels = _digits()
    return lambda: ad.certify(model, images, labels, ad.LinfBall(0.05, clip=(0.0, 1.0)))


def _stepping() -> Callable[[], object]:
    import torch

    ad, model, images, labels = _digits()
    optimiser = torch.optim.SGD(model.train().parameters(), lr=0.01)
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.05, clip=(0.0, 1.0)), ad.Projected(10))

    def step() -> None:
        loss(images, labels).backward()
        optimiser.step()

    return step


def _training(room: Path) -> Callable[[], object]:
    from autodual.cli.app import main

    out = tempfile.mkdtemp(dir=room) + "/run"
    data = {"dataset": "digits", "limit-train": 60, "limit-test": 20, "device": "cpu"}
    options = [f"--{name}={value}" for name, value in (data | {"model": "digits", "epochs": 2, "k": 5}).items()]

    def train() -> None:
        said = io.StringIO()
        before, sys.argv = sys.argv, ["autodual", "train", "--out", out, *options]
        try:
            with redirect_stdout(said), redirect_stderr(said):
                main()
        except SystemExit as end:
            if end.code not in (None, 0):
                last = said.getvalue().strip().splitlines()[-1:]
                raise RuntimeError(f"autodual train ended with {end.code}: {' '.join(last)}") from None
        finally:
            sys.argv = before

    return train


def traced(folder: Path) -> dict[str, Any]:
    """`trace_calls` in a process that imports the library of this folder."""
    surroundings = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--trace", str(folder / "src" / "autodual")]
    done = subprocess.run(
        command, env=surroundings, cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return dict.fromkeys(CALLS, f"the process ended with {done.returncode}: {reason}")
    return found


# One or two commits, side by side.


def count(commit: str) -> dict[str, Any]:
    """All counts of one commit."""
    if commit == ".":
        return _of_folder(commit, ROOT)
    name = _git("rev-parse", "--short", f"{commit}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix="counts_") as room:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", name, "src"))) as archive:
            archive.extractall(room, filter="data")
        return _of_folder(name, Path(room).resolve())


def _of_folder(name: str, folder: Path) -> dict[str, Any]:
    source = folder / "src" / "autodual"
    return {"commit": name, **measure(source), "duplicates": duplicates(source), "calls": traced(folder)}


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def table(counts: list[dict[str, Any]]) -> str:
    """The counts as a table in Markdown, one column per commit."""
    plain = ("lines", "lines of code", "files", "most files in one folder", "functions", "median length of a function")
    rows = [(name, [f"{one[name]:,g}" if one[name] < 1000 else f"{one[name]:,}" for one in counts]) for name in plain]
    rows.append(("walks by hand", [str(len(one["walks by hand"])) for one in counts]))
    rows.append(("duplicated places", [one["duplicates"] for one in counts]))
    for call in CALLS:
        passed = [one["calls"][call] for one in counts]
        rows.append((f"files that {call} passes", [p if isinstance(p, str) else str(len(p)) for p in passed]))
    folders = sorted({folder for one in counts for folder in one["files per folder"]})
    for folder in folders:
        name = "autodual" if folder == "." else folder
        rows.append((f"files in `{name}`", [str(one["files per folder"].get(folder, "")) for one in counts]))
    lines = [
        ["count", *(one["commit"] for one in counts)],
        ["---", *("---:" for _ in counts)],
        *([n, *c] for n, c in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def places(one: dict[str, Any]) -> str:
    """The files behind the counts of walks and calls."""
    lists = {"walks by hand": one["walks by hand"], **one["calls"]}
    told = [f"{name}: {found if isinstance(found, str) else ', '.join(found)}" for name, found in lists.items()]
    return "\n".join([f"\n## {one['commit']}\n", *(f"- {line}" for line in told)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", default=["."], metavar="COMMIT")
    parser.add_argument("--json", type=Path, help="write all counts there, too")
    parser.add_argument("--files", action="store_true", help="list the files behind walks and calls")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace is not None:
        print(json.dumps(trace_calls(options.trace)))
        return
    counts = [count(commit) for commit in options.commits]
    print(table(counts))
    if options.files:
        print(*map(places, counts), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
