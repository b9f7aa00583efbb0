"""What a run folder knows already about the question that `certify` or `attack` is asked: it must not contradict the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autodual.bounds import BoundEngine, Dual, HighProbability
from autodual.cli.target import Target
from autodual.train.claims import check_claims
from autodual.train.judge import fault, question
from autodual.train.lines import record_about


def check_by_evaluation(place: Path, opened: Target, engine: BoundEngine, certified: Tensor) -> None:
    """Fail if the attack of the run's evaluation breaks what is certified now."""
    broken = _read(place / "evaluation.json").get("attacked")
    if isinstance(engine, HighProbability) or not _same(place / "certificates.jsonl", opened):
        return  # what is only probable may be wrong
    if isinstance(broken, list) and len(broken) == len(certified) and all(isinstance(b, bool) for b in broken):
        check_claims(
            f"{engine!r}", opened.model, opened.data, opened.ball, certified, torch.tensor(broken, dtype=torch.bool)
        )


def check_by_certificates(place: Path, opened: Target, broken: Tensor) -> None:
    """Fail if the attack breaks what the run folder has certificates of."""
    labels = opened.data.labels.tolist()
    for file in sorted(place.glob("certificates*.jsonl")) if place.is_dir() else ():
        if not _same(file, opened):
            continue
        certified = torch.zeros_like(broken)
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[: len(labels)]:
            record = _parsed(line)
            index = record.get("index")
            if type(index) is int and 0 <= index < len(labels) and fault(record, labels) is None:
                certified[index] = record["certified"]
        check_claims(file, opened.model, opened.data, opened.ball, certified, broken)


def _same(file: Path, opened: Target) -> bool:
    """Whether the lines of a file are proofs about these weights, data and perturbation, by whatever engine."""
    note = _read(record_about(file, "problem"))
    engine = note.get("engine")
    if not isinstance(engine, str) or engine.startswith(HighProbability.__name__):
        return False
    return note == question([opened.model], opened.data, opened.ball, Dual()) | {"engine": engine}


def _read(path: Path) -> dict[str, Any]:
    """A record, or nothing."""
    try:
        return _parsed(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
