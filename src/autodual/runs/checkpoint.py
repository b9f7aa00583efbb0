"""Checkpoints: weights and optimiser as safetensors, everything else as JSON. Never pickled; whole, or passed over."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError
from autodual._files import digest, encode_tensors, load_tensors, read_json, replacing, write_bytes
from autodual.runs.records import parse, plain

KEPT = 2
"""Checkpoints that are kept: the last, and the one before in case the last is damaged."""


@dataclass(frozen=True)
class Position:
    """Where a run stands: after `step` steps of `stage`, `batch` of them in `epoch`."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        if min(self.stage, self.epoch, self.batch, self.step) < 0:
            raise ValueError("a position has no negative numbers")


@dataclass(frozen=True)
class Extra:
    """What the loop needs beside weights and optimiser to go on."""

    sums: tuple[str, ...] = ()
    """Sums over the epoch so far, as hexadecimal floats."""
    metrics: int = 0
    """Bytes of metrics.jsonl that were written before."""


WEIGHTS, STATE, RECORD = "model.safetensors", "optimiser.safetensors", "state.json"


@dataclass(frozen=True)
class State:
    """state.json: everything of a checkpoint that is no tensor."""

    position: Position
    optimiser: dict[str, Any]
    """The numbers among the optimiser's state."""
    extra: Extra
    digests: dict[str, str]
    """SHA-256 of the two files of tensors."""

    def __post_init__(self) -> None:
        if self.digests.keys() != {WEIGHTS, STATE}:
            raise ValueError("a checkpoint has two files of tensors")


def save_model(path: Path, model: nn.Module) -> None:
    write_bytes(path, encode_tensors(_state(model)))


def encode_half(model: nn.Module) -> bytes:
    """The model's safetensors file with parameters as float16, which must hold them exactly (`round_to_half_`). Buffers stay."""
    tensors = _state(model)
    for name, _ in model.named_parameters(remove_duplicate=False):
        if not _held(tensors[name], torch.float16):
            raise ArgumentError(f"{name}: has values that float16 does not hold; round the weights first")
        tensors[name] = tensors[name].half()
    return encode_tensors(tensors)


def round_to_half_(model: nn.Module) -> None:
    """Rounds every parameter to the nearest values that float16 holds; its own type stays. Buffers are not rounded: statistics of
    images are no trained weights."""
    for name, parameter in model.named_parameters():
        rounded = parameter.detach().half()
        if not bool(rounded.isfinite().all()):
            largest = parameter.detach().abs().max().item()
            raise AutodualError(
                f"{name}: has values up to {largest:g}, which float16 does not hold; train with half_weights off, or with weight decay"
            )
        with torch.no_grad():
            parameter.copy_(rounded)


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all tensors: weights that are tied share their memory, which the file format refuses."""
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in model.state_dict().items()}


def load_model(path: Path, model: nn.Module, expect_half: bool = False) -> None:
    """Loads the weights of a safetensors file into a model that they fit, to the last bit.

    Warns of weights of another type, unless they are expected to be half as wide, as `encode_half` writes them.
    """
    tensors = load_tensors(path)
    expected = model.state_dict()
    wrong = [
        k
        for k in {*tensors, *expected}
        if k not in tensors or k not in expected or tensors[k].shape != expected[k].shape
    ]
    if wrong:
        raise ArgumentError(f"{path}: these weights are for another network; {sorted(wrong)[0]} does not fit")
    _check_types(path, tensors, expected, warn=not expect_half)
    model.load_state_dict(tensors)


def _check_types(path: Path, tensors: dict[str, Tensor], expected: dict[str, Tensor], warn: bool) -> None:
    """Refuse weights that the model's types cannot hold: rounded, they are those of another network."""
    other = [k for k in expected if tensors[k].dtype != expected[k].dtype]
    for name in other:
        own = expected[name].dtype
        if not _held(tensors[name], own):
            given = tensors[name]
            raise ArgumentError(
                f"{path}: {name} is {_type(given.dtype)}, and the model computes in {_type(own)}, which does not hold these values: "
                f"rounded, they would be another network. Save the weights of model.to(torch.{_type(own)}), and certify those"
            )
    if other and warn:
        name = other[0]
        warnings.warn(
            f"{path}: {len(other)} of {len(expected)} tensors are of another type than the model's ({name}: "
            f"{_type(tensors[name].dtype)}, here {_type(expected[name].dtype)}); all their values are held exactly",
            stacklevel=3,
        )


def _held(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether this type holds all values of the tensor."""
    if tensor.is_complex() != dtype.is_complex:
        return False
    back = tensor.to(dtype).to(tensor.dtype)
    one, other = (t.double() if t.is_floating_point() else t for t in (tensor, back))
    return bool(((one == other) | (one != one) & (other != other)).all())


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def save(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, position: Position, extra: Extra) -> Path:
    """Writes a checkpoint into `folder`. Older ones beyond the kept number go, and newer ones, which were passed over as damaged."""
    target = folder / f"stage-{position.stage:02d}-step-{position.step:09d}"
    state, numbers = _flat(optimiser)
    with replacing(target) as temporary:
        temporary.mkdir()
        (temporary / WEIGHTS).write_bytes(encode_tensors(_state(model)))
        (temporary / STATE).write_bytes(encode_tensors(state))
        digests = {f.name: digest(f) for f in temporary.iterdir()}
        record = plain(State(position, numbers, extra, digests))
        record["digest"] = _digest(record)
        (temporary / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    there = listed(folder)
    last = there.index(target) + 1
    for useless in there[: max(0, last - KEPT)] + there[last:]:
        shutil.rmtree(useless, ignore_errors=True)
    return target


def listed(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(p for p in folder.glob("stage-*-step-*") if re.fullmatch(r"stage-\d+-step-\d+", p.name))


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with newer ones."""
    damaged: list[str] = []
    for path in reversed(listed(folder)):
        fault = _fault(path)
        if fault is None:
            return path, damaged
        damaged.append(f"{path.name}: {fault}")
    return None, damaged


def _fault(path: Path) -> str | None:
    try:
        state = read_state(path)
        if state is None:
            return f"{RECORD} is damaged"
        for name, expected in state.digests.items():
            if digest(path / name) != expected:
                return f"{name} is damaged"
    except (OSError, ValueError) as error:
        return f"unreadable: {error}"
    return None


def read_state(path: Path) -> State | None:
    """What the record of a checkpoint says; None if it is damaged."""
    record = read_json(path / RECORD)
    if not isinstance(record, dict) or record.pop("digest", None) != _digest(record):
        return None
    try:
        return parse(State, record)
    except ValueError:
        return None


def _digest(record: dict[str, Any]) -> str:
    """SHA-256 of a record's content, however JSON lays it out."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def restore(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[Position, Extra]:
    """Loads a whole checkpoint, as `newest` finds it."""
    state = read_state(path)
    assert state is not None
    load_model(path / WEIGHTS, model)
    _unflatten(optimiser, load_tensors(path / STATE), state.optimiser)
    return state.position, state.extra


def _flat(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimiser as named tensors, and the numbers among it."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous()
            else:
                numbers[f"{index}.{name}"] = value
    return tensors, numbers


def _unflatten(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    whole = optimiser.state_dict()
    state: dict[int, dict[str, Any]] = {}
    for key, value in (*tensors.items(), *numbers.items()):
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
