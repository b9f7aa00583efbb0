"""Checks on the arguments that certificates, radii and attacks share."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._types import Shape
from autodual.bounds.prepare import check_input
from autodual.certify.units import warn_of_raw_pixels
from autodual.sets import LinfBall, Perturbation

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
