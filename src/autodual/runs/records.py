"""Every record of a run folder as a frozen dataclass, and the one way in which records are read from JSON and written.

The fields of a dataclass stand in the order of the file. A float takes whole numbers, too, and a tuple is a list on disk. A field with
a default may be missing from a file. One declared with `optional()` is not written where it is None. The entries of one declared with
`flat()` stand among those of its owner. Entries that a dataclass does not know are passed over, or refused by `exactly`.

config.yaml is `TrainConfig`. All rooms that write or read a run folder share these types. PyTorch is not imported.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from autodual._errors import ArgumentError
from autodual._files import RECORD_LIMIT, parse_json, read_content

R = TypeVar("R")


def optional() -> Any:
    """A field that some records of its kind do not have, which is None then."""
    return field(default=None, metadata={"optional": True})


def flat(optional: bool = False) -> Any:
    """A record inside another one, whose entries stand among the other's in the file. If optional, it is None where none is there."""
    return field(default=None, metadata={"flat": True}) if optional else field(metadata={"flat": True})


def parse(kind: type[R], values: object, exactly: bool = False) -> R:
    """`values` as a record of this kind. ValueError: a clause that says what is wrong, such as "has 'x' as label"."""
    if not isinstance(values, dict):
        raise ValueError("holds no record")
    known, given = _entries(kind), dict[str, Any]()  # type: ignore[arg-type]  # every class can be hashed
    missing = [name for name, (_, _, needed) in known.items() if needed and name not in values]
    if missing or (exactly and not values.keys() <= known.keys()):
        raise ValueError(f"does not hold {', '.join(known)}, and nothing else" if exactly else f"lacks {missing[0]}")
    for name, (entry, hint, _) in known.items():
        if entry.metadata.get("flat"):
            given[name] = _parse_flat(hint, values)
        elif name in values:
            try:
                given[name] = _value(hint, values[name])
            except ValueError:
                text = repr(values[name])
                raise ValueError(f"has {text if len(text) <= 200 else f'{text[:200]}...'} as {name}") from None
    return kind(**given)


@cache
def _entries(kind: type) -> dict[str, tuple[Field[Any], Any, bool]]:
    """The fields of a record by name, each with its type, and whether it must be in the file. Found once: files have many lines."""
    hints = get_type_hints(kind)
    return {
        f.name: (f, hints[f.name], f.default is f.default_factory is MISSING and not f.metadata.get("flat"))
        for f in fields(kind)
    }


def _parse_flat(hint: Any, values: dict[str, Any]) -> Any:
    """The record of a flat field: of the kind that has most of its entries here; None where there is none of them."""
    kinds: list[Any] = [kind for kind in get_args(hint) or (hint,) if is_dataclass(kind)]
    there = [len(values.keys() & _entries(kind).keys()) for kind in kinds]
    return None if max(there) == 0 and type(None) in get_args(hint) else parse(kinds[there.index(max(there))], values)


def _value(hint: Any, value: Any) -> Any:
    """JSON as a value of this type. ValueError if it is of another one."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        for choice in inner:
            try:
                return _value(choice, value)
            except ValueError:
                continue
        raise ValueError
    if is_dataclass(hint):
        return parse(hint, value)  # type: ignore[arg-type]  # a class, as a hint
    if origin is tuple and isinstance(value, list) and (inner[-1] is Ellipsis or len(value) == len(inner)):
        return tuple(_value(inner[0], each) for each in value)
    if origin is dict and isinstance(value, dict):
        return {name: _value(inner[1], each) for name, each in value.items()}
    if origin is Literal and isinstance(value, str) and value in inner:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if hint is Any or type(value) is hint:
        return value
    raise ValueError


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON holds it, its entries in the order of the fields."""
    found: dict[str, Any] = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if entry.metadata.get("flat"):
            found |= {} if value is None else plain(value)
        elif value is not None or not entry.metadata.get("optional"):
            found[entry.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def read(kind: type[R], path: Path) -> R:
    """The record that a file holds. ArgumentError if it cannot be read, or is damaged."""
    content = read_content(path, RECORD_LIMIT)
    try:
        return parse(kind, parse_json(content))
    except ValueError:
        raise damaged(path) from None


def read_if_sound(kind: type[R], path: Path) -> R | None:
    """The record that a file holds; None where there is none, or where it cannot be read."""
    try:
        return read(kind, path)
    except ArgumentError:
        return None


def damaged(path: Path) -> ArgumentError:
    """What to say of a file that can be made anew."""
    return ArgumentError(f"{path}: is damaged; remove it, and it will be made anew")


# environment.json and failure.json


@dataclass(frozen=True)
class DataUsed:
    """The data of a run; a data set of one's own is named by its path, as seen from the run folder."""

    name: str
    train: int
    test: int
    digest: str
    kind: str | None = optional()
    """What an example is called where it is no image."""

    def is_like(self, other: DataUsed) -> bool:
        """Whether the examples are the same; a path may be written differently."""
        return (self.train, self.test, self.digest) == (other.train, other.test, other.digest)


@dataclass(frozen=True)
class Environment:
    """Versions, machine and command of a run."""

    autodual: str
    torch: str
    python: str
    machine: str
    command: str
    started: str
    device: str
    processes: int
    data: DataUsed
    resumed: tuple[Environment, ...] | None = optional()
    """The environment of every later process that went on with the run."""


@dataclass(frozen=True)
class Failure:
    """Why a run ended before it was finished."""

    error: str
    when: str


# metrics.jsonl


@dataclass(frozen=True)
class EpochLine:
    """What one epoch of training measured, on the images that it trained on."""

    kind: Literal["epoch"]
    stage: int
    epoch: int
    step: int
    eps: float | None
    """Size of the perturbation that was trained against; None for standard training."""
    lr: float
    loss: float
    robust_error: float
    error: float
    seconds: float | None
    """None for an epoch that was interrupted."""
    examples: int


@dataclass(frozen=True)
class ValidationLine:
    """An exact evaluation during training."""

    kind: Literal["validation"]
    stage: int
    epoch: int
    split: Literal["validation", "train"]
    engine: str
    examples: int
    eps: float
    error: float
    robust_error: float
    robust_error_as_run: float | None = None
    collapsed: str | None = None


@dataclass(frozen=True)
class TrainedLine:
    """The weights that count after a stage is trained."""

    kind: Literal["trained"]
    stage: int
    epoch: int
    eps: float | None
    collapsed: str | None


MetricsLine = EpochLine | ValidationLine | TrainedLine


# stages/open-N.json


@dataclass(frozen=True)
class StillOpen:
    """The training examples that no stage before N certifies."""

    sorted_by: str
    sound: bool
    open: tuple[int, ...]


@dataclass(frozen=True)
class Basis:
    """What certificates with a probability rest on; see `Confidence`."""

    delta: float
    estimates: int
    k: int
    m: int
    seed: int


# cascade.json, and *.summary.json


@dataclass(frozen=True)
class StageCounts:
    """How many answers a stage gives, and what they are worth."""

    stage: int
    answers: int
    certified: int
    correct: int
    certified_correct: int
    certified_wrong: int
    trained_on: int | None = optional()


@dataclass(frozen=True)
class CascadeErrors:
    """Errors of a cascade on some examples."""

    error: float
    stage_certified_error: float
    sound_certified_error: float
    sound_certified_error_as_run: float


@dataclass(frozen=True, kw_only=True)
class AttackFigures:
    """What an attack on a cascade breaks, and what was claimed and proved about the same examples."""

    attacked_examples: int
    attacked_error: float
    attacked_certified_error: float
    broken_claims: int
    broken_proofs: int | None = optional()
    on_attacked: CascadeErrors


@dataclass(frozen=True, kw_only=True)
class CascadeSummary:
    """What a cascade reaches on all examples, and what an attack on all or the first of them leaves of it."""

    kind: str
    perturbation: str
    engine: str
    examples: int
    stages: tuple[StageCounts, ...]
    errors: CascadeErrors = flat()
    no_wrong_certificate: float
    collapsed: str | None = None
    attack: AttackFigures | None = flat(optional=True)
    """None where nothing was attacked."""
    models: int | None = optional()
    thresholds_fitted_on: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What all lines of a file say together."""

    perturbation: str
    engine: str
    examples: int
    error: float
    robust_error: float | None = optional()
    robust_error_as_run: float | None = optional()
    not_certified: float | None = optional()
    """Stands in the place of `robust_error` where certificates hold with a probability, which adds up over many examples."""
    not_certified_as_run: float | None = optional()
    confidence: float
    collapsed: str | None = None
    basis: Basis | None = flat(optional=True)
    cascade: CascadeSummary | None = optional()


# evaluation.json


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Errors at one size of the perturbation."""

    eps: float
    robust_error: float
    robust_error_as_run: float | None = optional()
    pgd_error: float
    pgd_error_exact: float | None = optional()


@dataclass(frozen=True)
class TrainedAt:
    """The epoch whose weights count, and the size of the perturbation that it was trained against, if there was one."""

    epoch: int
    eps: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a trained network is worth on the test images; published runs lack what is optional."""

    split: str
    examples: int
    perturbation: str
    norm: str
    eps: float
    engine: str
    dtype: str
    error: float
    robust_error: float
    robust_error_as_run: float | None = optional()
    pgd_error: float
    pgd_error_exact: float | None = optional()
    curve: tuple[CurvePoint, ...]
    margins: tuple[float | None, ...]
    radii: tuple[float, ...]
    radius_limit: float
    curve_examples: int
    labels: tuple[int, ...]
    predicted: tuple[int, ...]
    certified: tuple[bool, ...]
    certified_as_run: tuple[bool, ...] | None = optional()
    attacked: tuple[bool, ...]
    attacked_as_run: tuple[bool, ...] | None = optional()
    classes: tuple[str, ...]
    collapsed: str | None = None
    trained: TrainedAt | None = None
