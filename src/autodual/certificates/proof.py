"""Proofs of margins: in the network's own dtype, and in float64 where float32 cannot tell a margin from zero.

In float64 the *captured* graph is bounded, with its constants cast: the same function, with half a billion times less rounding. The
model's code does not run again; in float64 it might compute something else.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import overload

import torch
from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual._tensor import full_precision
from autodual.certificates.arguments import check_classifier, check_label_range, check_problem
from autodual.certificates.certificate import Certificate, HighProbabilityCertificate, Subject
from autodual.engines.backward.dual import Dual
from autodual.engines.high_probability import HighProbability
from autodual.engines.prepare import Prepared, check_engine, prepare
from autodual.engines.results import BoundEngine, ProbableProof, Proof, join_proofs, own, worth_another_look
from autodual.graph import Network
from autodual.graph.digest import digest_network, digest_object, digest_tensors, digesting
from autodual.sets import InputSet, L1Ball, L2Ball, LinfBall, Perturbation
from autodual.spec import Spec, margins

PROBED = 8
"""From so many examples on, an engine whose slack in float32 tends to be large is tried on one of them first."""
FAR = 8
"""A margin so many times the slack of a cheaper engine is taken to be above that of the engine itself."""


def prove(
    prepared: Prepared, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine, right: Tensor
) -> Proof | ProbableProof:
    """Lower bounds on all margins [N, C] with their errors, as sharp as the `right` examples need them to be decided."""
    classes = prepared.graph.output_shape[0]
    everyone = torch.arange(len(x), device=x.device)
    if float32_is_in_vain(prepared, x, labels, ball, engine):
        found = look(prepared, x, margins(labels, classes, torch.float64), ball, engine, everyone)
        if found is not None:
            return _to_single(found)
    proof = prove_rows(prepared, x, margins(labels, classes, x.dtype), ball, engine)
    if x.dtype != torch.float32 or isinstance(proof, ProbableProof):
        return proof  # to try twice would double delta
    lower, slack, run_error = (v.expand(len(x), -1) for v in (proof.lower, proof.slack, proof.run_error))
    unclear = (right & worth_another_look(lower, labels, slack, run_error)).nonzero().squeeze(1)
    if len(unclear) == 0:
        return proof
    found = look(prepared, x, margins(labels[unclear], classes, torch.float64), ball, engine, unclear)
    if found is None:
        return proof
    sharper = _to_single(found)
    return replace(
        proof,
        lower=lower.index_copy(0, unclear, sharper.lower),
        slack=slack.index_copy(0, unclear, sharper.slack),
        run_error=run_error.index_copy(0, unclear, sharper.run_error),
    )


def prove_rows(
    prepared: Prepared, x: Tensor, spec: Spec, ball: Perturbation, engine: BoundEngine
) -> Proof | ProbableProof:
    """Bounds in the dtype of x. They say nothing about a network whose constants need float64: their slack is infinite then."""
    proof = engine.prove(prepared.network, ball.around(x), spec)
    return replace(proof, slack=torch.full_like(proof.slack, torch.inf)) if prepared.only_in_double else proof


def float32_is_in_vain(prepared: Prepared, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine) -> bool:
    """Whether float64 is where proofs will come from, so that bounds in float32 would be computed for nothing.

    Some engines have a slack in proportion to the network's values. Few examples are bounded in float64 at once; of many, the first
    is tried in float32: there, no margin may be decided either way. Where the engine names a cheaper one, that one is tried before: a
    slack far below a margin at the centre needs no closer look. Only time depends on the answer.
    """
    if x.dtype != torch.float32:
        return False
    if prepared.only_in_double:
        return True
    if not engine.coarse_in_float32 or engine.random:
        return False
    if len(x) < PROBED or not treats_all_alike(ball) or (isinstance(ball.eps, Tensor) and ball.eps.numel() > 1):
        return True
    first = x[:1]
    spec = margins(labels[:1], prepared.graph.output_shape[0], x.dtype)
    if engine.sketch is not None:
        centre = (spec.rows * prepared.network.forward(first)).sum(2).T
        if bool((FAR * prove_rows(prepared, first, spec, ball, engine.sketch).slack < centre).any()):
            return False
    proof = prove_rows(prepared, first, spec, ball, engine)
    return bool((proof.lower.abs() <= proof.slack).all())


def look(
    prepared: Prepared, x: Tensor, spec: Spec, ball: Perturbation, engine: BoundEngine, examples: Tensor
) -> Proof | ProbableProof | None:
    """Bounds on the rows of `spec` for some examples, all in float64; None, with a warning, where that cannot be had."""
    try:
        return _look(prepared, x, spec, ball, engine, examples)
    except (AutodualError, RuntimeError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"{len(examples)} examples are certified or not depending on rounding in float32, and could not be looked at in float64 "
            f"({type(error).__name__}: {reason}); they count as not certified",
            stacklevel=5,
        )
        return None


def _look(
    prepared: Prepared, x: Tensor, spec: Spec, ball: Perturbation, engine: BoundEngine, examples: Tensor
) -> Proof | ProbableProof:
    proofs, done = list[Proof | ProbableProof](), 0
    for region in _regions(ball, x.double(), examples):
        proofs.append(engine.prove(prepared.in_double, region, spec[slice(done, done + len(region))]))
        done += len(region)
    return join_proofs(proofs)


def _regions(ball: Perturbation, x: Tensor, examples: Tensor) -> Iterator[InputSet]:
    """The sets of some examples: at once where they depend on nothing but x and eps, else cut out of the sets of all."""
    eps, alike = ball.eps, treats_all_alike(ball)
    if alike and not (isinstance(eps, Tensor) and eps.numel() > 1):
        yield ball.around(x[examples])
    elif alike and isinstance(eps, Tensor) and eps.dim() == x.dim() and len(eps) == len(x):
        yield ball.with_eps(eps.to(x.device)[examples]).around(x[examples])
    else:
        region = ball.around(x)
        yield from (region[part] for part in _neighbours(examples.tolist()))


def _neighbours(examples: list[int]) -> Iterator[slice]:
    """Ascending numbers as slices of those that follow one another."""
    first = 0
    for place in range(1, len(examples) + 1):
        if place == len(examples) or examples[place] != examples[place - 1] + 1:
            yield slice(examples[first], examples[place - 1] + 1)
            first = place


def treats_all_alike(ball: Perturbation) -> bool:
    """Whether a set depends on nothing but its x and eps. A perturbation of the user's own may hold something for every example."""
    return type(ball) in (LinfBall, L2Ball, L1Ball)


def _to_single(proof: Proof | ProbableProof) -> Proof | ProbableProof:
    """The proof in float32, rounded to the safe side."""
    return replace(
        proof,
        lower=_towards(-torch.inf, proof.lower),
        slack=_towards(torch.inf, proof.slack),
        run_error=_towards(torch.inf, proof.run_error),
    )


def _towards(end: float, values: Tensor) -> Tensor:
    """The next float32 number; what overflowed in float64 stays infinite, so that it proves nothing."""
    single = values.float()
    return torch.where(values.isinf(), single, torch.nextafter(single, torch.full_like(single, end)))


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

    Args:
        model: Any nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network.
        x: Clean inputs [N, *shape], float32 or float64, on the device and in the dtype of the model.
        labels: The labels to defend [N], integers from 0 to C - 1.
        ball: What may happen to every input, in the units of x: `LinfBall(0.1)`, `L2Ball`, `L1Ball`, or your own.
        engine: How to bound; `Dual()` if not given.

    Returns:
        One verdict for each example, with the margins behind it. `certified` is about the function over the real numbers that the
        weights define, `certified_as_run` also about the model as PyTorch evaluates it in its own dtype. With `HighProbability()`, a
        `HighProbabilityCertificate`, which holds with a stated probability.

    Raises:
        ArgumentError: An argument has a value, shape, dtype or device that cannot be used; the model is in training mode.
        CaptureError: The model could not be turned into a graph, or computes something else than its graph.
        UnsupportedOperationError: The model uses an operation that has no dual layer; the message says how to add one.
        UnsoundError: The engine only estimates, as `Projected()` does.
        MemoryBudgetError: The work does not fit into the memory, however it is cut.

    Examples:
        >>> import autodual as ad
        >>> model = ad.load_digits_network()
        >>> images, labels = ad.load_digits("test")
        >>> certificate = ad.certify(model, images[:50], labels[:50], ad.LinfBall(0.05, clip=(0.0, 1.0)))
        >>> int(certificate.certified.sum()), certificate.verdicts[0].name
        (46, 'CERTIFIED')
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
