"""The errors that dual layers state, measured: in float32 against float64, on inputs chosen to hurt.

A certificate counts what layers say about their rounding. Each statement is compared with what PyTorch does: the operation itself and
the dual layer's own evaluation in float32, against the dual layer in float64 with the same constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autodual._tensor import Shape
from autodual.dual import AffineDual, BilinearDual, DualNetwork, ElementwiseDual
from autodual.engines.ibp import run_error_at
from autodual.engines.rounding import MORE_ROUNDINGS, of_sum, of_underflow
from autodual.interval import Interval
from autodual.testing._intervals import EVERYWHERE, Domain, find_kinks, interval_cases, sample_points, within
from autodual.testing._report import require_below, rounding

SINGLE = torch.float32
LARGEST = torch.finfo(SINGLE).max
ULPS = 8
"""Units in the last place of W and b that every layer's constants may be wrong by without saying so."""
PARTS = (1e-6, 0.01, 0.3, 1.0)
"""Distances at which `moved` is tried, as parts of the interval."""
COLUMNS = 256
"""Columns of W whose constants are compared, per operand."""


def check_errors(
    name: str,
    module: nn.Module,
    single: DualNetwork,
    double: DualNetwork,
    kinks: tuple[float, ...],
    seed: int,
    domain: Domain = EVERYWHERE,
) -> None:
    """single: of the module in float32. double: the same graph with its constants cast to float64."""
    with torch.no_grad():
        _as_run(name, module, single, double, kinks, domain, seed)
        for index, node in enumerate(single.nodes):
            where = name if len(single.nodes) == 2 else f"{name}, {node.name}"
            shapes, exact = single.operand_shapes(index), double.nodes[index].layer
            if isinstance(node.layer, BilinearDual):
                continue  # measured in _bilinear.py
            if isinstance(node.layer, ElementwiseDual):
                assert isinstance(exact, ElementwiseDual)
                inside = within(node.layer, domain)
                ElementwiseErrors(where, node.layer, exact, shapes[0], kinks, inside, seed).run()
            elif isinstance(node.layer, AffineDual):
                assert isinstance(exact, AffineDual)
                AffineErrors(where, node.layer, exact, shapes, node.shape, seed).run()


def _as_run(
    name: str,
    module: nn.Module,
    single: DualNetwork,
    double: DualNetwork,
    kinks: tuple[float, ...],
    domain: tuple[float, float],
    seed: int,
) -> None:
    """The module as PyTorch runs it is no farther from the exact function than its layers say."""
    shape = single.nodes[0].shape
    generator = torch.Generator().manual_seed(seed)
    layers = [node.layer for node in single.nodes if isinstance(node.layer, ElementwiseDual)]
    points = hurting_points(kinks, generator) if layers else torch.zeros(0)
    for x in (hurting_batch(shape, generator), points.reshape(-1, *[1] * len(shape)).expand(-1, *shape)):
        if len(x):
            x = x.clamp(*domain)
            found, exact, stated = module(x.clone()), double.forward(x.double()), run_error_at(single, x)
            what = f"{name}: the module, as it runs in float32, is farther from the exact function than run_error says"
            require_stated(found, exact, stated, what, value=exact)


@dataclass(frozen=True)
class ElementwiseErrors:
    """What an elementwise layer says about its value, and about how far it moves."""

    name: str
    layer: ElementwiseDual
    exact: ElementwiseDual
    shape: Shape
    kinks: tuple[float, ...]
    domain: tuple[float, float]
    seed: int

    def run(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        kinks = tuple(sorted({0.0, *self.kinks, *find_kinks(self.exact.value, self.shape, self.domain)}))
        points = self._spread(hurting_points(kinks, generator).clamp(*self.domain))
        self._value(Interval(points, points), points.unsqueeze(0))
        cases = interval_cases(kinks, generator, self.domain)
        wide = Interval(*(self._spread(end.to(SINGLE)) for end in (cases.lower, cases.upper)))
        self._value(wide, sample_points(wide, kinks))
        self._moved(Interval(wide.lower.double(), wide.upper.double()), kinks)

    def _spread(self, values: Tensor) -> Tensor:
        return values.reshape(-1, *[1] * len(self.shape)).expand(-1, *self.shape).clone()

    def _value(self, z: Interval, points: Tensor) -> None:
        """|value in float32 - f(z)| <= error, for points [S, K, *shape] of intervals [K, *shape]."""
        exact = torch.stack([self.exact.value(p) for p in points.double()])
        stated = self.layer.error(z, exact.abs().amax(0).to(SINGLE), of_sum(MORE_ROUNDINGS, SINGLE))
        stated = stated if self.layer.exact else stated + of_underflow(0, SINGLE)
        found = torch.stack([self.layer.value(p) for p in points])
        what = f"{self.name}: error() understates what the value in float32 is wrong by"
        require_stated(found, exact, stated, what, l=z.lower, u=z.upper, z=points)

    def _moved(self, z: Interval, kinks: tuple[float, ...]) -> None:
        """|f(a) - f(b) - slope (a - b)| <= moved, for a and b at most `by` apart."""
        points = sample_points(z, kinks)
        lines = self.exact.lines(z)
        slopes = [torch.zeros_like(z.lower), torch.ones_like(z.lower), lines.lower_slope, lines.upper_slope]
        values = self.exact.value(points)
        for part in PARTS:
            by = part * z.width
            others = torch.minimum(points + by, z.upper)
            reached = self.exact.value(others)
            for slope in slopes:
                far = (reached - values - slope * (others - points)).abs()
                terms = values.abs().amax(0), (slope.abs() + 1) * torch.maximum(z.lower.abs(), z.upper.abs())
                allowed = self.exact.moved(z, by, slope) + rounding(torch.float64, *terms)
                what = f"{self.name}: moved() understates how far the function leaves a line"
                require_below(far - allowed, what, l=z.lower, u=z.upper, by=by, slope=slope, a=others, b=points)


@dataclass(frozen=True)
class AffineErrors:
    """What an affine layer says about its constants, and about the error of evaluating it."""

    name: str
    layer: AffineDual
    exact: AffineDual
    shapes: tuple[Shape, ...]
    shape: Shape
    seed: int

    def run(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        for operand in range(len(self.shapes)):
            self._constants(operand, generator)
        self._apply([hurting_batch(shape, generator) for shape in self.shapes])

    def _constants(self, operand: int, generator: torch.Generator) -> None:
        """W and b in float32 are within a few units in the last place, and constant_error, of what they are in float64."""
        count = torch.Size(self.shapes[operand]).numel()
        chosen = torch.randperm(count, generator=generator)[:COLUMNS]
        basis = torch.nn.functional.one_hot(chosen, count).to(SINGLE).reshape(-1, *self.shapes[operand])
        x = [basis if i == operand else basis.new_zeros(len(basis), *s) for i, s in enumerate(self.shapes)]
        found = self.layer.linear(*x).double()  # exact: products with 1 and 0
        expected, size = self.exact.linear(*(v.double() for v in x)), self._size(x)
        bias, exact_bias = self.layer.bias(), self.exact.bias()
        if bias is not None and exact_bias is not None:
            found, expected = found + bias.to(SINGLE).double(), expected + exact_bias.double()
        constants = self.layer.constant_error(*x)
        allowed = ULPS * torch.finfo(SINGLE).eps * size + torch.finfo(SINGLE).tiny
        allowed = allowed if constants is None else allowed + constants.double()
        what = f"{self.name}: constant_error() understates what the constants of float32 are wrong by"
        require_below((found - expected).abs() - allowed, what, found=found, expected=expected)

    def _apply(self, x: list[Tensor]) -> None:
        """|apply in float32 - (W x + b)| <= gamma_terms (|W| |x| + |b|) + constant_error."""
        found, exact = self.layer.apply(*x), self.exact.apply(*(v.double() for v in x))
        terms = self.layer.terms(self.shapes, self.shape)[0] + MORE_ROUNDINGS
        size, constants = self._size(x), self.layer.constant_error(*(v.abs() for v in x))
        stated = of_sum(terms, SINGLE) * size + of_underflow(terms, SINGLE)
        stated = stated if constants is None else stated + constants
        stated = torch.where(size < LARGEST, stated, torch.inf)
        what = f"{self.name}: terms() and constant_error() understate what evaluating the layer in float32 is wrong by"
        require_stated(found, exact, stated, what, value=exact)

    def _size(self, x: list[Tensor]) -> Tensor:
        """|W| |x| + |b|."""
        size, bias = self.exact.absolute(*(v.abs().double() for v in x)), self.exact.bias()
        return size if bias is None else size + bias.abs().double()


def hurting_points(kinks: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Numbers of every size from the smallest to the largest, where functions saturate, and a few units around every kink."""
    sizes = torch.cat([10 ** torch.linspace(-45, 38.5, 336, dtype=torch.float64), torch.linspace(0, 130, 522).double()])
    sizes = sizes * (1 + 0.01 * torch.rand(len(sizes), dtype=torch.float64, generator=generator))
    near = [torch.tensor([k], dtype=torch.float64) for k in {0.0, *kinks}]
    steps = 2.0 ** torch.arange(-26, 0, dtype=torch.float64)
    around = [k + s * (k.abs() + (k == 0)) * torch.cat([steps, -steps]) for k in near for s in (0.5, 0.75, 1.0)]
    points = torch.cat([sizes, -sizes, *near, *around]).to(SINGLE)
    return points[points.isfinite()]


def hurting_batch(shape: Shape, generator: torch.Generator) -> Tensor:
    """[N, *shape]: of usual size, tiny, huge, denormal, with a large mean, large and nearly cancelling, of mixed sizes, sparse."""

    def normal() -> Tensor:
        return torch.randn(2, *shape, generator=generator)

    signs = torch.where(torch.arange(torch.Size(shape).numel()) % 2 == 0, 1.0, -1.0).reshape(shape)
    mixed = normal() * 10 ** (40 * torch.rand(2, *shape, generator=generator) - 20)
    scaled = [normal() * size for size in (0.0, 1e-41, 1e-30, 1e-3, 1.0, 30.0, 1e6, 1e30)]
    return torch.cat([*scaled, 1e4 + normal(), -3e6 + normal(), signs * 1e6 + normal(), mixed, normal().relu()])


def require_stated(found: Tensor, exact: Tensor, stated: Tensor, what: str, **where: Tensor) -> None:
    """|found - exact| <= stated, wherever float32 can hold the exact value. An error that is no number certifies nothing."""
    stated = stated.double().expand_as(exact)
    excess = (found.double() - exact).abs() - stated
    silent = ~stated.isfinite() | ~(exact.abs() < LARGEST)
    numbers = {"found": found.double(), "exact": exact, "stated": stated} | {n: v.double() for n, v in where.items()}
    require_below(torch.where(silent, 0.0, excess), what, **numbers)
