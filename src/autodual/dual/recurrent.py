"""Recurrent layers, written out step by step: their length is that of the captured input, so it is fixed.

What they return beside the outputs, the last states [layers, N, features], has its batch in the second place. The states of one layer
are taken from it, or the batch is moved to the front; all else that is done with it is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from autodual._errors import ArgumentError
from autodual.dual.base import rewrite
from autodual.graph import depends

LONGEST = 64
"""Steps that are written out. Every one of them adds the nodes of its gates, and bounds grow looser from step to step."""

State = tuple[Any, ...]
"""What a step hands on: h, and for an LSTM c."""
Step = Callable[[Any, State, Any, Any, Any, Any], State]


def _plain_step(activation: Callable[[Any], Any]) -> Step:
    def step(x: Any, state: State, w: Any, u: Any, b: Any, d: Any) -> State:
        return (activation(F.linear(x, w, b) + F.linear(state[0], u, d)),)

    return step


def _lstm_step(x: Any, state: State, w: Any, u: Any, b: Any, d: Any) -> State:
    """c = f c + i g, h = o tanh(c)."""
    h, c = state
    i, f, g, o = (F.linear(x, w, b) + F.linear(h, u, d)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(x: Any, state: State, w: Any, u: Any, b: Any, d: Any) -> State:
    """h = n + z (h - n), with n = tanh(W x + r * (U h + d))."""
    (h,) = state
    (a, e, g), (p, q, s) = F.linear(x, w, b).chunk(3, 1), F.linear(h, u, d).chunk(3, 1)
    r, z = torch.sigmoid(a + p), torch.sigmoid(e + q)
    n = torch.tanh(g + r * s)
    return (n + z * (h - n),)


def _unrolled(module: Any, input: Any, given: Any, step: Step, states: int) -> tuple[Any, list[Any]]:
    """The outputs of the last layer [N, T, features], and the last states, each [layers, N, features]."""
    m = module
    kind = type(m).__name__
    if not depends(input) or input.dim() != 3 or not m.batch_first or given is not None or getattr(m, "proj_size", 0):
        raise ArgumentError(
            f"{kind}: is written out step by step for a batch of sequences [N, T, features] (batch_first=True), from states of zero "
            f"and without projections; use it so, or write the recurrence as a loop"
        )
    if m.dropout and m.training:
        raise ArgumentError(
            f"{kind}: dropout between its layers is active, so the network is random; call model.eval()"
        )
    steps = input.shape[1]
    if steps > LONGEST:
        raise ArgumentError(
            f"{kind}: is written out step by step, and {steps} steps are more than {LONGEST}: bounds would be useless before they are "
            f"computed. Shorten the sequence, or use convolutions over time"
        )
    sequence: list[Any] = [input[:, t] for t in range(steps)]
    last: list[list[Any]] = [[] for _ in range(states)]
    for layer in range(m.num_layers):
        sides = []
        for way in range(2 if m.bidirectional else 1):
            suffix = f"l{layer}{'_reverse' if way else ''}"
            weights = [getattr(m, f"weight_{name}_{suffix}") for name in ("ih", "hh")]
            biases = [getattr(m, f"bias_{name}_{suffix}") if m.bias else None for name in ("ih", "hh")]
            zero = torch.zeros(input.shape[0], m.hidden_size, dtype=input.dtype, device=input.device)
            state: State = (zero,) * states
            outputs: list[Any] = []
            for x in sequence[::-1] if way else sequence:
                state = step(x, state, *weights, *biases)
                outputs.append(state[0])
            sides.append(outputs[::-1] if way else outputs)
            for found, value in zip(last, state, strict=True):
                found.append(value)
        sequence = sides[0] if len(sides) == 1 else [torch.cat(pair, 1) for pair in zip(*sides, strict=True)]
    return torch.stack(sequence, 1), last


_LAYERS = "states of each layer"


def _by_layer(states: list[Any]) -> Any:
    """Last states [layers, N, features], which know what they are made of."""
    stacked = torch.stack(states, 0)
    if isinstance(stacked, fx.Proxy):
        stacked.node.meta[_LAYERS] = states
    return stacked


def _layers_of(input: Any) -> list[Any] | None:
    return input.node.meta.get(_LAYERS) if isinstance(input, fx.Proxy) else None


@rewrite(operator.getitem, Tensor.__getitem__)
def _state_of_layer(input: Any, index: Any) -> Any:
    """h[-1], or h[-1, :, 2:]."""
    layers, (first, *others) = _layers_of(input), index if isinstance(index, tuple) else (index,)
    if layers is None or type(first) is not int or not -len(layers) <= first < len(layers):
        return NotImplemented
    return layers[first][tuple(others)] if others else layers[first]


@rewrite(torch.squeeze, Tensor.squeeze)
def _state_of_one_layer(input: Any, dim: Any = None) -> Any:
    layers = _layers_of(input)
    return (
        layers[0] if layers is not None and len(layers) == 1 and type(dim) is int and dim in (0, -3) else NotImplemented
    )


@rewrite(torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes)
def _states_by_example(input: Any, *dims: Any, **named: Any) -> Any:
    layers = _layers_of(input)
    return (
        torch.stack(layers, 1)
        if layers is not None and {d % 3 for d in (*dims, *named.values())} == {0, 1}
        else NotImplemented
    )


@rewrite(torch.permute, Tensor.permute)
def _states_by_example_permuted(input: Any, *given: Any, dims: Any = None) -> Any:
    layers, order = _layers_of(input), (given if len(given) > 1 else given[0]) if given else dims
    return torch.stack(layers, 1) if layers is not None and [d % 3 for d in order] == [1, 0, 2] else NotImplemented


@rewrite(nn.RNN)
def _rnn(module: Any, input: Any, hx: Any = None) -> Any:
    # `nonlinearity` is read by the constructor only.
    activation = torch.tanh if module.mode == "RNN_TANH" else torch.relu
    output, (h,) = _unrolled(module, input, hx, _plain_step(activation), 1)
    return output, _by_layer(h)


@rewrite(nn.LSTM)
def _lstm(module: Any, input: Any, hx: Any = None) -> Any:
    output, (h, c) = _unrolled(module, input, hx, _lstm_step, 2)
    return output, (_by_layer(h), _by_layer(c))


@rewrite(nn.GRU)
def _gru(module: Any, input: Any, hx: Any = None) -> Any:
    output, (h,) = _unrolled(module, input, hx, _gru_step, 1)
    return output, _by_layer(h)
