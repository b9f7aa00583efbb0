"""What a trained classifier is worth: certified, attacked, and looked at; kept in files that a report is made from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.bounds import BoundEngine, Dual
from autodual.certify import Certificate, attack, certified_radius, certify
from autodual.sets import Perturbation
from autodual.train.data import ImageData
from autodual.train.files import replacing, write_json
from autodual.train.group import ALONE, Group

CURVE = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Sizes at which certified and attacked accuracy are plotted, as multiples of eps."""
GALLERY = 24
ATTACK_STEPS = 40

Tell = Callable[[str, int, int], None]
"""(what, done, of): for a progress bar."""


@dataclass(frozen=True)
class Judged:
    """Per example: what certification says, in order."""

    labels: Tensor
    predicted: Tensor
    certified: Tensor
    margins: Tensor
    """The smallest one."""

    @property
    def error(self) -> float:
        return (self.predicted != self.labels).double().mean().item()

    @property
    def robust_error(self) -> float:
        return 1 - self.certified.double().mean().item()

    @classmethod
    def of(cls, certificate: Certificate) -> Judged:
        smallest = certificate.margins.min(1).values
        return cls(*(t.cpu() for t in (certificate.labels, certificate.predicted, certificate.certified, smallest)))

    @classmethod
    def join(cls, parts: list[Judged]) -> Judged:
        names = ("labels", "predicted", "certified", "margins")
        return cls(*(torch.cat([getattr(p, n) for p in parts]) for n in names))


def batch_size(data: ImageData) -> int:
    return 1000 if data.images.is_cuda else 100


def batches(data: ImageData) -> Iterator[tuple[slice, Tensor, Tensor]]:
    for first in range(0, len(data), batch_size(data)):
        part = slice(first, min(len(data), first + batch_size(data)))
        yield part, data.scaled(part), data.labels[part]


def judge(
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    engine: BoundEngine | None = None,
    tell: Tell = lambda what, done, of: None,
    what: str = "certifying",
) -> Judged:
    """Certify all examples, some at a time."""
    parts = []
    for part, x, labels in batches(data):
        parts.append(Judged.of(certify(model, x, labels, ball, engine)))
        tell(what, part.stop, len(data))
    return Judged.join(parts)


def judge_to_file(
    path: Path,
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    engine: BoundEngine | None,
    tell: Tell,
    group: Group = ALONE,
) -> Judged:
    """The same with a line of JSON per example; goes on where an interrupted call stopped. Processes take turns with batches."""
    if group.first:
        _claim(path, model, data, ball, engine)
    lines = group.gather(_whole_batches(path, data) if group.first else [])[0]
    try:
        with path.open("a", encoding="utf-8") if group.first else nullcontext() as stream:
            for turn in _turns(data, len(lines), group.size):
                mine = turn[group.rank] if group.rank < len(turn) else None
                own = [] if mine is None else _lines(mine, model, data, ball, engine)
                for found in group.gather(own):
                    lines += found
                    if stream is not None:
                        stream.writelines(json.dumps(line) + "\n" for line in found)
                if stream is not None:
                    stream.flush()
                    os.fsync(stream.fileno())
                tell("certifying", len(lines), len(data))
    except OSError as error:
        raise ArgumentError(f"{path}: not written: {error.strerror or error}") from None
    return Judged(
        torch.tensor([line["label"] for line in lines]),
        torch.tensor([line["predicted"] for line in lines]),
        torch.tensor([line["certified"] for line in lines], dtype=torch.bool),
        torch.tensor([torch.nan if line["margin"] is None else line["margin"] for line in lines]),
    )


def _claim(path: Path, model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None) -> None:
    """Note beside the file what its lines are about; refuse to go on with lines about something else."""
    beside = path.with_suffix(".problem.json")
    weights = hashlib.sha256()
    for name, value in model.state_dict().items():
        weights.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    problem = {
        "perturbation": repr(ball),
        "engine": repr(Dual() if engine is None else engine),
        "examples": len(data),
        "data": data.digest(),
        "weights": weights.hexdigest(),
    }
    if path.exists() and path.stat().st_size > 0:
        before = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
        other = [k for k, v in problem.items() if before.get(k) != v]
        if other:
            raise ArgumentError(
                f"{path}: its certificates are about something else ({other[0]} was {before.get(other[0])}, now {problem[other[0]]}); "
                f"choose another file, or remove it"
            )
    write_json(beside, problem)


def _turns(data: ImageData, start: int, size: int) -> list[list[slice]]:
    """Batches that processes certify at the same time, turn by turn, in order."""
    step = batch_size(data)
    parts = [slice(first, min(len(data), first + step)) for first in range(start, len(data), step)]
    return [parts[i : i + size] for i in range(0, len(parts), size)]


def _lines(
    part: slice, model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None
) -> list[dict[str, Any]]:
    found = Judged.of(certify(model, data.scaled(part), data.labels[part], ball, engine))
    return [_line(part.start + offset, found, offset) for offset in range(len(found.labels))]


def _line(index: int, found: Judged, offset: int) -> dict[str, Any]:
    margin = found.margins[offset].item()
    return {
        "index": index,
        "label": int(found.labels[offset]),
        "predicted": int(found.predicted[offset]),
        "certified": bool(found.certified[offset]),
        "margin": margin if np.isfinite(margin) else None,
    }


def _whole_batches(path: Path, data: ImageData) -> list[dict[str, Any]]:
    """The lines of complete batches, after which the file is cut: the same batches give the same numbers to the last bit."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(data):
        whole = whole[: len(whole) // batch_size(data) * batch_size(data)]
    os.truncate(path, sum(map(len, whole)))
    return [json.loads(line) for line in whole]


def attacked(model: nn.Module, data: ImageData, ball: Perturbation, tell: Tell, what: str = "attacking") -> Tensor:
    """[N] bool: an attack finds another label, or the clean image has one already."""
    parts = []
    for part, x, labels in batches(data):
        parts.append(attack(model, x, labels, ball, steps=ATTACK_STEPS).success.cpu())
        tell(what, part.stop, len(data))
    return torch.cat(parts)


def evaluate(
    folder: Path,
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    norm: str,
    engine: BoundEngine | None = None,
    subset: int = 200,
    tell: Tell = lambda what, done, of: None,
    group: Group = ALONE,
) -> dict[str, Any]:
    """Certificates of all examples, and attack, curve, radii and gallery; writes certificates.jsonl, evaluation.json, gallery.npz.

    Of several processes, all certify, and the first does the rest.
    """
    engine = Dual() if engine is None else engine
    assert isinstance(ball.eps, float)
    found = judge_to_file(folder / "certificates.jsonl", model, data, ball, engine, tell, group)
    if not group.first:
        return {"error": found.error, "robust_error": found.robust_error}
    broken = attacked(model, data, ball, tell)
    some = data.take(subset)
    largest = ball.with_eps(CURVE[-1] * ball.eps)
    radii = []
    for part, x, labels in batches(some):
        radii.append(certified_radius(model, x, labels, largest, engine, tol=ball.eps / 50).cpu())
        tell("radii", part.stop, len(some))
    record = {
        "split": "test", "examples": len(data), "perturbation": repr(ball), "norm": norm, "eps": ball.eps, "engine": repr(engine),
        "dtype": "float32", "error": found.error, "robust_error": found.robust_error, "pgd_error": broken.double().mean().item(),
        "curve": [_point(model, some, ball.with_eps(factor * ball.eps), engine, tell) for factor in CURVE],
        "margins": [m if np.isfinite(m) else None for m in found.margins.tolist()],
        "radii": torch.cat(radii).tolist(), "radius_limit": CURVE[-1] * ball.eps, "curve_examples": len(some),
        "labels": found.labels.tolist(), "predicted": found.predicted.tolist(), "certified": found.certified.tolist(),
        "attacked": broken.tolist(), "classes": list(data.classes),
    }  # fmt: skip
    write_gallery(folder / "gallery.npz", model, data, ball, found, broken)
    write_json(folder / "evaluation.json", record)
    return record


def _point(model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine, tell: Tell) -> dict[str, float]:
    assert isinstance(ball.eps, float)
    return {
        "eps": ball.eps,
        "robust_error": judge(model, data, ball, engine, tell, "curve").robust_error,
        "pgd_error": attacked(model, data, ball, tell, "curve").double().mean().item(),
    }


def write_gallery(
    path: Path, model: nn.Module, data: ImageData, ball: Perturbation, found: Judged, broken: Tensor
) -> None:
    """Some images that are certified, some that the attack breaks, and some that are neither, with the attack's image."""
    kind = torch.where(found.certified, 0, torch.where(broken, 1, 2))
    chosen = torch.cat([(kind == k).nonzero().squeeze(1)[: GALLERY // 3] for k in range(3)])
    index = chosen.to(data.labels.device)
    x, labels = data.scaled(index), data.labels[index]
    worst = attack(model, x, labels, ball, steps=ATTACK_STEPS).examples
    with torch.no_grad():
        relabelled = model(worst).argmax(1)
    arrays = {
        "images": _bytes(x), "attacked": _bytes(worst), "kind": kind[chosen].numpy(), "label": found.labels[chosen].numpy(),
        "predicted": found.predicted[chosen].numpy(), "attacked_label": relabelled.cpu().numpy(), "index": chosen.numpy(),
    }  # fmt: skip
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def _bytes(images: Tensor) -> np.ndarray:
    return (images.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
