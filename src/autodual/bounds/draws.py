"""Random numbers for projections, drawn before the step that uses them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.dual import DualNetwork
from autodual.sets import InputSet


@dataclass(frozen=True)
class Draws:
    """Standard Cauchy numbers [k, N or 1, *shape] for the input (0) and every activation; Gaussian ones for an l2 input."""

    cauchy: dict[int, Tensor]
    gauss: Tensor | None = None


def cauchy(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """tan of a uniform angle: several times faster than `Tensor.cauchy_`."""
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
    return uniform.sub_(0.5).mul_(math.pi).tan_()


def draw(network: DualNetwork, region: InputSet, k: int, generator: torch.Generator | None = None) -> Draws:
    """Fresh numbers for one batch: shared by its examples at the input, independent for each example at the activations."""
    like = region.centre
    if generator is not None and generator.device.type != like.device.type:
        raise ArgumentError(
            f"generator is on {generator.device}, but the input is on {like.device}; "
            f"make it with torch.Generator(device={str(like.device)!r})"
        )
    shape = tuple(like.shape[1:])
    numbers = {i: cauchy((k, len(region), *network.nodes[i].shape), like, generator) for i in network.activations}
    gauss = None
    if region.dual_norm == 2:
        gauss = torch.randn((k, 1, *shape), dtype=like.dtype, device=like.device, generator=generator)
    elif region.dual_norm == 1:
        numbers[0] = cauchy((k, 1, *shape), like, generator)
    return Draws(numbers, gauss)
