"""Checks on the arguments that certificates, radii, losses and attacks share."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.engines.prepare import check_input
from autodual.sets import L1Ball, L2Ball, LinfBall, Perturbation

# A word where the size of a perturbation seems to be meant in other units than the inputs have.

FEWEST_LEVELS = 16
"""Images, or whole numbers, that reach this are taken for grey levels; the handwritten digits of scikit-learn have no more."""


def warn_of_raw_pixels(x: Tensor, ball: Perturbation, stacklevel: int) -> bool:
    """Warn, and return True, where x seems to hold grey levels and eps is less than one of them, as for images in [0, 1]."""
    eps = _largest_eps(ball)
    if not 0 < eps < 1:
        return False
    lowest, highest = (end.item() for end in x.detach().aminmax())
    if lowest < 0 or highest < FEWEST_LEVELS or not (_has_image_shape(x) or _whole(x.detach())):
        return False
    warnings.warn(
        f"x looks like raw pixels, values from {lowest:g} to {highest:g}, and eps = {eps:g} is in the same units: no pixel may change "
        f"by as much as one grey level, which looks more robust than it is. If eps is meant for images in [0, 1], scale both alike: "
        f"divide x by the highest level (255 for bytes) if the model takes such images, or else multiply eps by it",
        stacklevel=stacklevel + 1,
    )
    return True


def _largest_eps(ball: Perturbation) -> float:
    """The largest eps of a ball; infinite for other sets, whose eps may be an angle or anything."""
    if not isinstance(ball, LinfBall | L2Ball | L1Ball):
        return float("inf")
    eps = torch.as_tensor(ball.eps).detach()
    return eps.amax().item() if eps.numel() else float("inf")


def _has_image_shape(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)


def _whole(x: Tensor) -> bool:
    """Whether all values are whole numbers, or as near as a GPU leaves them that has divided by 255 and multiplied again."""
    return bool(((x - x.round()).abs() < 1e-3).all())


# Checks on the arguments that certificates, radii and attacks share.

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_problem(x: Tensor, labels: Tensor, ball: Perturbation) -> Tensor:
    """Refuse what cannot be certified; returns the labels as int64. Called by what the user calls."""
    check_input(x, "x")
    check_ball(ball, x)
    labels = check_labels(labels, x)
    warn_of_raw_pixels(x, ball, stacklevel=3)
    return labels


def check_perturbation(ball: Perturbation) -> None:
    if not isinstance(ball, Perturbation):
        kind = f"the class {ball.__name__}" if isinstance(ball, type) else type(ball).__name__
        raise ArgumentError(f"ball must be a perturbation such as LinfBall(0.1), got {kind}")


def check_ball(ball: Perturbation, x: Tensor) -> None:
    check_perturbation(ball)
    if isinstance(ball.eps, Tensor) and not bool((ball.eps.isfinite() & (ball.eps >= 0)).all()):
        raise ArgumentError("ball.eps must be finite and not negative everywhere")
    if isinstance(ball, LinfBall):
        ball.check_inside(x)


def check_labels(labels: Tensor, x: Tensor) -> Tensor:
    if not isinstance(labels, Tensor) or labels.dtype not in _INTEGERS:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise ArgumentError(f"labels must be a tensor of integer class numbers, got {kind}")
    if labels.shape != x.shape[:1]:
        raise ArgumentError(f"labels must have shape [{x.shape[0]}], one per example, got {tuple(labels.shape)}")
    if labels.device != x.device:
        raise ArgumentError(f"labels and x are on different devices: {labels.device} and {x.device}")
    return labels.long()


def check_label_range(labels: Tensor, classes: int) -> None:
    if not bool(((labels >= 0) & (labels < classes)).all()):
        raise ArgumentError(
            f"labels must lie in 0 ... {classes - 1}, the model's classes; found {int(labels.min())} ... {int(labels.max())}"
        )


def check_classifier(shape: Shape) -> int:
    """The number of classes of a model whose output has this shape per example."""
    if len(shape) != 1:
        raise ArgumentError(
            f"the model's output must be [N, C], one score per class, but it is [N, {', '.join(map(str, shape))}]; "
            f"use bounds() for other shapes"
        )
    if shape[0] < 2:
        raise ArgumentError(
            f"the model's output must be [N, C], one score for each of at least two classes, but it is [N, {shape[0]}]; if a single "
            f"score z decides by its sign, return torch.cat([-z, z], 1)"
        )
    return shape[0]
