"""Steps of all recipes look at no value on the way, so that a GPU need not be waited for, and can be captured as one graph."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autodual as ad
from autodual.data import load
from autodual.runs.config import TrainConfig
from autodual.runs.recipes import RECIPES, options
from autodual.training.setup import Pace, make_model, make_objective
from autodual.training.step import Average

WAITING = {
    "aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique2", "aten.unique_dim", "aten.item", "aten.equal",
    "aten.is_nonzero", "aten.bincount",
}  # fmt: skip
"""Operations whose result, or its shape, depends on values: a GPU must have computed these first."""


class NeverWaiting(TorchDispatchMode):
    """Refuses operations that would wait for a GPU, and counts all others."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        name = str(function).rsplit(".", 1)[0]
        booleans = name.startswith("aten.index") and any(
            isinstance(i, Tensor) and i.dtype == torch.bool
            for part in arguments[1:2]
            for i in (part if isinstance(part, list) else [])
        )
        assert name not in WAITING, name
        assert not booleans, name
        self.seen += 1
        return function(*arguments, **(named or {}))


CASES: dict[str, dict[str, Any]] = {name: {} for name in RECIPES} | {
    "restarts": {"engine": "ibp", "mix_with": "adversarial", "attack_steps": 2, "attack_restarts": 3, "robust_weight": 0.5},
    "blend": {"engine": "crown-ibp", "crown_weight_start": 1.0, "crown_weight": 0.5, "regularise": 0.5, "l1": 1e-5},
    "half": {"engine": "ibp", "box_part": 0.3, "attack_steps": 2, "attack_half": True},
    "projected with an attack": {"engine": "projected", "k": 4, "mix_with": "adversarial", "attack_steps": 2, "regularise": 0.5},
}  # fmt: skip


def config_of(case: str) -> TrainConfig:
    """Small enough for the digits."""
    given = CASES[case] or options(case)
    return TrainConfig.from_mapping(
        {
            "clip": (0.0, 1.0),
            **given,
            "dataset": "digits",
            "model": "cnn5:2",
            "eps": 0.05,
            "epochs": 4,
            "k": 4,
            "batch": 20,
        }
    )


@pytest.mark.parametrize("case", CASES)
def test_a_step_looks_at_no_value(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("certificates.loss", "sets.balls"):  # as on a GPU, where values are not at hand
        monkeypatch.setattr(import_module(f"autodual.{name}"), "values_at_hand", lambda a: False)
    config, data = config_of(case), load("digits", "train").take(20)
    torch.manual_seed(0)
    model = make_model(config.model, data.shape, 10).train()
    pace = Pace(config, torch.device("cpu"))
    objective = make_objective(config, model, pace)
    assert objective.capturable
    pace.at(2, 0.5)
    objective.regularising = pace.regularising
    x, labels, generator = data.scaled(), data.labels, torch.Generator().manual_seed(0)
    draws = objective.draw(x)
    average = Average(config.with_changes(average="ema"), model)
    network = objective.bounded._captured_network(x)  # captured before, since no mode may be active then
    with patch.object(objective.bounded, "_captured_network", lambda x: network), NeverWaiting() as mode:
        summary = objective(x, labels, draws if draws is None else draws.renew_(generator), generator)
        summary[0].backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        average.after_step()
    assert mode.seen > 50
    assert summary.isfinite().all()
    assert all(p.grad is not None for p in model.parameters())


class Prepared(nn.Module):
    """Layers whose constants are checked when bounds are built: a divisor, fixed statistics, a filling, a part in another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(66, 10)
        self.register_buffer("deviation", torch.full((1, 8, 8), 0.5))

    def train(self, mode: bool = True) -> Prepared:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(((x - 0.5) / self.deviation).flatten(1)))
        h = h.masked_fill(torch.arange(64, device=x.device) < 2, 0.5)
        return self.head(torch.cat([h, torch.ones(len(x), 2, device=x.device)], 1))


def test_constants_are_not_looked_at_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("certificates.loss", "sets.balls"):
        monkeypatch.setattr(import_module(f"autodual.{name}"), "values_at_hand", lambda a: False)
    for name in ("dual.arithmetic", "dual.selecting", "dual.shape", "graph.registry"):
        monkeypatch.setattr(import_module(f"autodual.{name}"), "is_being_captured", lambda a: True)
    data = load("digits", "train").take(20)
    x, labels = data.scaled(), data.labels
    loss = ad.RobustCrossEntropy(Prepared().train(), ad.LinfBall(torch.tensor(0.05)), ad.Projected(4))
    network, draws = loss._captured_network(x), loss.draw(x)
    with patch.object(loss, "_captured_network", lambda x: network), NeverWaiting() as mode:
        loss(x, labels, draws).backward()
    assert mode.seen > 50


def test_waiting_is_noticed() -> None:
    with NeverWaiting(), pytest.raises(AssertionError, match="scalar_dense"):
        torch.ones(()).item()
    with NeverWaiting(), pytest.raises(AssertionError, match="nonzero"):
        torch.ones(3).nonzero()
