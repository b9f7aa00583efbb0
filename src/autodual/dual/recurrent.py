"""Recurrent layers, written out step by step: their length is that of the captured input, so it is fixed.

What they return beside the outputs, the last states [layers, N, features], has its batch in the second place, so that it is refused
where it is used: the last output, output[:, -1], is the last layer's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autodual._errors import ArgumentError
from autodual.dual.building import rewrite
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


@rewrite(nn.RNN)
def _rnn(module: Any, input: Any, hx: Any = None) -> Any:
    activation = (
        torch.tanh if module.mode == "RNN_TANH" else torch.relu
    )  # `nonlinearity` is read by the constructor only
    output, (h,) = _unrolled(module, input, hx, _plain_step(activation), 1)
    return output, torch.stack(h, 0)


@rewrite(nn.LSTM)
def _lstm(module: Any, input: Any, hx: Any = None) -> Any:
    output, (h, c) = _unrolled(module, input, hx, _lstm_step, 2)
    return output, (torch.stack(h, 0), torch.stack(c, 0))


@rewrite(nn.GRU)
def _gru(module: Any, input: Any, hx: Any = None) -> Any:
    output, (h,) = _unrolled(module, input, hx, _gru_step, 1)
    return output, torch.stack(h, 0)
