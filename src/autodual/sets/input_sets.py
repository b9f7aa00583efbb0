"""What may change: sets of inputs (boxes and norm balls, or sets of your own), and the norms that they are measured in.

A set is known by the minimum of every linear function over it. For a norm ball, that is a matter of the dual norm: over all x with
norm((x - centre) / radius) <= 1, a linear function c'x lies within c'centre +- dual norm(radius * c):

    norm of the perturbation    dual norm of c       its estimate from random projections c'R
    l-infinity                  sum |c_i|            median |c'R| for standard Cauchy R         [SPAD Thm 2]
    l2                          sqrt(sum c_i^2)      norm(c'R) / sqrt(k) for k Gaussian R
    l1                          max |c_i|            none

A set of your own is a subclass of `InputSet` with `centre`, `minimise` and `__getitem__`; `autodual.testing.check_input_set`
checks it. Everything else, attacks included, follows from the support function.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.interval import Interval

# Norms.


class Projection(Enum):
    """The random numbers whose combinations estimate a norm."""

    CAUCHY = "Cauchy"
    GAUSSIAN = "Gaussian"


class Norm(ABC):
    """A norm of vectors, known by its dual. There are three: LINF, L2 and L1."""

    order: ClassVar[float]
    dual_order: ClassVar[float]
    projection: ClassVar[Projection | None] = None
    """What estimates the dual norm; None: nothing does, it is computed from one column per feature."""
    separable: ClassVar[bool] = False
    """Whether every feature moves on its own. Then a set is a box, and the dual norm is the inner product of |c| and the radius."""

    def dual(self, values: Tensor, dim: int | list[int] = -1) -> Tensor:
        """The dual norm over some dimensions."""
        return self.finish(self.gather(self.measure(values), dim))

    def measure(self, values: Tensor) -> Tensor:
        """What one entry contributes to the dual norm."""
        return values.abs()

    def gather(self, measured: Tensor, dim: int | list[int]) -> Tensor:
        """Combines the contributions of entries, or of parts that are combined already."""
        return measured.sum(dim)

    def finish(self, gathered: Tensor) -> Tensor:
        """The dual norm, from the contributions of all entries."""
        return gathered

    def lost(self, underflow: float) -> float:
        """What the dual norm may lose to underflow beyond what c itself loses, if a sum of as many products loses `underflow`."""
        return 0.0

    @abstractmethod
    def farthest(self, direction: Tensor) -> Tensor:
        """[N, F] -> [N, F]: the point of the unit ball that is farthest in a direction."""

    @abstractmethod
    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        """[N, F] -> [N, F]: the point of the ball of radius [N, 1] that is nearest in Euclidean distance."""


class _Linf(Norm):
    order, dual_order = math.inf, 1.0
    projection, separable = Projection.CAUCHY, True

    def farthest(self, direction: Tensor) -> Tensor:
        return direction.sign()

    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(shift, -radius), radius)


class _L2(Norm):
    order, dual_order = 2.0, 2.0
    projection = Projection.GAUSSIAN

    def measure(self, values: Tensor) -> Tensor:
        return values.square()

    def finish(self, gathered: Tensor) -> Tensor:
        """The square root, whose gradient at zero is zero instead of infinite."""
        positive = gathered > 0
        return torch.where(positive, torch.where(positive, gathered, 1.0).sqrt(), torch.zeros_like(gathered))

    def lost(self, underflow: float) -> float:
        return math.sqrt(underflow)  # squares underflow, too

    def farthest(self, direction: Tensor) -> Tensor:
        return direction / direction.norm(dim=1, keepdim=True).clamp(min=torch.finfo(direction.dtype).tiny)

    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        length = shift.norm(dim=1, keepdim=True)
        return torch.where(length > radius, shift * (radius / length.clamp(min=torch.finfo(length.dtype).tiny)), shift)


class _L1(Norm):
    order, dual_order = 1.0, math.inf

    def gather(self, measured: Tensor, dim: int | list[int]) -> Tensor:
        return measured.amax(dim)

    def farthest(self, direction: Tensor) -> Tensor:
        largest = direction.abs().argmax(1, keepdim=True)
        return torch.zeros_like(direction).scatter_(1, largest, direction.gather(1, largest).sign())

    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        """Every entry shrinks by the amount that makes the norm fit."""
        size = shift.abs()
        ordered = size.sort(dim=1, descending=True).values
        count = torch.arange(1, size.shape[1] + 1, device=size.device, dtype=size.dtype)
        excess = (ordered.cumsum(1) - radius) / count
        last = (ordered > excess).sum(1, keepdim=True).clamp(min=1) - 1
        shrink = excess.gather(1, last).clamp(min=0)
        return torch.where(size.sum(1, keepdim=True) > radius, shift.sign() * (size - shrink).clamp(min=0), shift)


LINF, L2, L1 = _Linf(), _L2(), _L1()
BY_DUAL_ORDER: dict[float, Norm] = {norm.dual_order: norm for norm in (LINF, L2, L1)}


# Sets.


class InputSet(ABC):
    """A convex set of inputs for each example of a batch, known by the minimum of every linear function over it."""

    centre: Tensor
    """A point of the set, [N, *shape]."""
    dual_norm: float | None = None
    """1, 2 or inf when the minimum of c'x is c'centre - norm(radius * c); None for a set of another kind."""
    radius: Tensor
    """Only for sets with a `dual_norm`: broadcastable to the centre."""

    @abstractmethod
    def minimise(self, coefficients: Tensor) -> Tensor:
        """min over x in the set of sum(coefficients * x): [R, N or 1, *shape] -> [R, N]."""

    @abstractmethod
    def __getitem__(self, examples: slice) -> InputSet:
        """The sets of some of the examples."""

    def double(self) -> InputSet | None:
        """The set, or one around it, in float64; None if there is none. Bounds that rounding blurs are computed again with it."""
        return None

    def inwards(self) -> InputSet:
        """The set, or one inside it, so that what its `step` and `sample` compute lies in the set, whatever is rounded on the way."""
        return self

    def __len__(self) -> int:
        return int(self.centre.shape[0])

    def box(self) -> Interval:
        """The smallest box around the set."""
        shape = self.centre.shape
        basis = torch.eye(shape[1:].numel(), dtype=self.centre.dtype, device=self.centre.device)
        rows = basis.reshape(-1, 1, *shape[1:])
        lower, upper = self.minimise(rows), -self.minimise(-rows)
        return Interval(lower.T.reshape(shape), upper.T.reshape(shape))

    def vertex(self, direction: Tensor) -> Tensor:
        """A point of the set that is farthest in `direction` [N, *shape]: the gradient of the support function."""
        if torch.is_inference_mode_enabled() or self.centre.is_inference():
            raise ArgumentError(
                f"{type(self).__name__}: its extreme points come from gradients of `minimise`, which torch.inference_mode() forbids; "
                f"use torch.no_grad() instead, and inputs that were not made in inference mode, or give the set a method `vertex`"
            )
        with torch.enable_grad():
            negative = (-direction).detach().unsqueeze(0).requires_grad_()
            lowest = self.minimise(negative).sum()
        return torch.autograd.grad(lowest, negative)[0].squeeze(0)

    def step(self, x: Tensor, direction: Tensor, size: float) -> Tensor:
        """Move from x towards the farthest point in `direction`, staying in the set."""
        return x + min(size, 1.0) * (self.vertex(direction) - x)

    def project(self, x: Tensor) -> Tensor | None:
        """The nearest point of the set, rounded so that it lies inside; None if the set does not know."""
        return None

    def take(self, examples: Tensor) -> InputSet | None:
        """The sets of the examples with these numbers, of which some may come twice; None if only slices can be had."""
        return None

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A random point of each example's set; here, a random mixture of the centre and a random extreme point."""
        noise = torch.randn(self.centre.shape, dtype=self.centre.dtype, device=self.centre.device, generator=generator)
        weight = torch.rand(len(self), dtype=noise.dtype, device=noise.device, generator=generator)
        weight = weight.reshape(-1, *[1] * (noise.dim() - 1))
        return self.centre + weight * (self.vertex(noise) - self.centre)


def norm_of(region: InputSet) -> Norm | None:
    """The norm whose dual is the set's `dual_norm`; None for a set of another kind."""
    if region.dual_norm is None:
        return None
    if region.dual_norm not in BY_DUAL_ORDER:
        raise ArgumentError(
            f"{type(region).__name__}: dual_norm must be 1, 2 or inf, or None for a set of another kind, got {region.dual_norm!r}"
        )
    return BY_DUAL_ORDER[region.dual_norm]


class Box(InputSet):
    """All x with lower <= x <= upper, elementwise: an l-infinity ball, also a clipped one."""

    dual_norm = LINF.dual_order

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        if not isinstance(lower, Tensor) or not isinstance(upper, Tensor):
            raise ArgumentError(
                f"Box: lower and upper must be tensors [N, *shape], got {type(lower).__name__} and {type(upper).__name__}"
            )
        if lower.shape != upper.shape or lower.dtype != upper.dtype or lower.device != upper.device:
            raise ArgumentError(
                f"Box: lower and upper must agree in shape, dtype and device, got {tuple(lower.shape)} {lower.dtype} on "
                f"{lower.device} and {tuple(upper.shape)} {upper.dtype} on {upper.device}"
            )
        if not bool((lower <= upper).all()):
            count = int((~(lower <= upper)).sum())
            raise ArgumentError(f"Box: lower must not exceed upper; {count} of {lower.numel()} entries do, or are NaN")
        box = Box.between(lower, upper)
        self.centre, self.radius, self._ends, self._twin = box.centre, box.radius, box._ends, None

    @classmethod
    def around(cls, centre: Tensor, radius: Tensor) -> Box:
        """A box by centre and radius, which broadcast; unchecked."""
        box = cls.__new__(cls)
        box.centre, box.radius, box._ends, box._twin = centre, radius, None, None
        return box

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor) -> Box:
        """A box by its ends, unchecked; differentiable in them."""
        centre, radius = lower + (upper - lower) / 2, (upper - lower) / 2
        box = cls.around(centre, radius)
        with torch.no_grad():
            wide = torch.maximum(difference_rounded_up(upper, centre), difference_rounded_up(centre, lower))
        box.radius, box._ends = radius + (wide - radius).detach(), Interval(lower, upper)
        return box

    _ends: Interval | None
    """The ends that the box was made from. Centre and radius contain them, but may be rounded to a larger box."""
    _twin: Callable[[], Box] | None
    """Makes this box in float64, where its own ends are rounded."""

    def known_as(self, twin: Callable[[], Box]) -> Box:
        """Remembers how to make this box in float64, from what it was made from."""
        self._twin = twin
        return self

    @property
    def lower(self) -> Tensor:
        return self.centre - self.radius if self._ends is None else self._ends.lower

    @property
    def upper(self) -> Tensor:
        return self.centre + self.radius if self._ends is None else self._ends.upper

    def __getitem__(self, examples: slice) -> Box:
        if self._ends is not None:
            box = Box.around(self.centre[examples], self.radius[examples])
            box._ends = Interval(self._ends.lower[examples], self._ends.upper[examples])
        else:
            box = Box.around(self.centre[examples], _some(self.radius, examples))
        return box if self._twin is None else box.known_as(lambda: self.double()[examples])

    def take(self, examples: Tensor) -> Box | None:
        return self._taken(examples) if type(self) is Box else None

    def _taken(self, examples: Tensor) -> Box:
        box = Box.around(self.centre[examples], self.radius if len(self.radius) == 1 else self.radius[examples])
        if self._ends is not None:
            box._ends = Interval(self._ends.lower[examples], self._ends.upper[examples])
        twin = self._twin
        return box if twin is None else box.known_as(lambda: twin()._taken(examples))

    def double(self) -> Box:
        if self._twin is not None:
            return self._twin()
        if self._ends is not None:
            return Box(self._ends.lower.double(), self._ends.upper.double())
        return Box.around(self.centre.double(), self.radius.double())

    def inwards(self) -> Box:
        if self._ends is None:
            lower = difference_rounded_up(self.centre, self.radius)
            upper = -difference_rounded_up(-self.centre, self.radius)
        else:
            lower, upper = self._ends.lower, self._ends.upper
        if self._twin is not None:
            wide, dtype = self._twin(), self.centre.dtype
            lower = torch.maximum(lower, rounded_up(wide.lower, dtype))
            upper = torch.minimum(upper, -rounded_up(-wide.upper, dtype))
        return Box.between(torch.minimum(lower, self.centre), torch.maximum(upper, self.centre))

    def minimise(self, coefficients: Tensor) -> Tensor:
        linear = (coefficients * self.centre).flatten(2).sum(-1)
        return linear - (coefficients.abs() * self.radius).flatten(2).sum(-1)

    def box(self) -> Interval:
        return Interval.around(self.centre, self.radius.expand_as(self.centre))

    def vertex(self, direction: Tensor) -> Tensor:
        return self.project(self.centre + self.radius * direction.sign())

    def step(self, x: Tensor, direction: Tensor, size: float) -> Tensor:
        return self.project(torch.addcmul(x, self.radius, direction.sign(), value=size))

    def project(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.lower), self.upper)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        x = self.centre
        noise = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
        return self.project(x + (2 * noise - 1) * self.radius)


class NormSet(InputSet):
    """All x with norm(x - centre) <= radius; one radius per example."""

    def __init__(self, centre: Tensor, radius: Tensor, norm: Norm) -> None:
        self.centre, self.radius, self.norm, self.dual_norm = centre, radius, norm, norm.dual_order

    def __getitem__(self, examples: slice) -> NormSet:
        return NormSet(self.centre[examples], _some(self.radius, examples), self.norm)

    def take(self, examples: Tensor) -> NormSet | None:
        if type(self) is not NormSet:
            return None
        radius = self.radius if len(self.radius) == 1 else self.radius[examples]
        return NormSet(self.centre[examples], radius, self.norm)

    def double(self) -> NormSet:
        return NormSet(self.centre.double(), self.radius.double(), self.norm)

    def minimise(self, coefficients: Tensor) -> Tensor:
        linear = (coefficients * self.centre).flatten(2).sum(-1)
        return linear - self.norm.dual((coefficients * self.radius).flatten(2))

    def box(self) -> Interval:
        return Interval.around(self.centre, self.radius.expand_as(self.centre))

    def vertex(self, direction: Tensor) -> Tensor:
        return self.centre + self.radius * self.norm.farthest(direction.flatten(1)).reshape(direction.shape)

    def step(self, x: Tensor, direction: Tensor, size: float) -> Tensor:
        return self.project(x + size * (self.vertex(direction) - self.centre))

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the set, up to rounding, which goes inwards: the point that is returned lies in the set."""
        centre, radius = self.centre.double(), self.radius.double()
        shift = (x.double() - centre).flatten(1)
        radius = radius.expand(len(x), *radius.shape[1:]).reshape(-1, 1)
        inside = self.norm.nearest(shift, radius)
        length = inside.norm(self.norm.order, dim=1, keepdim=True)
        most = radius * (1 - (shift.shape[1] + 8) * torch.finfo(torch.float64).eps)
        inside = torch.where(length > most, inside * (most / length.clamp(min=torch.finfo(torch.float64).tiny)), inside)
        return _not_beyond(centre, inside.reshape(x.shape), x.dtype)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.project(super().sample(generator))


def difference_rounded_up(high: Tensor, low: Tensor) -> Tensor:
    """high - low, rounded up if it has to be rounded: never less than the exact difference."""
    difference, error = _two_difference(high, low)
    return torch.where(error > 0, torch.nextafter(difference, torch.full_like(difference, torch.inf)), difference)


def rounded_up(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of float64 in another dtype, rounded up if they have to be rounded."""
    cast = values.to(dtype)
    return torch.where(cast.double() < values, torch.nextafter(cast, torch.full_like(cast, torch.inf)), cast)


def _not_beyond(centre: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
    """centre + shift of float64 in a dtype that holds the centre, no farther from it than the exact sum."""
    total, error = _two_difference(centre, -shift)
    total = torch.where(error * shift.sign() < 0, torch.nextafter(total, centre), total)
    cast = total.to(dtype)
    return torch.where((cast.double() - total) * shift.sign() > 0, torch.nextafter(cast, centre.to(dtype)), cast)


def _two_difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a - b as rounded, and its rounding error, which is itself a floating-point number, and found without any error. [Knuth]"""
    difference = a - b
    part = difference - a
    return difference, (a - (difference - part)) - (b + part)


def _some(radius: Tensor, examples: slice) -> Tensor:
    return radius if radius.shape[0] == 1 else radius[examples]
