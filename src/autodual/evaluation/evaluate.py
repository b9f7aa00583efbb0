"""What a trained classifier is worth: certified, attacked, and looked at; kept in files that a report is made from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autodual._files import replacing, write_json
from autodual._tensor import full_precision
from autodual.certificates import attack, certified_radius
from autodual.data import ImageData
from autodual.engines import BoundEngine, Dual
from autodual.evaluation.claims import ATTACK_STARTS, ATTACK_STEPS, Broken, attacked, check_claims
from autodual.evaluation.judge import Judged, judge
from autodual.evaluation.ledger import RENEWED, Ledger, judge_to_file
from autodual.evaluation.processes import ALONE, Group, Tell, on_all, part_of, silent
from autodual.runs.folder import Run
from autodual.runs.lines import Say
from autodual.runs.records import CurvePoint, Evaluation, TrainedAt
from autodual.runs.schema import plain
from autodual.sets import Perturbation

CURVE = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Sizes at which certified and attacked accuracy are plotted, as multiples of eps."""
GALLERY = 8
"""Images of each kind."""
REMOVE = "if somebody has changed this file, remove it and go on with --resume; if nobody has, a proof is wrong: please report it"


def evaluate(
    run: Run,
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    norm: str,
    subset: int = 200,
    tell: Tell = silent,
    group: Group = ALONE,
    say: Say = lambda line: None,
    trained: TrainedAt | None = None,
) -> Evaluation:
    """Certifies and attacks all examples; curve and radii are of the first `subset`. Writes certificates.jsonl, evaluation.json and
    gallery.npz.

    Several processes share the work; the first one writes the files. Fails if the attack breaks what is certified. trained: the epoch
    whose weights these are, where that is known.
    """
    engine, file = Dual(), run.certificates_file
    assert isinstance(ball.eps, float)
    found = judge_to_file(Ledger(file, tell, group, say, renewed=RENEWED), model, data, ball, engine)
    broken = attacked(model, data, ball, tell, group=group)
    group.by_first(lambda: check_claims(file, found.certified, found.certified_as_run, broken, say, REMOVE))
    some = data.take(subset)
    radii = _radii(model, some, ball, engine, tell, group)
    record = Evaluation(
        split="test", examples=len(data), perturbation=repr(ball), norm=norm, eps=ball.eps, engine=repr(engine), dtype="float32",
        error=found.error, robust_error=found.robust_error, robust_error_as_run=found.robust_error_as_run,
        pgd_error=broken.error_as_run, pgd_error_exact=broken.error,
        curve=_curve(model, some, ball, engine, tell, group, say),
        margins=tuple(m if np.isfinite(m) else None for m in found.margins.tolist()),
        radii=radii, radius_limit=CURVE[-1] * ball.eps, curve_examples=len(some),
        labels=_each(found.labels), predicted=_each(found.predicted), certified=_each(found.certified),
        certified_as_run=_each(found.certified_as_run), attacked=_each(broken.exact), attacked_as_run=_each(broken.as_run),
        classes=tuple(data.classes), collapsed=found.collapse(data.classes), trained=trained,
    )  # fmt: skip

    def write() -> None:
        write_gallery(run.folder / "gallery.npz", model, data, ball, found, broken)
        write_json(run.evaluation_file, plain(record))

    group.by_first(write)
    return record


def _each(column: Tensor) -> tuple[Any, ...]:
    return tuple(column.tolist())


def _radii(
    model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine, tell: Tell, group: Group
) -> tuple[float, ...]:
    assert isinstance(ball.eps, float)
    largest, tol = ball.with_eps(CURVE[-1] * ball.eps), ball.eps / 50

    def one(x: Tensor, labels: Tensor) -> Tensor:
        return certified_radius(model, x, labels, largest, engine, tol=tol)

    return _each(torch.cat(on_all(one, data, "radii", tell, group)))


def _curve(
    model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine, tell: Tell, group: Group, say: Say
) -> tuple[CurvePoint, ...]:
    """Certified and attacked error at every size; one progress bar for all of them."""
    assert isinstance(ball.eps, float)
    points: list[CurvePoint] = []
    whole = 2 * len(CURVE) * len(data)
    for number, factor in enumerate(CURVE):
        wider, done = ball.with_eps(factor * ball.eps), 2 * number * len(data)
        judged = judge(model, data, wider, engine, part_of(tell, done, whole), "curve", group)
        broken = attacked(model, data, wider, part_of(tell, done + len(data), whole), "curve", group)
        claims = judged.certified, judged.certified_as_run
        group.by_first(partial(check_claims, f"curve, eps {wider.eps:g}", *claims, broken, say))
        points.append(
            CurvePoint(
                eps=factor * ball.eps,
                robust_error=judged.robust_error,
                robust_error_as_run=judged.robust_error_as_run,
                pgd_error=broken.error_as_run,
                pgd_error_exact=broken.error,
            )
        )
    return tuple(points)


def write_gallery(
    path: Path, model: nn.Module, data: ImageData, ball: Perturbation, found: Judged, broken: Broken
) -> None:
    """Some images that are certified, some that are right until the attack breaks them as the network runs, some that are neither, and
    some that are wrong without it, with the attack's image."""
    kind = torch.where(broken.as_run, 1, torch.where(found.certified, 0, 2))
    right = found.predicted == found.labels
    groups = (kind == 0, (kind == 1) & right, kind == 2, (kind == 1) & ~right)
    chosen = torch.cat([members.nonzero().squeeze(1)[:GALLERY] for members in groups])
    index = chosen.to(data.labels.device)
    x, labels = data.scaled(index), data.labels[index]
    with full_precision():
        worst = attack(model, x, labels, ball, ATTACK_STEPS, ATTACK_STARTS).examples
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
