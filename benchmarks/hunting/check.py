"""Does a claim of the library hold for a case? And the smallest case for which it does not."""

from __future__ import annotations

import contextlib
import copy
import decimal
import math
import random
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor, nn

import autodual as ad
from hunting import reference
from hunting.case import NAMES, Ball, Beside, Case, Layer, flat, mapped, single

ENGINES = (
    "ad.IBP()", "ad.Dual()", "ad.Crown()", "ad.ForwardDual()", "ad.Dual(intersect=True)", "ad.Crown(intersect=True)",
    "ad.Dual(intermediate=ad.IBP())", "ad.Crown(intermediate=ad.Dual())", "ad.Crown(lower='zero')", "ad.Crown(lower='one')",
    "ad.AlphaCrown(steps=2)", "ad.AlphaCrown(steps=3, lr=2.0)", "ad.AlphaCrown(steps=2, intersect=True)",
    "ad.BestOf(ad.IBP(), ad.Dual(), ad.Crown())", "ad.BestOf(ad.Dual(), ad.Crown(), every_activation=True)",
)  # fmt: skip
SEARCH_STEPS, SEARCH_POINTS = 12, 24


@dataclass(frozen=True)
class Finding:
    """What was found, how to see it, and a name that is the same for the same cause."""

    name: str
    seen: str
    script: str


def violated(case: Case) -> str | None:
    """What is wrong, in one line; None if the claim holds, is not made, or cannot be told from rounding in float64."""
    model, x = case.model(), case.tensor(case.x)
    handles: list[Any] = []
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), _removed(handles):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        if not _runs(model, x):
            return None
        try:
            network = ad.capture(model, x) if case.captured else model
            names = NAMES | {"model": model, "x": x, "handles": handles}
            for statement in case.setup:
                exec(statement, names)
            found = _ask(case, network, x)
        except ad.AutodualError:
            return None
        except Exception as error:
            return f"{type(error).__name__} instead of an AutodualError: {(str(error).splitlines() or [''])[0][:120]}"
        return _judge(case, found, model)


@contextlib.contextmanager
def _removed(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _runs(model: nn.Module, x: Tensor) -> bool:
    """Whether PyTorch itself can run it to finite scores; a model that cannot is no case."""
    try:
        with torch.no_grad():
            return bool(torch.isfinite(model(x.clone())).all())
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError, ZeroDivisionError):
        return False


def _ask(case: Case, network: Any, x: Tensor) -> Any:
    engine, ball = eval(case.engine, dict(NAMES)), case.ball.build(case.dtype)
    if case.claim == "bounds":
        return ad.bounds(network, ball.around(x), engine=engine)
    return ad.certify(network, x, torch.tensor([case.label]), ball, engine=engine)


def _judge(case: Case, found: Any, model: nn.Sequential) -> str | None:
    if case.witness is None or not case.ball.contains(flat(case.x), flat(case.witness)):
        return None
    if case.claim == "bounds":
        return _outside(case, found.output, model)
    if case.claim == "certified":
        if not bool(found.certified[0]):
            return None
        real, doubt = reference.margin(case, case.witness, model)
        if not real + doubt <= 0:
            return None
        return f"certified, margin {found.margins.min():.3g} > slack {found.slack.max():.3g}; real margin {float(real):.3g}"
    if case.claim == "as it is":
        now = _run_margin(model, case.tensor(case.witness), case.label)
        wrong = bool(found.certified[0]) and now < -1e-4
        return (
            f"certified for another model than this one, whose margin is {now:.3g} at a point of the set"
            if wrong
            else None
        )
    if not bool(_claimed(found, case.claim)[0]):
        return None
    run = _worst_run(model, case.tensor(case.witness), case.label)
    return (
        None
        if run > 0
        else f"certified as run, but the model in {case.dtype} has margin {run:.3g} at a point of the set"
    )


def _claimed(certificate: ad.Certificate, claim: str) -> Tensor:
    """[N] bool; a library that does not tell the two statements apart makes both with one."""
    certified = certificate.certified
    return getattr(certificate, "certified_as_run", certified) if claim == "as run" else certified


def _outside(case: Case, interval: ad.Interval, model: nn.Sequential) -> str | None:
    scores, doubt = reference.scores(case, case.witness, model)
    for low, high, score in zip(
        flat(interval.lower[0].tolist()), flat(interval.upper[0].tolist()), scores, strict=True
    ):
        if math.isnan(low) or math.isnan(high):
            return f"bounds undefined: [{low}, {high}] for a finite value"
        if not (low <= score + doubt and score - doubt <= high):
            return f"bounds exceeded: [{low!r}, {high!r}] leave out the attained value {float(score)!r}"
    return None


def _worst_run(model: nn.Sequential, point: Tensor, label: int) -> float:
    """The smallest margin that the model itself computes there: alone, in batches, in other layouts, with other numbers of threads."""
    threads, worst = torch.get_num_threads(), math.inf
    try:
        for count in (1, 2) if torch.get_num_threads() > 1 else (1,):
            torch.set_num_threads(count)
            for batch in (1, 3, 16):
                worst = min(worst, _run_margin(model, point.expand(batch, *point.shape[1:]).contiguous(), label))
            if point.dim() == 4:
                inside = point.expand(4, *point.shape[1:]).contiguous(memory_format=torch.channels_last)
                worst = min(worst, _run_margin(model, inside, label))
    finally:
        torch.set_num_threads(threads)
    return worst


@torch.no_grad()
def _run_margin(model: nn.Module, x: Tensor, label: int) -> float:
    scores = model(x)
    others = scores.clone()
    others[:, label] = -math.inf
    return float((scores[:, label] - others.amax(1)).min())


INPUTS = 6
"""Inputs that share a network, and are certified together before any is looked at alone."""


def at_the_edge(body: Case, draw: random.Random, engines: int = 2) -> Iterator[list[Case]]:
    """Cases that must not be certified: a last layer is added whose margin is just below zero at the worst point found.

    Every list shares network, set and engine, and differs in the input and the last bias.
    """
    model, x = body.model(), body.tensor(body.x)
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    double = copy.deepcopy(model).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not _runs(model, x) or not _runs(double, x.double()):
            return
        with torch.no_grad():
            features, rough = double(x.double()), model(x.clone()).double()
        layers = body.layers if features.dim() == 2 else (*body.layers, Layer("nn.Flatten()"))
        weights = _weights(draw, (rough - features).flatten(1))
        if weights is None:
            return
        inputs = [body.x]
        if x.dim() == 2 and body.ball.kind == "linf" and body.ball.clip is None and not body.alone:
            inputs += [_moved(body.x, draw, body.dtype) for _ in range(INPUTS - 1)]
        cases = []
        for values in inputs:
            place = body.tensor(values)
            if _runs(double, place.double()):
                point = _worst_point(double, body.ball, place, torch.tensor(weights, dtype=torch.float64), generator)
                edge = _with_bias(replace(body, layers=layers, x=values, witness=point.tolist()), weights)
                cases += [] if edge is None else [edge]
    for engine in draw.sample(ENGINES, engines) if cases else ():
        yield [replace(case, engine=engine) for case in cases]


def _weights(draw: random.Random, lift: Tensor) -> list[float] | None:
    """Of the last layer: such that what the model computes looks better than what is true, by `lift` [1, features]."""
    size = lift.shape[1]
    if not 0 < size <= 64:
        return None
    weights = [draw.choice((0.0, 1.0, -1.0, draw.gauss(0, 1))) for _ in range(size)]
    scale = draw.choice((1.0, 1.0, 2.0**-14, 2.0**-14, 1e3))
    if sum(w * v for w, v in zip(weights, lift[0].tolist(), strict=True)) < 0:
        scale = -scale
    return [single(scale * w) for w in weights]


def _moved(x: Any, draw: random.Random, dtype: str) -> Any:
    """Another input of about the same size, or close by."""
    size = draw.choice((1.0, 1.0, 0.1, 1e-3, 1e-6))
    keep = single if dtype == "float32" else float
    return mapped(x, lambda v: keep(v * (1 + size * draw.gauss(0, 1)) if v else draw.choice((0.0, draw.gauss(0, 1)))))


def suspects(cases: list[Case]) -> list[Case]:
    """Those of the cases that are certified together; a second feature of each input stands for its bias."""
    if len(cases) == 1:
        return cases
    first = cases[0]
    weights = dict(first.layers[-1].tensors)["weight"][0]
    body = replace(first, layers=first.layers[:-1]).model()
    dtype = getattr(torch, first.dtype)
    head = nn.Linear(len(weights) + 1, 2).to(dtype)
    head.weight.data[:] = torch.tensor([[*weights, -1.0], [0.0] * (len(weights) + 1)], dtype=torch.float64)
    head.bias.data.zero_()
    model = nn.Sequential(Beside(body), head).eval()
    x = torch.tensor([[*c.x, -dict(c.layers[-1].tensors)["bias"][0]] for c in cases], dtype=dtype)
    eps = torch.tensor([*first.ball.sizes(x.shape[1] - 1), 0.0], dtype=torch.float64).expand(len(x), -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = ad.certify(model, x, torch.zeros(len(x)).long(), ad.LinfBall(eps), eval(first.engine, dict(NAMES)))
        except Exception:  # refused or crashed: alone, the case shows which
            return cases[:1]
    claimed = _claimed(found, first.claim)
    return [case for case, flag in zip(cases, claimed.tolist(), strict=True) if flag]


def _worst_point(double: nn.Module, ball: Ball, x: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
    """Where weights' f is smallest among random points, corners, and what sign gradients find; [*shape], inside the set."""
    points = ball.points(x[0], SEARCH_POINTS, generator)
    best, lowest = x[0].double(), math.inf
    largest = max(ball.sizes(1))
    for step in range(SEARCH_STEPS if largest else 1):
        points.requires_grad_()
        with torch.enable_grad():
            values = double(points.clone()).flatten(1) @ weights
            if values.requires_grad and largest:
                (gradient,) = torch.autograd.grad(values.sum(), points, allow_unused=True)
            else:
                gradient = None
        points = points.detach()
        for index in values.detach().argsort().tolist()[:3]:
            inside = ball.contains(x.double().flatten().tolist(), points[index].flatten().tolist())
            if inside and values[index].item() < lowest:
                best, lowest = points[index], values[index].item()
                break
        if gradient is None:
            break
        size = torch.tensor(ball.sizes(x[0].numel()), dtype=torch.float64).reshape(x[0].shape) * (
            1 - step / SEARCH_STEPS
        )
        points = ball.inward(points - size * gradient.sign(), x[0])
    return best


def _with_bias(case: Case, weights: list[float]) -> Case | None:
    """The case with a last layer [weights; 0] and the largest bias for which the margin at the witness is surely not above zero."""
    features, doubt = reference.scores(case, case.witness)
    if len(features) != len(weights) or not doubt.is_finite() or not all(f.is_finite() for f in features):
        return None
    with decimal.localcontext(reference.CONTEXT):
        terms = [Decimal(w) * f + abs(Decimal(w)) * doubt for w, f in zip(weights, features, strict=True)]
        bias = not_above(-sum(terms) - sum(map(abs, terms)) * Decimal("1e-100"), case.dtype)
    if bias is None:
        return None
    tensors = (("weight", [weights, [0.0] * len(weights)]), ("bias", [bias, 0.0]))
    return replace(case, layers=(*case.layers, Layer(f"nn.Linear({len(weights)}, 2)", tensors)))


def not_above(value: Decimal, dtype: str) -> float | None:
    """The largest number of the dtype that is not above the value; None if there is none."""
    rounded = torch.tensor(float(value), dtype=getattr(torch, dtype))
    if Decimal(rounded.item()) > value:
        rounded = torch.nextafter(rounded, torch.tensor(-math.inf, dtype=rounded.dtype))
    return rounded.item() if rounded.isfinite() else None


def shrunk(case: Case, seconds: float) -> Case:
    """A simpler case with the same fault: fewer layers, rounder numbers, a smaller set."""
    fault, deadline = kind_of(violated(case) or ""), time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for simpler in _simpler(case):
            if time.monotonic() > deadline:
                break
            with contextlib.suppress(IndexError, RuntimeError, ValueError, TypeError, AttributeError):
                seen = violated(simpler)
                if seen is not None and kind_of(seen) == fault:
                    case, improved = simpler, True
                    break
    return case


def kind_of(seen: str) -> str:
    return " ".join(seen.split()[:2]).rstrip(",:")


def _simpler(case: Case) -> Iterator[Case]:
    """Every simplification as it is, and with its last bias at the edge again."""
    for simpler in _reduced(case):
        yield simpler
        with contextlib.suppress(IndexError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError):
            again = _at_the_edge_again(simpler)
            if again is not None:
                yield again


def _at_the_edge_again(case: Case) -> Case | None:
    *body, head = case.layers
    if case.claim != "certified" or case.setup or not body or not re.fullmatch(r"nn.Linear\(\d+, 2\)", head.source):
        return None
    weights = dict(head.tensors)["weight"][0]
    return _with_bias(replace(case, layers=tuple(body)), weights)


def _reduced(case: Case) -> Iterator[Case]:
    for index in range(len(case.layers)):
        if len(case.layers) > 1:
            yield replace(case, layers=case.layers[:index] + case.layers[index + 1 :])
    for engine in ("ad.IBP()", "ad.Dual()"):
        if ENGINES.index(engine) < ENGINES.index(case.engine):
            yield replace(case, engine=engine)
    if case.witness is not None and case.ball.eps:
        point = mapped(case.witness, single if case.dtype == "float32" else float)
        yield replace(case, ball=Ball("linf", 0.0), x=point, witness=point)
    for digits in (1, 2, 3, 5):
        yield from _rounder(case, digits)


def _rounder(case: Case, digits: int) -> Iterator[Case]:
    """One tensor at a time with fewer digits; the witness moves with the input at a single point."""

    def fewer(value: float) -> float:
        return value if value in (0.0, 1.0, -1.0) else float(f"{value:.{digits - 1}e}")

    def rounded(values: Any) -> Any:
        return mapped(values, fewer)

    for index, layer in enumerate(case.layers):
        for place, (name, values) in enumerate(layer.tensors):
            for changed in (mapped(values, lambda v: 0.0), rounded(values)):
                if changed != values and _simpler_numbers(changed, values):
                    tensors = (*layer.tensors[:place], (name, changed), *layer.tensors[place + 1 :])
                    layers = (*case.layers[:index], replace(layer, tensors=tensors), *case.layers[index + 1 :])
                    yield replace(case, layers=layers)
    keep = single if case.dtype == "float32" else float
    x = mapped(rounded(case.x), keep)
    if case.x == case.witness and _simpler_numbers(rounded(case.x), case.x):
        yield replace(case, x=x, witness=x)
    elif case.witness is not None and _simpler_numbers(rounded(case.witness), case.witness):
        yield replace(case, witness=rounded(case.witness))
    if isinstance(case.ball.eps, float) and len(repr(fewer(case.ball.eps))) < len(repr(case.ball.eps)):
        yield replace(case, ball=replace(case.ball, eps=fewer(case.ball.eps)))


def _simpler_numbers(new: Any, old: Any) -> bool:
    return len(repr(new)) < len(repr(old))


class Shrinker:
    """Makes findings of cases; a case like an earlier one is not shrunk again."""

    def __init__(self, seconds: float = 6.0) -> None:
        self.seconds = seconds
        self.known: dict[str, Finding] = {}

    def finding(self, case: Case) -> Finding | None:
        """The shrunk case as a finding; None if the claim holds after all."""
        seen = violated(case)
        if seen is None:
            return None
        name = signature(case, seen)
        if name not in self.known:
            small = shrunk(case, self.seconds)
            seen = violated(small)
            assert seen is not None
            found = Finding(signature(small, seen), seen, small.script(seen))
            self.known[name] = self.known.setdefault(found.name, found)
        return self.known[name]


def signature(case: Case, seen: str) -> str:
    """What went wrong with which operations: the same for the same cause, as far as that can be told."""
    names = sorted({layer.name for layer in case.layers} - {"nn.Linear", "nn.Flatten", "nn.Identity"})
    names = names or [f"nn.Linear with {case.ball.kind if case.ball.eps else 'a point'}"]
    extra = f" after {case.setup[0][:60]!r}{' on a captured network' if case.captured else ''}" if case.setup else ""
    return f"{kind_of(seen)}: {', '.join(names)} ({case.dtype}){extra}"
