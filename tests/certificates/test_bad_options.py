"""Options, sets and losses that make no sense are refused where they are made, in words that name the option."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, batch, mlp

NAN, INF = float("nan"), float("inf")

OPTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "tol is zero": (lambda: ad.certified_radius(*_arguments(), tol=0.0), "tol must be positive, got 0.0"),
    "tol is negative": (lambda: ad.certified_radius(*_arguments(), tol=-1e-3), "tol must be positive"),
    "tol is NaN": (lambda: ad.certified_radius(*_arguments(), tol=NAN), "tol must be positive"),
    "tol is text": (lambda: ad.certified_radius(*_arguments(), tol="1e-3"), "tol must be positive"),
    "steps are negative": (lambda: ad.attack(*_arguments(), steps=-1), "steps >= 0 and restarts >= 1, got -1 and 4"),
    "steps are broken": (lambda: ad.attack(*_arguments(), steps=1.5), "whole numbers, steps >= 0"),
    "no start": (lambda: ad.attack(*_arguments(), restarts=0), "restarts >= 1, got 40 and 0"),
    "max_bytes is zero": (
        lambda: ad.Dual(max_bytes=0),
        "max_bytes must be a positive whole number of bytes, or None, got 0",
    ),
    "max_bytes is a word": (lambda: ad.Dual(max_bytes="1GB"), "max_bytes must be a positive whole number"),  # type: ignore[arg-type]
    "max_bytes is negative": (
        lambda: ad.Crown(max_bytes=-1),
        "max_bytes must be a positive whole number of bytes, or None, got -1",
    ),
    "max_bytes of the forward pass": (
        lambda: ad.certify(*_arguments(), ad.ForwardDual(max_bytes=-1)),
        "max_bytes must be a positive whole number",
    ),
    "intermediate is a class": (lambda: ad.Dual(intermediate=ad.IBP), "intermediate must be an engine such as IBP"),
    "intermediate is a name": (lambda: ad.Crown(intermediate="ibp"), "intermediate must be an engine .* got str"),
    "bounds of a ball": (
        lambda: ad.bounds(mlp(4, 3), ad.LinfBall(0.1)),
        "input_set must be an InputSet .* got LinfBall",
    ),
    "bounds of a tensor": (lambda: ad.bounds(mlp(4, 3), batch(2, 4)), "input_set must be an InputSet .* got Tensor"),
    "bounds of integers": (
        lambda: ad.bounds(mlp(4, 3), ad.LinfBall(1).around(torch.ones(2, 4, dtype=torch.long))),
        "input_set.centre must be float32 or float64",
    ),
    "bounds of an infinite box": (
        lambda: ad.bounds(mlp(4, 3), ad.Box(batch(2, 4) - INF, batch(2, 4))),
        "input_set.centre holds .* NaN or infinite",
    ),
    "bounds of an endless box": (
        lambda: ad.bounds(mlp(4, 3), ad.Box.around(batch(2, 4), batch(2, 4) + INF)),
        "input_set.radius must be finite and not negative",
    ),
    "bounds of a box inside out": (
        lambda: ad.bounds(mlp(4, 3), ad.Box.around(batch(2, 4), -batch(2, 4))),
        "input_set.radius must be finite and not negative",
    ),
    "bounds in training mode": (
        lambda: ad.bounds(nn.BatchNorm1d(4).to(DOUBLE).train(), ad.LinfBall(0.1).around(batch(2, 4))),
        "batch normalisation in training mode",
    ),
    "box inside out": (
        lambda: ad.Box(_spoilt(9.0), batch(2, 4) + 1),
        "Box: lower must not exceed upper; 1 of 8 entries do, or are NaN",
    ),
    "box with NaN": (lambda: ad.Box(_spoilt(NAN), batch(2, 4) + 1), "Box: .* 1 of 8 entries do, or are NaN"),
    "box of two shapes": (
        lambda: ad.Box(batch(2, 4), batch(2, 5)),
        r"Box: lower and upper must agree .* \(2, 4\) .* \(2, 5\)",
    ),
    "box of two types": (lambda: ad.Box(batch(2, 4), batch(2, 4).float() + 1), "Box: lower and upper must agree"),
    "box of lists": (lambda: ad.Box([0.0], [1.0]), "Box: lower and upper must be tensors"),
    "capture of no module": (lambda: ad.capture(torch.relu, batch(2, 4)), r"model must be a torch\.nn\.Module"),
    "capture of no batch": (lambda: ad.capture(mlp(4, 3), batch(4)), r"example must be a batch \[N, \*shape\]"),
    "capture of half precision": (
        lambda: ad.capture(mlp(4, 3).half(), batch(2, 4).half()),
        "example must be float32 or float64",
    ),
    "loss of no module": (
        lambda: ad.RobustCrossEntropy(torch.relu, ad.LinfBall(0.1)),
        r"model must be a torch\.nn\.Module",
    ),
    "loss of a network": (
        lambda: ad.RobustCrossEntropy(ad.capture(mlp(4, 3), batch(1, 4)), ad.LinfBall(0.1)),
        r"model must be a torch\.nn\.Module, got Network",
    ),
    "loss of a set": (
        lambda: ad.RobustCrossEntropy(mlp(4, 3), ad.LinfBall(0.1).around(batch(2, 4))),
        "ball must be a perturbation .* got Box",
    ),
    "loss with a class": (lambda: ad.RobustCrossEntropy(mlp(4, 3), ad.LinfBall(0.1), ad.Dual), r"call it: Dual\(\)"),
    "loss of integers": (
        lambda: _loss(torch.zeros(2, 4, dtype=torch.long), torch.tensor([0, 1])),
        "x must be a floating-point batch",
    ),
    "loss of nothing": (lambda: _loss(batch(0, 4), torch.zeros(0, dtype=torch.long)), "at least one example"),
    "loss with float labels": (
        lambda: _loss(batch(2, 4), torch.zeros(2)),
        "labels must be a tensor of integer class numbers",
    ),
    "loss with wrong labels": (lambda: _loss(batch(2, 4), torch.tensor([0, 3])), "labels must lie in 0"),
    "loss with too many labels": (lambda: _loss(batch(2, 4), torch.tensor([0, 1, 2])), r"labels must have shape \[2\]"),
    "loss of an image": (
        lambda: ad.RobustCrossEntropy(nn.Unflatten(1, (2, 2)), ad.LinfBall(0.1))(batch(2, 4), torch.tensor([0, 1])),
        r"output must be \[N, C\]",
    ),
    "loss outside clip": (
        lambda: ad.RobustCrossEntropy(mlp(4, 3), ad.LinfBall(0.1, clip=(0.0, 1.0)))(
            batch(2, 4) + 1, torch.tensor([0, 1])
        ),
        "x lies outside clip",
    ),
}


def _arguments() -> tuple[Any, ...]:
    """Good ones."""
    return mlp(4, 5, 3), batch(3, 4), torch.tensor([0, 1, 2]), ad.LinfBall(0.1)


def _spoilt(value: float) -> Tensor:
    x = batch(2, 4)
    x[0, 0] = value
    return x


def _loss(x: Tensor, labels: Tensor) -> Tensor:
    return ad.RobustCrossEntropy(mlp(4, 3), ad.LinfBall(0.1))(x, labels)


@pytest.mark.parametrize(("call", "message"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_and_sets(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=f"(?s){message}"):
        call()
