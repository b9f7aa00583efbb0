"""GRAPH -> DUAL LAYERS: the one registry of operations, and the dual layers that it builds for a captured network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autodual._errors import ArgumentError, CaptureError
from autodual.dual.base import AffineDual, DualNetwork, DualNode, ElementwiseDual, evaluate
from autodual.dual.products import BilinearDual
from autodual.graph import Call, Network, Operand
from autodual.graph.registry import Registry

REGISTRY = Registry()
"""The shipped dual layers, and yours."""
register = REGISTRY.register
rewrite = REGISTRY.rewrite


# How builders read the parameters of a call: constants only, and numbers only in the range that the dual layer is right for.

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


# The dual layer of every call, at today's parameters.


def build(network: Network, clean: Tensor | None = None, dtype: torch.dtype | None = None) -> DualNetwork:
    """Dual layers for today's parameters.

    clean: a training batch whose statistics batch normalisation may use. dtype: cast the captured graph's constants to it; what is
    bounded then is still the captured function, not what the model's code would compute in that dtype.
    """
    return _built(network, clean, dtype)[0]


def build_and_evaluate(network: Network, clean: Tensor) -> tuple[DualNetwork, Tensor]:
    """Dual layers for today's parameters, with the statistics of a training batch, and what they compute for it on the way."""
    dual, values = _built(network, clean, None)
    return dual, values[dual.output]


def _built(network: Network, clean: Tensor | None, dtype: torch.dtype | None) -> tuple[DualNetwork, list[Tensor]]:
    """Dual layers, and the value of every node for the clean batch, if there is one."""
    parameters = network.parameters_now(dtype)
    position: dict[int, int] = {}
    nodes: list[DualNode] = []
    values: list[Tensor] = []
    for index, node in enumerate(network.nodes):
        if not node.depends:
            continue
        position[index] = len(nodes)
        inputs = tuple(position[i] for i in node.refs if i in position)
        layer = None
        if node.target is not None:
            builder = network.registry.builder_of(node.target)  # type: ignore[arg-type]
            if builder is None:
                raise CaptureError(
                    f"{node.name}: has got a hook or another forward since it was captured; capture the model again"
                )
            operands = None if clean is None else tuple(values[i] for i in inputs)
            layer = builder(network.call(node, parameters, operands, dtype))
            if isinstance(layer, BilinearDual):
                inputs = (_join_operands(layer, node.name, inputs, nodes, values if clean is not None else None),)
                position[index] = len(nodes)
            if not isinstance(layer, AffineDual | ElementwiseDual):
                raise ArgumentError(
                    f"{node.name}: its builder returned {type(layer).__name__}, which is not a dual layer"
                )
        nodes.append(DualNode(node.name, layer, inputs, node.shape))
        if clean is not None:
            values.append(clean if layer is None else evaluate(layer, *(values[i] for i in inputs)))
    return DualNetwork(tuple(nodes), position[network.output], network.dtype), values


def _join_operands(
    layer: BilinearDual, name: str, inputs: tuple[int, ...], nodes: list[DualNode], values: list[Tensor] | None
) -> int:
    """Adds the node that puts the two operands of a product side by side; returns its place."""
    joining, shape = layer.joined()
    nodes.append(DualNode(f"{name}[operands]", joining, inputs, shape))
    if values is not None:
        values.append(evaluate(joining, *(values[i] for i in inputs)))
    return len(nodes) - 1


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
        if not bool(torch.stack([tensor.sum(dtype=torch.float64) for _, tensor in here]).isfinite().all()):
            return next((name for name, tensor in named if not bool(tensor.isfinite().all())), None)
    return None


# How far the constants of a network are from those that it computes in float32.

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
