"""Several models as one folder: weights as safetensors, everything else as JSON. Nothing in it is executed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._files import decode_tensors, encode_tensors, read_json, read_weights, replacing, to_json
from autodual.cascades.search import NORMS
from autodual.engines import IBP, BoundEngine, Crown, Dual, ForwardDual
from autodual.sets import LinfBall, Perturbation

Json: TypeAlias = Any
RECORD = "stages.json"
FORMAT, VERSION = "autodual combination", 1
SAVED_ENGINES: dict[str, type[BoundEngine]] = {e.__name__: e for e in (Dual, Crown, IBP, ForwardDual)}
"""The engines whose bounds are proofs."""


@dataclass(frozen=True)
class Saved:
    """What `stages.json` says, checked."""

    folder: Path
    record: dict[str, Json]
    ball: Perturbation
    engine: BoundEngine

    @property
    def digests(self) -> list[str]:
        """SHA-256 of the weights of every stage."""
        return list(self.record["sha256"])

    def thresholds(self) -> list[float]:
        values = self.record.get("thresholds")
        if not isinstance(values, list):
            raise ArgumentError(f"{self.folder / RECORD}: thresholds must be a list, got {values!r}")
        return [math.inf if v is None else v for v in values]


def save(
    folder: Path,
    kind: str,
    models: tuple[nn.Module, ...],
    ball: Perturbation,
    engine: BoundEngine,
    options: dict[str, Json],
) -> None:
    """Replaces what the folder held before, once all is written; the record last, whose checksums tell a half-replaced folder."""
    record = {"format": FORMAT, "version": VERSION, "kind": kind, "stages": len(models)}
    record |= {"ball": _ball_record(ball), "engine": _engine_record(engine)} | options
    contents = [encode_tensors(_weights(model, j)) for j, model in enumerate(models)]
    record["sha256"] = [hashlib.sha256(content).hexdigest() for content in contents]
    files = {RECORD: to_json(record).encode()}  # the first to enter the stack, so the last to be moved to its place
    files |= {f"stage-{j}.safetensors": content for j, content in enumerate(contents)}
    with ExitStack() as stack:
        places = [stack.enter_context(replacing(folder / name)) for name in files]
        for place, content in zip(places, files.values(), strict=True):
            place.write_bytes(content)


def read(folder: Path, kind: str) -> Saved:
    """The record of a folder that holds a combination of this kind."""
    place = folder / RECORD
    record = record_of(folder)
    if record.get("kind") != kind:
        raise ArgumentError(f"{place}: holds a combination of the kind {record.get('kind')!r}, not {kind!r}")
    stages, digests = record.get("stages"), record.get("sha256")
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1:
        raise ArgumentError(f"{place}: stages must be a whole number, at least 1, got {stages!r}")
    if not isinstance(digests, list) or len(digests) != stages or not all(isinstance(d, str) for d in digests):
        raise ArgumentError(f"{place}: sha256 must list one checksum for each of the {stages} stages")
    try:
        return Saved(folder, record, _ball_of(record.get("ball")), _engine_of(record.get("engine")))
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"{place}: {error}") from None


def record_of(folder: Path) -> dict[str, Json]:
    place = folder / RECORD
    record = read_json(place)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ArgumentError(f"{place}: does not describe a combination of models that autodual has saved")
    if record.get("version") != VERSION:
        raise ArgumentError(f"{place}: has version {record.get('version')!r}; this autodual reads version {VERSION}")
    return record


def load_models(saved: Saved, build: Callable[[int], nn.Module]) -> list[nn.Module]:
    """Modules from `build` with the weights of the folder, in evaluation mode."""
    models = []
    for j, digest in enumerate(saved.digests):
        place = saved.folder / f"stage-{j}.safetensors"
        content = read_weights(place)
        if hashlib.sha256(content).hexdigest() != digest:
            raise ArgumentError(f"{place}: is damaged or was exchanged: its checksum is not the one in {RECORD}")
        model = build(j)
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"build({j}) must return a torch.nn.Module, got {type(model).__name__}")
        models.append(_fill(model, decode_tensors(content, place), j, place).eval())
    return models


def _fill(model: nn.Module, weights: dict[str, Tensor], stage: int, place: Path) -> nn.Module:
    for name, tensor in model.state_dict().items():
        if name in weights and weights[name].dtype != tensor.dtype:
            raise ArgumentError(
                f"{place}: {name} was saved as {weights[name].dtype}, but build({stage}) has it as {tensor.dtype}"
            )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ArgumentError(f"{place}: does not fit the module that build({stage}) returned: {error}") from None
    return model


def _weights(model: nn.Module, stage: int) -> dict[str, Tensor]:
    weights = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ArgumentError(f"stage {stage}: {name} is a {type(value).__name__}; only tensors can be saved")
        weights[name] = (
            value.detach().cpu().clone(memory_format=torch.contiguous_format)
        )  # shared ones are written twice
    return weights


def _ball_record(ball: Perturbation) -> dict[str, Json]:
    if type(ball) not in NORMS:
        raise ArgumentError(f"{type(ball).__name__} cannot be saved; LinfBall, L2Ball and L1Ball can")
    record: dict[str, Json] = {"norm": NORMS[type(ball)][0], "eps": float(ball.eps)}
    return record | {"clip": None if ball.clip is None else list(ball.clip)} if isinstance(ball, LinfBall) else record


def _ball_of(record: Json) -> Perturbation:
    kinds = {name: kind for kind, (name, _) in NORMS.items()}
    if not isinstance(record, dict) or record.get("norm") not in kinds:
        raise ArgumentError(f"ball must have a norm out of {', '.join(kinds)}, got {record!r}")
    options = {name: value for name, value in record.items() if name != "norm"}
    if options.get("clip") is not None:
        options["clip"] = tuple(float(end) for end in options["clip"])
    return kinds[record["norm"]](**options)


def _engine_record(engine: BoundEngine) -> dict[str, Json]:
    name = type(engine).__name__
    if SAVED_ENGINES.get(name) is not type(engine):
        raise ArgumentError(f"engine {engine!r} cannot be saved; {', '.join(SAVED_ENGINES)} can")
    options = {f.name: getattr(engine, f.name) for f in fields(engine)}  # type: ignore[arg-type]
    nested = {k: _engine_record(v) if isinstance(v, BoundEngine) else v for k, v in options.items()}
    return {"name": name, "options": nested}


def _engine_of(record: Json) -> BoundEngine:
    if (
        not isinstance(record, dict)
        or record.get("name") not in SAVED_ENGINES
        or not isinstance(record.get("options"), dict)
    ):
        raise ArgumentError(f"engine must have a name out of {', '.join(SAVED_ENGINES)} and options, got {record!r}")
    options = {k: _engine_of(v) if isinstance(v, dict) else v for k, v in record["options"].items()}
    return SAVED_ENGINES[record["name"]](**options)
