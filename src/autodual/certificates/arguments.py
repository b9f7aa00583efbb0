"""Checks on the arguments that certificates, radii, losses and attacks share."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.engines.prepare import check_input, check_region
from autodual.sets import Box, InputSet, L1Ball, L2Ball, LinfBall, Perturbation
from autodual.spec import Label, Specification
from autodual.spec import check_classifier as check_classifier
from autodual.spec import check_label_range as check_label_range
from autodual.spec import check_labels as check_labels

# A word where the size of a perturbation seems to be meant in other units than the inputs have.

FEWEST_LEVELS = 16
"""Images, or whole numbers, that reach this are taken for grey levels; the handwritten digits of scikit-learn have no more."""


def warn_of_raw_pixels(x: Tensor, ball: Perturbation, stacklevel: int) -> bool:
    """Warn, and return True, where x seems to hold grey levels and eps is less than one of them, as for images in [0, 1]."""
    eps = _largest_eps(ball)
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
    """Whether all values are whole numbers, or as near as a GPU leaves them that has divided by 255 and multiplied again."""
    return bool(((x - x.round()).abs() < 1e-3).all())


# Checks on the arguments that certificates, radii and attacks share.


def check_problem(x: Tensor, labels: Tensor, ball: Perturbation) -> Tensor:
    """Refuse what cannot be certified; returns the labels as int64. Called by what the user calls."""
    check_input(x, "x")
    check_ball(ball, x)
    labels = check_labels(labels, x)
    warn_of_raw_pixels(x, ball, stacklevel=3)
    return labels


def check_asked(
    x: Tensor, asked: Tensor | Specification, ball: Perturbation | InputSet
) -> tuple[Specification, Perturbation]:
    """Refuse what cannot be asked; labels become a specification, and a set a perturbation. Called by what the user calls."""
    check_input(x, "x")
    if isinstance(ball, InputSet):
        ball = GivenSet(ball, x)
    check_ball(ball, x)
    if isinstance(asked, type) and issubclass(asked, Specification):
        raise ArgumentError(
            f"labels must be a tensor or a specification such as TopK(labels, 3), got the class {asked.__name__}"
        )
    specification = asked if isinstance(asked, Specification) else Label(check_labels(asked, x))
    warn_of_raw_pixels(x, ball, stacklevel=3)
    return specification, ball


class GivenSet(Perturbation):
    """Sets that were given, one for each example, and do not follow it. It has no size, so there is no radius to search for."""

    eps = float("nan")

    def __init__(self, region: InputSet, x: Tensor) -> None:
        check_region(region, "ball")
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


def check_perturbation(ball: Perturbation) -> None:
    if not isinstance(ball, Perturbation):
        kind = f"the class {ball.__name__}" if isinstance(ball, type) else type(ball).__name__
        raise ArgumentError(f"ball must be a perturbation such as LinfBall(0.1), got {kind}")


def check_ball(ball: Perturbation, x: Tensor) -> None:
    check_perturbation(ball)
    if isinstance(ball.eps, Tensor) and not bool((ball.eps.isfinite() & (ball.eps >= 0)).all()):
        raise ArgumentError("ball.eps must be finite and not negative everywhere")
    if isinstance(ball, LinfBall):
        ball.check_inside(x)
