"""What must hold of a network's output: a `Specification`, that of labels, and the linear rows c'z that say the same.

A user writes a `Specification`. Put to the examples of a batch it becomes a `Question`: linear functions of the output, each of which
holds where it is positive, and a rule that says how many of them must hold. The rule never needs a row *not* to hold. So whoever
proves rows proves the specification, and a row that nobody could prove never counts in its favour.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape, check_dense
from autodual.kernels.weigh import margin_rows

# What engines are given.


@dataclass(frozen=True)
class Spec:
    """`rows` [K, N or 1, C]: K linear functions of the output, for every example (or one set for all)."""

    rows: Tensor
    question: Question | None = None
    """What the rows are asked for, so that an engine may stop when it is answered; None: all rows that are not zero must hold."""

    def __getitem__(self, examples: slice | Tensor) -> Spec:
        rows = self.rows if self.rows.shape[1] == 1 else self.rows[:, examples]
        return Spec(rows, None if self.question is None else self.question.at(examples))


def margins(labels: Tensor, classes: int, dtype: torch.dtype) -> Spec:
    """Row j of example n reads z_label - z_j; the row j = label is zero. [SPAD Eq. 3: c = e_y - e_target]"""
    return Spec(margin_rows(labels, classes, dtype))


def outputs(classes: int, dtype: torch.dtype, device: torch.device) -> Spec:
    """The outputs themselves."""
    return Spec(torch.eye(classes, dtype=dtype, device=device).unsqueeze(1))


# Specifications put to the examples of a batch.


@dataclass(frozen=True)
class AtLeast:
    """A rule: so many of the parts must hold. A part is the number of a row, or a rule of its own."""

    needed: int
    parts: tuple[int | AtLeast, ...]

    @classmethod
    def all_of(cls, rows: int) -> AtLeast:
        """The rule that every one of so many rows must hold."""
        return cls(rows, tuple(range(rows)))

    def holds(self, rows: Tensor) -> Tensor:
        """[N, R] bool, which rows hold -> [N] bool, whether the rule does."""
        parts = self._columns(rows, AtLeast.holds)
        if self.needed == len(self.parts):
            return parts.all(1)
        return parts.sum(1) >= self.needed

    def value(self, rows: Tensor) -> Tensor:
        """[N, R] numbers -> [N]: positive exactly where the rule holds for the rows that are positive. NaN is passed on.

        The gradient is that of one deciding row: of two that are equal, the slopes may cancel each other.
        """
        parts = self._columns(rows, AtLeast.value)
        if self.needed == len(self.parts):
            return parts.min(1).values
        if self.needed == 1:
            return parts.max(1).values
        ranked = parts.sort(1, descending=True).values[:, self.needed - 1]
        return torch.where(parts.isnan().any(1), torch.nan, ranked)

    def failing(self, rows: Tensor, rank: int) -> Tensor:
        """[N, R] numbers -> [N, R] bool: one way to break the rule, a set of rows none of which may hold.

        The way of rank 0 is that of the smallest numbers, the next ones leave out the smallest, and so on; infinite rows cannot fail.
        """
        parts = self._columns(rows, AtLeast.value)
        count = len(self.parts) - self.needed + 1  # so many parts must fail
        ways = (parts.isfinite().sum(1, keepdim=True) - count + 1).clamp(min=1)
        place = parts.argsort(1).argsort(1) - rank % ways
        chosen, found = (place >= 0) & (place < count), torch.zeros_like(rows, dtype=torch.bool)
        if self._alike is not None:
            rule, numbers = self._alike
            inner = rule.failing(rows[:, numbers].flatten(0, 1), 0).reshape(len(rows), *numbers.shape)
            found[:, numbers.flatten()] = (chosen.unsqueeze(2) & inner).flatten(1)
            return found
        for number, part in enumerate(self.parts):
            which = chosen[:, number]
            if isinstance(part, int):
                found[:, part] |= which
            else:
                found |= which.unsqueeze(1) & part.failing(rows, 0)
        return found

    def _columns(self, rows: Tensor, found: Callable[[AtLeast, Tensor], Tensor]) -> Tensor:
        """What is known about each part, [N, parts]."""
        if self.parts == tuple(range(rows.shape[1])):
            return rows
        if self._alike is not None:
            rule, numbers = self._alike
            return found(rule, rows[:, numbers].flatten(0, 1)).reshape(len(rows), -1)
        return torch.stack([rows[:, p] if isinstance(p, int) else found(p, rows) for p in self.parts], dim=1)

    @cached_property
    def _alike(self) -> tuple[AtLeast, Tensor] | None:
        """If all parts are one rule about equally many rows each: that rule, and the numbers of the rows [parts, rows]."""
        kinds = {(p.needed, len(p.parts)) if isinstance(p, AtLeast) else None for p in self.parts}
        rows = [p.parts for p in self.parts if isinstance(p, AtLeast)]
        if len(kinds) > 1 or None in kinds or any(isinstance(row, AtLeast) for part in rows for row in part):
            return None
        needed, count = next(kind for kind in kinds if kind is not None)
        return AtLeast(needed, tuple(range(count))), torch.tensor(rows)

    def beyond(self, rows: int) -> AtLeast:
        """The rule for rows that come after so many others."""
        return replace(self, parts=tuple(p + rows if isinstance(p, int) else p.beyond(rows) for p in self.parts))


@dataclass(frozen=True, eq=False)
class Question:
    """A specification put to N examples of a network with C outputs. Row r of example n holds where c'z + offset > 0."""

    specification: Specification
    rule: AtLeast
    labels: Tensor | None
    """Where `linear` is None: row j reads z_label - z_j, and the label's own row is idle."""
    classes: int
    linear: Tensor | None = None
    """[R, N or 1, C], float64: the rows as they were given."""
    offsets: Tensor | None = None
    """[N or 1, R], float64; all zero if None."""
    idle: Tensor | None = None
    """[N or 1, R] bool: rows that have nothing to say about an example, and hold. None if there are none, or only the label's own."""

    def rows(self, dtype: torch.dtype) -> Spec:
        """The rows without their offsets, which engines bound."""
        if self.linear is None:
            assert self.labels is not None
            return replace(margins(self.labels, self.classes, dtype), question=self)
        return Spec(self.linear.to(dtype), self)

    def exact_in(self, dtype: torch.dtype) -> bool:
        """Whether the rows are numbers of this dtype: rounded ones would ask something else."""
        return self.linear is None or bool((self.linear.to(dtype).double() == self.linear).all())

    def at(self, some: slice | Tensor) -> Question:
        """The question about some of the examples."""
        return replace(
            self,
            labels=None if self.labels is None else self.labels[some],
            linear=self.linear if self.linear is None or self.linear.shape[1] == 1 else self.linear[:, some],
            offsets=_part(self.offsets, some),
            idle=_part(self.idle, some),
        )

    def idle_rows(self) -> Tensor:
        """[N or 1, R] bool: where there is nothing to prove."""
        if self.linear is None:
            assert self.labels is not None
            return self.labels.unsqueeze(1) == torch.arange(self.classes, device=self.labels.device)
        if self.idle is None:
            return torch.zeros(1, len(self.linear), dtype=torch.bool, device=self.linear.device)
        return self.idle

    def at_output(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at outputs [N, *shape], and bounds on what rounding did to them; [N, R] each.

        Differences of two scores are computed in their dtype, where their sign is exact; other rows in float64.
        """
        z = output.flatten(1) if output.dim() > 1 else output.unsqueeze(1)
        if self.linear is None:
            assert self.labels is not None
            found = z.gather(1, self.labels.unsqueeze(1)) - z
            return found, torch.zeros_like(found)
        z = z.double()
        offsets = torch.zeros(1, 1, dtype=z.dtype, device=z.device) if self.offsets is None else self.offsets
        found = _products(self.linear, z) + offsets
        size = _products(self.linear.abs(), z.detach().abs()) + offsets.abs()
        double = torch.finfo(torch.float64)
        return found, (self.classes + 2) * (size * double.eps + double.tiny)

    def at_error(self, error: Tensor) -> Tensor:
        """[N, R]: how far a row may be off if every output is off by no more than its error [N, *shape] of float64."""
        e = error.flatten(1) if error.dim() > 1 else error.unsqueeze(1)
        if self.linear is None:
            assert self.labels is not None
            return e.gather(1, self.labels.unsqueeze(1)) + e
        return _products(self.linear.abs(), e) * (1 + 2 * (self.classes + 2) * torch.finfo(e.dtype).eps)

    def values(self, output: Tensor) -> Tensor:
        """[N, R]: the rows at outputs [N, *shape]; infinite where there is nothing to say; differentiable."""
        return self.at_output(output)[0].masked_fill(self.idle_rows(), torch.inf)

    def value(self, output: Tensor) -> Tensor:
        """[N]: positive exactly where outputs [N, *shape] fulfil the specification, but for rounding; differentiable."""
        return self.rule.value(self.values(output))

    def holds(self, output: Tensor) -> Tensor:
        """[N] bool: outputs [N, *shape] fulfil the specification. A label does if it is the first of the largest scores."""
        return self.specification.fulfilled(self, output)


def _products(rows: Tensor, z: Tensor) -> Tensor:
    return z @ rows[:, 0].T if rows.shape[1] == 1 else torch.einsum("rnc,nc->nr", rows, z)


def _part(values: Tensor | None, some: slice | Tensor) -> Tensor | None:
    return values if values is None or len(values) == 1 else values[some]


# Specifications, as users write them.


class Specification(ABC):
    """What must hold of a network's output z, for every input of a set.

    `certify`, `attack` and `certified_radius` take one in place of labels.
    """

    @abstractmethod
    def put(self, x: Tensor, shape: Shape) -> Question:
        """The question about the examples x, for a network whose output has this shape per example; refuses what does not fit."""

    def part(self, examples: slice, of: int) -> Specification:
        """The specification of some of the examples, of which there are so many; refuses numbers for more or fewer than these."""
        raise ArgumentError(
            f"{type(self).__name__} does not say how to ask about some of the examples; give it a method `part(examples, of)`"
        )

    def fulfilled(self, question: Question, output: Tensor) -> Tensor:
        """[N] bool: the specification holds at these outputs."""
        return question.value(output) > 0


@dataclass(frozen=True, eq=False)
class Label(Specification):
    """The label's score is the largest one; or, with `targets`, larger than those of the targets. `labels` alone means the same.

    Args:
        labels: Class numbers [N].
        targets: The only classes that the label is compared with: [T] for all examples, or [N, T]. A label that is among its own
            targets is not compared with itself.

    Examples:
        >>> import autodual as ad
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> apart = ad.Label(labels[:3], targets=[[1, 8]])  # is never taken for a one or an eight
        >>> ad.certify(model, images[:3], apart, ad.LinfBall(0.05)).certified
        tensor([True, True, True])
    """

    labels: Tensor
    targets: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", whole_numbers(self.labels, "labels", (1,)))
        if self.targets is not None:
            object.__setattr__(self, "targets", whole_numbers(self.targets, "targets", (1, 2)))

    def put(self, x: Tensor, shape: Shape) -> Question:
        labels, classes = check_labels(self.labels, x), check_classifier(shape)
        check_label_range(labels, classes)
        if self.targets is None:
            return Question(self, AtLeast.all_of(classes), labels, classes)
        targets = self._targets(x).to(x.device)
        if not bool(((targets >= 0) & (targets < classes)).all()):
            raise ArgumentError(
                f"targets must lie in 0 ... {classes - 1}, the model's classes; found {int(targets.min())} ... {int(targets.max())}"
            )
        itself = targets == labels.unsqueeze(1)
        check_something_is_asked(itself, "targets: {} has no target but its own label")
        identity = torch.eye(classes, dtype=torch.float64, device=x.device)
        rows = identity[labels].unsqueeze(0) - identity[targets].movedim(1, 0)
        return Question(self, AtLeast.all_of(len(rows)), labels, classes, rows, idle=itself)

    def part(self, examples: slice, of: int) -> Label:
        targets = self.targets
        if targets is not None:
            targets = targets.unsqueeze(0) if targets.dim() == 1 else some_of("targets", targets, examples, of)
        return Label(some_of("labels", self.labels, examples, of, each=True), targets)

    def _targets(self, x: Tensor) -> Tensor:
        """The targets as [N or 1, T]; refuses shapes that fit in two ways or in none."""
        assert self.targets is not None
        targets, n = self.targets, len(x)
        if targets.dim() == 1 and len(targets) == n and n > 1:
            raise ArgumentError(
                f"targets of shape [{n}] could be one for each example, or {n} for all; reshape them to [{n}, 1] or to [1, {n}]"
            )
        targets = targets if targets.dim() == 2 else targets.unsqueeze(0)
        if targets.shape[0] not in (1, n) or targets.numel() == 0:
            raise ArgumentError(
                f"targets must have shape [T], or [{n}, T] for {n} examples, with T >= 1, got {tuple(self.targets.shape)}"
            )
        return targets

    def fulfilled(self, question: Question, output: Tensor) -> Tensor:
        if self.targets is not None or question.labels is None:
            return super().fulfilled(question, output)
        return output.argmax(1) == question.labels

    def __repr__(self) -> str:
        return "Label()" if self.targets is None else f"Label(targets={shown(self.targets)})"


def plain_labels(specification: Specification) -> Tensor | None:
    """The labels, if nothing but labels is asked: a `Label` without targets. None for any other specification."""
    return specification.labels if isinstance(specification, Label) and specification.targets is None else None


def some_of(name: str, values: Tensor, examples: slice, of: int, each: bool = False) -> Tensor:
    """Numbers of some of the examples; a single set of numbers is for all of them, unless there must be one for `each`."""
    if len(values) == 1 and not each:
        return values
    if len(values) != of:
        raise ArgumentError(f"{name}: there are {of} examples, but numbers for {len(values)}")
    return values[examples]


# Checks.

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_labels(labels: Tensor, x: Tensor) -> Tensor:
    """The labels as int64; refuses anything but one whole number for each example, on its device."""
    if not isinstance(labels, Tensor) or labels.dtype not in _INTEGERS:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        if not isinstance(labels, Tensor):
            hint = "use torch.as_tensor(labels)"
        elif labels.dim() == 2 and labels.shape[1] > 1:
            hint = "of one-hot labels, pass labels.argmax(1); for a regression, ask for Between(lower, upper)"
        else:
            hint = "for a regression, ask for Between(lower, upper)"
        raise ArgumentError(f"labels must be a tensor of integer class numbers, got {kind}; {hint}")
    if labels.dim() == 2 and len(labels) == len(x):
        advice = "labels.squeeze(1)" if labels.shape[1] == 1 else "labels.argmax(1), if they are one-hot"
        raise ArgumentError(
            f"labels must have shape [{len(x)}], one class number per example, got {tuple(labels.shape)}; pass {advice}"
        )
    if labels.shape != x.shape[:1]:
        raise ArgumentError(
            f"labels must have shape [{x.shape[0]}], one per example, got {tuple(labels.shape)}; x has the shape {tuple(x.shape)}, "
            f"whose first dimension is the batch"
        )
    if labels.device != x.device:
        raise ArgumentError(f"labels and x are on different devices: {labels.device} and {x.device}")
    check_dense(labels, "labels")
    return labels.long()


def check_label_range(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no classes of the model."""
    if not bool(((labels >= 0) & (labels < classes)).all()):
        raise ArgumentError(
            f"labels must lie in 0 ... {classes - 1}, the model's classes; found {int(labels.min())} ... {int(labels.max())}"
        )


def check_classifier(shape: Shape) -> int:
    """The number of classes of a model whose output has this shape per example."""
    if len(shape) != 1:
        raise ArgumentError(
            f"the model's output must be [N, C], one score per class, but it is [N, {', '.join(map(str, shape))}]; "
            f"use bounds(), Between() or Positive() for other shapes"
        )
    if shape[0] < 2:
        raise ArgumentError(
            f"the model's output must be [N, C], one score for each of at least two classes, but it is [N, {shape[0]}]; if a single "
            f"score z decides by its sign, return torch.cat([-z, z], 1), or ask for Between(lower=0.0)"
        )
    return shape[0]


def check_something_is_asked(idle: Tensor, sentence: str) -> None:
    """Refuse a specification that asks nothing of some example. sentence: has a place for which one."""
    empty = idle.all(1).nonzero().flatten().tolist()
    if empty:
        raise ArgumentError(sentence.format("every example" if len(idle) == 1 else f"example {empty[0]}"))


def whole_numbers(values: object, name: str, dims: tuple[int, ...]) -> Tensor:
    """What the user gave, as a tensor of int64 with one of these numbers of dimensions."""
    given = as_given(values, name)
    if given.dtype not in _INTEGERS:
        raise ArgumentError(f"{name} must be integer class numbers, got {given.dtype}")
    if given.dim() not in dims:
        raise ArgumentError(f"{name} must have {dimensions(dims)}, got shape {tuple(given.shape)}")
    return given.detach().long()


def as_given(values: object, name: str) -> Tensor:
    """What the user gave, as a tensor; refuses what cannot be one. Numbers of Python become float64."""
    if isinstance(values, Tensor):
        check_dense(values, name)
        return values
    if isinstance(values, str | bytes | type) or values is None:
        raise ArgumentError(f"{name} must be a tensor, a number or lists of numbers, got {values!r}")
    try:
        whole = torch.as_tensor(values)
        return torch.as_tensor(values, dtype=torch.float64) if whole.is_floating_point() else whole
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"{name} must be a tensor, a number or lists of numbers of one length, got {type(values).__name__} ({error})"
        ) from error


def dimensions(dims: tuple[int, ...]) -> str:
    """These numbers of dimensions in words, such as "1 or 2 dimensions"."""
    return " or ".join(str(d) for d in dims) + (" dimension" if dims == (1,) else " dimensions")


def shown(values: float | Tensor | None) -> str:
    """Few numbers as they are, many by their shape."""
    given = torch.as_tensor(values)
    return str(given.tolist()) if given.numel() <= 4 else f"<{' x '.join(map(str, given.shape))}>"
