"""Perturbations: norm balls around every input, named by the norm; or sets that the user gave."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import check_dense, values_at_hand
from autodual.sets.input_sets import L1, L2, Box, InputSet, Norm, NormSet, difference_rounded_up, rounded_up


class Perturbation(ABC):
    """A way to change inputs: it turns a batch of inputs into the sets around them."""

    eps: float | Tensor

    @abstractmethod
    def around(self, x: Tensor) -> InputSet:
        """The set of inputs that an adversary may choose from instead of each x, rounded outwards: a proof must hold for all of them.

        Each example has a set of its own, whatever others are in the batch: parts of a batch come, too.
        """

    def within(self, x: Tensor) -> InputSet:
        """A set rounded inwards: what its `step` and `sample` compute is an allowed input. Attacks search it.

        A perturbation of your own answers for the rounding of its sets.
        """
        return self.around(x)

    @abstractmethod
    def with_eps(self, eps: float | Tensor) -> Perturbation:
        """A perturbation of this kind with another size."""

    def part(self, examples: slice, x: Tensor) -> Perturbation:
        """The perturbation of some of the examples x. One of your own that holds something for each of them must cut that, too."""
        return self


@dataclass(frozen=True, repr=False)
class LinfBall(Perturbation):
    """Every feature moves by at most eps, or eps times its `scale`, and stays inside `clip` = (low, high) if that is given.

    Args:
        eps: In the units of the input: a number, a scalar tensor, one per example [N], or one per feature.
        clip: The range of the data, which perturbed inputs do not leave; no such range if None.
        scale: For features in different units, how far each may move at eps 1: a tensor of the shape of one input, 0 where nothing
            moves. Such a ball has one size, eps, so that radii can be searched for; an eps per feature has none.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> box = ad.LinfBall(0.25, clip=(0.0, 1.0)).around(torch.tensor([[0.125, 0.5]]))
        >>> box.lower, box.upper
        (tensor([[0.0000, 0.2500]]), tensor([[0.3750, 0.7500]]))
    """

    eps: float | Tensor
    clip: tuple[float, float] | None = None
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        _check_eps(self.eps)
        if self.scale is not None:
            if not isinstance(self.scale, Tensor) or self.scale.dim() == 0:
                raise ArgumentError("scale must be a tensor of the shape of one input, or None; one number is eps")
            _check_eps(self.scale, "scale")
        if self.clip is not None and not _is_range(self.clip):
            ends = self.clip if isinstance(self.clip, tuple | list) else ()
            many = any(isinstance(end, Tensor | np.ndarray | Sequence) and not isinstance(end, str) for end in ends)
            advice = "; for a range of each feature, clamp the ends of a Box: ad.Box(lower, upper)" if many else ""
            raise ArgumentError(f"clip must be (low, high), two numbers with low < high, got {self.clip}{advice}")
        if self.clip is not None:
            object.__setattr__(self, "clip", tuple(map(_as_float, self.clip)))

    def around(self, x: Tensor) -> Box:
        if self.clip is not None and values_at_hand(x):
            self.check_inside(x)
        eps = self._radius(x)
        if self.clip is None:
            return Box.around(x, eps)
        largest = torch.finfo(x.dtype).max  # an end beyond all numbers is none
        ends = [end if abs(end) <= largest else math.copysign(torch.inf, end) for end in self.clip]
        lower, upper = (x - eps).clamp(*ends), (x + eps).clamp(*ends)
        if x.dtype == torch.float64:
            return Box.between(*_with_x(lower, x, upper))
        return Box.between(lower, upper).known_as(lambda: self.around(x.double()))

    def within(self, x: Tensor) -> InputSet:
        if type(self).around is not LinfBall.around:
            return super().within(x)
        both = torch.stack([x, -x]).double()  # for the lower end, and the upper one with its sign turned
        ends = difference_rounded_up(both, self._radius(both[0], up=False))
        if self.clip is not None:
            ends = torch.stack([ends[0].clamp(min=self.clip[0]), ends[1].clamp(min=-self.clip[1])])
        lower, turned = rounded_up(ends, x.dtype)
        return Box.between(*_with_x(lower, x, -turned))

    def _radius(self, x: Tensor, up: bool = True) -> Tensor:
        """How far features move, to broadcast against x; a product with `scale` is rounded up, or down for x in float64."""
        eps = _broadcast(self.eps, x)
        if self.scale is None:
            return eps
        if len(self.scale.shape) > x.dim() - 1 or not _broadcasts(tuple(self.scale.shape), tuple(x.shape[1:])):
            raise ArgumentError(
                f"scale of shape {tuple(self.scale.shape)} does not fit x of shape {tuple(x.shape)}: give one per feature "
                f"{list(x.shape[1:])}"
            )
        product = eps * _not_smaller(self.scale, x)
        beyond = torch.full_like(product, torch.inf if up else 0.0)
        moved = torch.nextafter(product.detach(), beyond)
        return product + torch.where((eps > 0) & (self.scale.to(x.device) > 0), moved - product, 0.0).detach()

    def __repr__(self) -> str:
        """The scale by its range: `describe` tells scales apart."""
        ends = "" if self.scale is None else f", scale={self.scale.min().item():g}..{self.scale.max().item():g}"
        return f"{type(self).__name__}(eps={self.eps!r}, clip={self.clip!r}{ends})"

    def check_inside(self, x: Tensor) -> None:
        """Refuse inputs that are outside `clip` already: an adversary could not choose them.

        An end of `clip` as float32 rounds it is inside, also in float64: that is where data of float32 end.
        """
        if self.clip is None:
            return
        low, high = self.clip
        if x.dtype == torch.float64:
            single = torch.tensor(self.clip, dtype=torch.float32).tolist()
            low, high = min(low, single[0]), max(high, single[1])
        if not bool(((x >= low) & (x <= high)).all()):
            first, last = x.min().item(), x.max().item()
            grey = first >= 0 and last >= FEWEST_LEVELS and self.clip == (0.0, 1.0)
            advice = (
                "divide grey levels by the highest (255 for bytes)" if grey else "normalisation belongs into the model"
            )
            raise ArgumentError(
                f"x lies outside clip = ({self.clip[0]}, {self.clip[1]}): it ranges from {first:.6g} to {last:.6g}. clip is the range "
                f"of the data in the units of x; {advice}"
            )

    def with_eps(self, eps: float | Tensor) -> LinfBall:
        return replace(self, eps=eps)

    def part(self, examples: slice, x: Tensor) -> LinfBall:
        if not isinstance(self.eps, Tensor) or self.eps.numel() == 1:
            return self
        eps = _broadcast(self.eps, x)
        return self.with_eps(eps if len(eps) == 1 else eps[examples])


@dataclass(frozen=True)
class _NormBall(Perturbation):
    """Each example moves by at most its eps in a norm."""

    eps: float | Tensor
    norm: ClassVar[Norm]

    def __post_init__(self) -> None:
        _check_eps(self.eps)

    def around(self, x: Tensor) -> NormSet:
        return NormSet(x, _per_example(self.eps, x, type(self).__name__), self.norm)

    def within(self, x: Tensor) -> InputSet:
        if type(self).around is not _NormBall.around:
            return super().within(x)
        eps = _per_example(self.eps, x.double(), type(self).__name__)
        return NormSet(x, -rounded_up(-eps, x.dtype), self.norm)

    def with_eps(self, eps: float | Tensor) -> Self:
        return replace(self, eps=eps)

    def part(self, examples: slice, x: Tensor) -> Self:
        if not isinstance(self.eps, Tensor) or self.eps.numel() == 1:
            return self
        return self.with_eps(_per_example(self.eps, x, type(self).__name__)[examples])


class L2Ball(_NormBall):
    """The whole input moves by at most eps in Euclidean distance; eps is a number or one per example."""

    norm = L2


class L1Ball(_NormBall):
    """The absolute changes of all features add up to at most eps; eps is a number or one per example."""

    norm = L1


class GivenSet(Perturbation):
    """Sets that the user gave, one for each example. They have no eps, so there is no radius to search for."""

    eps = float("nan")

    def __init__(self, region: InputSet, x: Tensor) -> None:
        centre = region.centre
        if centre.shape != x.shape or centre.dtype != x.dtype or centre.device != x.device:
            raise ArgumentError(
                f"ball: a set must have the shape, dtype and device of x, got {tuple(centre.shape)} {centre.dtype} on {centre.device} "
                f"for x of {tuple(x.shape)} {x.dtype} on {x.device}"
            )
        outside = (~_may_contain(region, x)).nonzero().flatten().tolist()
        if outside:
            raise ArgumentError(
                f"ball: x lies outside of its set at example {outside[0]}; give an input inside, such as the set's centre"
            )
        self.region = region

    def around(self, x: Tensor) -> InputSet:
        if x.dtype == self.region.centre.dtype:
            return self.region
        wide = self.region.double()
        if wide is None:
            raise ArgumentError(f"{type(self.region).__name__} has no method `double`")
        return wide

    def within(self, x: Tensor) -> InputSet:
        return self.region.inwards()

    def with_eps(self, eps: float | Tensor) -> Perturbation:
        raise ArgumentError(
            f"ball: a {type(self.region).__name__} has one size, and a radius is searched for over many; use a perturbation "
            f"such as LinfBall(0.1)"
        )


def _may_contain(region: InputSet, x: Tensor) -> Tensor:
    """[N] bool: x is not clearly outside. Exact for boxes; else, seen from the centre, x is no farther than the set reaches there."""
    x = x.detach()
    if isinstance(region, Box):
        return ((region.lower <= x) & (x <= region.upper)).flatten(1).all(1)
    away = region.centre.detach() - x
    there, room = (away * x).flatten(1).sum(1), 64 * torch.finfo(x.dtype).eps * (away * x).flatten(1).abs().sum(1)
    return ~(there < region.minimise(away.unsqueeze(0)).squeeze(0) - room)


# A warning where eps seems to be in other units than the inputs.

FEWEST_LEVELS = 16
"""Images, or whole numbers, that reach this are taken for grey levels; the handwritten digits of scikit-learn have no more."""


def warn_of_raw_pixels(x: Tensor, ball: Perturbation, stacklevel: int) -> bool:
    """Warn, and return True, where x seems to hold grey levels and eps is less than one of them, as for images in [0, 1].

    Also where it is the other way round: where eps is wider than the range that x stays inside.
    """
    eps = _largest_eps(ball)
    plain = isinstance(ball, LinfBall) and ball.scale is None and isinstance(ball.eps, int | float)
    clip = ball.clip if plain and isinstance(ball, LinfBall) else None
    if clip is not None and eps > clip[1] - clip[0]:
        warnings.warn(
            f"eps = {eps:g} is more than the whole range of the data, clip = ({clip[0]:g}, {clip[1]:g}), so that nothing limits the "
            f"inputs. eps is in the units of x: if it is meant in grey levels, divide it by 255 as x was",
            stacklevel=stacklevel + 1,
        )
        return True
    if not 0 < eps < 1:
        return False
    lowest, highest = (end.item() for end in x.detach().aminmax())
    if lowest < 0 or highest < FEWEST_LEVELS or not (_has_image_shape(x) or _whole(x.detach())):
        return False
    warnings.warn(
        f"x looks like raw pixels, values from {lowest:g} to {highest:g}, and eps = {eps:g} is in the same units: no pixel may change "
        f"by as much as one grey level, which looks more robust than it is. If eps is meant for images in [0, 1], scale both alike: "
        f"divide x by the highest level (255 for bytes) if the model takes such images, or else multiply eps by it",
        stacklevel=stacklevel + 1,
    )
    return True


def _largest_eps(ball: Perturbation) -> float:
    """The largest eps of a ball; infinite for other sets, whose eps may be an angle or anything."""
    if not isinstance(ball, LinfBall | L2Ball | L1Ball):
        return float("inf")
    eps = torch.as_tensor(ball.eps).detach()
    most = ball.scale.amax().item() if isinstance(ball, LinfBall) and ball.scale is not None else 1.0
    return eps.amax().item() * most if eps.numel() else float("inf")


def _has_image_shape(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)


def _whole(x: Tensor) -> bool:
    """Whether all values are whole numbers, up to the rounding of a division by 255 and a multiplication on a GPU."""
    return bool(((x - x.round()).abs() < 1e-3).all())


# Checks, and sizes as tensors.


def _check_eps(eps: float | Tensor, name: str = "eps") -> None:
    """Refuse sizes that are no finite numbers, or negative."""
    if isinstance(eps, bool) or not isinstance(eps, int | float | Tensor):
        raise ArgumentError(f"{name} must be a number or a tensor, got {type(eps).__name__}{_advice(eps)}")
    if isinstance(eps, Tensor) and not eps.is_floating_point():
        raise ArgumentError(f"{name} must be a floating-point tensor, got {eps.dtype}")
    if isinstance(eps, Tensor):
        check_dense(eps, name)
    values = torch.as_tensor(eps if isinstance(eps, Tensor) else _as_float(eps))
    if not bool((values >= 0).all()) or not bool(values.isfinite().all()):
        ends = f"values from {values.min().item()} to {values.max().item()}"
        got = ends if values.dim() > 0 else str(eps.item() if isinstance(eps, Tensor) else eps)
        raise ArgumentError(f"{name} must be finite and not negative everywhere, got {got}")


def _advice(eps: object) -> str:
    """What to write in the place of a size of another type."""
    if isinstance(eps, dict):
        return (
            "; give one size per feature as a tensor, in the order of the columns (names are for fit and TrainConfig)"
        )
    if isinstance(eps, str):
        return "; write a number, such as 8 / 255, without quotes"
    return "; make it a tensor with torch.as_tensor" if isinstance(eps, Sequence | np.ndarray) else ""


def _as_float(number: float) -> float:
    """A number of float64; infinity for a whole number that is larger than all of them."""
    try:
        return float(number)
    except OverflowError:
        return torch.inf


def _is_range(clip: object) -> bool:
    """Whether `clip` is two numbers, or tensors of one number, in ascending order."""
    if not isinstance(clip, list | tuple) or len(clip) != 2:
        return False
    numbers = all(isinstance(end, Real) or (isinstance(end, Tensor) and end.numel() == 1) for end in clip)
    return numbers and bool(clip[0] < clip[1])


def _as_tensor(eps: float | Tensor, x: Tensor) -> Tensor:
    """Puts eps on the device of x, and never makes it smaller. The device writes a number itself, since a copy would wait for it."""
    if isinstance(eps, Tensor):
        return _not_smaller(eps, x)
    if not torch.compiler.is_compiling():  # a compiled step trains, and certifies nothing
        rounded = torch.tensor(float(eps), dtype=x.dtype)
        eps = (rounded if rounded.item() >= eps else rounded.nextafter(rounded.new_full((), torch.inf))).item()
    return x.new_full((), eps)


def _not_smaller(eps: Tensor, x: Tensor) -> Tensor:
    """Casts eps to the dtype of x, and rounds up where it has to be rounded."""
    cast = eps.to(x)
    if torch.finfo(cast.dtype).bits >= torch.finfo(eps.dtype).bits:
        return cast
    up = torch.nextafter(cast, torch.full_like(cast, torch.inf))
    return cast + torch.where(cast.detach().to(eps) < eps.detach(), up - cast, 0.0).detach()


def _with_x(lower: Tensor, x: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Moves the ends of a clipped set so that x lies inside: it may be an end of `clip` as float32 rounds it."""
    return torch.where(lower > x, x, lower), torch.where(upper < x, x, upper)


def _broadcast(eps: float | Tensor, x: Tensor) -> Tensor:
    """eps as a tensor that broadcasts against x [N, *shape], with a leading dimension of 1 or N."""
    value = _as_tensor(eps, x)
    shape = tuple(value.shape)
    if value.dim() == 0:
        return value.reshape([1] * x.dim())
    example = len(shape) == 1 and shape[0] == x.shape[0]
    feature = len(shape) <= x.dim() - 1 and _broadcasts(shape, tuple(x.shape[1:])) and not (example and x.dim() > 2)
    if example and feature and x.shape[0] > 1:
        raise ArgumentError(
            f"eps of shape {shape} could be one per example or one per feature for x of shape {tuple(x.shape)}; "
            f"reshape it to [{shape[0]}, 1] (per example) or to [1, {shape[0]}] (per feature)"
        )
    if example:
        return value.reshape(-1, *[1] * (x.dim() - 1))
    if feature:
        return value.reshape(*[1] * (x.dim() - len(shape)), *shape)
    if len(shape) == x.dim() and _broadcasts(shape, tuple(x.shape)):
        return value
    raise ArgumentError(
        f"eps of shape {shape} does not fit x of shape {tuple(x.shape)}: give one number, one per example "
        f"[{x.shape[0]}], or one per feature {list(x.shape[1:])}"
    )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def _per_example(eps: float | Tensor, x: Tensor, name: str) -> Tensor:
    value = _as_tensor(eps, x)
    if value.numel() not in (1, x.shape[0]) or (value.dim() > 0 and value.shape[0] != value.numel()):
        raise ArgumentError(
            f"{name}: eps must be one number or one per example [{x.shape[0]}], got shape {tuple(value.shape)}"
        )
    return value.reshape(-1, *[1] * (x.dim() - 1))
