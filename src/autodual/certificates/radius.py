"""The largest radius that can be certified, example by example."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import full_precision
from autodual.certificates.proof import prove, treats_all_alike
from autodual.engines.backward.dual import Dual
from autodual.engines.prepare import GivenSet, Prepared, check_asked, check_engine, prepare
from autodual.engines.results import BoundEngine, ProbableProof, proves
from autodual.graph import Network
from autodual.sets import Perturbation
from autodual.spec import Question, Specification


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
    engine = Dual() if engine is None else engine
    check_engine(engine)
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
    def certified(radius: Tensor, some: Tensor) -> Tensor:
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
    eps = torch.as_tensor(ball.eps, dtype=x.dtype, device=x.device)
    if eps.numel() == 1:
        return eps.reshape(1).expand(len(x)).clone()
    if eps.numel() == len(x) and eps.shape[0] == len(x):
        return eps.reshape(-1).clone()
    raise ArgumentError(
        f"ball.eps of shape {tuple(eps.shape)} gives every feature its own size, so there is no single radius to search for; "
        f"use one number or one per example [{len(x)}]"
    )
