"""check_dual_layer checks a dual layer, and says where it is wrong; and the contract of affine layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual._tensor import Shape
from autodual.dual import AffineDual, BilinearDual, DualNetwork, DualNode, ElementwiseDual, Window, build
from autodual.engines import capture
from autodual.engines.ibp import evaluate_with_error
from autodual.engines.rounding import MORE_ROUNDINGS, gamma_of_sum, underflow_of_sum
from autodual.testing._bilinear import BilinearCheck, check_bilinear_errors
from autodual.testing._cases import (
    EVERYWHERE,
    LARGEST,
    Domain,
    hurting_batch,
    hurting_points,
    require_below,
    require_close,
    require_stated,
    rounding,
    spread,
    within,
)  # fmt: skip
from autodual.testing._elementwise import ElementwiseCheck

USUAL_SHAPES: tuple[Shape, ...] = ((5,), (3, 8), (3, 8, 8), (2, 5, 5, 5))
"""Tried in this order when an operation does not say what it takes."""


def check_dual_layer(
    operation: nn.Module | Callable[[Tensor], Tensor],
    example: Tensor | None = None,
    *,
    kinks: tuple[float, ...] = (),
    tightness: float | None = 0.01,
    lines_tightness: float | None = None,
    domain: Domain = EVERYWHERE,
    seed: int = 0,
) -> None:
    """Check that the dual layers of an operation keep their contract: values, bands, lines, gradients, and what rounding may do.

    Args:
        operation: A module, or a function of one batch [N, *shape]. It is captured, so it may be made of several operations.
        example: A batch of inputs; only its shape matters. If None, a shape is guessed.
        kinks: Points that intervals should start, end and straddle at, besides those that are found by sampling.
        tightness: How far a band's radius may lie above the smallest possible, as a fraction; None to check soundness alone.
        lines_tightness: As `tightness`, for the two lines: at the middle of the interval and relative to the function's range.
        domain: Where the function is defined and finite; intervals and inputs are drawn inside.
        seed: Of the random intervals and inputs.

    Raises:
        AssertionError: A dual layer breaks its contract; the message says what failed and where.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> ad.testing.check_dual_layer(torch.nn.Flatten(), torch.rand(2, 3, 4))
    """
    module = copy.deepcopy(operation) if isinstance(operation, nn.Module) else _Function(operation)
    module = module.double().eval()
    example = _guess(module) if example is None else example.double()
    name = type(module).__name__ if isinstance(operation, nn.Module) else getattr(operation, "__name__", "function")
    for dtype in (torch.float64, torch.float32):
        label = f"{name} ({str(dtype).removeprefix('torch.')})"
        module, example = module.to(dtype), example.to(dtype)
        network = _dual(module, example)
        _check_value(label, module, network, example, domain, seed)
        for index, node in _different_nodes(network):
            where, shapes = label if len(network.nodes) == 2 else f"{label}, {node.name}", network.operand_shapes(index)
            if isinstance(node.layer, BilinearDual):
                BilinearCheck(where, node.layer, shapes[0], dtype, seed).run()
                if dtype == torch.float32:
                    check_bilinear_errors(where, node.layer, shapes[0], seed)
            elif isinstance(node.layer, ElementwiseDual):
                tight = (tightness, lines_tightness, within(node.layer, domain))
                ElementwiseCheck(where, node.layer, shapes[0], dtype, kinks, *tight, seed).run()
            elif isinstance(node.layer, AffineDual) and dtype == torch.float64:
                AffineCheck(where, node.layer, shapes, node.shape, seed).run()
    check_errors(name, module, network, _dual(module, example, torch.float64), kinks, seed, domain)


def _different_nodes(network: DualNetwork) -> Iterator[tuple[int, DualNode]]:
    """Nodes with their numbers, but for those whose layer was met before: of the same kind, with the same fields and shapes."""
    met: set[object] = set()
    for index, node in enumerate(network.nodes):
        fields = () if node.layer is None else vars(node.layer).items()
        layer = (type(node.layer), *fields, network.operand_shapes(index), node.shape)
        try:
            known = layer in met
            met.add(layer)
        except TypeError:  # a field that has no hash
            known = False
        if not known:
            yield index, node


def _dual(module: nn.Module, example: Tensor, dtype: torch.dtype | None = None) -> DualNetwork:
    with torch.no_grad():
        return build(capture(module, example), dtype=dtype)


def _check_value(
    name: str, module: nn.Module, network: DualNetwork, example: Tensor, domain: Domain, seed: int
) -> None:
    """The dual layers compute what the module computes, in its dtype."""
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = (32, *example.shape[1:]), example.dtype
    sizes = torch.tensor([0.0, 0.1, 1.0, 4.0, 30.0], dtype=dtype).repeat(7)[:32].reshape(-1, *[1] * (len(shape) - 1))
    x = (sizes * torch.randn(shape, dtype=dtype, generator=generator)).clamp(*domain)
    with torch.no_grad():
        expected, found = module(x), network.forward(x)
    if found.dtype != dtype:
        raise AssertionError(f"{name}: its dual layers turn {dtype} into {found.dtype}")
    scale = torch.maximum(expected.abs().flatten(1).amax(1), x.abs().flatten(1).amax(1))
    allowed = rounding(dtype, scale.reshape(-1, *[1] * (expected.dim() - 1)), expected)
    with torch.no_grad():
        allowed = allowed + evaluate_with_error(network, x)[1].nan_to_num(
            0.0, 0.0
        )  # of the module, and as much of its twin
    require_close(found, expected, allowed, f"{name}: the dual layers' value against the module's")


def check_errors(
    name: str,
    module: nn.Module,
    single: DualNetwork,
    double: DualNetwork,
    kinks: tuple[float, ...],
    seed: int,
    domain: Domain = EVERYWHERE,
) -> None:
    """Compare what layers state about their rounding, which certificates count, with what PyTorch does, on inputs chosen to hurt.

    single: of the module in float32. double: the same graph with its constants cast to float64.
    """
    with torch.no_grad():
        _as_run(name, module, single, double, kinks, domain, seed)
        for index, node in _different_nodes(single):
            where = name if len(single.nodes) == 2 else f"{name}, {node.name}"
            shapes, exact = single.operand_shapes(index), double.nodes[index].layer
            if isinstance(node.layer, BilinearDual):
                continue  # measured in _bilinear.py
            if isinstance(node.layer, ElementwiseDual):
                assert isinstance(exact, ElementwiseDual)
                tight = (None, None, within(node.layer, domain))
                ElementwiseCheck(where, node.layer, shapes[0], SINGLE, kinks, *tight, seed).check_errors(exact)
            elif isinstance(node.layer, AffineDual):
                assert isinstance(exact, AffineDual)
                AffineCheck(where, node.layer, shapes, node.shape, seed).check_errors(exact)


def _as_run(
    name: str,
    module: nn.Module,
    single: DualNetwork,
    double: DualNetwork,
    kinks: tuple[float, ...],
    domain: Domain,
    seed: int,
) -> None:
    """The module as PyTorch runs it is no farther from the exact function than its layers say."""
    shape = single.nodes[0].shape
    generator = torch.Generator().manual_seed(seed)
    layers = [node.layer for node in single.nodes if isinstance(node.layer, ElementwiseDual)]
    points = hurting_points(kinks, generator) if layers else torch.zeros(0)
    for x in (hurting_batch(shape, generator), spread(points, shape)):
        if len(x):
            x = x.clamp(*domain)
            found, exact, stated = module(x.clone()), double.forward(x.double()), evaluate_with_error(single, x)[1]
            what = f"{name}: the module, as it runs in float32, is farther from the exact function than run_error says"
            require_stated(found, exact, stated, what, value=exact)


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _guess(module: nn.Module) -> Tensor:
    """A batch that the module accepts, from what it says of its input or from the usual shapes."""
    failures = list[tuple[Shape, str]]()
    for shape in _candidates(module):
        example = torch.zeros(2, *shape, dtype=torch.float64)
        try:
            with torch.no_grad():
                module(example)
            capture(module, example)
        except AutodualError as error:
            failures.append((shape, str(error)))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            failures.append((shape, f"{type(error).__name__}: {error}"))
        else:
            return example
    same = {reason for _, reason in failures}
    if len(same) == 1:
        raise AssertionError(f"no usual input shape fits: {same.pop()}; if it is the shape, give an example")
    tried = "; ".join(f"{shape}: {reason}" for shape, reason in failures)
    raise AssertionError(f"no usual input shape fits; give an example. Tried {tried}")


def _candidates(module: nn.Module) -> list[Shape]:
    """Shapes with as many channels as the module says, those with as many dimensions as its name says first."""
    sizes = (getattr(module, attribute, None) for attribute in ("in_features", "in_channels", "num_features"))
    channels = next((size for size in sizes if isinstance(size, int)), None)
    shapes = [shape if channels is None else (channels, *shape[1:]) for shape in USUAL_SHAPES]
    named = [d for d in (1, 2, 3) if f"{d}d" in type(module).__name__]
    return sorted(shapes, key=lambda shape: len(shape) - 1 not in named)


# The contract of an AffineDual: W x + b, its transpose, |W|, the window that a position reads, and what rounding may do.

BATCH = 3
POWERS = 8
"""Steps of the power method that look for an operand which a layer makes long."""
MOST_COLUMNS = 1024
"""Columns of W that are looked at per operand; larger operands are looked at in random places."""
SINGLE = torch.float32
ULPS = 8
"""Units in the last place of W and b that every layer's constants may be wrong by without saying so."""
COLUMNS = 256
"""Columns of W whose constants are compared, per operand."""


@dataclass(frozen=True)
class AffineCheck:
    """One affine layer, at one place of a network, under test."""

    name: str
    layer: AffineDual
    operand_shapes: tuple[Shape, ...]
    shape: Shape
    seed: int

    def run(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            columns = [_basis(shape, generator, MOST_COLUMNS) for shape in self.operand_shapes]
            matrices = [self.layer.linear(*self._alone(i, basis)) for i, basis in enumerate(columns)]
            operands = self._random(generator)
            size = self.layer.absolute(*(o.abs() for o in operands))
            self._linear(operands, size, generator)
            self._transpose(operands, size, generator)
            self._absolute(columns, matrices, generator)
            self._operator_norms(matrices)
            self._windows(columns, matrices)
            self._narrowed(operands, size)
            self._cropped(operands, size)

    def _random(self, generator: torch.Generator) -> list[Tensor]:
        shapes = self.operand_shapes
        return [torch.randn(BATCH, *shape, dtype=torch.float64, generator=generator) for shape in shapes]

    def _alone(self, operand: int, basis: Tensor) -> list[Tensor]:
        """Operands that are zero, but for one."""
        zeros = [basis.new_zeros(len(basis), *shape) for shape in self.operand_shapes]
        return [*zeros[:operand], basis, *zeros[operand + 1 :]]

    def _linear(self, operands: list[Tensor], size: Tensor, generator: torch.Generator) -> None:
        """apply = linear + bias, and linear is linear."""
        bias = self.layer.bias()
        linear, whole = self.layer.linear(*operands), self.layer.apply(*operands)
        if tuple(linear.shape) != (BATCH, *self.shape):
            raise AssertionError(f"{self.name}: linear has shape {tuple(linear.shape)}, not {(BATCH, *self.shape)}")
        shift = linear.new_zeros(self.shape) if bias is None else bias.to(linear).expand(self.shape)
        allowed = rounding(torch.float64, size, shift.expand_as(size))
        require_close(whole, linear + shift, allowed, f"{self.name}: apply against linear + bias")
        others = self._random(generator)
        mixed = self.layer.linear(*(2 * a - 3 * b for a, b in zip(operands, others, strict=True)))
        apart = 2 * linear - 3 * self.layer.linear(*others)
        allowed = rounding(torch.float64, 3 * (size + self.layer.absolute(*(o.abs() for o in others))))
        require_close(mixed, apart, allowed, f"{self.name}: linear is not linear: W (2 a - 3 b) against 2 W a - 3 W b")

    def _transpose(self, operands: list[Tensor], size: Tensor, generator: torch.Generator) -> None:
        """<W x, y> = <x, W' y>, and the transpose is the one that autodiff finds."""
        y = torch.randn(BATCH, *self.shape, dtype=torch.float64, generator=generator)
        pulled = self.layer.transpose(y, self.operand_shapes)
        by_autodiff = AffineDual.transpose(self.layer, y, self.operand_shapes)
        if len(pulled) != len(operands):
            raise AssertionError(f"{self.name}: transpose returns {len(pulled)} tensors for {len(operands)} operands")
        total = (size * y.abs()).sum()
        for i, (found, expected) in enumerate(zip(pulled, by_autodiff, strict=True)):
            what = f"{self.name}: transpose for operand {i} against the one found by autodiff"
            require_close(found, expected, rounding(torch.float64, expected, expected.abs().amax()), what)
        left = (self.layer.linear(*operands) * y).sum()
        right = torch.stack([(a * b).sum() for a, b in zip(operands, pulled, strict=True)]).sum()
        require_close(left, right, rounding(torch.float64, total), f"{self.name}: <W x, y> against <x, W' y>")

    def _absolute(self, columns: list[Tensor], matrices: list[Tensor], generator: torch.Generator) -> None:
        """absolute(r) = |W| r, for r >= 0 in the places that were looked at."""
        radii, expected = [], torch.zeros(self.shape, dtype=torch.float64)
        for basis, matrix in zip(columns, matrices, strict=True):
            r = torch.rand(len(basis), dtype=torch.float64, generator=generator)
            radii.append(torch.tensordot(r, basis, 1).unsqueeze(0))
            expected = expected + torch.tensordot(r, matrix.abs(), 1)
        found = self.layer.absolute(*radii)[0]
        require_close(found, expected, rounding(torch.float64, expected), f"{self.name}: absolute(r) against |W| r")

    def _operator_norms(self, matrices: list[Tensor]) -> None:
        """|W x| <= operator_norms |x|, for an x that a few steps of the power method make long."""
        stated = self.layer.operator_norms(self.operand_shapes, matrices[0])
        if len(stated) != len(matrices):
            raise AssertionError(f"{self.name}: {len(stated)} operator norms for {len(matrices)} operands")
        for i, (norm, matrix) in enumerate(zip(stated, matrices, strict=True)):
            rows = matrix.flatten(1)
            x = rows.new_ones(len(rows))
            for _ in range(POWERS):
                x = torch.nn.functional.normalize(rows @ (x @ rows), dim=0)
            what = f"{self.name}: |W x| for operand {i} against its operator norm, {norm:g}, times |x|"
            require_below((x @ rows).norm() - norm * x.norm(), what)

    def _windows(self, columns: list[Tensor], matrices: list[Tensor]) -> None:
        """No entry of W lies outside the declared window."""
        window = self.layer.window(self.operand_shapes)
        if window is None:
            return
        for i, (basis, matrix) in enumerate(zip(columns, matrices, strict=True)):
            entries = matrix.abs().sum(1)  # over the result's channels: [C, *space]
            outside = ~_inside(window, basis, self.operand_shapes[i], self.shape[1:])
            what = f"{self.name}: a position of the result reads operand {i} outside of its {window}"
            require_below(torch.where(outside, entries, 0.0), what)

    def _narrowed(self, operands: list[Tensor], size: Tensor) -> None:
        """The layer narrowed to some channels of the result, or of the operand, computes what the whole computes on these."""
        layer, whole = self.layer, self.layer.linear(*operands)
        some = torch.arange(0, self.shape[0], 2)
        part = layer.narrowed(results=some)
        broadcast = any(len(s) != len(self.shape) or s[0] != self.shape[0] for s in self.operand_shapes)
        if part is not None and not (layer.channelwise and broadcast):  # then engines leave it alone
            what = f"{self.name}: narrowed(results=...) against these channels of the whole"
            given = [o[:, some] for o in operands] if layer.channelwise else operands
            require_close(part.linear(*given), whole[:, some], rounding(torch.float64, size[:, some]), what)
        if layer.channelwise or len(operands) != 1:
            return
        some = torch.arange(0, self.operand_shapes[0][0], 2)
        part = layer.narrowed(operands=some)
        if part is not None:
            (x,) = operands
            expected = layer.linear(torch.zeros_like(x).index_copy(1, some, x[:, some]))
            what = f"{self.name}: narrowed(operands=...) against the whole with zeros in the other channels"
            require_close(part.linear(x[:, some]), expected, rounding(torch.float64, size), what)

    def _cropped(self, operands: list[Tensor], size: Tensor) -> None:
        """On the patch that two neighbouring positions read, with zeros outside, the cropped layer gives their values."""
        window = self.layer.window(self.operand_shapes)
        count = tuple(min(2, n) for n in self.shape[1:])
        part = None if window is None else self.layer.cropped((self.shape[0], *count))
        if window is None or part is None:
            return
        for start in {(0,) * len(count), tuple(n - c for n, c in zip(self.shape[1:], count, strict=True))}:
            patches = [_patch(o, window, start, count) for o in operands]
            place = (slice(None), slice(None), *(slice(a, a + c) for a, c in zip(start, count, strict=True)))
            whole, allowed = self.layer.linear(*operands)[place], rounding(torch.float64, size[place])
            what = f"{self.name}: cropped(...) on the patch at {start} against the whole"
            require_close(part.linear(*patches), whole, allowed, what)

    def check_errors(self, exact: AffineDual) -> None:
        """What this layer, of float32, says about its rounding holds. exact: the layer in float64, with the same constants."""
        generator = torch.Generator().manual_seed(self.seed)
        for operand in range(len(self.operand_shapes)):
            self._constants(exact, operand, generator)
        self._apply(exact, [hurting_batch(shape, generator) for shape in self.operand_shapes])

    def _constants(self, exact: AffineDual, operand: int, generator: torch.Generator) -> None:
        """W and b in float32 are within a few units in the last place, and constant_error, of what they are in float64."""
        x = self._alone(operand, _basis(self.operand_shapes[operand], generator, COLUMNS).to(SINGLE))
        found = self.layer.linear(*x).double()  # exact: products with 1 and 0
        expected, size = exact.linear(*(v.double() for v in x)), _size(exact, x)
        bias, exact_bias = self.layer.bias(), exact.bias()
        if bias is not None and exact_bias is not None:
            found, expected = found + bias.to(SINGLE).double(), expected + exact_bias.double()
        constants = self.layer.constant_error(*x)
        allowed = ULPS * torch.finfo(SINGLE).eps * size + torch.finfo(SINGLE).tiny
        allowed = allowed if constants is None else allowed + constants.double()
        what = f"{self.name}: constant_error() understates what the constants of float32 are wrong by"
        require_below((found - expected).abs() - allowed, what, found=found, expected=expected)

    def _apply(self, layer: AffineDual, x: list[Tensor]) -> None:
        """|apply in float32 - (W x + b)| <= gamma_terms (|W| |x| + |b|) + constant_error."""
        found, exact = self.layer.apply(*x), layer.apply(*(v.double() for v in x))
        terms = self.layer.terms(self.operand_shapes, self.shape)[0] + MORE_ROUNDINGS
        size, constants = _size(layer, x), self.layer.constant_error(*(v.abs() for v in x))
        stated = gamma_of_sum(terms, SINGLE) * size + underflow_of_sum(terms, SINGLE)
        stated = stated if constants is None else stated + constants
        stated = torch.where(size < LARGEST, stated, torch.inf)
        what = f"{self.name}: terms() and constant_error() understate what evaluating the layer in float32 is wrong by"
        require_stated(found, exact, stated, what, value=exact)


def _patch(x: Tensor, window: Window, start: Shape, count: Shape) -> Tensor:
    """What `count` positions from `start` on read of x, with zeros outside of it."""
    pads: list[int] = []
    for d in reversed(range(len(count))):
        first = start[d] * window.stride[d] + window.low[d]
        last = (start[d] + count[d] - 1) * window.stride[d] + window.high[d]
        pads += [-first, last + 1 - x.shape[2 + d]]
    return torch.nn.functional.pad(x, pads)


def _basis(shape: Shape, generator: torch.Generator, most: int) -> Tensor:
    """[C, *shape]: unit vectors, all of them or a random choice."""
    count = torch.Size(shape).numel()
    chosen = torch.randperm(count, generator=generator)[:most]
    return torch.nn.functional.one_hot(chosen, count).double().reshape(-1, *shape)


def _inside(window: Window, basis: Tensor, operand: Shape, space: Shape) -> Tensor:
    """[C, *space]: does a position of the result declare to read the place of each unit vector?"""
    places = torch.stack(torch.unravel_index(basis.flatten(1).argmax(1), operand))[1:]
    inside = torch.ones(len(basis), *space, dtype=torch.bool)
    for d, (place, size) in enumerate(zip(places, space, strict=True)):
        position = torch.arange(size).reshape(-1, *[1] * (len(space) - 1 - d))
        place = place.reshape(-1, *[1] * len(space))
        start = position * window.stride[d]
        inside &= (place >= start + window.low[d]) & (place <= start + window.high[d])
    return inside


def _size(layer: AffineDual, x: list[Tensor]) -> Tensor:
    """|W| |x| + |b|."""
    size, bias = layer.absolute(*(v.abs().double() for v in x)), layer.bias()
    return size if bias is None else size + bias.abs().double()
