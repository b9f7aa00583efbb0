"""Weights enter a model to the last bit, or not at all; checkpoints of any content are used or passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autodual import ArgumentError
from autodual._files import encode_tensors
from autodual.runs import checkpoint
from autodual.runs.checkpoint import Extra, Position, load_model, newest, restore, save

HELD = {
    "float16": (torch.float16, torch.float32),
    "bfloat16": (torch.bfloat16, torch.float32),
    "float8": (torch.float8_e5m2, torch.float32),
    "float32": (torch.float32, torch.float64),
}
ROUNDED = {"float64": (torch.float64, torch.float32), "float32": (torch.float32, torch.float16)}


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(dtype)


def weights(path: Path, dtype: torch.dtype, change: float = 0.0) -> dict[str, torch.Tensor]:
    tensors = {
        k: (v + change).to(dtype) if v.is_floating_point() else v
        for k, v in network(torch.float64).state_dict().items()
    }
    path.write_bytes(encode_tensors(tensors))
    return tensors


@pytest.mark.parametrize("name", HELD)
def test_a_wider_type_holds_weights_and_says_so(tmp_path: Path, name: str) -> None:
    given, own = HELD[name]
    tensors, model = weights(tmp_path / "w", given), network(own)
    with pytest.warns(UserWarning, match=rf"w: 6 of 7 tensors are of another type .*\(0.weight: {name}.*held exactly"):
        load_model(tmp_path / "w", model)
    assert all(torch.equal(v.double(), tensors[k].double()) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", ROUNDED)
def test_weights_are_never_rounded(tmp_path: Path, name: str) -> None:
    given, own = ROUNDED[name]
    weights(tmp_path / "w", given, 1e-3)
    model = network(own)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ArgumentError, match=rf"w: 0.weight is {name}, .*does not hold these values: rounded"):
        load_model(tmp_path / "w", model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("value", [1e300, 1e-320, 0.1, float(2**24 + 1)])
def test_one_value_is_enough(tmp_path: Path, value: float) -> None:
    tensors = {k: torch.zeros_like(v) for k, v in network(torch.float64).state_dict().items()}
    tensors["0.weight"][1, 2] = value
    (tmp_path / "w").write_bytes(encode_tensors(tensors))
    with pytest.raises(ArgumentError, match=r"0\.weight is float64"):
        load_model(tmp_path / "w", network(torch.float32))


OPTIMISERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), 0.01),
    "sgd with momentum": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
}


def _train(model: nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimiser.zero_grad()
        model(torch.rand(4, 3, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
def test_steps_after_a_checkpoint_are_those_without_one(
    tmp_path: Path, make: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    """To the last bit: weights, batch statistics and what the optimiser remembers."""
    model, again = network(torch.float32), network(torch.float32)
    optimiser, other = make(model), make(again)
    _train(model, optimiser, range(3))
    path = save(tmp_path, model, optimiser, Position(0, 1, 2, 3), Extra(("0x1p+0",)))
    assert restore(path, again, other) == (Position(0, 1, 2, 3), Extra(("0x1p+0",)))
    for one, its in ((model, optimiser), (again, other)):
        _train(one, its, range(3, 6))
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("file", ["model.safetensors", "optimiser.safetensors"])
def test_a_file_with_another_bit_is_passed_over(tmp_path: Path, file: str) -> None:
    model = network(torch.float32)
    optimiser = torch.optim.Adam(model.parameters())
    _train(model, optimiser, range(1))
    first, last = (save(tmp_path, model, optimiser, Position(step=step), Extra()) for step in (1, 2))
    content = bytearray((last / file).read_bytes())
    content[-1] ^= 1
    (last / file).write_bytes(content)
    assert newest(tmp_path) == (first, [f"{last.name}: {file} is damaged"])


STATES: dict[str, Any] = {
    "no record": [],
    "no position": {"position": None},
    "position": {"position": {"stage": "x"}},
    "negative": {"position": {"stage": -1, "epoch": 0, "batch": 0, "step": 0}},
    "other files": {"digests": {"../../x": "0" * 64}},
    "no digests": {"digests": 7},
    "no extra": {"extra": "x"},
    "no optimiser": {"optimiser": [1]},
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_another_form_is_passed_over(tmp_path: Path, name: str) -> None:
    model = network(torch.float32)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    first = save(tmp_path, model, optimiser, Position(step=1), Extra())
    last = save(tmp_path, model, optimiser, Position(step=2), Extra())
    record = json.loads((last / "state.json").read_text())
    del record["digest"]
    record = record | STATES[name] if isinstance(STATES[name], dict) else {"x": STATES[name]}
    (last / "state.json").write_text(json.dumps(record | {"digest": checkpoint._digest(record)}))
    assert newest(tmp_path) == (first, [f"{last.name}: state.json is damaged"])


def test_a_state_that_is_a_pipe_or_too_deep_is_passed_over(tmp_path: Path) -> None:
    model = network(torch.float32)
    path = save(tmp_path, model, torch.optim.SGD(model.parameters(), 0.1), Position(), Extra())
    (path / "state.json").write_text("[" * 10**6)
    found, damaged = newest(tmp_path)
    assert found is None
    assert "too deeply" in damaged[0]
