"""BOUNDS -> PROOF."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autodual._errors import UnsoundError
from autodual._tensor import full_precision
from autodual.bounds.base import BoundEngine, Proof
from autodual.bounds.dual import Dual
from autodual.bounds.prepare import check_engine, dual_network
from autodual.certify.certificate import Certificate, HighProbabilityCertificate
from autodual.certify.second_look import SecondLook
from autodual.certify.validate import check_classifier, check_label_range, check_problem
from autodual.dual import DualNetwork
from autodual.graph import Network
from autodual.sets import Perturbation
from autodual.spec import margins


def certify(
    model: nn.Module | Network, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine | None = None
) -> Certificate:
    """Try to prove that no input that `ball` allows instead of x gets another label than the given one.

    model: any nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network.
    engine: how to bound; `Dual()` if not given. An engine that only estimates is refused; `HighProbability()` gives a
    `HighProbabilityCertificate`, which holds with a stated probability.
    """
    engine = Dual() if engine is None else engine
    check_engine(engine)
    labels = check_problem(x, labels, ball)
    with full_precision(), torch.no_grad():
        network = dual_network(model, x)
        classes = check_classifier(network.nodes[network.output].shape)
        check_label_range(labels, classes)
        predicted = network.forward(x).argmax(1)
        proof = prove(network, x, labels, ball, engine)
        proof = SecondLook(model, engine).at(proof, x, labels, ball, predicted == labels)
    own = torch.nn.functional.one_hot(labels, classes).bool()
    margin, slack = proof.lower.masked_fill(own, torch.inf), proof.slack.masked_fill(own, 0.0)
    if proof.confidence is not None:
        found = (margin, slack, predicted, labels, describe(ball), repr(engine), proof.confidence)
        return HighProbabilityCertificate(*found)
    return Certificate(margin, slack, predicted, labels, describe(ball), repr(engine))


def prove(network: DualNetwork, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine) -> Proof:
    """Lower bounds on all margins with their rounding slack; estimates are refused."""
    spec = margins(labels, network.nodes[network.output].shape[0], x.dtype)
    proof = engine.prove(network, ball.around(x), spec)
    if not proof.sound and proof.confidence is None:
        raise UnsoundError(
            f"{engine!r} only estimates bounds: they can train a network, but they certify nothing. "
            f"Use Dual(), Crown(), IBP() or another engine whose intermediate bounds are sound"
        )
    return proof


def describe(ball: Perturbation) -> str:
    """The perturbation in one line, with a tensor of eps summarised by its range."""
    if not isinstance(ball.eps, Tensor):
        return repr(ball)
    eps = ball.eps.detach()
    span = f"{eps.item():.6g}" if eps.numel() == 1 else f"{eps.min().item():.6g}..{eps.max().item():.6g}"
    return repr(ball.with_eps(0.0)).replace("eps=0.0", f"eps={span}", 1)
