"""Dual layers: what every engine needs to know about one operation, declared once, and registered for the calls that it covers.

An operation is either *affine* (its transpose is exact) or *elementwise* (bounded between lines on an interval). Tensors
carry one leading batch dimension [M, *shape]; engines fold rows or generators into it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.graph import Call, Operand
from autodual.graph.registry import Registry
from autodual.interval import Interval


@dataclass(frozen=True)
class Window:
    """Per spatial dimension: output position y reads input positions y * stride + low ... y * stride + high."""

    stride: Shape
    low: Shape
    high: Shape

    @classmethod
    def same(cls, dims: int) -> Window:
        """Every position reads itself."""
        return cls((1,) * dims, (0,) * dims, (0,) * dims)

    def then(self, inner: Window) -> Window:
        """The window of `self` applied after `inner`: what an output of `self` reads of the input of `inner`."""
        return Window(
            tuple(s * t for s, t in zip(self.stride, inner.stride, strict=True)),
            tuple(a * t + b for a, t, b in zip(self.low, inner.stride, inner.low, strict=True)),
            tuple(a * t + b for a, t, b in zip(self.high, inner.stride, inner.high, strict=True)),
        )

    def union(self, other: Window) -> Window | None:
        """A window that covers both; None when they move at different speeds."""
        if self.stride != other.stride:
            return None
        low = tuple(map(min, self.low, other.low))
        return Window(self.stride, low, tuple(map(max, self.high, other.high)))


class AffineDual(ABC):
    """An affine operation W x + b of one or several operands; its dual layer is exact. [SPAD Cor. 1]"""

    @abstractmethod
    def linear(self, *operands: Tensor) -> Tensor:
        """W x, without the bias."""

    def absolute(self, *operands: Tensor) -> Tensor:
        """|W| x: how far the result moves when each entry of the operands moves by x. Here, for W >= 0."""
        return self.linear(*operands)

    def bias(self) -> Tensor | None:
        """b, broadcastable to the shape of one example's result; None for zero."""
        return None

    def apply(self, *operands: Tensor) -> Tensor:
        """W x + b."""
        bias = self.bias()
        return self.linear(*operands) if bias is None else self.linear(*operands) + bias

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """W' nu for coefficients [M, *result shape], one per operand of the given shapes. Found by autodiff."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            zeros = tuple(coefficients.new_zeros(coefficients.shape[0], *shape) for shape in shapes)
            pull_back = torch.func.vjp(self.linear, *zeros)[1]
            return tuple(pull_back(coefficients))
        return self._transpose_by_gradient(coefficients, shapes)

    def _transpose_by_gradient(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """`transpose` without torch.func.vjp, which imports PyTorch's compiler and refuses to work among hooks of saved tensors.

        The forward part is differentiated at once, so its tensors stay where they are; those of the result go through the hooks.
        """
        again = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(_as_it_is, _as_it_is):
            zeros = [coefficients.new_zeros(coefficients.shape[0], *shape).requires_grad_() for shape in shapes]
            result = self.linear(*zeros)
        return torch.autograd.grad(result, zeros, coefficients, create_graph=again, materialize_grads=True)

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        """The most terms of a sum W x + b, and of a sum W' nu, for operands and a result of such shapes."""
        if self.one_to_one(shapes):
            return 2, 1
        window = self.window(shapes)
        if window is None:
            return sum(map(math.prod, shapes)) + 1, math.prod(shape)
        size = math.prod(high - low + 1 for low, high in zip(window.low, window.high, strict=True))
        read, reading = (len(shapes), 1) if self.channelwise else (sum(s[0] for s in shapes), shape[0])
        return read * size + 1, reading * size

    def nonzero_terms(self, *operands: Tensor) -> Tensor | None:
        """[N, 1, ...]: the most terms of a sum W x + b that are not zero, for operands up to x in size; None if nobody has counted.

        Adding a product with zero rounds nothing, and robustly trained networks have many units that are zero on the whole set.
        """
        return None

    def constant_error(self, *operands: Tensor) -> Tensor | None:
        """Bounds how far the layer's constants may move W x + b from what the operation itself defines, for operands up to x in size.

        Relative errors of a few units in the last place of W and b are counted for every layer. A layer whose constants are
        computed with cancellation, so that they may be wrong by more than that, says by how much; None: there is nothing more.
        """
        return None

    def run_error(self, grain: float, *operands: Tensor) -> Tensor | None:
        """Bounds what PyTorch's own evaluation adds to the error of a sum of `terms` products, for operands up to x in size.

        grain: the relative error of a few roundings in the dtype that the network runs in.
        """
        return None

    def operator_norms(self, shapes: tuple[Shape, ...], like: Tensor) -> tuple[float, ...]:
        """For every operand of the given shapes, a number s with |W x| <= s |x| in the l2 norm. Here by Schur's test."""
        zeros = [like.new_zeros(1, *shape) for shape in shapes]

        def of_operand(place: int) -> float:
            ones = torch.ones_like(zeros[place])
            return schur_test(lambda x: self.absolute(*zeros[:place], x, *zeros[place + 1 :]), ones).item()

        return tuple(map(of_operand, range(len(shapes))))

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        """What each spatial position of the result reads of every operand; None when it may read everything."""
        return None

    def one_to_one(self, shapes: tuple[Shape, ...]) -> bool:
        """Whether every entry of the result is a multiple of one entry of the operand, and no two of the same entry."""
        return False

    exact: bool = False
    """Whether every entry of the result is an entry of an operand or a constant, so that evaluating the layer rounds nothing."""

    channelwise: bool = False
    """Whether a channel of the result reads only the same channel of every operand."""

    on_the_way: float = 1.0
    """What PyTorch computes on the way to a value may be so many times as large as |W| |x| + |b|, and overflow where that does not."""

    def narrowed(self, results: Tensor | None = None, operands: Tensor | None = None) -> AffineDual | None:
        """The layer with only some channels of its result or operand; None if it cannot be taken apart so."""
        return None

    def cropped(self, shape: Shape) -> AffineDual | None:
        """The layer without padding, with a result of this shape; None unless it is the same at every position."""
        return None


def _as_it_is(saved: Tensor) -> Tensor:
    return saved


# Bounds on the l2 norm of a linear map, from above; their own rounding is far below the hundredth that is added.

NORM_SAFETY = 1.01


def schur_test(absolute: Callable[[Tensor], Tensor], ones: Tensor) -> Tensor:
    """[M]: the root of the largest row sum of |W| times its largest column sum, which the norm of W is never above. [Schur 1911]

    absolute: x -> |W| x for x [M, *shape], where each of the M may have a W of its own. Column sums come from its gradient. Where
    that is less than the rows say, since `absolute` computes without gradients, the sum of all entries takes their place.
    """
    with torch.inference_mode(False), torch.enable_grad():
        x = ones.clone().requires_grad_()
        rows = absolute(x)
        columns = torch.zeros_like(x)
        if rows.requires_grad:
            (columns,) = torch.autograd.grad(rows.sum(), x, materialize_grads=True)
    by_row, by_column = (sums.detach().reshape(len(sums), -1).expand(len(ones), -1) for sums in (rows, columns))
    whole = by_row.sum(1)
    missing = by_column.sum(1) * NORM_SAFETY < whole
    largest = torch.where(missing, NORM_SAFETY * whole, by_column.amax(1))
    return NORM_SAFETY * by_row.amax(1).sqrt() * largest.sqrt()


def spectral_norm(matrices: Tensor) -> float:
    """A bound on the largest singular value of matrices [..., m, n]: the Frobenius norm of (A A')^16, to the power of 1/32.

    For m rows it is too large by a factor of m^(1/64) at most: 1.1 for 512.
    """
    wide = matrices.shape[-2] <= matrices.shape[-1]
    scale = matrices.abs().amax().clamp(min=torch.finfo(matrices.dtype).tiny)
    a = (matrices / scale).to(torch.complex64 if matrices.is_complex() else torch.float32)
    power = a @ a.mH if wide else a.mH @ a
    logarithm = torch.zeros(power.shape[:-2], dtype=torch.float64, device=a.device)
    for squared in range(5):
        power = power @ power if squared else power
        size = torch.linalg.matrix_norm(power).clamp(min=torch.finfo(torch.float32).tiny)
        logarithm = 2 * logarithm + size.double().log()
        power = power / size[..., None, None]
    return NORM_SAFETY * (scale * (logarithm / 32).exp().amax()).item()


@dataclass(frozen=True)
class Band:
    """Two parallel lines: f(z) lies in slope * z + centre +- radius. [SPAD Thm 1 with linear dual layers]"""

    slope: Tensor
    centre: Tensor
    radius: Tensor

    @classmethod
    def between(cls, slope: Tensor, smallest: Tensor, largest: Tensor) -> Band:
        """The band for a function with smallest <= f(z) - slope * z <= largest."""
        return cls(slope, (largest + smallest) / 2, (largest - smallest) / 2)


@dataclass(frozen=True)
class Relaxation:
    """What is known of an activation once its input is known to be near a centre."""

    interval: Interval
    """What enters."""
    band: Band
    middle: Tensor
    """slope * centre + the band's centre: its middle where the input is at its own centre."""


@dataclass(frozen=True)
class Lines:
    """Two lines: lower_slope * z + lower_offset <= f(z) <= upper_slope * z + upper_offset."""

    lower_slope: Tensor
    lower_offset: Tensor
    upper_slope: Tensor
    upper_offset: Tensor


@dataclass(frozen=True)
class FreeSlopes:
    """Slopes among which those of two lines may be chosen, elementwise. Where both ends are equal, there is no choice."""

    lower: Interval
    upper: Interval
    offset: Tensor
    """Bounds the absolute offset of every line with such a slope."""


class ElementwiseDual(ABC):
    """A function applied to every element, bounded on the interval that its input is known to lie in."""

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """f(z)."""

    @abstractmethod
    def image(self, z: Interval) -> Interval:
        """The smallest interval that holds f(z)."""

    def largest_value(self, z: Interval) -> Tensor:
        """The largest |f(z)|."""
        return self.image(z).largest

    @property
    def has_band(self) -> bool:
        """Whether the layer has two parallel lines. One without works with `Crown` and `IBP` only; other engines refuse it at once."""
        return type(self).band is not ElementwiseDual.band

    def band(self, z: Interval) -> Band:
        """The common slope with the smallest radius."""
        raise NotImplementedError(f"{type(self).__name__} has no band")

    def straight(self, z: Interval) -> Tensor | None:
        """Where the function is one line on the whole interval: the band has no radius, and every smaller interval has the same one.

        Never where an end is NaN. None: nobody knows. A proof does not rest on this: it says where tighter bounds change nothing.
        """
        return None

    def relax(self, centre: Tensor, radius: Tensor) -> Relaxation:
        """The band for everything that is at most `radius` away from `centre`."""
        interval = Interval.around(centre, radius)
        band = self.band(interval)
        return Relaxation(interval, band, self.along(band.slope, centre) + band.centre)

    @abstractmethod
    def lines(self, z: Interval) -> Lines:
        """One line from below and one from above, each as close as it can be."""

    def free_slopes(self, z: Interval) -> FreeSlopes | None:
        """The slopes that lines may have, those of `lines` among them; None: there are no others."""
        return None

    def lines_with(self, z: Interval, lower: Tensor, upper: Tensor) -> Lines:
        """The closest lines with slopes out of `free_slopes`, [N, *shape] or [R, N, *shape]: any choice is valid."""
        raise NotImplementedError(f"{type(self).__name__} has no other lines than its own")

    exact: bool = False
    """Whether every value is zero or an entry of the operand, so that evaluating the layer rounds nothing and nothing underflows."""

    on_the_way: float = 1.0
    """What PyTorch computes on the way to a value may be so many times as large as the value, and overflow where that does not."""

    domain: tuple[float, float] = (-math.inf, math.inf)
    """Where the layer holds. Outside, the function is not defined, or its operand is known not to lie there."""

    elementwise: bool = True
    """Whether slopes multiply entry by entry. A product of two activations has other shapes, and says itself what its slopes do."""

    def along(self, slope: Tensor, z: Tensor, plus: Tensor | None = None) -> Tensor:
        """What lines of this slope do to z: slope * z, and `plus` in addition."""
        return slope * z if plus is None else torch.addcmul(plus, slope, z)

    def back(self, slope: Tensor, coefficients: Tensor) -> Tensor:
        """Coefficients on the operand for coefficients [R, N or 1, *shape] on lines of this slope."""
        return coefficients * slope

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        """The most terms of the sums that `along` and `back` are; 0 for one product."""
        return 0, 0

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        """Bounds |computed value - f(z)| for every z of the interval. `testing.check_dual_layer` measures it.

        size: the largest |f(z)|; grain: the relative error of a few roundings. What underflows, up to a thousand times the smallest
        normal number, and results that overflow are counted for every layer that is not `exact`. A function that adds terms which
        cancel has an absolute error, so this counts the size of z as well; a layer that is more exact overrides it.
        """
        return grain * (size + z.largest)

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        """Bounds |f(a) - f(b) - slope * (a - b)| for all a and b of the interval whose distance is at most `by`."""
        if not self.has_band:
            return self.image(z).width + slope.abs() * by
        band = self.band(z)
        return (band.slope - slope).abs() * by + 2 * band.radius

    def swing(self, z: Interval, by: Tensor) -> Tensor:
        """Bounds |f(a) - f(b)|, for the same a and b."""
        return self.moved(z, by, torch.zeros_like(z.lower))


DualLayer = AffineDual | ElementwiseDual


# Where dual layers are registered for operations, and how builders read the parameters of a call.

REGISTRY = Registry()
"""The shipped dual layers, and yours."""
register = REGISTRY.register
rewrite = REGISTRY.rewrite


REQUIRED = object()


def parameter(call: Call, position: int, name: str, default: Any = REQUIRED) -> Any:
    """A setting, which must not depend on the network's input: an attribute of the call's module, or an argument of its function."""
    if call.module is not None:
        return getattr(call.module, name)
    value = call.argument(position, name) if default is REQUIRED else call.argument(position, name, default)
    if isinstance(value, Operand):
        raise ArgumentError(
            f"{call.path}: its argument {name!r} depends on the network's input, and a dual layer takes a constant there. Make "
            f"it a parameter or a buffer of the model, or write the operation with sums, torch.maximum and torch.minimum"
        )
    return value


def weights(call: Call, position: int, name: str, default: Any = REQUIRED) -> Any:
    """A tensor that values are multiplied with, or added to them, in the dtype of the network: a part of it may run in a wider one."""
    value = parameter(call, position, name, default)
    return value.to(call.floating(value)) if isinstance(value, Tensor) else value


def number(call: Call, value: Any, name: str, above: float = -math.inf) -> float:
    """A parameter as a finite number greater than `above`."""
    found = float(value)
    if not above < found < math.inf:
        range_ = "finite" if above == -math.inf else f"finite and greater than {above:g}"
        raise ArgumentError(
            f"{call.path}: {name} = {found} is out of range: it must be {range_} for the operation to have a dual layer. "
            f"Change it, or use another activation"
        )
    return found


def factor(call: Call, value: Any, name: str, above: float = -math.inf) -> float:
    """A parameter that values are multiplied with. Below this, float32 holds only some of its digits, and values may be large."""
    found, least = number(call, value, name, above), torch.finfo(torch.float32).tiny
    if 0 < abs(found) < least:
        raise ArgumentError(
            f"{call.path}: {name} = {found} is out of range: float32 holds only some digits of factors below {least:.2g}; make it "
            f"zero, or larger"
        )
    return found
