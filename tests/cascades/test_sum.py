"""Summed scores: the better of the joint bound and of the sum of bounds, both sound."""

from typing import Any

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.cascades import SumEnsemble
from small import ENGINES, Net, batch, mlp

X = batch(40, 4)
BALL = ad.LinfBall(0.06)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_both_bounds_count_target_by_target(engine: ad.BoundEngine) -> None:
    models = [mlp(4, 8, 3, seed=s) for s in range(3)]
    together = SumEnsemble(models, BALL, engine)
    total = sum(m(X) for m in models)
    labels = total.argmax(1)
    joint = ad.certify(together.model.eval(), X, labels, BALL, engine).margins
    apart = sum(ad.certify(m, X, labels, BALL, engine).margins for m in models)
    answers = together.predict(X)
    assert torch.equal(answers.label, labels)
    assert torch.equal(answers.certified, (torch.maximum(joint, apart) > 1e-12).all(1))
    assert answers.certified.any()
    assert not answers.stage.any()


def test_the_sum_certifies_what_no_model_does() -> None:
    """Two models that err in different places: the sum is surer than each of them."""
    models = [mlp(4, 8, 3, seed=s) for s in range(2)]
    labels = sum(m(X) for m in models).argmax(1)
    together = SumEnsemble(models, BALL).certify(X, labels)
    each = torch.stack([ad.certify(m, X, labels, BALL).certified for m in models]).any(0)
    assert (together.sound & ~each).any()


def test_it_is_attacked_as_one_network() -> None:
    models, labels = [mlp(4, 8, 3, seed=s) for s in range(2)], torch.arange(40) % 3
    together = SumEnsemble(models, ad.LinfBall(0.2))
    plain = ad.attack(together.model.eval(), X, labels, ad.LinfBall(0.2), steps=20)
    found = together.attack(X, labels, steps=20)
    assert (found.found != plain.success).sum() <= 2
    assert not (found.found & together.certify(X, labels).sound).any()
    assert found.found.any()
    assert not found.found.all()


def test_building_the_sum_leaves_the_models_alone() -> None:
    models = [mlp(4, 8, 3, seed=s) for s in range(2)]
    SumEnsemble(models, BALL).certify(X, torch.arange(40) % 3)
    assert not any(part.training for m in models for part in m.modules())


@pytest.mark.parametrize("kept", [False, True])
def test_a_model_that_writes_into_its_input_is_refused(kept: bool) -> None:
    """The model behind it would read something else in the sum than alone, and both bounds count."""

    def moved(m: Any, x: Tensor) -> Tensor:
        return 0 * torch.cat([(x.clone() if kept else x).sub_(0.8), x], 1)

    both = ad.SumEnsemble([Net(moved), Net(lambda m, x: torch.cat([x, x * 0 + 0.15], 1))], ad.LinfBall(0.1))
    x, labels = torch.ones(2, 1, dtype=torch.float64), torch.zeros(2).long()
    if kept:
        assert both.certify(x, labels).sound.all()
        return
    for work in (both.predict, lambda x: both.certify(x, labels), lambda x: both.attack(x, labels)):
        with pytest.raises(ad.ArgumentError, match="stage 0: writes into its input"):
            work(x)
