"""A step changes weights by what its objective, its weights and its limit say; epochs have their own eps, rate, order and numbers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.runs.config import TrainConfig
from autodual.runs.schedule import eps_at, lr_at
from autodual.training import loop
from autodual.training.fitting import train
from autodual.training.objectives import Objective
from autodual.training.step import Step
from small import DOUBLE, batch, mlp

X, LABELS, BALL, RATE = batch(6, 4), torch.arange(6) % 3, ad.LinfBall(0.1), 0.1


def _gradients(model: nn.Module, weight: float) -> list[Tensor]:
    """Of the mixed loss, by its definition."""
    robust = ad.RobustCrossEntropy(model, BALL)(X, LABELS)
    loss = weight * robust + (1 - weight) * F.cross_entropy(model(X), LABELS)
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("weight", [1.0, 0.7, 0.0], ids=str)
@pytest.mark.parametrize("limit", [None, 1e-2, 1e6], ids=str)
@pytest.mark.parametrize("share", [1.0, 0.5], ids=["whole batch", "share of a batch"])
def test_weights_move_against_the_gradient(weight: float, limit: float | None, share: float) -> None:
    model = mlp(4, 8, 3)
    before, gradients = copy.deepcopy(list(model.parameters())), [share * g for g in _gradients(model, weight)]
    norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert norm > 1e-2
    optimiser = torch.optim.SGD(model.parameters(), RATE)
    Step(Objective.robust(model, BALL, ad.Dual(), weight), optimiser, torch.Generator(), limit)(X, LABELS, share)
    factor = 1.0 if limit is None else min(1.0, limit / norm)
    for now, was, gradient in zip(model.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(now, was - RATE * factor * gradient, rtol=1e-5, atol=1e-9)
    assert next(model.parameters()).dtype == DOUBLE


def test_every_epoch_has_its_size_rate_order_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float, int, Tensor]] = []

    class Noted:
        """In the place of a step: trains nothing, and notes what it is asked for."""

        def __init__(
            self, objective: Any, optimiser: torch.optim.Optimizer, generator: torch.Generator, *_: object
        ) -> None:
            self.objective, self.optimiser, self.generator = objective, optimiser, generator

        def __call__(self, x: Tensor, labels: Tensor, weight: float) -> Tensor:
            eps, rate = float(self.objective.loss.ball.eps), self.optimiser.param_groups[0]["lr"]
            seen.append((eps, rate, self.generator.initial_seed(), x))
            return torch.zeros(5)

    monkeypatch.setattr(loop, "make_step", Noted)
    config = TrainConfig(
        dataset="digits", model="digits", engine="dual", eps=0.1, eps_start=0.02, eps_epochs=3, epochs=4, lr_epochs=2,
        lr_halve_every=1,
        limit_train=50, limit_test=2, batch=20, evaluate_every=0, skip_curve=True, device="cpu",
    )  # fmt: skip
    train(config, tmp_path / "run")
    assert [len(x) for *_, x in seen] == 4 * [20, 20, 10]
    assert [eps for eps, *_ in seen] == pytest.approx([eps_at(config, epoch) for epoch in range(4) for _ in range(3)])
    assert [rate for _, rate, *_ in seen] == pytest.approx(
        [lr_at(config, epoch) for epoch in range(4) for _ in range(3)]
    )
    assert len({seed for _, _, seed, _ in seen}) == len(seen)
    epochs = [[image.numpy().tobytes() for *_, x in seen[3 * e : 3 * e + 3] for image in x] for e in range(4)]
    assert len({tuple(sorted(images)) for images in epochs}) == 1, "every epoch sees every image once"
    assert len({tuple(images) for images in epochs}) == 4, "in an order of its own"
