"""What else may be asked of a network's output than labels: ranks, limits, linear inequalities, and several things at once."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.spec.question import (
    AtLeast,
    Question,
    Specification,
    as_given,
    check_classifier,
    check_label_range,
    check_labels,
    check_something_is_asked,
    dimensions,
    shown,
    some_of,
    whole_numbers,
)


@dataclass(frozen=True, eq=False)
class TopK(Specification):
    """The label is among the k classes with the largest scores: fewer than k others reach its score.

    Args:
        labels: Class numbers [N].
        k: From 1, which asks for the label itself, to one less than the number of classes.

    Examples:
        >>> import autodual as ad
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> ball = ad.LinfBall(0.1, clip=(0.0, 1.0))
        >>> [int(ad.certify(model, images[:50], ad.TopK(labels[:50], k), ball).certified.sum()) for k in (1, 2, 3)]
        [36, 43, 47]
    """

    labels: Tensor
    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", whole_numbers(self.labels, "labels", (1,)))
        if not _is_count(self.k) or self.k < 1:
            raise ArgumentError(f"k must be a whole number of classes, at least 1, got {self.k!r}")

    def put(self, x: Tensor, shape: Shape) -> Question:
        labels, classes = check_labels(self.labels, x), check_classifier(shape)
        check_label_range(labels, classes)
        if self.k >= classes:
            raise ArgumentError(f"k must be less than {classes}, the number of the model's classes, got {self.k}")
        return Question(self, AtLeast(classes - self.k + 1, tuple(range(classes))), labels, classes)

    def part(self, examples: slice, of: int) -> TopK:
        return TopK(some_of("labels", self.labels, examples, of, each=True), self.k)

    def __repr__(self) -> str:
        return f"TopK(k={self.k})"


@dataclass(frozen=True, eq=False)
class Between(Specification):
    """Outputs lie strictly between two limits: for regression, and for networks with a single output.

    Args:
        lower: A number, one per output [C], or one per example and output [N, C]; minus infinity, or None, is no limit.
        upper: The other limit, likewise.
        output: The only output that is asked about; all of them if None.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).eval()
        >>> x = torch.zeros(2, 3)
        >>> ad.certify(model, x, ad.Between(-100.0, 100.0), ad.LinfBall(0.1)).certified
        tensor([True, True])
    """

    lower: float | Tensor | None = None
    upper: float | Tensor | None = None
    output: int | None = None

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None:
            raise ArgumentError("Between: give a lower or an upper limit, or both")
        if self.output is not None and not _is_count(self.output):
            raise ArgumentError(f"Between: output must be the number of an output, got {self.output!r}")
        for name in ("lower", "upper"):
            limit = getattr(self, name)
            if limit is None:
                continue
            numbers = _numbers(limit, name, (0, 1, 2), infinite=True)
            if bool((numbers == (math.inf if name == "lower" else -math.inf)).any()):
                raise ArgumentError(
                    f"Between: {name} holds {'+inf' if name == 'lower' else '-inf'}, a limit that nothing can meet; "
                    f"{'-inf' if name == 'lower' else '+inf'} is no limit"
                )
            object.__setattr__(self, name, numbers)

    def put(self, x: Tensor, shape: Shape) -> Question:
        classes = math.prod(shape)
        asked = range(classes) if self.output is None else [self.output]
        if not all(0 <= j < classes for j in asked):
            raise ArgumentError(f"Between: output must lie in 0 ... {classes - 1}, got {self.output}")
        ends = [None if e is None else self._limit(e, x, len(asked)) for e in (self.lower, self.upper)]
        if ends[0] is not None and ends[1] is not None and not bool((ends[0] < ends[1]).all()):
            raise ArgumentError("Between: lower must be less than upper everywhere")
        identity = torch.eye(classes, dtype=torch.float64, device=x.device)[list(asked)].unsqueeze(1)
        signed = [(sign, end) for sign, end in zip((1, -1), ends, strict=True) if end is not None]
        limits = torch.cat([-sign * end.expand(max(len(e) for _, e in signed), -1) for sign, end in signed], 1)
        idle = limits.isinf()
        check_something_is_asked(idle, "Between: {} has no finite limit")
        rows = torch.cat([sign * identity for sign, _ in signed])
        return Question(
            self,
            AtLeast.all_of(len(rows)),
            None,
            classes,
            rows,
            limits.masked_fill(idle, 0.0),
            idle if idle.any() else None,
        )

    def part(self, examples: slice, of: int) -> Between:
        def cut(name: str, end: float | Tensor | None) -> float | Tensor | None:
            return some_of(name, end, examples, of) if isinstance(end, Tensor) and end.dim() == 2 else end

        return Between(cut("lower", self.lower), cut("upper", self.upper), self.output)

    def _limit(self, end: float | Tensor, x: Tensor, count: int) -> Tensor:
        """[N or 1, outputs]"""
        assert isinstance(end, Tensor)
        if end.dim() == 0:
            return end.reshape(1, 1).expand(1, count).to(x.device)
        limit = end if end.dim() == 2 else end.unsqueeze(0)
        if limit.shape[0] not in (1, len(x)) or limit.shape[1] not in (1, count):
            raise ArgumentError(
                f"Between: a limit must be a number, one per output [{count}], or [{len(x)}, {count}], got shape {tuple(end.shape)}"
            )
        return limit.expand(-1, count).to(x.device)

    def __repr__(self) -> str:
        limits = [f"{name}={shown(v)}" for name, v in (("lower", self.lower), ("upper", self.upper)) if v is not None]
        return f"Between({', '.join(limits + ([] if self.output is None else [f'output={self.output}']))})"


@dataclass(frozen=True, eq=False)
class Positive(Specification):
    """Linear functions of the output, rows'z + offsets, are positive: all of them, or at least `needed`.

    Asked whether all rows of A z <= b can hold at once, `Positive(A, -b, needed=1)` is what must hold if they cannot.

    Args:
        rows: [R, C] for all examples, or [N, R, C]; of an output with several dimensions, C is the product of them.
        offsets: A number, [R], or [N, R].
        needed: How many rows must be positive; all of them if None.

    Examples:
        >>> import autodual as ad
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> odd_pair = ad.Positive([[0.0, 0, 0, 1, 0, 0, 0, 0, 0, 0], [0.0, 0, 0, 0, 0, 1, 0, 0, 0, 0]], offsets=50.0)
        >>> ad.certify(model, images[:2], odd_pair, ad.LinfBall(0.05)).verdicts[0].name  # scores of 3 and 5 above -50
        'CERTIFIED'
    """

    rows: Tensor
    offsets: float | Tensor = 0.0
    needed: int | None = None

    def __post_init__(self) -> None:
        rows, offsets = _numbers(self.rows, "rows", (2, 3)), _numbers(self.offsets, "offsets", (0, 1, 2))
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "offsets", offsets)
        count = rows.shape[-2]
        if rows.numel() == 0:
            raise ArgumentError(f"Positive: needs at least one row [C], got rows of shape {tuple(rows.shape)}")
        if offsets.dim() > 0 and offsets.shape[-1] != count:
            raise ArgumentError(
                f"Positive: offsets must be a number or one per row [{count}], got shape {tuple(offsets.shape)}"
            )
        if self.needed is not None and not (_is_count(self.needed) and 1 <= self.needed <= count):
            raise ArgumentError(f"Positive: needed must lie in 1 ... {count}, the number of rows, got {self.needed!r}")

    def put(self, x: Tensor, shape: Shape) -> Question:
        classes, rows, offsets = math.prod(shape), self.rows.to(x.device), torch.as_tensor(self.offsets).to(x.device)
        if rows.shape[-1] != classes or (rows.dim() == 3 and len(rows) not in (1, len(x))):
            raise ArgumentError(
                f"Positive: rows must have shape [R, {classes}], or [{len(x)}, R, {classes}] for {len(x)} examples: the model has "
                f"{classes} outputs; got {tuple(rows.shape)}"
            )
        if offsets.dim() == 2 and len(offsets) not in (1, len(x)):
            raise ArgumentError(
                f"Positive: offsets must be a number, [R], or [{len(x)}, R] for {len(x)} examples, got {tuple(offsets.shape)}"
            )
        linear = rows.unsqueeze(1) if rows.dim() == 2 else rows.movedim(1, 0)
        count = len(linear)
        offsets = offsets.reshape(-1, offsets.shape[-1] if offsets.dim() else 1).expand(-1, count)
        rule = AtLeast(count if self.needed is None else self.needed, tuple(range(count)))
        return Question(self, rule, None, classes, linear, offsets if bool((offsets != 0).any()) else None)

    def part(self, examples: slice, of: int) -> Positive:
        rows = some_of("rows", self.rows, examples, of) if self.rows.dim() == 3 else self.rows
        offsets = torch.as_tensor(self.offsets)
        return Positive(rows, some_of("offsets", offsets, examples, of) if offsets.dim() == 2 else offsets, self.needed)

    def __repr__(self) -> str:
        needed = "" if self.needed is None else f", needed={self.needed}"
        return f"Positive({self.rows.shape[-2]} rows of {self.rows.shape[-1]} outputs{needed})"


@dataclass(frozen=True, eq=False)
class _Several(Specification):
    """Specifications of which some must hold."""

    parts: Sequence[Specification]

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.parts, list | tuple):
            raise ArgumentError(f"{name}: needs a list of specifications, got {type(self.parts).__name__}")
        if len(self.parts) == 0:
            raise ArgumentError(f"{name}: needs at least one specification, the list is empty")
        for number, part in enumerate(self.parts):
            if not isinstance(part, Specification):
                kind = f"the class {part.__name__}" if isinstance(part, type) else type(part).__name__
                raise ArgumentError(f"{name}: part {number} must be a specification such as Label(labels), got {kind}")
        if _levels(self.parts) > DEEPEST:
            raise ArgumentError(
                f"{name}: specifications are nested deeper than {DEEPEST} levels; write them side by side"
            )
        object.__setattr__(self, "parts", tuple(self.parts))

    @abstractmethod
    def needed(self) -> int:
        """How many of the parts must hold."""

    def put(self, x: Tensor, shape: Shape) -> Question:
        rules, linear, offsets, idle = list[int | AtLeast](), list[Tensor](), list[Tensor](), list[Tensor]()
        for question in (part.put(x, shape) for part in self.parts):
            rules.append(question.rule.beyond(sum(map(len, linear))))
            linear.append(question.rows(torch.float64).rows)
            none = torch.zeros(1, len(linear[-1]), dtype=torch.float64, device=x.device)
            offsets.append(none if question.offsets is None else question.offsets)
            idle.append(question.idle_rows())
        return Question(
            self,
            AtLeast(self.needed(), tuple(rules)),
            None,
            math.prod(shape),
            _joined([rows.movedim(1, 0) for rows in linear]).movedim(0, 1),
            _joined(offsets),
            _joined(idle),
        )

    def part(self, examples: slice, of: int) -> Self:
        return replace(self, parts=[each.part(examples, of) for each in self.parts])

    def __repr__(self) -> str:
        shown = [repr(part) for part in self.parts[:3]] + (["..."] if len(self.parts) > 3 else [])
        return f"{type(self).__name__}({len(self.parts)}: {', '.join(shown)})"


DEEPEST = 64
"""Levels of AllOf and AnyOf inside one another."""


def _levels(parts: Sequence[Specification]) -> int:
    """How deep specifications are nested, those that hold these parts included."""
    found, inside = 0, list(parts)
    while inside and found <= DEEPEST:
        found, inside = found + 1, [part for each in inside if isinstance(each, _Several) for part in each.parts]
    return found


class AllOf(_Several):
    """All of the specifications hold at every input.

    A counterexample that must satisfy all rows of A z <= b, for some of several (A, b), breaks
    `AllOf([Positive(A, -b, needed=1) for A, b in pairs])`.

    Args:
        parts: A list of specifications.

    Examples:
        >>> import autodual as ad
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> asked = ad.AllOf([ad.TopK(labels[:5], 2), ad.Between(upper=1000.0)])
        >>> ad.certify(model, images[:5], asked, ad.LinfBall(0.05)).certified
        tensor([True, True, True, True, True])
    """

    def needed(self) -> int:
        return len(self.parts)


class AnyOf(_Several):
    """At every input, one of the specifications holds. It is proved where one and the same of them is proved for the whole set.

    Args:
        parts: A list of specifications.

    Examples:
        >>> import autodual as ad
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> other = (labels[:5] + 1) % 10
        >>> either = ad.AnyOf([ad.Label(labels[:5]), ad.Label(other)])
        >>> ad.certify(model, images[:5], either, ad.LinfBall(0.05)).certified
        tensor([True, True, True, True, True])
    """

    def needed(self) -> int:
        return 1


def _joined(parts: list[Tensor]) -> Tensor:
    """[N or 1, rows, ...] each: all rows, for all examples at once only where none of the parts tells examples apart."""
    examples = max(map(len, parts))
    return torch.cat([part.expand(examples, *part.shape[1:]) for part in parts], 1)


def _numbers(values: object, name: str, dims: tuple[int, ...], infinite: bool = False) -> Tensor:
    """In float64, without rounding."""
    given = as_given(values, name)
    if given.is_complex() or given.dtype == torch.bool:
        raise ArgumentError(f"{name} must be real numbers, got {given.dtype}")
    if given.dim() not in dims:
        raise ArgumentError(f"{name} must have {dimensions(dims)}, got shape {tuple(given.shape)}")
    wide = given.detach().double()
    if not given.is_floating_point() and not torch.equal(wide.to(given.dtype), given):
        raise ArgumentError(f"{name} holds whole numbers that float64 cannot hold")
    if bool(wide.isnan().any()) or not (infinite or bool(wide.isfinite().all())):
        raise ArgumentError(f"{name} holds {'NaN' if infinite else 'NaN or infinite'} values")
    return wide


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
