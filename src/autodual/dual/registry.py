"""The one registry of operations, and how builders read the parameters of a call."""

from __future__ import annotations

import math
from typing import Any

from autodual._errors import ArgumentError
from autodual.graph import Call, Operand
from autodual.graph.registry import Registry

# The registry that the shipped dual layers, and yours, are in.

REGISTRY = Registry()
register = REGISTRY.register
rewrite = REGISTRY.rewrite


# How builders read the parameters of a call: constants only, and numbers only in the range that the dual layer is right for.

REQUIRED = object()


def parameter(call: Call, position: int, name: str, default: Any = REQUIRED) -> Any:
    """An argument that must not depend on the network's input."""
    value = call.argument(position, name) if default is REQUIRED else call.argument(position, name, default)
    if isinstance(value, Operand):
        raise ArgumentError(
            f"{call.path}: its argument {name!r} depends on the network's input, and a dual layer takes a constant there. Make "
            f"it a parameter or a buffer of the model, or write the operation with sums, torch.maximum and torch.minimum"
        )
    return value


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
