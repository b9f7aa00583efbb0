"""From a user's model to what engines work on: a graph that computes what the model computes, with finite constants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError, CaptureError
from autodual._tensor import full_precision
from autodual.dual import REGISTRY, DualNetwork, build
from autodual.dual.base import AffineDual, DualLayer
from autodual.dual.network import DualNode, apply_layer
from autodual.engines.arguments import check_evaluation_mode, check_input, check_placement
from autodual.engines.ibp import evaluate_with_error
from autodual.engines.rounding import MORE_ROUNDINGS, gamma_of_sum
from autodual.graph import Network, capture_graph, check_current
from autodual.sets import InputSet


def capture(model: nn.Module, example: Tensor) -> Network:
    """Turn a model into a graph, to look at or to bound often. Parameters stay live.

    Args:
        model: Any nn.Module; it is traced, and left as it was.
        example: A batch [N, *shape] of the shape, dtype and device that inputs will have.

    Returns:
        The graph, which `certify`, `bounds` and `attack` take in the model's place. They trace the model again, and refuse a graph
        that no longer is its own.

    Raises:
        ArgumentError: The example is no batch of finite floating-point numbers, or lies on another device than the model.
        CaptureError: The model branches on values, mixes examples, draws random numbers, or cannot be traced for another reason.
        UnsupportedOperationError: The model uses an operation that is not understood.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> network = ad.capture(ad.load_digits_network(), images[:2])
        >>> network.output_shape
        (10,)
    """
    check_input(example, "example")
    check_placement(model, example, "example")
    return capture_graph(model, example, REGISTRY)


@dataclass(frozen=True)
class Prepared:
    """A model that was captured, and checked to compute what its graph computes."""

    graph: Network
    network: DualNetwork
    output: Tensor
    """What the model itself computes for the inputs that it was prepared for."""
    at_corners: Tensor | None = None
    """What it computes at one corner of the set of each; None where none was given, or sets do not know what lies inside."""

    @cached_property
    def in_double(self) -> DualNetwork:
        """The captured network in float64, with its parameters cast; what the model computes from them is computed in float64."""
        if self.graph.dtype == torch.float64:
            return self.network
        double = build(self.graph, dtype=torch.float64)
        return with_differences(double, self.network) if self.graph.computes_constants else double

    @cached_property
    def only_in_double(self) -> bool:
        """Whether the model computes constants that float32 rounds by more than a number: only float64 bounds the exact function."""
        if self.graph.dtype == torch.float64 or not self.graph.computes_constants:
            return False
        return differ_by_more_than_rounding(self.in_double, self.network)


def dual_network(model: nn.Module | Network, x: Tensor) -> DualNetwork:
    """Dual layers of a model in evaluation mode, checked to compute what the model computes on x."""
    with full_precision():
        return prepare(model, x).network


def prepare(model: nn.Module | Network, x: Tensor, inside: InputSet | None = None) -> Prepared:
    """Capture a model in evaluation mode; its graph must compute what the model computes on x, and at corners of sets.

    Inside `full_precision`, since TF32 differs by more than the rounding that is allowed for.

    inside: sets of inputs of the model, as of x, or of the first few of them.
    """
    module = model.model if isinstance(model, Network) else model
    check_placement(module, x, "x")
    check_evaluation_mode(module)
    network = model if isinstance(model, Network) else capture_graph(model, x, REGISTRY)
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
    if network.computes_constants:
        _check_choices(network)
    dual = build(network)
    broken = non_finite_constant(dual, x.dtype, checked=module.parameters())
    if broken is not None:
        raise ArgumentError(
            f"model: {broken} computes with a constant that is NaN or infinite in {x.dtype} (as after a division by zero, or batch "
            f"normalisation whose variance + eps is not positive), so nothing can be proved about it"
        )
    _check_transposes(network, dual, x.device)
    batches, known = [x.detach()], False  # the whole batch, since a model may branch on its size
    if inside is not None:
        corners, known = _corners(inside)
        batches.append(corners)
        known = known and len(inside) == len(x)
    output, *at_corners = _check_faithful(network, dual, batches)
    if network.dtype == torch.float64 and network.computes_constants:
        dual = with_differences(dual, build(network, dtype=torch.float32))
    return Prepared(network, dual, output, at_corners[0][-len(x) :] if known else None)


def _check_choices(network: Network) -> None:
    """Refuse a model that computes other whole numbers, such as indices, in float64 than in float32."""
    with torch.no_grad():
        single, double = network.parameters_now(torch.float32), network.parameters_now(torch.float64)
    for index, value in single.items():
        if isinstance(value, Tensor) and not value.is_floating_point() and not torch.equal(value, double[index]):
            raise CaptureError(
                f"{network.nodes[index].name}: computes whole numbers that depend on the precision, so that float32 and float64 "
                f"choose differently; compute them once, beforehand, and keep them as a buffer"
            )


@torch.no_grad()
def _check_transposes(network: Network, dual: DualNetwork, device: torch.device) -> None:
    """Refuse a layer with <v, W x> != <W' v, x>. Autodiff's W' is not always that of what PyTorch computes, nor is everybody's own."""
    unproved = [i for i, node in enumerate(dual.nodes) if _has_unproved_transpose(node.layer)]
    if not unproved:
        return
    double = dual if network.dtype == torch.float64 else build(network, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for index in unproved:
        node, shapes = double.nodes[index], double.operand_shapes(index)
        assert isinstance(node.layer, AffineDual)
        v, *operands = (
            torch.randn(1, *shape, generator=generator, dtype=torch.float64).to(device)
            for shape in (node.shape, *shapes)
        )
        terms = v * node.layer.linear(*operands)
        back = node.layer.transpose(v, shapes)
        difference = terms.sum() - sum((a * b).sum() for a, b in zip(back, operands, strict=True))
        if bool(difference.abs() > 2**-26 * terms.abs().sum()):
            raise CaptureError(
                f"{node.name}: the transpose of its dual layer is not that of what it computes (<v, W x> and <W' v, x> differ by "
                f"{difference.abs().item():.3g}), so bounds through it would be wrong"
            )


def _has_unproved_transpose(layer: DualLayer | None) -> bool:
    """Whether the transpose comes from autodiff, or from somebody else than this package, whose own are tested."""
    if not isinstance(layer, AffineDual):
        return False
    return type(layer).transpose is AffineDual.transpose or not type(layer).__module__.startswith("autodual.")


COMPARED = 2
"""Examples whose outputs by the model and by its graph may differ only as much as rounding can explain."""


def _corners(inside: InputSet) -> tuple[Tensor, bool]:
    """One corner of every set, before them the opposite ones of those that are compared; and whether they are known to lie inside."""
    direction = _without_pattern(inside.centre)
    opposite = inside[slice(0, COMPARED)].vertex(-direction[:COMPARED])
    corners = inside.vertex(direction).detach()
    projected = inside.project(corners)
    return torch.cat([opposite.detach(), corners if projected is None else projected]), projected is not None


def _without_pattern(x: Tensor) -> Tensor:
    """A direction of the shape of x, the same for each example: signs without a pattern that a network's layout could share."""
    places = torch.arange(2, x[0].numel() + 2, device=x.device)
    drawn = (places.square() * 40503 >> 12) % 2 == 0
    return torch.where(drawn, 1.0, -1.0).to(x).reshape(x.shape[1:]).expand_as(x)


@torch.no_grad()
def _check_faithful(network: Network, dual: DualNetwork, batches: list[Tensor]) -> list[Tensor]:
    """The model's outputs. A graph that computes something else than the model, as far as a few show, proves nothing about it."""
    outputs = [_run_in_set(network.model, batch) for batch in batches]
    first, *others = outputs
    if not all(bool(output.isfinite().all()) for output in (first, *(o[: 2 * COMPARED] for o in others))):
        raise ArgumentError("model: its output holds NaN or infinite values, so nothing can be proved about it")
    if all(output.shape == (len(batch), *network.output_shape) for batch, output in zip(batches, outputs, strict=True)):
        x, expected = (torch.cat([values[: 2 * COMPARED] for values in of_all]) for of_all in (batches, outputs))
        operand, found = _last_step(dual, x)
        difference = (expected - found).abs()
        if operand is not None and bool((difference <= _least_run_error(dual, operand)).all()):
            return outputs
        allowed = 2 * evaluate_with_error(dual, x)[1]
        if bool((difference <= torch.where(allowed.isfinite(), allowed, expected.abs())).all()):
            return outputs
    raise CaptureError(
        "model: the captured graph does not reproduce the model's output. The model may be random, may branch on the batch "
        "size or on isinstance(x, Tensor), or has got other modules or hooks since it was captured (then capture it again); "
        "certificates need one function per example"
    )


def _run_in_set(model: nn.Module, batch: Tensor) -> Tensor:
    """The model's output, which it must have everywhere in the set."""
    try:
        output: Tensor = model(batch.clone())  # a copy, since a model may write into its input
    except (AutodualError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, ArithmeticError) as error:
        raise CaptureError(
            f"model: raises {type(error).__name__} for x or for a corner of its set: {error}. Certificates need an output for every "
            f"input of the set; make the set smaller (clip=), or leave the check out of the module"
        ) from error
    return output


def _last_step(dual: DualNetwork, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """What the last layer reads, if that is one tensor, and the output."""
    last = dual.nodes[dual.output]
    if last.layer is None or len(last.inputs) != 1:
        return None, dual.forward(x)
    operand = replace(dual, output=last.inputs[0]).forward(x)
    return operand, apply_layer(last.layer, operand)


def _least_run_error(network: DualNetwork, operand: Tensor) -> Tensor:
    """Bounds the error of `evaluate_with_error` from below, by the last layer alone, which reads `operand`: gamma (|W| |z| + |b|).

    The whole error is far larger, and far more work. Zero where the last layer is not such a sum.
    """
    layer = network.nodes[network.output].layer
    if not isinstance(layer, AffineDual) or layer.exact:
        return operand.new_zeros(())
    bias = layer.bias()
    size = layer.absolute(operand.abs())
    return gamma_of_sum(MORE_ROUNDINGS, operand.dtype) * (size if bias is None else size + bias.abs().to(size))


# Constants of a network: that they are finite, and how far those computed in float32 are from those computed in float64.


def non_finite_constant(network: DualNetwork, dtype: torch.dtype, checked: Iterable[Tensor] = ()) -> str | None:
    """Name of the first affine layer with a constant that is NaN or infinite, or becomes so in a dtype.

    checked: tensors of this dtype that are known to be finite.
    """
    known = {id(tensor) for tensor in checked}
    found: list[tuple[str, Tensor]] = []
    for node in network.nodes:
        if isinstance(node.layer, AffineDual) and is_dataclass(node.layer):
            values = [getattr(node.layer, f.name) for f in fields(node.layer)]
            parts = [v for given in values for v in (given if isinstance(given, tuple) else (given,))]
            new = [v for v in parts if isinstance(v, Tensor | float) and id(v) not in known]
            found += [(node.name, torch.as_tensor(v).to(dtype)) for v in new]
    return _first_not_finite(found)


def non_finite_parameter(network: Network) -> str | None:
    """Name of the first parameter or buffer of the model that holds a NaN or an infinity."""
    tensors = [*network.model.named_parameters(), *network.model.named_buffers()]
    return _first_not_finite([(name, tensor) for name, tensor in tensors if tensor.is_floating_point()])


def _first_not_finite(named: list[tuple[str, Tensor]]) -> str | None:
    """A finite sum has finite terms, so one glance at all sums tells; one that is not finite may only have overflowed."""
    for device in {tensor.device for _, tensor in named}:
        here = [(name, tensor) for name, tensor in named if tensor.device == device]
        if not bool(torch.stack([tensor.sum() for _, tensor in here]).isfinite().all()):
            return next((name for name, tensor in named if not bool(tensor.isfinite().all())), None)
    return None


SINGLE = 4 * torch.finfo(torch.float32).eps
"""Constants that differ by no more, relative to their size, are rounded like any others: nothing has cancelled."""


def with_differences(double: DualNetwork, single: DualNetwork) -> DualNetwork:
    """The network whose constants were computed in float64, with how far they are from those computed in float32."""
    nodes = [replace(d, apart=_difference(d, s)) for d, s in zip(double.nodes, single.nodes, strict=True)]
    return replace(double, nodes=tuple(nodes))


def differ_by_more_than_rounding(double: DualNetwork, single: DualNetwork) -> bool:
    """Whether some constant, computed in float32, is not as near to that computed in float64 as rounding a number brings it."""
    pairs = zip(double.nodes, single.nodes, strict=True)
    return any(not bool(_near(a, b).all()) for d, s in pairs for a, b in _constants(d, s).values())


def _near(exact: Tensor, rounded: Tensor) -> Tensor:
    """Relative to the constant, however small it is: what it multiplies may be as large as it is small."""
    return (exact - rounded).abs() <= SINGLE * exact.abs()


def _constants(double: DualNode, single: DualNode) -> dict[str, tuple[Tensor, Tensor]]:
    """Floating-point constants of the same layer in both networks, in float64."""
    if double.layer is None or not is_dataclass(double.layer):
        return {}
    pairs = {f.name: (getattr(double.layer, f.name), getattr(single.layer, f.name)) for f in fields(double.layer)}
    return {name: (_tensor(a), _tensor(b)) for name, (a, b) in pairs.items() if _is_number(a)}


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, float) or (isinstance(value, tuple) and bool(value) and isinstance(value[0], float))


def _tensor(value: Any) -> Tensor:
    return value.double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _difference(double: DualNode, single: DualNode) -> AffineDual | None:
    """The layer with the differences of its constants: affine layers are linear in each of them."""
    found = _constants(double, single)
    if all(torch.equal(a, b) for a, b in found.values()):
        return None
    layer: Any = double.layer
    tensors = {name for name in found if isinstance(getattr(layer, name), Tensor)}
    settled = found.keys() if not isinstance(layer, AffineDual) else found.keys() - tensors
    if not all(bool(_near(*found[name]).all()) for name in settled):
        raise ArgumentError(
            f"{double.name}: its parameters are computed with cancellation, so that float32 makes others of them than float64; "
            f"compute them in float64 beforehand, and keep the result as a parameter"
        )
    if not isinstance(double.layer, AffineDual):
        return None
    numbers = {
        f.name: 0.0 for f in fields(layer) if isinstance(getattr(layer, f.name), float)
    }  # rounded like any others
    apart = {name: (found[name][0] - found[name][1]).abs() for name in tensors}
    difference: AffineDual = replace(layer, **(numbers | apart))
    return difference
