"""What a trained classifier is worth: certified and attacked, the two held against each other, and kept in files.

What is certified must stand every attack in the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual._files import replacing, write_json
from autodual._tensor import full_precision
from autodual.cascades.records import CascadeCertificate
from autodual.certificates import attack, certified_radius
from autodual.certificates.certificate import describe
from autodual.data import Examples, ImageData
from autodual.engines import BoundEngine, Dual
from autodual.evaluation.judge import RENEWED, Judged, Ledger, judge, judge_to_file
from autodual.evaluation.processes import UNWATCHED, Watch, concatenated, on_all
from autodual.runs.folder import Run
from autodual.runs.lines import Say, finite
from autodual.runs.records import CurvePoint, Evaluation, TrainedAt, plain
from autodual.sets import Perturbation

SHOWN = 10
ATTACK_STEPS, ATTACK_STARTS = 40, 4
ADVICE = "one of the two is wrong, so neither counts; please report this"


@dataclass(frozen=True)
class Broken:
    """What an attack breaks, clean inputs with a wrong label included: [N] bool each."""

    exact: Tensor
    """In real numbers: the counterexample was confirmed in float64."""
    as_run: Tensor
    """In the network as it runs, perhaps only by rounding."""

    @property
    def error(self) -> float:
        """Fraction that is broken in real numbers."""
        return self.exact.double().mean().item()

    @property
    def error_as_run(self) -> float:
        """Fraction that is broken in the network as it runs: the running model is what is attacked."""
        return self.as_run.double().mean().item()


def attacked(
    model: nn.Module,
    data: Examples,
    ball: Perturbation,
    what: str = "attacking",
    watch: Watch = UNWATCHED,
    steps: int = ATTACK_STEPS,
    restarts: int = ATTACK_STARTS,
) -> Broken:
    """Attacks all examples, some at a time, in the arithmetic that certificates speak of: no TF32, no autocast."""

    def one(x: Tensor, labels: Tensor) -> Broken:
        with full_precision():
            found = attack(model, x, labels, ball, steps, restarts)
        return Broken(found.success, found.success_as_run)

    return concatenated(on_all(one, data, what, watch))


def check_claims(
    source: object, certified: Tensor, certified_as_run: Tensor, broken: Broken, say: Say, advice: str = ADVICE
) -> None:
    """Fail if an example is certified and broken in the same arithmetic: in real numbers, or as the network runs.

    What is certified in real numbers, and broken only as the network runs, is no contradiction: `say` is told how many examples these
    are. source: where the certificates come from.
    """
    _refuse_broken(source, certified & broken.exact, "in real numbers", advice)
    _refuse_broken(source, certified_as_run & broken.as_run, "as the network runs", advice)
    _tell_rounding(source, certified & broken.as_run, say)


def check_together(
    source: object, certified: CascadeCertificate, found: Tensor, certified_wrong: Tensor, say: Say
) -> None:
    """Fail if an attack breaks what is proved about a whole cascade; claims of single stages, which the paper's cascade makes, may
    break.

    found: [N] bool, somewhere in the ball the answer is wrong; certified_wrong: it is, and comes with a certificate. The models are
    attacked as they run: what is proved in real numbers only may break by rounding, and `say` is told how often.
    """
    _refuse_broken(source, certified.sound_as_run & found, "as the models run")
    _refuse_broken(source, certified.no_wrong_certificate & certified_wrong, "with a certificate")
    _tell_rounding(source, certified.sound & found, say)


def _refuse_broken(source: object, wrong: Tensor, where: str, advice: str = ADVICE) -> None:
    """Fail if any example [N] is certified and broken by an attack in the same arithmetic, which `where` names."""
    examples = wrong.nonzero().squeeze(1)
    if len(examples) == 0:
        return
    names = ", ".join(map(str, examples[:SHOWN].tolist()))
    more = f" and {len(examples) - SHOWN} more" if len(examples) > SHOWN else ""
    raise AutodualError(
        f"{source}: certified, but an attack gives them another label: examples {names}{more}; both {where}; {advice}"
    )


def _tell_rounding(source: object, examples: Tensor, say: Say) -> None:
    """Says how many examples [N] are certified in real numbers and not as run, and broken as run."""
    several = int(examples.sum())
    if several > 0:
        which = "1 example is" if several == 1 else f"{several} examples are"
        say(
            f"{source}: {which} certified in real numbers, and broken by the attack only as the network runs, by rounding: no "
            f"contradiction (none of them is certified as it runs)"
        )


# What a trained classifier is worth; kept in files that a report is made from.

CURVE = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Sizes at which certified and attacked accuracy are plotted, as multiples of eps."""
GALLERY = 8
"""Images of each kind."""
REMOVE = "if somebody has changed this file, remove it and go on with --resume; if nobody has, a proof is wrong: please report it"


def evaluate(
    run: Run, model: nn.Module, data: Examples, ball: Perturbation, norm: str, subset: int = 200, watch: Watch = UNWATCHED,
    trained: TrainedAt | None = None, engine: BoundEngine | None = None,
) -> Evaluation:  # fmt: skip
    """Certifies and attacks all examples; curve and radii are of the first `subset`, and left out if that is 0. Writes
    certificates.jsonl, evaluation.json and gallery.npz.

    Several processes share the work; the first one writes the files. Fails if the attack breaks what is certified. trained: the epoch
    whose weights these are, where that is known. engine: `Dual()` if not given.
    """
    eps, engine, file, group = ball.eps, engine or Dual(), run.certificates_file, watch.group
    assert isinstance(eps, float)
    found = judge_to_file(Ledger(file, watch, renewed=RENEWED), model, data, ball, engine)
    broken = attacked(model, data, ball, watch=watch)
    group.by_first(lambda: check_claims(file, found.certified, found.certified_as_run, broken, watch.say, REMOVE))
    radii, curve = (
        _over_sizes(model, data.take(subset), ball, eps, engine, watch) if subset > 0 else (torch.zeros(0), [])
    )

    def each(column: Tensor) -> tuple[Any, ...]:
        return tuple(column.tolist())

    record = Evaluation(
        split="test", examples=len(data), perturbation=describe(ball), norm=norm, eps=eps, engine=repr(engine), dtype="float32",
        error=found.error, robust_error=found.robust_error, robust_error_as_run=found.robust_error_as_run,
        pgd_error=broken.error_as_run, pgd_error_exact=broken.error, curve=tuple(curve),
        margins=tuple(map(finite, found.margins.tolist())),
        radii=each(radii), radius_limit=CURVE[-1] * eps, curve_examples=min(subset, len(data)),
        labels=each(found.labels), predicted=each(found.predicted), certified=each(found.certified),
        certified_as_run=each(found.certified_as_run), attacked=each(broken.exact), attacked_as_run=each(broken.as_run),
        classes=tuple(data.classes), collapsed=found.collapse(data.classes), trained=trained,
    )  # fmt: skip

    def write() -> None:
        if isinstance(data, ImageData):
            write_gallery(run.folder / "gallery.npz", model, data, ball, found, broken)
        write_json(run.evaluation_file, plain(record))

    group.by_first(write)
    return record


def _over_sizes(
    model: nn.Module, data: Examples, ball: Perturbation, eps: float, engine: BoundEngine, watch: Watch
) -> tuple[Tensor, list[CurvePoint]]:
    """Certified radii [N] of the examples, and their errors at several sizes of the perturbation. Takes several times as long as one
    size."""
    largest = ball.with_eps(CURVE[-1] * eps)

    def radius(x: Tensor, labels: Tensor) -> Tensor:
        return certified_radius(model, x, labels, largest, engine, tol=eps / 50)

    radii = torch.cat(on_all(radius, data, "radii", watch))
    curve: list[CurvePoint] = []
    whole = 2 * len(CURVE) * len(data)  # one progress bar for all sizes
    for number, wider in enumerate(ball.with_eps(factor * eps) for factor in CURVE):
        done = 2 * number * len(data)
        judged = judge(model, data, wider, engine, "curve", watch.part(done, whole))
        hit = attacked(model, data, wider, "curve", watch.part(done + len(data), whole))
        claims = (judged.certified, judged.certified_as_run, hit, watch.say)
        watch.group.by_first(partial(check_claims, f"curve, eps {wider.eps:g}", *claims))
        curve.append(CurvePoint(
            eps=CURVE[number] * eps, robust_error=judged.robust_error, robust_error_as_run=judged.robust_error_as_run,
            pgd_error=hit.error_as_run, pgd_error_exact=hit.error,
        ))  # fmt: skip
    return radii, curve


def write_gallery(
    path: Path, model: nn.Module, data: Examples, ball: Perturbation, found: Judged, broken: Broken
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
    images, attacked_images = (
        (each.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy() for each in (x, worst)
    )
    arrays = {
        "images": images, "attacked": attacked_images, "kind": kind[chosen].numpy(), "label": found.labels[chosen].numpy(),
        "predicted": found.predicted[chosen].numpy(), "attacked_label": relabelled.cpu().numpy(), "index": chosen.numpy(),
    }  # fmt: skip
    write_arrays(path, arrays)


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a compressed .npz, whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **cast(dict[str, Any], arrays))
