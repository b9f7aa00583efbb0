"""A certificate that the model itself contradicts at a corner of the set is never returned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines.results import Proof
from autodual.sets import InputSet
from autodual.spec import Spec

X, LABELS = torch.tensor([[1.0], [-1.0], [4.0]]), torch.tensor([0, 1, 0])


@pytest.fixture
def sign() -> nn.Module:
    """Scores (x, -x): the label is 0 for positive x."""
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[1.0], [-1.0]])
    return model


@dataclass(frozen=True)
class Boastful(ad.Dual):
    """Proves more than is true."""

    more: float = 100.0

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        found = super().prove(network, region, spec)
        return replace(found, lower=found.lower + self.more)


@pytest.mark.parametrize("ball", [ad.LinfBall(1.5), ad.L2Ball(1.5), ad.Box(X - 1.5, X + 1.5)])
def test_an_engine_that_proves_too_much_is_found_out(sign: nn.Module, ball: ad.Perturbation) -> None:
    with pytest.raises(
        ad.ContradictionError, match=r"example \d was certified, but the model breaks .* \(1 of 3 examples\)"
    ):
        ad.certify(sign, X, LABELS, ball, Boastful())


def test_specifications_are_tried_as_well(sign: nn.Module) -> None:
    wish = ad.Between(sign(X).detach() - 1, sign(X).detach() + 1)
    with pytest.raises(ad.ContradictionError, match=r"\(3 of 3 examples\)"):
        ad.certify(sign, X, wish, ad.LinfBall(1.5), Boastful())


def test_true_certificates_are_returned(sign: nn.Module) -> None:
    found = ad.certify(sign, X, LABELS, ad.LinfBall(0.5))
    assert found.certified_as_run.tolist() == [True, True, True]
    assert ad.certify(sign, X, LABELS, ad.LinfBall(1.5)).certified.tolist() == [False, False, True]


def test_the_model_runs_once_on_all_corners(sign: nn.Module) -> None:
    """At one of every set, and at the opposite ones of the first two, where the captured graph is compared with it."""
    calls = []
    sign.register_forward_hook(lambda module, given, made: calls.append(len(given[0])))
    ad.certify(sign, X, LABELS, ad.LinfBall(0.5))
    assert calls[-2:] == [len(X), len(X) + 2]
