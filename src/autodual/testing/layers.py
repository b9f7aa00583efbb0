"""check_dual_layer: proves a dual layer right, or says where it is wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual._tensor import Shape
from autodual.dual import AffineDual, BilinearDual, DualNetwork, ElementwiseDual, build
from autodual.engines import capture
from autodual.engines.ibp import run_error_at
from autodual.testing._affine import AffineCheck
from autodual.testing._bilinear import BilinearCheck, check_bilinear_errors
from autodual.testing._elementwise import ElementwiseCheck
from autodual.testing._errors import check_errors
from autodual.testing._intervals import within
from autodual.testing._report import require_close, rounding

USUAL_SHAPES: tuple[Shape, ...] = ((5,), (3, 8), (3, 8, 8), (2, 5, 5, 5))
"""Tried in this order when an operation does not say what it takes."""


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def check_dual_layer(
    operation: nn.Module | Callable[[Tensor], Tensor],
    example: Tensor | None = None,
    *,
    kinks: tuple[float, ...] = (),
    tightness: float | None = 0.01,
    lines_tightness: float | None = None,
    domain: tuple[float, float] = (-math.inf, math.inf),
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
        for index, node in enumerate(network.nodes):
            where, shapes = label if len(network.nodes) == 2 else f"{label}, {node.name}", network.operand_shapes(index)
            if isinstance(node.layer, BilinearDual):
                BilinearCheck(where, node.layer, shapes[0], dtype, seed).run()
                if dtype == torch.float32:
                    check_bilinear_errors(where, node.layer, shapes[0], seed)
            elif isinstance(node.layer, ElementwiseDual):
                tight = (tightness, lines_tightness)
                inside = within(node.layer, domain)
                ElementwiseCheck(where, node.layer, shapes[0], dtype, kinks, *tight, inside, seed).run()
            elif isinstance(node.layer, AffineDual) and dtype == torch.float64:
                AffineCheck(where, node.layer, shapes, node.shape, seed).run()
    check_errors(name, module, network, _dual(module, example, torch.float64), kinks, seed, domain)


def _dual(module: nn.Module, example: Tensor, dtype: torch.dtype | None = None) -> DualNetwork:
    with torch.no_grad():
        return build(capture(module, example), dtype=dtype)


def _check_value(
    name: str, module: nn.Module, network: DualNetwork, example: Tensor, domain: tuple[float, float], seed: int
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
        allowed = allowed + run_error_at(network, x).nan_to_num(0.0, 0.0)  # of the module, and as much of its twin
    require_close(found, expected, allowed, f"{name}: the dual layers' value against the module's")


def _guess(module: nn.Module) -> Tensor:
    """A batch that the module accepts, from what it says of its input or from the usual shapes."""
    failures = []
    for shape in _candidates(module):
        example = torch.zeros(2, *shape, dtype=torch.float64)
        try:
            with torch.no_grad():
                module(example)
            capture(module, example)
        except AutodualError as error:
            failures.append(f"{shape}: {error}")
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            failures.append(f"{shape}: {type(error).__name__}: {error}")
        else:
            return example
    raise AssertionError("no usual input shape fits; give an example. Tried " + "; ".join(failures))


def _candidates(module: nn.Module) -> list[Shape]:
    """Shapes with as many channels as the module says, those with as many dimensions as its name says first."""
    sizes = (getattr(module, attribute, None) for attribute in ("in_features", "in_channels", "num_features"))
    channels = next((size for size in sizes if isinstance(size, int)), None)
    shapes = [shape if channels is None else (channels, *shape[1:]) for shape in USUAL_SHAPES]
    named = [d for d in (1, 2, 3) if f"{d}d" in type(module).__name__]
    return sorted(shapes, key=lambda shape: len(shape) - 1 not in named)
