"""Weights, and checkpoints: tensors as safetensors, everything else as JSON. Never written as pickle; whole, or passed over."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError
from autodual._files import (
    check_plain,
    digest,
    encode_tensors,
    in_one_line,
    load_tensors,
    read_json,
    replacing,
    write_bytes,
)
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
AVERAGE = "average.safetensors"
"""Averaged weights, of runs that average."""


@dataclass(frozen=True)
class CheckpointState:
    """state.json: everything of a checkpoint that is no tensor."""

    position: Position
    optimiser: dict[str, Any]
    """The numbers among the optimiser's state."""
    extra: Extra
    digests: dict[str, str]
    """SHA-256 of the files of tensors."""

    def __post_init__(self) -> None:
        if self.digests.keys() - {AVERAGE} != {WEIGHTS, STATE}:
            raise ValueError("a checkpoint has two files of tensors, or three")


# Weights alone.


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
    """Copies of all tensors on the CPU. Tied weights share their memory, which the file format refuses."""
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in model.state_dict().items()}


def load_model(path: Path, model: nn.Module, expect_half: bool = False) -> None:
    """Loads the weights of a safetensors file, or of a state dictionary as .pt, into a model that they fit, to the last bit.

    Names that begin with the prefix of a wrapper, such as DataParallel's, lose it, with a warning. Refuses weights that the model's
    types cannot hold. Warns of weights of another type that they do hold, unless these are expected to be half as wide, as
    `encode_half` writes them.
    """
    expected = model.state_dict()
    tensors = _unwrapped(path, read_tensors(path), expected)
    shapes, own_shapes = ({name: each.shape for name, each in found.items()} for found in (tensors, expected))
    wrong = sorted(name for name in {*tensors, *expected} if shapes.get(name) != own_shapes.get(name))
    if wrong:
        given, own = (_shape_in_words(each.get(wrong[0])) for each in (shapes, own_shapes))
        raise ArgumentError(
            f"{path}: these weights are for another network; {wrong[0]} does not fit: the file has {given}, the model {own}"
        )
    other = [name for name in expected if tensors[name].dtype != expected[name].dtype]
    types = {name: [str(each[name].dtype).removeprefix("torch.") for each in (tensors, expected)] for name in other}
    for name, (given, own) in types.items():
        if not _held(tensors[name], expected[name].dtype):
            raise ArgumentError(
                f"{path}: {name} is {given}, and the model computes in {own}, which does not hold these values: "
                f"rounded, they would be another network. Save the weights of model.to(torch.{own}), and certify those"
            )
    if other and not expect_half:
        given, own = types[other[0]]
        warnings.warn(
            f"{path}: {len(other)} of {len(expected)} tensors are of another type than the model's ({other[0]}: "
            f"{given}, here {own}); all their values are held exactly",
            stacklevel=2,
        )
    model.load_state_dict(tensors)


def _shape_in_words(shape: Sequence[int] | None) -> str:
    return "none of that name" if shape is None else str(list(shape))


def _unwrapped(path: Path, tensors: dict[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """The tensors without the prefix that a wrapper of PyTorch has put before all names, if the model's own names stand behind it."""
    own = set(expected)
    for prefix in ("module.", "_orig_mod.", "model."):
        if own and tensors.keys() == {f"{prefix}{name}" for name in own}:
            warnings.warn(
                f"{path}: all names begin with {prefix!r}, as a wrapper writes them; read without it", stacklevel=3
            )
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


PYTORCH_FILES = (".pt", ".pth", ".bin")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name: safetensors, or what torch.save(model.state_dict(), path) wrote. Nothing else is unpickled.

    Of a checkpoint, such as {"epoch": 3, "model": ..., "optimizer": ...}, the one entry that is a state dictionary, with a warning.
    """
    if path.suffix not in PYTORCH_FILES:
        return load_tensors(path)
    with in_one_line(path, "cannot be read"):
        check_plain(path)
    advice = "save torch.save(model.state_dict(), path), or safetensors"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the file asks for, which is refused below
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ArgumentError(
            f"{path}: holds more than weights, which only running it could tell, so it is not opened; {advice}"
        ) from None
    except Exception as error:  # a damaged file makes PyTorch and zipfile raise errors of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(f"{path}: cannot be read as weights of PyTorch ({reason[:200]}); {advice}") from None
    inside = [k for k, v in found.items() if _is_state(v) and v] if isinstance(found, dict) else []
    if len(inside) > 1:
        raise ArgumentError(
            f"{path}: holds more than one state dictionary ({', '.join(map(str, inside))[:200]}); save the one that you mean: "
            f"torch.save(torch.load(path, weights_only=True)[{inside[0]!r}], 'weights.pt')"
        )
    if inside:
        warnings.warn(f"{path}: is a checkpoint; its weights are taken from the entry {inside[0]!r}", stacklevel=2)
        found = found[inside[0]]
    if not _is_state(found):
        held = (
            f"a {type(found).__name__}"
            if not isinstance(found, dict)
            else f"the entries {', '.join(map(str, found))[:200]}"
        )
        raise ArgumentError(f"{path}: holds {held}, not a state dictionary of tensors by name; {advice}")
    odd = next((name for name, tensor in found.items() if tensor.layout != torch.strided or tensor.is_quantized), None)
    if odd is not None:
        raise ArgumentError(
            f"{path}: {odd} is a sparse or quantised tensor; save it as an ordinary one, as by .to_dense()"
        )
    return {name: tensor.detach() for name, tensor in found.items()}


def _is_state(found: Any) -> bool:
    """Whether this is a state dictionary: tensors by name."""
    return isinstance(found, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items())


def _held(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether this type holds all values of the tensor."""
    if tensor.is_complex() != dtype.is_complex:
        return False
    back = tensor.to(dtype).to(tensor.dtype)
    one, other = (t.double() if t.is_floating_point() else t for t in (tensor, back))
    return bool(((one == other) | (one != one) & (other != other)).all())


# Checkpoints: folders of weights, optimiser and everything else.


def save(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, position: Position, extra: Extra,
    average: Mapping[str, Tensor] | None = None,
) -> Path:  # fmt: skip
    """Writes a checkpoint into `folder`. Older ones beyond the kept number go, and newer ones, which were passed over as damaged."""
    target = folder / f"stage-{position.stage:02d}-step-{position.step:09d}"
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, values in optimiser.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous()
            else:
                numbers[f"{index}.{name}"] = value
    with replacing(target) as temporary:
        temporary.mkdir()
        (temporary / WEIGHTS).write_bytes(encode_tensors(_state(model)))
        (temporary / STATE).write_bytes(encode_tensors(tensors))
        if average is not None:
            there = {name: value.detach().cpu().contiguous() for name, value in average.items()}
            (temporary / AVERAGE).write_bytes(encode_tensors(there))
        digests = {f.name: digest(f) for f in temporary.iterdir()}
        record = plain(CheckpointState(position, numbers, extra, digests))
        record["digest"] = _digest(record)
        (temporary / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    kept = listed(folder)
    last = kept.index(target) + 1
    for useless in kept[: max(0, last - KEPT)] + kept[last:]:
        shutil.rmtree(useless, ignore_errors=True)
    return target


def listed(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(p for p in folder.glob("stage-*-step-*") if re.fullmatch(r"stage-\d+-step-\d+", p.name))


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with newer ones."""
    damaged: list[str] = []
    for path in reversed(listed(folder)):
        try:
            state = read_state(path)
            parts = (
                [RECORD] if state is None else [f for f, known in state.digests.items() if digest(path / f) != known]
            )
            fault = f"{parts[0]} is damaged" if parts else ""
        except (OSError, ValueError) as error:
            fault = f"unreadable: {error}"
        if not fault:
            return path, damaged
        damaged.append(f"{path.name}: {fault}")
    return None, damaged


def read_state(path: Path) -> CheckpointState | None:
    """What the record of a checkpoint says; None if it is damaged."""
    record = read_json(path / RECORD)
    if not isinstance(record, dict) or record.pop("digest", None) != _digest(record):
        return None
    try:
        return parse(CheckpointState, record)
    except ValueError:
        return None


def _digest(record: dict[str, Any]) -> str:
    """SHA-256 of a record's content, however JSON lays it out."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_average(path: Path) -> dict[str, Tensor]:
    """The averaged weights of a whole checkpoint."""
    return load_tensors(path / AVERAGE)


def restore(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[Position, Extra]:
    """Loads a whole checkpoint, as `newest` finds it."""
    record = read_state(path)
    assert record is not None
    load_model(path / WEIGHTS, model)
    state: dict[int, dict[str, Any]] = {}
    for key, value in (*load_tensors(path / STATE).items(), *record.optimiser.items()):
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return record.position, record.extra
