"""Proofs: `certify`, and `certified_radius`, which searches for the largest set that can be certified.

Both `prove` a question in the network's own dtype, and in float64 where float32 cannot tell a margin from zero. In float64 the
*captured* graph is bounded, with its constants cast: the same function, with half a billion times less rounding. The model's code
does not run again; in float64 it might compute something else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import overload

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError, ContradictionError
from autodual._tensor import full_precision
from autodual.certificates.certificate import Certificate, HighProbabilityCertificate, Subject, in_words
from autodual.engines.arguments import check_asked, require_engine
from autodual.engines.effort import Effort, Report, TimeLimitError, in_time, until_time_is_up
from autodual.engines.high_probability import HighProbability
from autodual.engines.prepare import Prepared, prepare
from autodual.engines.results import BoundEngine, ProbableProof, Proof, join_proofs, proves, worth_another_look
from autodual.graph import Network
from autodual.graph.digest import digest_network, digesting
from autodual.sets import GivenSet, InputSet, L1Ball, L2Ball, LinfBall, Perturbation
from autodual.sets.input_sets import rounded_up
from autodual.spec import Question, Spec, Specification, plain_labels


@overload
def certify(
    model: nn.Module | Network,
    x: Tensor,
    labels: Tensor | Specification,
    ball: Perturbation | InputSet,
    engine: HighProbability,
    *,
    timeout: float | None = None,
    progress: bool | Report | None = None,
) -> HighProbabilityCertificate: ...
@overload
def certify(
    model: nn.Module | Network,
    x: Tensor,
    labels: Tensor | Specification,
    ball: Perturbation | InputSet,
    engine: None = None,
    *,
    timeout: float | None = None,
    progress: bool | Report | None = None,
) -> Certificate: ...
@overload
def certify(
    model: nn.Module | Network,
    x: Tensor,
    labels: Tensor | Specification,
    ball: Perturbation | InputSet,
    engine: BoundEngine | None,
    *,
    timeout: float | None = None,
    progress: bool | Report | None = None,
) -> Certificate | HighProbabilityCertificate: ...
def certify(
    model: nn.Module | Network,
    x: Tensor,
    labels: Tensor | Specification,
    ball: Perturbation | InputSet,
    engine: BoundEngine | None = None,
    *,
    timeout: float | None = None,
    progress: bool | Report | None = None,
) -> Certificate | HighProbabilityCertificate:
    """Try to prove that no input that `ball` allows instead of x gets another label than the given one, or breaks a specification.

    Args:
        model: Any nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network. Other outputs than
            scores are welcome with `Between` and `Positive`.
        x: Clean inputs [N, *shape], float32 or float64, on the device and in the dtype of the model.
        labels: The labels to defend [N], integers from 0 to C - 1; or any `Specification`, such as `TopK(labels, 3)`.
        ball: What may happen to every input, in the units of x: `LinfBall(0.1)`, `L2Ball`, `L1Ball`, or your own; or a set around
            each x, such as `Box(lower, upper)`.
        engine: How to bound; `Dual()` if not given.
        timeout: Seconds after which no further example is bounded. What was not decided by then is unknown; `reached` tells which
            examples were bounded at all.
        progress: True shows a line of progress on standard error, False none; a function is called with every `Progress`. None
            shows the line on a terminal, if the work will take more than a minute. That it will is said in a warning.

    Returns:
        One verdict for each example, with the margins behind it. `certified` is about the function over the real numbers that the
        weights define, `certified_as_run` also about the model as PyTorch evaluates it in its own dtype. With `HighProbability()`, a
        `HighProbabilityCertificate`, which holds with a stated probability.

    Raises:
        ArgumentError: An argument has a value, shape, dtype or device that cannot be used; the model is in training mode.
        CaptureError: The model could not be turned into a graph, or computes something else than its graph.
        UnsupportedOperationError: The model uses an operation that has no dual layer; the message says how to add one.
        ContradictionError: The model answers otherwise at a corner of the set of an example that was certified.
        UnsoundError: The engine only estimates, as `Projected()` does.
        MemoryBudgetError: The work does not fit into the memory, however it is cut.

    Examples:
        >>> import autodual as ad
        >>> model = ad.load_digits_network()
        >>> images, labels = ad.load_digits("test")
        >>> certificate = ad.certify(model, images[:50], labels[:50], ad.LinfBall(0.05, clip=(0.0, 1.0)))
        >>> print(certificate)
        46 of 50 certified at l-infinity 0.05 in [0, 1] by Dual(), 1 unknown, 3 wrong
        >>> certificate.verdicts[0].name
        'CERTIFIED'
    """
    engine = require_engine(engine)
    specification, ball = check_asked(x, labels, ball)
    plain = plain_labels(specification)
    digested = (x,) if plain is None else (x, plain)
    with full_precision(), torch.no_grad(), digesting(digested) as inputs:
        prepared = prepare(model, x, ball.within(x))
        question = specification.put(x, prepared.graph.output_shape)
        with in_time(engine, len(x), timeout, progress) as effort:
            right = question.holds(prepared.output)
            proof, reached = prove_in_time(prepared, x, question, ball, engine, right, effort)
        subject = Subject.of(digest_network(prepared.graph), inputs(), ball, engine, x, specification)
        certificate = _certificate(proof, prepared.output, question, subject, in_words(ball), reached)
        _compare_at_corners(prepared, question, certificate)
        return certificate


def _certificate(
    proof: Proof | ProbableProof,
    output: Tensor,
    question: Question,
    subject: Subject,
    where: str,
    reached: Tensor | None,
) -> Certificate | HighProbabilityCertificate:
    """The certificate for what was proved. Where there is nothing to prove, margins are infinite and errors zero."""
    idle = question.idle_rows()
    margin, slack, run_error = (v.expand(len(output), -1) for v in (proof.lower, proof.slack, proof.run_error))
    margin, slack = margin.masked_fill(idle, torch.inf), slack.masked_fill(idle, 0.0)
    claim = margin, slack, run_error.masked_fill(idle, 0.0), output, question, subject, where
    if isinstance(proof, ProbableProof):
        return HighProbabilityCertificate(*claim, proof.confidence, reached=reached)
    return Certificate(*claim, reached=reached)


def _compare_at_corners(
    prepared: Prepared, question: Question, certificate: Certificate | HighProbabilityCertificate
) -> None:
    """A certificate that the model contradicts at a corner of its set is an error, and is never returned."""
    proved, output = certificate.certified_as_run, prepared.at_corners
    if isinstance(certificate, HighProbabilityCertificate) or output is None or not bool(proved.any()):
        return
    broken = (proved & ~question.holds(output)).nonzero().squeeze(1)
    if len(broken) > 0:
        raise ContradictionError(
            f"example {int(broken[0])} was certified, but the model breaks what was asked at a corner of its set ({len(broken)} of "
            f"{len(proved)} examples), so no certificate of this call counts. A layer or a set of your own may be wrong: "
            f"autodual.testing checks them. If there is none, please report it, with the model"
        )


def certified_radius(
    model: nn.Module | Network,
    x: Tensor,
    labels: Tensor | Specification,
    ball: Perturbation,
    engine: BoundEngine | None = None,
    tol: float = 1e-3,
) -> Tensor:
    """Find, by bisection, how large the ball of each example may be made and still be certified.

    Bounds need not shrink as the set grows, so a larger certified radius than the one found may exist.

    Args:
        model: Any nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network.
        x: Clean inputs [N, *shape].
        labels: The labels to defend [N]; or any `Specification`.
        ball: A perturbation, no set. Its `eps`, one number or one for each example, is the largest radius that is tried.
        engine: How to bound; `Dual()` if not given.
        tol: Bisection ends when the interval is no longer than this.

    Returns:
        Radii [N], each of which was itself certified; zero where the clean input is wrong or nothing could be certified.

    Raises:
        ArgumentError: An argument cannot be used; `eps` differs between features; the engine is random, so that a search would add
            up its probabilities of failure.
        CaptureError: The model could not be turned into a graph.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> radius = ad.certified_radius(ad.load_digits_network(), images[:5], labels[:5], ad.LinfBall(0.2), tol=0.01)
        >>> [round(value, 2) for value in radius.tolist()]
        [0.13, 0.15, 0.1, 0.11, 0.16]
    """
    engine = require_engine(engine)
    specification, ball = check_asked(x, labels, ball)
    if isinstance(ball, GivenSet):
        ball.with_eps(0.0)  # refuses
    if not (isinstance(tol, int | float) and tol > 0):
        raise ArgumentError(f"tol must be positive, got {tol}")
    ball.around(x)  # refuses an eps that does not fit x
    largest = _per_example(ball, x)
    with full_precision(), torch.no_grad():
        prepared = prepare(model, x)
        question = specification.put(x, prepared.graph.output_shape)
        return _bisect(prepared, x, question, ball, engine, largest, tol)


def _bisect(
    prepared: Prepared,
    x: Tensor,
    question: Question,
    ball: Perturbation,
    engine: BoundEngine,
    largest: Tensor,
    tol: float,
) -> Tensor:
    """The largest certified radius of each example that bisection finds, [N]; zero where the clean input is wrong."""

    def certified(radius: Tensor, some: Tensor) -> Tensor:
        """Whether some of the examples, by their numbers, are certified at their radii."""
        if not treats_all_alike(ball) and len(some) < len(x):
            return certified(radius, torch.arange(len(x), device=x.device))[some]
        part = ball.with_eps(radius[some].reshape(-1, *[1] * (x.dim() - 1)))
        asked = question.at(some)
        proof = prove(prepared, x[some], asked, part, engine, torch.ones_like(some, dtype=torch.bool))
        if isinstance(proof, ProbableProof):
            raise ArgumentError(
                f"{engine!r} promises each bound with probability 1 - delta, and a search makes many: their deltas add up. "
                f"Use Dual(), or certify() at radii and deltas that you choose beforehand"
            )
        return proves(asked, proof.lower, proof.slack)

    low = torch.zeros_like(largest)
    high = largest.clone()
    open_ = torch.arange(len(x), device=x.device)
    right = question.holds(prepared.output)
    full = certified(largest, open_) & right
    low[full] = largest[full]
    open_ = open_[~full & right]
    for _ in range(max(0, math.ceil(math.log2(max(largest.max().item() / tol, 1.0))))):
        if len(open_) == 0:
            break
        middle = (low + high) / 2
        proved = certified(middle, open_)
        low[open_[proved]] = middle[open_[proved]]
        high[open_[~proved]] = middle[open_[~proved]]
    return low


def _per_example(ball: Perturbation, x: Tensor) -> Tensor:
    """The size of the ball of each example, [N]; refuses sizes per feature."""
    eps = torch.as_tensor(ball.eps, dtype=x.dtype, device=x.device)
    if eps.numel() == 1:
        return eps.reshape(1).expand(len(x)).clone()
    if eps.numel() == len(x) and eps.shape[0] == len(x):
        return eps.reshape(-1).clone()
    raise ArgumentError(
        f"ball.eps of shape {tuple(eps.shape)} gives every feature its own size, so there is no single radius to search for; "
        f"use one number or one per example [{len(x)}]"
    )


# How a question is answered: in time, in float32 or float64, and with what errors.


def prove_in_time(
    prepared: Prepared,
    x: Tensor,
    question: Question,
    ball: Perturbation,
    engine: BoundEngine,
    right: Tensor,
    effort: Effort,
) -> tuple[Proof | ProbableProof, Tensor | None]:
    """What `prove` finds within a time limit, and which examples [N] were reached by then; None for all of them.

    A batch that ends in time has reached all of its examples. Where an engine keeps what it had when the time was up (`Effort.late`),
    it has reached those of them that this decides.
    """
    everyone = torch.arange(len(x), device=x.device)
    ended_in_time = 0

    def prove_part(part: slice) -> Proof | ProbableProof:
        nonlocal ended_in_time
        if part.stop - part.start == len(x):
            found = prove(prepared, x, question, ball, engine, right)
        else:
            some = everyone[part]
            smaller = ball_of_some(ball, x, some)
            assert smaller is not None
            found = prove(prepared, x[some], question.at(some), smaller, engine, right[some])
        if not effort.late:
            ended_in_time = part.stop
        return found

    together = engine.random or ball_of_some(ball, x, everyone[:1]) is None
    parts, bounded = until_time_is_up(prove_part, len(x), together, effort)
    if ended_in_time == len(x):
        return join_proofs(parts), None
    if bounded < len(x):
        lower = x.new_full((len(x) - bounded, question.rows(x.dtype).rows.shape[0]), -torch.inf)
        parts.append(Proof(lower, torch.zeros_like(lower), torch.zeros_like(lower)))
    proof = join_proofs(parts)
    decided = proves(question, proof.lower, proof.slack, proof.run_error) | ~right
    reached = (everyone < ended_in_time) | ((everyone < bounded) & decided)
    return proof, None if bool(reached.all()) else reached


def prove(
    prepared: Prepared, x: Tensor, question: Question, ball: Perturbation, engine: BoundEngine, right: Tensor
) -> Proof | ProbableProof:
    """Lower bounds on all rows [N, R] with their errors; computed again in float64 for `right` examples that float32 leaves open."""
    everyone = torch.arange(len(x), device=x.device)
    if float32_is_in_vain(prepared, x, question, ball, engine):
        found = prove_in_double(prepared, x, question.rows(torch.float64), ball, engine, everyone)
        if found is not None:
            return _to_single(_with_offsets(found, question))
    proof = _with_offsets(prove_rows(prepared, x, question.rows(x.dtype), ball, engine), question)
    if not question.exact_in(x.dtype):
        return replace(proof, slack=torch.full_like(proof.slack, torch.inf))
    if x.dtype != torch.float32 or isinstance(proof, ProbableProof):
        return proof  # to try twice would double delta
    lower, slack, run_error = (v.expand(len(x), -1) for v in (proof.lower, proof.slack, proof.run_error))
    unclear = (right & worth_another_look(question, lower, slack, run_error)).nonzero().squeeze(1)
    if len(unclear) == 0:
        return proof
    rest = question.at(unclear)
    found = prove_in_double(prepared, x, rest.rows(torch.float64), ball, engine, unclear)
    if found is None:
        return proof
    sharper = _to_single(_with_offsets(found, rest))
    return replace(
        proof,
        lower=lower.index_copy(0, unclear, sharper.lower),
        slack=slack.index_copy(0, unclear, sharper.slack),
        run_error=run_error.index_copy(0, unclear, sharper.run_error),
    )


def _with_offsets(proof: Proof | ProbableProof, question: Question) -> Proof | ProbableProof:
    """Bounds on rows'z + offsets from those on rows'z, rounded down."""
    if question.offsets is None:
        return proof
    total = proof.lower.double() + question.offsets
    down = torch.nextafter(total, torch.full_like(total, -torch.inf))
    down = -rounded_up(-down, proof.lower.dtype)
    return replace(proof, lower=torch.where(total.isfinite(), down, total.to(proof.lower)))


def prove_rows(
    prepared: Prepared, x: Tensor, spec: Spec, ball: Perturbation, engine: BoundEngine
) -> Proof | ProbableProof:
    """Bounds in the dtype of x. They say nothing about a network whose constants need float64: their slack is infinite then."""
    proof = engine.prove(prepared.network, ball.around(x), spec)
    return replace(proof, slack=torch.full_like(proof.slack, torch.inf)) if prepared.only_in_double else proof


PROBED = 8
"""From so many examples on, an engine whose slack in float32 tends to be large is tried on one of them first."""
FAR = 8
"""Where a margin is so many times the slack of an engine's `sketch`, the slack of the engine itself is taken to be smaller, too."""


def float32_is_in_vain(
    prepared: Prepared, x: Tensor, question: Question, ball: Perturbation, engine: BoundEngine
) -> bool:
    """Whether float64 is where proofs will come from, so that bounds in float32 would be computed for nothing.

    Some engines have a slack in proportion to the network's values. With such an engine, a few examples go to float64 at once. Of many
    examples, the first is tried in float32: the answer is yes if no margin exceeds its slack. The engine's `sketch` is tried before,
    since it is cheaper: the answer is no if its slack is far below a margin at the centre. Only time depends on the answer.
    """
    if x.dtype != torch.float32:
        return False
    if prepared.only_in_double or not question.exact_in(x.dtype):
        return True
    if not engine.coarse_in_float32 or engine.random:
        return False
    if len(x) < PROBED or not treats_all_alike(ball) or (isinstance(ball.eps, Tensor) and ball.eps.numel() > 1):
        return True
    first, asked = x[:1], question.at(torch.zeros(1, dtype=torch.long, device=x.device))
    spec = asked.rows(x.dtype)
    if engine.sketch is not None:
        centre = asked.at_output(prepared.network.forward(first))[0]
        if bool((FAR * prove_rows(prepared, first, spec, ball, engine.sketch).slack < centre).any()):
            return False
    proof = _with_offsets(prove_rows(prepared, first, spec, ball, engine), asked)
    return bool((proof.lower.abs() <= proof.slack).all())


def prove_in_double(
    prepared: Prepared, x: Tensor, spec: Spec, ball: Perturbation, engine: BoundEngine, examples: Tensor
) -> Proof | ProbableProof | None:
    """Bounds on the rows of `spec` for some examples, all in float64; None, with a warning, where that cannot be had."""
    try:
        proofs, done = list[Proof | ProbableProof](), 0
        for region in _regions(ball, x.double(), examples):
            proofs.append(engine.prove(prepared.in_double, region, spec[slice(done, done + len(region))]))
            done += len(region)
        return join_proofs(proofs)
    except TimeLimitError:  # these examples are not decided, so they do not count as reached
        raise
    except (AutodualError, RuntimeError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"{len(examples)} examples are certified or not depending on rounding in float32, and could not be looked at in float64 "
            f"({type(error).__name__}: {reason}); they count as not certified",
            stacklevel=5,
        )
        return None


def _regions(ball: Perturbation, x: Tensor, examples: Tensor) -> Iterator[InputSet]:
    """The sets of some examples: at once where they depend on nothing but x and eps, else cut out of the sets of all."""
    some = ball_of_some(ball, x, examples)
    if some is not None:
        yield some.around(x[examples])
    else:
        region = ball.around(x)
        yield from (region[part] for part in _neighbours(examples.tolist()))


def ball_of_some(ball: Perturbation, x: Tensor, examples: Tensor) -> Perturbation | None:
    """The perturbation of some examples alone; None where sets may depend on more than their x and eps."""
    eps = ball.eps
    if not treats_all_alike(ball):
        return None
    if not (isinstance(eps, Tensor) and eps.numel() > 1):
        return ball
    return ball.with_eps(eps.to(x.device)[examples]) if eps.dim() == x.dim() and len(eps) == len(x) else None


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
