"""Every record of a run folder as a frozen dataclass, and how records are read from JSON and written."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
    missing = [name for name, entry in known.items() if entry.needed and name not in values]
    if missing or (exactly and not values.keys() <= known.keys()):
        raise ValueError(f"does not hold {', '.join(known)}, and nothing else" if exactly else f"lacks {missing[0]}")
    for name, entry in known.items():
        if entry.flat:
            given[name] = _inner(entry.hint, values)
        elif name in values:
            try:
                given[name] = entry.read(values[name])
            except ValueError:
                text = repr(values[name])
                raise ValueError(f"has {text if len(text) <= 200 else f'{text[:200]}...'} as {name}") from None
    return kind(**given)


def _inner(hint: Any, values: dict[str, Any]) -> Any:
    """The record of a flat field: of the kind that has most of its entries here; None where there is none of them."""
    kinds = [kind for kind in get_args(hint) or (hint,) if is_dataclass(kind)]
    there = {kind: len(values.keys() & _entries(kind).keys()) for kind in kinds}  # type: ignore[arg-type]  # see above
    best = max(kinds, key=lambda kind: there[kind])
    return None if there[best] == 0 and type(None) in get_args(hint) else parse(best, values)  # type: ignore[arg-type]


def entry_names(kind: type) -> tuple[str, ...]:
    return tuple(_entries(kind))


Read = Callable[[Any], Any]
"""JSON -> the value of a field. ValueError if it is of another type."""


@dataclass(frozen=True)
class _Entry:
    hint: Any
    read: Read
    needed: bool
    flat: bool


@cache
def _entries(kind: type) -> dict[str, _Entry]:
    hints = get_type_hints(kind)
    return {f.name: _described(f, hints[f.name]) for f in fields(kind)}


def _described(entry: Field[Any], hint: Any) -> _Entry:
    is_flat = bool(entry.metadata.get("flat"))
    needed = entry.default is MISSING and entry.default_factory is MISSING and not is_flat
    return _Entry(hint, _reader(hint), needed, is_flat)


@cache
def _reader(hint: Any) -> Read:
    """How values of this type are read; made once for each type, since files may have many lines."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return partial(
            _first_that_fits, [_reader(choice) for choice in inner if choice is not type(None)], type(None) in inner
        )
    if is_dataclass(hint):
        return partial(parse, hint)  # type: ignore[arg-type]  # a class, as a hint
    if origin is tuple:
        return partial(_tuple, _reader(inner[0]), None if inner[-1] is Ellipsis else len(inner))
    if origin is dict:
        return partial(_dict, _reader(inner[1]))
    if origin is Literal:
        return partial(_one_of, inner)
    return partial(_plain_value, hint)


def _first_that_fits(choices: list[Read], may_be_none: bool, value: Any) -> Any:
    if value is None and may_be_none:
        return None
    for read_choice in choices:
        try:
            return read_choice(value)
        except ValueError:
            continue
    raise ValueError


def _tuple(read_each: Read, size: int | None, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or size not in (None, len(value)):
        raise ValueError
    return tuple(map(read_each, value))


def _dict(read_each: Read, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return {name: read_each(each) for name, each in value.items()}


def _one_of(choices: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise ValueError
    return value


def _plain_value(kind: Any, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise ValueError
    return value


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


# Lines about examples: certificates*.jsonl and *.cascade.jsonl, attack*.jsonl, stages/open-*.jsonl


@dataclass(frozen=True)
class CertificateLine:
    """What certification says about one example."""

    index: int
    label: int
    predicted: int
    certified: bool
    certified_as_run: bool
    margin: float | None
    """The smallest one; None if it is not finite."""
    slack: float | None
    """The largest one: how far rounding may have moved a margin."""

    def fault(self) -> str | None:
        """Why it cannot be right."""
        if self.certified and (self.predicted != self.label or self.margin is None or self.margin <= 0):
            return f"is certified, but has the label {self.label}, predicted {self.predicted} and margin {self.margin}"
        if self.certified_as_run and not self.certified:
            return "is certified as it runs, but not in real numbers, which is less"
        return None


@dataclass(frozen=True)
class CascadeLine:
    """What several models answer to one example, and what is proved about it."""

    index: int
    label: int
    answer: int
    stage: int
    certified: bool
    sound: bool
    sound_as_run: bool
    no_wrong_certificate: bool

    def fault(self) -> str | None:
        """Why it cannot be right."""
        wrong = self.sound and self.answer != self.label
        return f"is proved, but has the label {self.label} and the answer {self.answer}" if wrong else None


@dataclass(frozen=True)
class AttackLine:
    """Whether an attack breaks one example: in real numbers, and in the network as it runs."""

    index: int
    broken: bool
    broken_as_run: bool


@dataclass(frozen=True)
class CascadeAttackLine:
    """Whether an attack makes several models answer wrongly, and with a certificate."""

    index: int
    found: bool
    certified_wrong: bool


@dataclass(frozen=True)
class SortingLine:
    """Whether a stage certifies its own label of a training example, and whether that is the right one."""

    index: int
    certified: bool
    right: bool


@dataclass(frozen=True)
class StillOpen:
    """stages/open-N.json: the training examples that no stage before N certifies."""

    sorted_by: str
    sound: bool
    open: tuple[int, ...]


# *.problem.json: what a file of lines is about


@dataclass(frozen=True)
class Asked:
    """How to open what was certified again; paths are seen from the file of lines."""

    target: str | None = optional()
    model: str | None = optional()
    dataset: str | None = optional()
    normalise: bool | None = optional()
    norm: str | None = optional()
    eps: float | None = optional()
    clip: tuple[float, float] | None = None


@dataclass(frozen=True)
class Basis:
    """What certificates with a probability rest on; see `Confidence`."""

    delta: float
    estimates: int
    k: int
    m: int
    seed: int


@dataclass(frozen=True)
class ProblemOutline:
    """What the problems of all versions hold: enough to tell a file of lines from a stranger's."""

    perturbation: str
    engine: str
    examples: int
    data: str


@dataclass(frozen=True)
class Problem:
    """The question that a file of lines answers, and what computed the answers."""

    FORMAT: ClassVar[str] = "autodual certificates 2"
    ASIDE: ClassVar[frozenset[str]] = frozenset({"format", "batch", "python", "asked"})
    """Entries that help to find the parts again, and are no parts of the question."""

    format: str
    perturbation: str
    engine: str
    examples: int
    data: str
    network: str
    dtype: str
    device: str
    batch: int
    autodual: str
    torch: str
    python: str
    basis: Basis | None = flat(optional=True)
    """None for proofs."""
    asked: Asked | None = optional()
    combination: str | None = optional()
    """The cascade that the lines are about; None for one network."""

    def __post_init__(self) -> None:
        if self.examples < 1 or self.batch < 1:
            raise ValueError("is about no examples")

    def difference(self, now: Problem, *aside: str) -> tuple[str, str] | None:
        """The first entry in which the question differs from `now`, and a sentence about it; entries `aside` do not count."""
        before, after = plain(self), plain(now)
        for name in (name for name in before | after if name not in (*self.ASIDE, *aside)):
            if before.get(name) != after.get(name):
                told = f"{name} was {_short(before.get(name))}, now {_short(after.get(name))}"
                return name, f"its certificates are about something else ({told})"
        return None


def _short(value: object) -> str:
    """Nothing that fills the screen; a digest by its first letters."""
    text = str(value)
    digest = len(text) >= 64 and set(text[:64]) <= set("0123456789abcdef")
    return f"{text[:12]}..." if digest else text[:200]


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
