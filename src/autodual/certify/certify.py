"""BOUNDS -> PROOF."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor, nn

from autodual._tensor import full_precision
from autodual.bounds.base import BoundEngine, ProbableProof, Proof
from autodual.bounds.decide import own
from autodual.bounds.dual import Dual
from autodual.bounds.high_probability import HighProbability
from autodual.bounds.prepare import check_engine, prepare
from autodual.certify.certificate import Certificate, HighProbabilityCertificate, Subject
from autodual.certify.second_look import prove
from autodual.certify.validate import check_classifier, check_label_range, check_problem
from autodual.graph import Network
from autodual.graph.digest import digest_network, digest_object, digest_tensors, digesting
from autodual.sets import L1Ball, L2Ball, LinfBall, Perturbation

SHORT = 16
"""Hexadecimal digits of a digest inside a description."""


@overload
def certify(
    model: nn.Module | Network, x: Tensor, labels: Tensor, ball: Perturbation, engine: HighProbability
) -> HighProbabilityCertificate: ...
@overload
def certify(
    model: nn.Module | Network, x: Tensor, labels: Tensor, ball: Perturbation, engine: None = None
) -> Certificate: ...
@overload
def certify(
    model: nn.Module | Network, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine | None
) -> Certificate | HighProbabilityCertificate: ...
def certify(
    model: nn.Module | Network, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine | None = None
) -> Certificate | HighProbabilityCertificate:
    """Try to prove that no input that `ball` allows instead of x gets another label than the given one.

    model: any nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network.
    engine: how to bound; `Dual()` if not given. An engine that only estimates is refused; `HighProbability()` gives a
    `HighProbabilityCertificate`, which holds with a stated probability.

    `certified` is about the function over the real numbers that the weights define, `certified_as_run` also about the model as
    PyTorch evaluates it in its own dtype.
    """
    engine = Dual() if engine is None else engine
    check_engine(engine)
    labels = check_problem(x, labels, ball)
    with full_precision(), torch.no_grad(), digesting((x, labels)) as inputs:
        prepared = prepare(model, x, ball.around(x))
        classes = check_classifier(prepared.graph.output_shape)
        check_label_range(labels, classes)
        predicted = prepared.output.argmax(1)
        proof = prove(prepared, x, labels, ball, engine, predicted == labels)
        network = digest_network(prepared.graph)
        subject = Subject.of(network, inputs(), describe(ball), repr(engine), x)
        return _certificate(proof, labels, predicted, subject)


def _certificate(
    proof: Proof | ProbableProof, labels: Tensor, predicted: Tensor, subject: Subject
) -> Certificate | HighProbabilityCertificate:
    mine = own(labels, proof.lower.shape[1])
    margin, slack = proof.lower.masked_fill(mine, torch.inf), proof.slack.masked_fill(mine, 0.0)
    claim = margin, slack, proof.run_error.masked_fill(mine, 0.0), predicted, labels
    if isinstance(proof, ProbableProof):
        return HighProbabilityCertificate(*claim, subject, proof.confidence)
    return Certificate(*claim, subject)


def describe(ball: Perturbation) -> str:
    """The perturbation in one line, which differs for different ones: what it does not spell out, a digest stands for.

    A tensor of eps is summarised by its range. What a perturbation of the user's own holds may not show at all.
    """
    if type(ball) not in (LinfBall, L2Ball, L1Ball):
        name = repr(ball) if type(ball).__repr__ is not object.__repr__ else type(ball).__name__
        return f"{name} sha256:{digest_object(ball)[:SHORT]}"
    if not isinstance(ball.eps, Tensor):
        return repr(ball)
    eps = ball.eps.detach()
    if eps.numel() == 1:
        return repr(ball.with_eps(eps.item()))
    span = f"{eps.min().item():.6g}..{eps.max().item():.6g} sha256:{digest_tensors([eps])[:SHORT]}"
    return repr(ball.with_eps(0.0)).replace("eps=0.0", f"eps={span}", 1)
