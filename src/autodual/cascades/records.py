"""What is kept of several models: their answers, what is proved and was found about them, and the models themselves as a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._files import decode_tensors, encode_tensors, read_json, read_weights, replacing, to_json
from autodual.certificates.certificate import collapse
from autodual.engines import IBP, AlphaCrown, BoundEngine, Crown, Dual, ForwardDual
from autodual.sets import L1Ball, L2Ball, LinfBall, Perturbation


@dataclass(frozen=True)
class Answers:
    """One answer per input, [N] each."""

    label: Tensor
    certified: Tensor
    """bool. Paper's cascade: the answering *stage* gives this label everywhere in the ball around the received input. Routed
    cascade and sum: *all models together* do."""
    stage: Tensor
    """Which stage answers, counted from 0; always 0 for a sum, which answers as one."""

    def at(self, index: Tensor | slice) -> Answers:
        return Answers(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Answers]) -> Answers:
        """The answers of several batches, in order."""
        if len(parts) == 0:
            raise ArgumentError("join: needs at least one part")
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    def put(self, index: Tensor, other: Answers) -> Answers:
        """Replaces the answers at the places `index` by `other`."""
        return Answers(*(getattr(self, f.name).index_copy(0, index, getattr(other, f.name)) for f in fields(self)))


@dataclass(frozen=True)
class CascadeAttack:
    """The worst inputs found: inside the ball, and answered again from scratch before they count."""

    examples: Tensor
    """[N, *shape]: the clean input where nothing worse was found."""
    labels: Tensor
    answers: Answers
    """What the models together answer at `examples`."""

    @property
    def found(self) -> Tensor:
        """[N] bool: the answer there is wrong, with or without a certificate."""
        return self.answers.label != self.labels

    @property
    def certified_wrong(self) -> Tensor:
        """[N] bool: the answer there is wrong *and* comes with a certificate."""
        return self.found & self.answers.certified

    @property
    def error(self) -> float:
        """Fraction of the examples that get a wrong answer somewhere in their ball: a lower bound on the true robust error."""
        return _mean(self.found)

    @classmethod
    def join(cls, parts: Sequence[CascadeAttack]) -> CascadeAttack:
        """The record of several batches, in order."""
        answers = Answers.join([p.answers for p in parts])
        return cls(torch.cat([p.examples for p in parts]), torch.cat([p.labels for p in parts]), answers)

    def worse(self, some: Tensor, points: Tensor, answers: Answers) -> CascadeAttack:
        """Takes over the points of some examples that are worse than its own: answered wrongly, or wrongly with a certificate."""
        found = CascadeAttack(points, self.labels[some], answers)
        now, before = (a.found.long() + a.certified_wrong.long() for a in (found, self))
        chosen = now > before[some]
        index = some[chosen]
        examples = self.examples.index_copy(0, index, points[chosen])
        return CascadeAttack(examples, self.labels, self.answers.put(index, answers.at(chosen)))


@dataclass(frozen=True)
class CascadeCertificate:
    """What several models answer to clean inputs, and what is proved about the balls around these."""

    kind: str
    """paper, routed or sum."""
    stages: int
    """Stages that answer one by one; 1 for a sum."""
    labels: Tensor
    answers: Answers
    sound: Tensor
    """[N] bool: proved that every input of the ball is answered with the label."""
    sound_as_run: Tensor
    """[N] bool: proved for the models as they run in their own dtype, too."""
    no_wrong_certificate: Tensor
    """[N] bool: proved that no input of the ball is given a wrong label with a certificate."""
    perturbation: str
    engine: str

    @property
    def error(self) -> float:
        """Fraction of the clean inputs that get a wrong answer."""
        return _mean(self.answers.label != self.labels)

    @property
    def claimed(self) -> Tensor:
        """[N] bool: the answer is right, and certified by whoever gives it. For the paper's cascade that proves nothing about
        the cascade: see `sound`."""
        return (self.answers.label == self.labels) & self.answers.certified

    @property
    def stage_certified_error(self) -> float:
        """Fraction that is not `claimed`: the paper's robust error of a cascade. For routed cascades and sums the claim is
        sound, so this equals `sound_certified_error`."""
        return 1.0 - _mean(self.claimed)

    @property
    def sound_certified_error(self) -> float:
        """Fraction not proved to be answered rightly everywhere in the ball: an upper bound on the error under any attack."""
        return 1.0 - _mean(self.sound)

    @property
    def sound_certified_error_as_run(self) -> float:
        """`sound_certified_error` for the models as they run, in their own dtype."""
        return 1.0 - _mean(self.sound_as_run)

    @property
    def collapsed(self) -> str | None:
        """A sentence about a cascade that gives one answer for everything; None for any other."""
        return collapse(self.answers.label.tolist(), self.labels.tolist())

    def by_stage(self) -> list[dict[str, int]]:
        """Counts, for each stage: its answers, and how many are certified, correct, certified and correct, certified and wrong."""
        right, certified = self.answers.label == self.labels, self.answers.certified
        rows = []
        for stage in range(self.stages):
            own = self.answers.stage == stage
            counts = {
                "answers": own,
                "certified": own & certified,
                "correct": own & right,
                "certified_correct": own & certified & right,
                "certified_wrong": own & certified & ~right,
            }
            rows.append({"stage": stage, **{name: int(flags.sum()) for name, flags in counts.items()}})
        return rows

    def summary(self, attack: CascadeAttack | None = None) -> dict[str, Any]:
        """The numbers of `cascade.json`; with those of an attack on the same examples if it is given."""
        numbers: dict[str, Any] = {
            "kind": self.kind,
            "perturbation": self.perturbation,
            "engine": self.engine,
            "examples": len(self.labels),
            "stages": self.by_stage(),
            **self._errors(),
            "no_wrong_certificate": _mean(self.no_wrong_certificate),
            "collapsed": self.collapsed,
        }
        return numbers if attack is None else numbers | self.beside(attack)

    def beside(self, attack: CascadeAttack) -> dict[str, Any]:
        """What an attack on these examples found, and what was claimed and proved about the same ones."""
        if not torch.equal(attack.labels, self.labels):
            raise ArgumentError("attack: was made on other examples than this certificate")
        return {
            "attacked_examples": len(attack.labels),
            "attacked_error": attack.error,
            "attacked_certified_error": _mean(attack.certified_wrong),
            "broken_claims": int((self.claimed & attack.found).sum()),
            "broken_proofs": int((self.sound_as_run & attack.found).sum()),
            "on_attacked": self._errors(),
        }

    def _errors(self) -> dict[str, float]:
        names = ("error", "stage_certified_error", "sound_certified_error", "sound_certified_error_as_run")
        return {name: getattr(self, name) for name in names}

    def to_json(self, attack: CascadeAttack | None = None) -> str:
        """The summary, and every example."""
        lists = {
            "labels": self.labels,
            "predicted": self.answers.label,
            "certified": self.answers.certified,
            "stage": self.answers.stage,
            "sound": self.sound,
            "sound_as_run": self.sound_as_run,
        }
        if attack is not None:
            lists |= {"attacked": attack.found, "attacked_certified": attack.certified_wrong}
        numbers = self.summary(attack) | {name: values.tolist() for name, values in lists.items()}
        return json.dumps(numbers, allow_nan=False)

    def take(self, count: int) -> CascadeCertificate:
        """The certificate of the first examples."""
        cut: dict[str, Any] = {name: getattr(self, name)[:count] for name in _PER_EXAMPLE}
        return replace(self, answers=self.answers.at(slice(count)), **cut)

    @classmethod
    def join(cls, parts: Sequence[CascadeCertificate]) -> CascadeCertificate:
        """The certificate of several batches, in order."""
        answers = Answers.join([p.answers for p in parts])
        same = {(p.kind, p.stages, p.perturbation, p.engine) for p in parts}
        if len(same) > 1:
            raise ArgumentError(f"join: these certificates are not about one combination: {sorted(map(str, same))}")
        joined: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in _PER_EXAMPLE}
        return replace(parts[0], answers=answers, **joined)


_PER_EXAMPLE = ("labels", "sound", "sound_as_run", "no_wrong_certificate")


def _mean(flags: Tensor) -> float:
    return flags.double().mean().item()


# Several models as one folder: weights as safetensors, everything else as JSON. Nothing in it is executed.

Json: TypeAlias = Any
RECORD = "stages.json"
FORMAT, VERSION = "autodual combination", 1
SAVED_ENGINES: dict[str, type[BoundEngine]] = {e.__name__: e for e in (Dual, Crown, AlphaCrown, IBP, ForwardDual)}
"""The engines whose bounds are proofs."""
NORMS: dict[type[Perturbation], str] = {LinfBall: "linf", L2Ball: "l2", L1Ball: "l1"}
"""The balls of a norm, and the norm's name."""


def save(folder: Path, models: tuple[nn.Module, ...], ball: Perturbation, engine: BoundEngine, **more: Json) -> None:
    """Writes the folder. The record is replaced last: its checksums tell a folder that was replaced by half."""
    record = {"format": FORMAT, "version": VERSION, "stages": len(models)} | more
    record |= {"ball": _ball_record(ball), "engine": _engine_record(engine)}
    contents = [encode_tensors(_weights(model, j)) for j, model in enumerate(models)]
    record["sha256"] = [hashlib.sha256(content).hexdigest() for content in contents]
    files = {RECORD: to_json(record).encode()}  # the first to enter the stack, so the last to be moved to its place
    files |= {f"stage-{j}.safetensors": content for j, content in enumerate(contents)}
    with ExitStack() as stack:
        places = [stack.enter_context(replacing(folder / name)) for name in files]
        for place, content in zip(places, files.values(), strict=True):
            place.write_bytes(content)


@dataclass(frozen=True)
class Saved:
    """The checked record of a folder, `stages.json`."""

    folder: Path
    record: dict[str, Json]
    ball: Perturbation
    engine: BoundEngine

    @classmethod
    def read(cls, folder: Path, kind: str) -> Saved:
        """The record of a folder that holds a combination of this kind."""
        place, record = read_record(folder)
        if record.get("kind") != kind:
            raise ArgumentError(f"{place}: holds a combination of the kind {record.get('kind')!r}, not {kind!r}")
        stages, digests = record.get("stages"), record.get("sha256")
        if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1:
            raise ArgumentError(f"{place}: stages must be a whole number, at least 1, got {stages!r}")
        if not isinstance(digests, list) or len(digests) != stages or not all(isinstance(d, str) for d in digests):
            raise ArgumentError(f"{place}: sha256 must list one checksum for each of the {stages} stages")
        try:
            return cls(folder, record, _ball_of(record.get("ball")), _engine_of(record.get("engine")))
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"{place}: {error}") from None

    def models(self, build: Callable[[int], nn.Module]) -> list[nn.Module]:
        """Modules from `build` with the weights of the folder, in evaluation mode."""
        models = []
        for j, digest in enumerate(self.record["sha256"]):
            place = self.folder / f"stage-{j}.safetensors"
            content = read_weights(place)
            if hashlib.sha256(content).hexdigest() != digest:
                raise ArgumentError(f"{place}: is damaged or was exchanged: its checksum is not the one in {RECORD}")
            model = build(j)
            if not isinstance(model, nn.Module):
                raise ArgumentError(f"build({j}) must return a torch.nn.Module, got {type(model).__name__}")
            models.append(_fill(model, decode_tensors(content, place), j, place).eval())
        return models


def read_record(folder: Path) -> tuple[Path, dict[str, Json]]:
    """The file that describes a folder, and what it says."""
    place = folder / RECORD
    record = read_json(place)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ArgumentError(f"{place}: does not describe a combination of models that autodual has saved")
    if record.get("version") != VERSION:
        raise ArgumentError(f"{place}: has version {record.get('version')!r}; this autodual reads version {VERSION}")
    return place, record


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
        # Tensors that are shared are written twice.
        weights[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return weights


def _ball_record(ball: Perturbation) -> dict[str, Json]:
    if type(ball) not in NORMS:
        raise ArgumentError(f"{type(ball).__name__} cannot be saved; LinfBall, L2Ball and L1Ball can")
    if isinstance(ball, LinfBall) and ball.scale is not None:
        raise ArgumentError("a LinfBall with a scale for each feature cannot be saved; one without can")
    record: dict[str, Json] = {"norm": NORMS[type(ball)], "eps": float(ball.eps)}
    return record | {"clip": None if ball.clip is None else list(ball.clip)} if isinstance(ball, LinfBall) else record


def _ball_of(record: Json) -> Perturbation:
    kinds = {name: kind for kind, name in NORMS.items()}
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
