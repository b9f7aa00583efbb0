"""Examples of any shape with their labels: what all data have in common, and arrays that are no images."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape, values_at_hand

# Checks on arrays and labels.


def as_array(values: Any, where: str) -> np.ndarray:
    """Anything that NumPy takes for an array; refuses lists of several lengths, and entries that are masked."""
    if isinstance(values, np.ma.MaskedArray) and bool(np.ma.getmaskarray(values).any()):
        count = int(np.ma.getmaskarray(values).sum())
        raise ArgumentError(f"{where}: {count} entries are masked; fill these in, or remove the examples")
    try:
        return np.asarray(values)
    except ValueError:
        raise ArgumentError(f"{where}: lists inside are not of one length; give one number for each place") from None


def check_labels(
    labels: Tensor,
    classes: int,
    where: str,
    advice: str = "correct the labels, or name all the classes",
    kind: str = "image",
) -> None:
    """Refuses labels outside 0..classes-1 and names the first."""
    outside = ((labels < 0) | (labels >= classes)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise ArgumentError(
            f"{where}: label {int(labels[first])} of {kind} {first} is outside 0..{classes - 1}, the {classes} classes "
            f"({len(outside)} of {len(labels)} labels are); {advice}"
        )


def as_labels(array: Any, count: int, where: str, kind: str = "image") -> Tensor:
    """[N] or [N, 1] of any integer type as int64 [N]."""
    array = as_array(array, f"{where}: labels")
    one_hot = "; of one-hot labels, pass labels.argmax(1)" if array.ndim == 2 and array.shape[1] > 1 else ""
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"{where}: labels are {array.dtype}, but must be integers, 0 for the first class{one_hot}")
    if array.shape not in ((count,), (count, 1)):
        raise ArgumentError(
            f"{where}: labels have shape {array.shape}, but there are {count} {kind}s; pass one for each{one_hot}"
        )
    if count == 0:
        raise ArgumentError(f"{where}: there are no labels; one part of the data is empty")
    if array.min() < 0:
        raise ArgumentError(f"{where}: label {array.min()} is negative; the first class is 0")
    if array.max() > np.iinfo(np.int64).max:
        raise ArgumentError(f"{where}: label {array.max()} is too large; number the classes 0, 1, 2 ...")
    return torch.from_numpy(array.reshape(count).astype(np.int64))


class Examples(ABC):
    """Inputs with labels, which can live on a device. Made by dataclasses that hold the inputs in a field called `STORED`."""

    STORED: ClassVar[str]
    KIND: ClassVar[str]
    """What one of them is called."""
    labels: Tensor
    """[N], int64: positions in `classes`."""
    classes: tuple[str, ...]
    name: str

    @property
    def stored(self) -> Tensor:
        """[N, *shape]: the inputs as they lie in memory."""
        found: Tensor = getattr(self, self.STORED)
        return found

    @abstractmethod
    def as_input(self, stored: Tensor) -> Tensor:
        """Some of what is stored, as the network takes it: float32; on the device, without waiting for it."""

    @abstractmethod
    def kind(self) -> str:
        """What makes two records of equal bytes different: types, shapes, names."""

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def shape(self) -> Shape:
        """Shape of one example."""
        return tuple(self.stored.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.stored.device

    def scaled(self, index: Tensor | slice | None = None) -> Tensor:
        """The chosen examples, or all, as the network takes them."""
        return self.as_input(self.stored if index is None else self.stored[index])

    def _matching(self, labels: Tensor, stored: Tensor) -> Tensor:
        """Labels of any integer type as int64; refuses those that do not fit the inputs."""
        if not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool):
            labels = labels.to(torch.int64)
        if labels.shape != (len(stored),) or labels.dtype != torch.int64:
            raise ArgumentError(
                f"data {self.name!r}: labels must be integers, one for each of the {len(stored)} {self.KIND}s; got {labels.dtype} of "
                f"shape {tuple(labels.shape)}"
            )
        if labels.device != stored.device:
            raise ArgumentError(f"data {self.name!r}: {self.STORED} are on {stored.device}, labels on {labels.device}")
        return labels

    def _with(self, stored: Tensor, labels: Tensor) -> Self:
        return replace(self, **{self.STORED: stored, "labels": labels})  # type: ignore[type-var]  # every record is a dataclass

    def to(self, device: torch.device | str) -> Self:
        return self._with(self.stored.to(device), self.labels.to(device))

    def select(self, index: Tensor | slice) -> Self:
        """A record of the chosen examples: those at the positions that `index` has, in its order, or those where a mask is true."""
        return self._with(self.stored[index], self.labels[index])

    def take(self, n: int) -> Self:
        """The first n examples; all of them if there are fewer."""
        if n < 1:
            raise ArgumentError(f"data {self.name!r}: {n} {self.KIND}s were asked for; ask for at least 1")
        return self.select(slice(n))

    def split(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Most examples, and the `fraction` that is held out: drawn by seed, the same on every machine, in their old order."""
        held_out = round(fraction * len(self)) if 0 < fraction < 1 else 0
        if not 0 < held_out < len(self):
            raise ArgumentError(
                f"data {self.name!r}: a fraction of {fraction} of {len(self)} {self.KIND}s leaves one part empty; "
                f"pass a fraction between 0 and 1 that leaves {self.KIND}s on both sides"
            )
        # RandomState, because numpy promises never to change its stream; that of a Generator may change.
        shuffled = torch.from_numpy(np.random.RandomState(seed).permutation(len(self)))
        rest, out = shuffled[held_out:].sort().values, shuffled[:held_out].sort().values
        return self.select(rest.to(self.device)), self.select(out.to(self.device))

    def digest(self) -> str:
        """SHA-256 of everything but the name: two records with the same digest hold the same data."""
        digest = hashlib.sha256(self.kind().encode())
        digest.update(self.stored.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class ArrayData(Examples):
    """Numbers of any shape with labels: rows of a table, signals, or whatever a network takes.

    Args:
        values: [N, *shape], floats or integers, NumPy or tensor, in the units of the data; kept as float32.
        labels: [N], integers: positions in `classes`.
        classes: Names of the classes; 0, 1, 2 ... if not given.
        name: What the data is called in messages and records.
        features: Names of the columns, for values [N, F]; an eps for each of them can then be given by name.

    Examples:
        >>> import numpy as np
        >>> import autodual as ad
        >>> rows = np.random.RandomState(0).normal(size=(10, 3))
        >>> data = ad.ArrayData(rows, (rows[:, 0] > 0).astype(int), features=("age", "height", "weight"))
        >>> data.shape, data.classes
        ((3,), ('0', '1'))
    """

    values: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()
    name: str = "arrays"
    features: tuple[str, ...] = ()
    rounded_by: Tensor | None = field(default=None, repr=False)
    """[*shape]: how far float32 has moved each feature, at most; found out from `values`, None where it moved none."""

    STORED = "values"
    KIND = "example"

    def __post_init__(self) -> None:
        where = f"data {self.name!r}"
        values = self.values if isinstance(self.values, Tensor) else as_values(self.values, where)
        labels = (
            self.labels if isinstance(self.labels, Tensor) else as_labels(self.labels, len(values), where, "example")
        )
        if values.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float64):
            check_float32(values, where, tuple(map(str, self.features)))
            wide, values = values, values.to(torch.float32)
            moved = (wide.double() - values.double()).abs()
            if moved.dim() > 1 and bool((moved > 0).any()):
                object.__setattr__(self, "rounded_by", moved.amax(0).cpu())
        if values.dtype != torch.float32 or values.dim() < 2 or values.numel() == 0:
            raise ArgumentError(
                f"{where}: values must be numbers [N, *shape], at least one of each; got {tuple(values.shape)} of {values.dtype}"
            )
        labels = self._matching(labels, values)
        if not self.classes:
            object.__setattr__(self, "classes", tuple(map(str, range(int(labels.max()) + 1))))
        features = tuple(map(str, self.features))
        if features and tuple(values.shape[1:]) != (len(features),):
            raise ArgumentError(
                f"{where}: {len(features)} features are named, but examples are {list(values.shape[1:])}"
            )
        for name, value in (("values", values), ("labels", labels), ("classes", tuple(map(str, self.classes)))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "features", features)
        if values_at_hand(values):
            check_labels(labels, len(self.classes), where, kind="example")
            check_finite(values, where, features)

    def check_reach(self, reach: Tensor) -> None:
        """Refuses sets that leave their own example out. reach: how far each feature may move, to broadcast against one example."""
        if self.rounded_by is None:
            return
        reach = reach.detach().double().cpu().expand_as(self.rounded_by)
        small = ((reach > 0) & (reach < self.rounded_by)).nonzero()
        if len(small):
            place = small[0].tolist()
            name = repr(self.features[place[0]]) if self.features else place if len(place) > 1 else place[0]
            raise ArgumentError(
                f"data {self.name!r}: eps of feature {name} is {reach[tuple(place)].item():g}, but its numbers are so large that "
                f"float32 has moved them by up to {self.rounded_by[tuple(place)].item():g}: the sets would not contain the examples. "
                f"Subtract a constant from the feature, or give a larger eps"
            )

    def as_input(self, stored: Tensor) -> Tensor:
        return stored.to(torch.float32)

    def kind(self) -> str:
        return f"arrays {tuple(self.values.shape)} {self.classes!r} {self.features!r}"


def as_values(array: Any, where: str) -> Tensor:
    """Any array of numbers as a tensor."""
    array = as_array(array, where)
    if array.dtype.kind not in "fiub":
        raise ArgumentError(f"{where}: values are {array.dtype}, but must be numbers")
    kept = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(kept.astype(np.float64) if kept.dtype.kind in "uf" else kept))


FEWEST_STEPS = 100
"""Steps of float32 that the smallest and the largest number of a feature are apart, at least: fewer say little."""


def check_float32(values: Tensor, where: str, features: Sequence[str] = ()) -> None:
    """Refuses finite numbers beyond what float32 holds, and columns of a table whose numbers it can hardly tell apart."""
    wide = values.double()
    if bool((wide.isfinite() & (wide.abs() > torch.finfo(torch.float32).max)).any()):
        raise ArgumentError(f"{where}: holds numbers beyond 3e38, which float32 does not hold; use other units")
    if wide.dim() != 2 or wide.numel() == 0:
        return
    spread, step = wide.amax(0) - wide.amin(0), torch.finfo(torch.float32).eps * wide.abs().amax(0)
    blurred = ((spread > 0) & (spread < FEWEST_STEPS * step)).nonzero().flatten().tolist()
    if blurred:
        name = repr(features[blurred[0]]) if features else blurred[0]
        lowest, highest = (f"{end[blurred[0]].item():.17g}" for end in (wide.amin(0), wide.amax(0)))
        raise ArgumentError(
            f"{where}: feature {name} lies between {lowest} and {highest}, which float32, in which networks compute, can hardly tell "
            f"apart; subtract the smallest from all of them, or remove the feature"
        )


def check_finite(values: Tensor, where: str, features: Sequence[str] = ()) -> None:
    """Refuses NaN and infinity, and names the first."""
    wrong = (~values.isfinite()).nonzero()
    if len(wrong):
        example, *place = wrong[0].tolist()
        column = features[place[0]] if features else str(place if len(place) > 1 else place[0])
        raise ArgumentError(
            f"{where}: example {example} has {values[tuple(wrong[0])].item()} as feature {column} ({len(wrong)} numbers are not "
            f"finite); fill these in, or remove the examples"
        )
