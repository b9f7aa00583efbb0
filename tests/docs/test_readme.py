"""The README shows only figures that are recorded in this repository, commands that exist, and code that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import autodual as ad

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = [line for line in README.splitlines() if line.startswith("|")]


def _record(path: str) -> dict[str, Any]:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _certified(row: str) -> float:
    """Mean over the seeds that have run, in per cent."""
    folder = ROOT / "results" / "paper" / row
    files = [folder / "evaluation.json", *sorted(folder.glob("seed-*/evaluation.json"))]
    errors = [_record(str(file.relative_to(ROOT)))["robust_error"] for file in files]
    return 100 - 100 * sum(errors) / len(errors)


def _row(start: str) -> str:
    return next(line for line in ROWS if line.startswith(f"| {start}"))


def test_certified_accuracy_is_that_of_the_records() -> None:
    found = [_certified(row) for row in ("mnist-small-0.1", "mnist-small-0.3", "cifar-large-2")]
    assert "| {:.2f} / {:.2f} / {:.2f} % |".format(*found) in _row("certified accuracy, the paper")
    headline = re.search(
        r"\*\*([\d.]+) % certified accuracy\*\* on MNIST.*?\*\*([\d.]+) %\*\* on CIFAR", README, re.DOTALL
    )
    assert headline is not None
    assert headline.groups() == (f"{found[0]:.1f}", f"{found[2]:.1f}")


def test_the_papers_figures_are_those_of_the_tables() -> None:
    tables = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    printed = [
        re.search(rf"^\| {row} \| paper \| [\d.]+ \| [\d. /]+ \| ([\d.]+) /", tables, re.MULTILINE)
        for row in ("mnist-small-0.1", "mnist-small-0.3", "cifar-large-2")
    ]
    paper = [100 - float(found[1]) for found in printed if found is not None]
    assert "| {:.2f} / {:.2f} / {:.2f} % |".format(*paper) in _row("certified accuracy, the paper")


def test_the_published_network_is_counted_as_recorded() -> None:
    found = _record("benchmarks/results/published_weights.json")
    assert f"| {found['not_certified']}, {found['misclassified']} |" in _row("their published MNIST network")


def test_speeds_are_those_of_the_records() -> None:
    exact = _record("benchmarks/results/exact_speed.json")["small"]
    ratios = [exact[name][key] for key in ("speed_ratio", "memory_ratio") for name in ("mnist", "cifar")]
    assert "| {:.1f} / {:.1f} times as fast, {:.2f} / {:.2f} of the memory |".format(*ratios) in _row(
        "exact certificates"
    )
    steps = _record("benchmarks/results/training_speed.json")["problems"]
    ratios = [steps[name][key]["merged"] for key in ("speed_ratio", "memory_ratio") for name in ("mnist", "cifar")]
    assert "| {:.1f} / {:.1f} times as fast, {:.2f} / {:.2f} of the memory |".format(*ratios) in _row("a training step")


def test_training_at_equal_time_is_that_of_the_record() -> None:
    found = {each["way"]: each for each in _record("benchmarks/results/equal_time_cifar-large-2.json")["records"]}
    ours, theirs = found["default, k = 50"], found["one stream per term, median (the paper's), k = 50"]
    row = _row("certified accuracy of CIFAR-10 2/255 large after 40 s")
    assert f"| {100 - 100 * ours['robust_error']:.1f} % |" in row
    assert f"| {100 - 100 * theirs['robust_error']:.1f} % after {theirs['seconds']:.0f} s" in row


def test_commands_and_links_lead_somewhere() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"make ([\w-]+)", README))
    assert {"demo", "test"} <= targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    scripts = re.findall(r"python (benchmarks/\w+\.py)", README)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README)]
    assert [path for path in (*scripts, *links) if not (ROOT / path).exists()] == []
    rows = re.search(r"`autodual reproduce ([\w. -]+)`", README)
    assert rows is not None
    assert [row for row in rows[1].split() if not (ROOT / "configs" / f"{row}.yaml").exists()] == []


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = ad.load_digits("test")
    names = {"model": ad.load_digits_network(), "images": images[:10], "labels": labels[:10]}
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert len([line for line in block[1].splitlines() if line]) <= 6  # five, and the import
    exec(compile(block[1], "README.md", "exec"), names)
    assert "CERTIFIED" in capsys.readouterr().out
    assert torch.is_tensor(names["loss"](images[:10], labels[:10]))  # type: ignore[operator]
