"""Batch normalisation with fixed statistics: an affine map. [SPAD app. B.5, with gamma in the shift]"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.dual.arithmetic import DualScale
from autodual.dual.parameters import parameter
from autodual.dual.registry import register
from autodual.graph import Call


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(call: Call) -> DualScale:
    m: Any = call.module
    if not m.training and m.running_mean is not None:
        return _scale(call, m.running_mean, m.running_var, m.weight, m.bias, m.eps)
    if call.clean is None:
        raise ArgumentError(
            f"{call.path}: batch normalisation uses the statistics of the batch, so examples would depend on one another; "
            f"call model.eval() before certifying (the robust loss takes the clean batch's statistics as constants)"
        )
    m(call.clean[0].detach())  # moves the running statistics, as a forward pass in training does
    mean, variance = _statistics(call.clean[0])
    return _scale(call, mean, variance, m.weight, m.bias, m.eps)


@register(F.batch_norm)
def _functional_batch_norm(call: Call) -> DualScale:
    if call.argument(5, "training", False):
        raise ArgumentError(
            f"{call.path}: F.batch_norm(training=True) makes examples depend on one another; call model.eval()"
        )
    mean, variance = parameter(call, 1, "running_mean"), parameter(call, 2, "running_var")
    weight, bias = parameter(call, 3, "weight", None), parameter(call, 4, "bias", None)
    return _scale(call, mean, variance, weight, bias, call.argument(7, "eps", 1e-5))


def _statistics(batch: Tensor) -> tuple[Tensor, Tensor]:
    dims = [d for d in range(batch.dim()) if d != 1]
    variance, mean = torch.var_mean(batch, dims, correction=0)
    return mean, variance


def _scale(
    call: Call, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> DualScale:
    """slope * x + shift with slope = weight / sqrt(variance + eps) and shift = bias - mean * slope.

    With running statistics, both are folded in float64: a large mean makes the shift cancel. A training step, whose bounds are no
    certificate, folds the statistics of its batch in their own dtype.
    """
    dtype = variance.dtype
    if call.clean is None:
        mean, variance = mean.double(), variance.double()
        weight, bias = (None if p is None else p.double() for p in (weight, bias))
    slope = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    shift = -mean * slope if bias is None else bias - mean * slope
    columns = (-1, *[1] * (len(call.shape) - 1))
    folded = DualScale(slope.to(dtype).reshape(columns), shift.to(dtype).reshape(columns), call.shape)
    if call.clean is not None:
        return folded
    with torch.no_grad():
        terms = (mean * slope).abs() if bias is None else bias.abs() + (mean * slope).abs()
    return replace(folded, cancelling=terms.reshape(columns))
