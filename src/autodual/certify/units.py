"""A word where the size of a perturbation seems to be meant in other units than the inputs have."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from autodual.sets import L1Ball, L2Ball, LinfBall, Perturbation

FEWEST_LEVELS = 16
"""Images, or whole numbers, that reach this are taken for grey levels; the handwritten digits of scikit-learn have no more."""


def warn_of_raw_pixels(x: Tensor, ball: Perturbation, stacklevel: int) -> bool:
    """Say so, and return True, where x seems to hold grey levels and eps is less than one of them, as for images in [0, 1]."""
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
    """Infinite for other sets than balls, whose eps may be an angle or anything."""
    if not isinstance(ball, LinfBall | L2Ball | L1Ball):
        return float("inf")
    eps = torch.as_tensor(ball.eps).detach()
    return eps.amax().item() if eps.numel() else float("inf")


def _has_image_shape(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)


def _whole(x: Tensor) -> bool:
    """Whether all values are whole numbers, or as near as a GPU leaves them that has divided by 255 and multiplied again."""
    return bool(((x - x.round()).abs() < 1e-3).all())
