"""From a user's model and data to what engines work on; everything that cannot be bounded honestly is refused here."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, CaptureError
from autodual._tensor import CERTIFYING_DTYPES, full_precision
from autodual.bounds.base import BoundEngine, Bounds
from autodual.bounds.dual import Dual
from autodual.dual import REGISTRY, DualNetwork, build
from autodual.dual.network import non_finite_parameter
from autodual.graph import Network, check_current
from autodual.graph import capture as capture_with
from autodual.sets import InputSet

_AGREEMENT = {torch.float32: 1e-3, torch.float64: 1e-8}


def capture(model: nn.Module, example: Tensor) -> Network:
    """The graph of `model` for inputs shaped like `example` [N, *shape]. Capture once, bound often: parameters stay live."""
    check_input(example, "example")
    check_placement(model, example, "example")
    return capture_with(model, example, REGISTRY)


def bounds(model: nn.Module | Network, input_set: InputSet, engine: BoundEngine | None = None) -> Bounds:
    """Bounds on the output and on what enters every activation, for every input of the set.

    The model's output may have any shape. Differentiable in the parameters, the inputs and eps.
    """
    engine = Dual() if engine is None else engine
    check_engine(engine)
    if not isinstance(input_set, InputSet):
        raise ArgumentError(
            f"input_set must be an InputSet such as LinfBall(0.1).around(x) or Box(lower, upper), got {type(input_set).__name__}"
        )
    check_input(input_set.centre, "input_set.centre")
    if input_set.dual_norm is not None and not bool((input_set.radius.isfinite() & (input_set.radius >= 0)).all()):
        raise ArgumentError("input_set.radius must be finite and not negative everywhere")
    with full_precision():
        return engine.bounds(dual_network(model, input_set.centre), input_set)


def dual_network(model: nn.Module | Network, x: Tensor) -> DualNetwork:
    """Dual layers of a model in evaluation mode, checked to compute what the model computes on x."""
    module = model.model if isinstance(model, Network) else model
    check_placement(module, x, "x")
    check_evaluation_mode(module)
    network = model if isinstance(model, Network) else capture_with(model, x, REGISTRY)
    if tuple(x.shape[1:]) != network.input_shape:
        raise ArgumentError(
            f"x has examples of shape {tuple(x.shape[1:])}, but the network was captured for {network.input_shape}; "
            f"capture it again for this shape"
        )
    if network is model:
        check_current(network, x)
    broken = non_finite_parameter(network)
    if broken is not None:
        raise ArgumentError(f"model: {broken} holds NaN or infinite values, so nothing can be proved about it")
    dual = build(network)
    _check_faithful(network, dual, x)
    return dual


def _check_faithful(network: Network, dual: DualNetwork, x: Tensor) -> None:
    """A graph that computes something else than the model proves nothing about it."""
    with (
        torch.no_grad()
    ):  # the whole batch, since a model may branch on its size; a copy, since it may write into its input
        expected, found = network.model(x.detach().clone())[:2], dual.forward(x[:2].detach())
    if not bool(expected.isfinite().all()):
        raise ArgumentError("model: its output holds NaN or infinite values, so nothing can be proved about it")
    scale = expected.abs().amax().clamp(min=1.0)
    if expected.shape != found.shape or not bool((expected - found).abs().amax() <= _AGREEMENT[x.dtype] * scale):
        raise CaptureError(
            "model: the captured graph does not reproduce the model's output. The model may be random, may branch on the batch "
            "size or on isinstance(x, Tensor), or has got other modules or hooks since it was captured (then capture it again); "
            "certificates need one function per example"
        )


def check_engine(engine: BoundEngine) -> None:
    if not isinstance(engine, BoundEngine):
        hint = f"; call it: {engine.__name__}()" if isinstance(engine, type) else ""
        raise ArgumentError(f"engine must be an engine such as Dual() or IBP(), got {engine!r}{hint}")


def check_input(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.dtype not in CERTIFYING_DTYPES:
        raise ArgumentError(
            f"{name} must be float32 or float64, got {x.dtype}; convert it with {name}.float() (integers need scaling to the "
            f"units that eps is given in; half precision cannot carry a proof)"
        )
    if x.dim() < 2 or x.shape[0] == 0 or x.numel() == 0:
        raise ArgumentError(f"{name} must be a batch [N, *shape] with at least one example, got shape {tuple(x.shape)}")
    if x.device.type == "meta":
        raise ArgumentError(f"{name} is on the device 'meta', so it has a shape but no values")
    check_finite(x, name)


def check_finite(x: Tensor, name: str) -> None:
    lowest, highest = x.detach().aminmax()  # one pass, which NaN comes out of, too
    if not bool(lowest.isfinite() & highest.isfinite()):
        count = int((~torch.isfinite(x)).sum())
        raise ArgumentError(f"{name} holds {count} NaN or infinite values")


def check_placement(model: nn.Module, x: Tensor, name: str) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module or a captured Network, got {type(model).__name__}")
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.is_floating_point():
            continue
        if tensor.device != x.device:
            raise ArgumentError(
                f"model and {name} are on different devices: {path} on {tensor.device}, {name} on {x.device}"
            )
        if tensor.dtype != x.dtype:
            raise ArgumentError(
                f"model and {name} have different dtypes: {path} is {tensor.dtype}, {name} is {x.dtype}"
            )


def check_evaluation_mode(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ArgumentError(
                f"model: {path or type(module).__name__} is batch normalisation in training mode, whose output depends on the "
                f"other examples of the batch; call model.eval() first"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ArgumentError(
                f"model: {path or type(module).__name__} is dropout in training mode, whose output is random; call model.eval() first"
            )
