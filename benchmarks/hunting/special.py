"""Kinds that are not one network and one set: many intervals at once, radii, cascades, probabilities, odd inputs, threads."""

from __future__ import annotations

import contextlib
import copy
import decimal
import itertools
import math
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import autodual as ad
from hunting.case import NAMES, Ball, Case, Layer, single
from hunting.check import ENGINES, Finding, Shrinker, not_above
from hunting.draws import CURVED, STRAIGHT, activation
from hunting.reference import CONTEXT, ELEMENTWISE, UnknownError

Found = tuple[int, list[Finding]]
INTERVALS, GRID = 240, 33


# Many intervals of one activation


def activations(draw: Random, shrinker: Shrinker) -> Found:
    """One activation over many intervals that hurt: kinks, saturation, denormals, huge, one ulp wide, no width.

    The network reads (z, t) and its margin is weight * f(z) - t. Every t is chosen so that the margin is just below zero somewhere.
    """
    chosen = [a for a in (*STRAIGHT, *CURVED, *CURVED) if a.startswith("nn.")]
    source = draw.choice(chosen) if draw.random() < 0.6 else activation(draw, 1.0)
    function, dtype = eval(source, dict(NAMES)).eval(), draw.choice(("float32", "float32", "float64"))
    z = torch.tensor([_hurting(draw) for _ in range(INTERVALS)], dtype=torch.float32)
    if dtype == "float64":
        z = z.double() * (1 + torch.rand(len(z), dtype=torch.float64) * 1e-8)
    point = draw.random() < 0.5 or dtype == "float64"
    eps = torch.tensor([0.0 if point else _width(draw, v) for v in z.tolist()], dtype=z.dtype)
    weight = draw.choice((1.0, -1.0)) * draw.choice((1.0, 1.0, 1e-5, 1e4, single(1e38)))
    points, t = _lowest(function, z, eps, weight) if dtype == "float32" else _exactly(function, z, weight)
    usable = t.isfinite() & (t.abs() < 1e38)
    if not bool(usable.any()):
        return 0, []
    z, eps, t, points = z[usable], eps[usable], t[usable], points[usable]
    head = Layer("nn.Linear(2, 2)", (("weight", [[single(weight), -1.0], [0.0, 0.0]]), ("bias", [0.0, 0.0])))
    x, radius = torch.stack([z, t], 1), torch.stack([eps, torch.zeros_like(eps)], 1)
    case = Case((Layer(f"Beside({source})"), head), x[0].tolist(), Ball("linf", 0.0), dtype)
    count = 0
    for engine in draw.sample(ENGINES[:6], 3):
        count += len(z)
        try:
            certificate = _quietly(
                lambda e=engine: ad.certify(
                    case.model(), x, torch.zeros(len(x)).long(), ad.LinfBall(radius), eval(e, dict(NAMES))
                )
            )
        except ad.AutodualError:
            continue
        for i in certificate.certified.nonzero().flatten().tolist():
            shown = _single(shrinker, source, weight, engine, dtype, z[i], eps[i], t[i], points[i])
            if shown is not None:
                return count, [shown]
    return count, []


def _single(
    shrinker: Shrinker,
    source: str,
    weight: float,
    engine: str,
    dtype: str,
    z: Tensor,
    eps: Tensor,
    t: Tensor,
    point: Tensor,
) -> Finding | None:
    """As one case: with a bias instead of the second feature if that shows it, too."""
    size = single(weight)
    head = Layer("nn.Linear(1, 2)", (("weight", [[size], [0.0]]), ("bias", [-t.item(), 0.0])))
    layers = (Layer("nn.Identity()"), Layer(source), head)
    plain = Case(layers, [z.item()], Ball("linf", eps.item()), dtype, engine, witness=[point.item()])
    both = Layer("nn.Linear(2, 2)", (("weight", [[size, -1.0], [0.0, 0.0]]), ("bias", [0.0, 0.0])))
    ball, place = Ball("linf", (eps.item(), 0.0)), [point.item(), t.item()]
    beside = Case((Layer(f"Beside({source})"), both), [z.item(), t.item()], ball, dtype, engine, witness=place)
    return shrinker.finding(plain) or shrinker.finding(beside)


def _hurting(draw: Random) -> float:
    special = draw.choice((-3.0, 3.0, 6.0, 1.0, -1.0, 20.0, 0.3, 0.5, 0.0, -1.4142135, 2.3993573, -88.72284, 1.4285715))
    value = draw.choice(
        (draw.uniform(-12, 12), draw.choice((-1, 1)) * 10 ** draw.uniform(-44, 37), draw.uniform(-110, -80), draw.uniform(80, 110),
         special * (1 + draw.choice((0, 1, -1, 3)) * 2.0**-23), draw.uniform(-6, -2.5), draw.uniform(-1, 1))
    )  # fmt: skip
    return single(value)


def _width(draw: Random, z: float) -> float:
    choices = (0.0, abs(z) * 2.0**-23, 1e-44, abs(z) * 1e-3, abs(z), 1.0, 3.0, 100.0, 1e4, 10 ** draw.uniform(-40, 30))
    return single(draw.choice(choices))


@torch.no_grad()
def _lowest(function: nn.Module, z: Tensor, eps: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Per interval: where weight * f is lowest on a grid, and the smallest number of float32 that is surely not below that."""
    steps = torch.cat(
        [torch.linspace(-1, 1, GRID, dtype=torch.float64), torch.tensor([1 - 1e-7, 1e-7 - 1, 0.0], dtype=torch.float64)]
    )
    points = z.double().unsqueeze(1) + steps * eps.double().unsqueeze(1)
    kinks = torch.tensor([0.0, -3.0, 3.0, 6.0, 1.0, -1.0], dtype=torch.float64).expand(len(z), -1)
    points = torch.cat([points, torch.minimum(torch.maximum(kinks, points[:, :1]), points[:, GRID - 1 : GRID])], 1)
    inside = (points - z.double().unsqueeze(1)).abs() <= eps.double().unsqueeze(1)
    values = (single(weight) * function.double()(points)).masked_fill(~inside, math.inf).nan_to_num(nan=math.inf)
    lowest, place = values.min(1)
    raised = lowest + lowest.abs() * 1e-13
    rounded = raised.float()
    higher = torch.nextafter(rounded, torch.full_like(rounded, math.inf))
    above = torch.where(rounded.double() >= raised, rounded, higher)
    return points.gather(1, place.unsqueeze(1)).squeeze(1), above


def _exactly(function: nn.Module, z: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """As `_lowest` for single points, in decimal arithmetic and for float64; NaN where that does not know the function."""
    apply, values = ELEMENTWISE.get(type(function)), [math.nan] * len(z)
    if apply is not None:
        with decimal.localcontext(CONTEXT):
            for i, v in enumerate(z.tolist()):
                with contextlib.suppress(UnknownError):
                    negative = not_above(-Decimal(single(weight)) * apply(function, Decimal(v)), "float64")
                    values[i] = math.nan if negative is None else -negative
    return z, torch.tensor(values, dtype=torch.float64)


# Radii, cascades, probabilities


def _network(features: int = 3, hidden: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 3)
    ).eval()


def _points_of(x: Tensor, eps: Tensor | float, count: int) -> Tensor:
    """[count, N, features]: corners and others, inside in float32."""
    noise = 2 * torch.rand(count, *x.shape) - 1
    noise[::2] = noise[::2].sign()
    return x + noise * eps * (1 - 1e-4)


def radii(draw: Random, shrinker: Shrinker) -> Found:
    """No point within a certified radius gets another label."""
    model, x = _network(), torch.rand(16, 3)
    labels, engine = model(x).argmax(1), draw.choice(ENGINES)
    largest = draw.choice((0.05, 0.3, 2.0))
    radius = _quietly(
        lambda: ad.certified_radius(
            model, x, labels, ad.LinfBall(largest), eval(engine, dict(NAMES)), tol=draw.choice((1e-3, 1e-6))
        )
    )
    points = _points_of(
        x, radius.unsqueeze(1), 200
    ).double()  # a radius is about real numbers, and margins there may be tiny
    wrong = (copy.deepcopy(model).double()(points).argmax(-1) != labels).any(0) & (radius > 0)
    return len(x), _told("certified radius broken", wrong, engine, "certified_radius")


def cascades(draw: Random, shrinker: Shrinker) -> Found:
    """Where a combination is sound, it answers the label at every point tried."""
    models, x = [_network() for _ in range(2)], torch.rand(24, 3)
    ball, labels = ad.LinfBall(draw.choice((0.01, 0.05, 0.1))), models[0](x).argmax(1)
    threshold = draw.choice((0.0, 0.05, 0.2))
    points = _points_of(x, float(ball.eps), 60)
    scores = [model(points) for model in models]
    top = scores[0].topk(2, dim=-1).values
    routed = torch.where(top[..., 0] - top[..., 1] > threshold, scores[0].argmax(-1), scores[1].argmax(-1))
    count, found = 0, list[Finding]()
    for combination, answers in (
        (ad.RoutedCascade(models, [threshold], ball), routed),
        (ad.SumEnsemble(models, ball), (scores[0] + scores[1]).argmax(-1)),
    ):
        certificate = combination.certify(x, labels)
        count, name = count + len(x), type(combination).__name__
        found += _told(f"{name} broken", certificate.sound & (answers != labels).any(0), name, f"{name}.certify")
    return count, found


def probabilities(draw: Random, shrinker: Shrinker) -> Found:
    """Over many seeds, attained values lie outside high-probability bounds no more often than delta, but for chance."""
    model, x, delta, seeds = _network(features=20, hidden=40), torch.rand(20, 20), 0.2, 4
    region = ad.LinfBall(0.1).around(x)
    values, failures = model(_points_of(x, 0.1, 100)), 0
    for _ in range(seeds):
        found = ad.bounds(model, region, ad.HighProbability(k=20, delta=delta, seed=draw.getrandbits(30))).output
        outside = (values < found.lower - 1e-5) | (values > found.upper + 1e-5)
        failures += int(outside.any(-1).any(0).sum())
    allowed = delta * seeds * len(x) + 5 * (delta * seeds * len(x)) ** 0.5
    return seeds * len(x), _told(
        "HighProbability fails too often", torch.tensor([failures > allowed]), f"{failures} failures", "ad.bounds"
    )


def _told(name: str, wrong: Tensor, seen: str, call: str) -> list[Finding]:
    if not bool(wrong.any()):
        return []
    return [
        Finding(name, seen, f"# {call}: examples {wrong.nonzero().flatten().tolist()[:5]} ({seen}); replay the seed\n")
    ]


# Specifications


def specifications(draw: Random, shrinker: Shrinker) -> Found:
    """A specification that is broken at a known point of the set, by next to nothing, is never certified; and a point that an attack
    returns breaks it. All of it in rational numbers: the networks are affine layers and ReLU."""
    dtype = draw.choice((torch.float32, torch.float32, torch.float64))
    sizes = [draw.randint(1, 3), *(draw.randint(2, 5) for _ in range(draw.randint(0, 2))), draw.randint(2, 4)]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    for layer in layers:
        layer.weight.data.mul_(draw.choice((1.0, 1.0, 3.0, 1e-3, 1e4)))
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1]).to(dtype).eval()
    x = (torch.randn(1, sizes[0]) * draw.choice((1.0, 0.1, 30.0))).to(dtype)
    ball = draw.choice((ad.LinfBall, ad.L2Ball, ad.L1Ball))(draw.choice((0.0, 0.01, 0.1, 1.0)))
    given = ball if draw.random() < 0.6 else ball.around(x)
    witness = ball.within(x).step(x, torch.randn_like(x), draw.choice((0.3, 1.0, 5.0)))
    z, n = _exact_output(model, witness[0].tolist()), sizes[-1]
    specification, source = _broken_at(draw, z, n, depth=2)
    engine = draw.choice(ENGINES)
    told = f"{source} by {engine} for a network {sizes} in {dtype} with {ball!r}"
    try:
        certificate = _quietly(lambda: ad.certify(model, x, specification, given, eval(engine, dict(NAMES))))
        found = _quietly(lambda: ad.attack(model, x, specification, given, steps=8, restarts=2))
    except ad.AutodualError:
        return 0, []
    except Exception:
        return 1, [Finding("a specification crashes", told, f"# {told}\n# {traceback.format_exc(limit=-2)}")]
    wrong = list[Finding]()
    if bool(certificate.certified.any()):
        wrong.append(
            Finding(f"certified, but broken: {source.split('(')[0]}", told, f"# ad.certify: {told}; replay the seed\n")
        )
    if bool(found.success.any()):
        reached = _exact_output(model, found.examples[0].tolist())
        inside = Ball({ad.LinfBall: "linf", ad.L2Ball: "l2", ad.L1Ball: "l1"}[type(ball)], float(ball.eps))
        if given is ball and not inside.contains(x[0].tolist(), found.examples[0].tolist()):
            wrong.append(Finding("an attack leaves the set", told, f"# ad.attack: {told}; replay the seed\n"))
        if _holds(specification, reached):
            wrong.append(Finding("an attack that breaks nothing", told, f"# ad.attack: {told}; replay the seed\n"))
    return 2, wrong


def _exact_output(model: nn.Sequential, point: list[float]) -> list[Fraction]:
    z = [Fraction(v) for v in point]
    for layer in model:
        if isinstance(layer, nn.ReLU):
            z = [max(v, Fraction(0)) for v in z]
        else:
            rows, bias = layer.weight.tolist(), layer.bias.tolist()
            z = [
                sum((Fraction(w) * v for w, v in zip(row, z, strict=True)), Fraction(b))
                for row, b in zip(rows, bias, strict=True)
            ]
    return z


def _broken_at(draw: Random, z: list[Fraction], n: int, depth: int) -> tuple[ad.Specification, str]:
    """A specification that does not hold where the output is z, and its source."""
    kind = draw.choice(("positive", "between", "top", "label", "targets", *(("all", "any") if depth else ())))
    if kind == "all":
        parts = [_broken_at(draw, z, n, depth - 1), _any_at(draw, z, n)]
        draw.shuffle(parts)
        return ad.AllOf([p for p, _ in parts]), f"AllOf({', '.join(s for _, s in parts)})"
    if kind == "any":
        parts = [_broken_at(draw, z, n, depth - 1) for _ in range(draw.randint(1, 3))]
        return ad.AnyOf([p for p, _ in parts]), f"AnyOf({', '.join(s for _, s in parts)})"
    if kind == "positive":
        return _any_at(draw, z, n, broken=True)
    if kind == "between":
        j, above = draw.randrange(n), draw.random() < 0.5
        limit = _float_below(z[j]) if above else -_float_below(-z[j])
        return ad.Between(
            None if above else limit, limit if above else None, output=j
        ), f"Between({limit!r}, output={j})"
    better = [[j for j in range(n) if j != y and z[j] >= z[y]] for y in range(n)]
    y = draw.choice([label for label in range(n) if better[label]] or [0])
    if not better[y]:
        return _any_at(draw, z, n, broken=True)
    label = torch.tensor([y])
    if kind == "top":
        k = draw.randint(1, min(len(better[y]), n - 1))
        return ad.TopK(label, k), f"TopK({y}, {k})"
    if kind == "targets":
        targets = [[*draw.sample(better[y], 1), *(draw.randrange(n) for _ in range(draw.randint(0, 2)))]]
        return ad.Label(label, targets), f"Label({y}, {targets})"
    return ad.Label(label), f"Label({y})"


def _any_at(draw: Random, z: list[Fraction], n: int, broken: bool = False) -> tuple[ad.Specification, str]:
    """Rows of which, if `broken`, one more fails at z than may; those that fail are at the edge, by offsets that are rounded down."""
    count = draw.randint(1, 3)
    needed, rows, offsets = draw.randint(1, count), list[list[float]](), list[float]()
    for row in range(count):
        rows.append([draw.choice((0.0, 1.0, -1.0, draw.gauss(0, 1), single(draw.gauss(0, 1)))) for _ in range(n)])
        edge = _float_below(-sum((Fraction(a) * v for a, v in zip(rows[-1], z, strict=True)), Fraction(0)))
        offsets.append(edge if broken and row < count - needed + 1 else edge + draw.choice((1.0, 1e-3, -1.0)))
    return ad.Positive(rows, offsets, needed), f"Positive({rows}, {offsets}, needed={needed})"


def _float_below(value: Fraction) -> float:
    """The largest number of float64 that is not above the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


def _holds(specification: ad.Specification, z: list[Fraction]) -> bool:
    """By its definition, without the library's own rules."""
    if isinstance(specification, ad.AllOf | ad.AnyOf):
        parts = [_holds(part, z) for part in specification.parts]
        return all(parts) if isinstance(specification, ad.AllOf) else any(parts)
    if isinstance(specification, ad.Between):
        assert specification.output is not None
        v, low, high = z[specification.output], specification.lower, specification.upper
        return (low is None or Fraction(float(low)) < v) and (high is None or v < Fraction(float(high)))
    if isinstance(specification, ad.Positive):
        offsets = torch.as_tensor(specification.offsets).tolist()
        values = [
            sum((Fraction(a) * v for a, v in zip(row, z, strict=True)), Fraction(b))
            for row, b in zip(specification.rows.tolist(), offsets, strict=True)
        ]
        return sum(v > 0 for v in values) >= (specification.needed or len(values))
    assert isinstance(specification, ad.Label | ad.TopK)
    y = int(specification.labels[0])
    others = [j for j in range(len(z)) if j != y]
    if isinstance(specification, ad.TopK):
        return sum(z[j] >= z[y] for j in others) < specification.k
    if specification.targets is not None:
        others = [j for j in specification.targets.flatten().tolist() if j != y]
    return all(z[y] > z[j] for j in others)


# Odd inputs


def odd_inputs(draw: Random, shrinker: Shrinker) -> Found:
    """NaN and infinities are refused; layout, gradients and ways to write eps do not change what is proved."""
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).eval()
    x = torch.rand(4, 2, 3, 3)
    labels, engine = model(x).argmax(1), eval(draw.choice(ENGINES[:6]), dict(NAMES))
    plain = ad.certify(model, x, labels, ad.LinfBall(0.03), engine)
    found, count = list[Finding](), 0
    for name, other, ball in _variants(x, draw):
        count += 1
        try:
            certificate = _quietly(lambda o=other, b=ball: ad.certify(model, o, labels, b, engine))
        except ad.AutodualError:
            continue
        except Exception:
            found.append(Finding(f"odd input crashes: {name}", name, f"# {name}\n# {traceback.format_exc(limit=-2)}"))
            continue
        room = plain.slack + certificate.slack + 1e-6
        same = ((certificate.margins - plain.margins).abs() <= room) | (certificate.margins == plain.margins)
        if not bool(same.all()) or not bool(certificate.margins[certificate.certified].isfinite().any(1).all()):
            found.append(
                Finding(
                    f"odd input changes the margin: {name}",
                    name,
                    f"# certify(..., {name}) differs from the plain call\n",
                )
            )
    return count, found


def _variants(x: Tensor, draw: Random) -> Iterator[tuple[str, Tensor, ad.Perturbation]]:
    ball = ad.LinfBall(0.03)
    with torch.inference_mode():
        inference = x.clone()
    wide = torch.zeros(4, 2, 3, 6)
    wide[..., ::2] = x
    spoiled = x.clone()
    spoiled[draw.randrange(4), 0, 0, 0] = draw.choice((math.nan, math.inf, -math.inf))
    yield "channels last", x.to(memory_format=torch.channels_last), ball
    yield "strided", wide[..., ::2], ball
    yield "requires grad", x.clone().requires_grad_(), ball
    yield "inference tensor", inference, ball
    yield "a number that is not finite", spoiled, ball
    yield "eps as a tensor without dimensions", x, ad.LinfBall(torch.tensor(0.03))
    yield "eps in float64", x, ad.LinfBall(torch.tensor(0.03, dtype=torch.float64))
    yield "eps per example", x, ad.LinfBall(torch.full((4,), 0.03))
    yield "eps per feature", x, ad.LinfBall(torch.full((2, 3, 3), 0.03))
    yield "eps requires grad", x, ad.LinfBall(torch.tensor(0.03, requires_grad=True))
    yield "a clip that does nothing", x, ad.LinfBall(0.03, clip=(-5.0, 5.0))
    yield "an expanded batch", x, ad.LinfBall(torch.tensor(0.03).expand(4, 2, 3, 3))
    yield "a neg view", torch._neg_view(-x), ball  # type: ignore[attr-defined]


# Threads


def threads(draw: Random, shrinker: Shrinker) -> Found:
    """In a process of its own, since a failure may leave PyTorch broken; seldom, since that takes seconds to start."""
    if draw.random() > 0.1:
        return 0, []
    place = Path(__file__).parents[1]
    lines = f"import sys; sys.path.insert(0, {str(place)!r}); from hunting.special import race; print(race({draw.getrandbits(30)}))"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=300, check=False)
    told = done.stdout.strip() or done.stderr[-300:]
    return 3 * ROUNDS, [] if told == "[]" else [Finding("threads", told, f"{lines}\n# {told}\n")]


ROUNDS = 8


def race(seed: int) -> list[str]:
    """What goes wrong while two threads certify and a third runs a model; margins must be those of one thread."""
    torch.manual_seed(seed)
    models, x, labels = [_network() for _ in range(2)], torch.rand(4, 3), torch.zeros(4).long()
    expected = [ad.certify(model, x, labels, ad.LinfBall(0.02)).margins for model in models]
    failures: list[str] = []

    def certify(model: nn.Module, margins: Tensor) -> None:
        for _ in range(ROUNDS):
            try:
                if not torch.equal(ad.certify(model, x, labels, ad.LinfBall(0.02)).margins, margins):
                    failures.append("another margin")
            except Exception as error:
                failures.append(type(error).__name__)

    def infer() -> None:
        model = _network()
        for _ in range(100 * ROUNDS):
            try:
                model(x)
            except Exception as error:
                failures.append(f"inference: {type(error).__name__}")

    running = [threading.Thread(target=certify, args=pair) for pair in zip(models, expected, strict=True)]
    running.append(threading.Thread(target=infer))
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sorted(set(failures))


def _quietly(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


SPECIAL: dict[str, Callable[[Random, Shrinker], Found]] = {
    "activations": activations, "radii": radii, "cascades": cascades, "probabilities": probabilities, "odd-inputs": odd_inputs,
    "specifications": specifications, "threads": threads,
}  # fmt: skip
