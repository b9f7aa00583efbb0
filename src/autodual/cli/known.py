"""What a run folder knows already about the question that `certify` or `attack` is asked: it must not contradict the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._files import parse_json, read_content, read_json
from autodual.bounds import BoundEngine, Dual, HighProbability
from autodual.cli.target import Target
from autodual.train.claims import check_claims
from autodual.train.judge import fault, question
from autodual.train.lines import LINES_LIMIT, record_about


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
        for line in read_content(file, LINES_LIMIT).split(b"\n")[: len(labels)]:
            record = _parsed(line)
            index = record.get("index")
            if type(index) is int and 0 <= index < len(labels) and fault(record, labels) is None:
                certified[index] = record["certified"]
        check_claims(file, opened.model, opened.data, opened.ball, certified, broken)


def _same(file: Path, opened: Target) -> bool:
    """Whether the lines of a file are proofs about this network, data and perturbation, by whatever engine, version and device."""
    note = _read(record_about(file, "problem"))
    engine = note.get("engine")
    if not isinstance(engine, str) or engine.startswith(HighProbability.__name__):
        return False
    asked = question([opened.model], opened.data, opened.ball, Dual())
    return all(note.get(name) == asked[name] for name in ("perturbation", "examples", "data", "network", "dtype"))


def _read(path: Path) -> dict[str, Any]:
    """A record, or nothing."""
    try:
        found = read_json(path)
    except ArgumentError:
        return {}
    return found if isinstance(found, dict) else {}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
