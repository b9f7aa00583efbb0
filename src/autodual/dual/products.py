"""Products of two values that both depend on the input: x * y, matrix products, and what einsum makes of two operands.

Let B(x, y) be bilinear with coefficients 0 and 1, c the centre and r the radius of the interval of each operand. With

    B(x, y)  =  B(x, c_y) + B(c_x, y) - B(c_x, c_y) + B(x - c_x, y - c_y),

the last term is at most B(r_x, r_y) in size. So the band of the product has a slope that is a linear map, of both operands,

    L(x, y)  =  B(x, c_y) + B(c_x, y),      centre  - B(c_x, c_y),      radius  B(r_x, r_y),

and is found, like its transpose, by products of the same kind: a matrix product is never taken apart. For one product, no parallel
pair of planes over the box is closer: at its four corners x y - L(x, y) is +-r_x r_y, with alternating signs, and at its middle
McCormick's four planes are as far apart. Centres stand for slopes: `Band.slope` holds (c_x, c_y), and `along` and `back` apply the
map. Everything below holds for any slope s in the place of c, with the distance from s in the place of the radius.

An engine sees one operand: x and y side by side, which `joined` puts together and `split` takes apart again.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.dual.base import AffineDual, Band, ElementwiseDual, Lines, Window
from autodual.graph import Call
from autodual.interval import Interval

Pair = tuple[Tensor, Tensor]


class BilinearDual(ElementwiseDual):
    """B(x, y) of the two parts of its operand."""

    elementwise = False
    limit: float | None = None
    """What is known to be no less than any entry of the product in size, by what its factors are computed from."""

    @abstractmethod
    def split(self, z: Tensor) -> Pair:
        """[..., *shape of the operand] -> x and y."""

    @abstractmethod
    def join(self, x: Tensor, y: Tensor) -> Tensor:
        """x and y side by side."""

    @abstractmethod
    def joined(self) -> tuple[AffineDual, Shape]:
        """The layer that puts x and y together, and the shape of its result."""

    @abstractmethod
    def product(self, x: Tensor, y: Tensor) -> Tensor:
        """B(x, y), with any leading dimensions that broadcast."""

    @abstractmethod
    def pulled(self, coefficients: Tensor, x: Tensor, y: Tensor) -> Pair:
        """Coefficients on the operands of B( . , y) and of B(x, . )."""

    @property
    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Products that an entry of B is the sum of, and the most that a pulled coefficient is."""

    def value(self, z: Tensor) -> Tensor:
        return self.product(*self.split(z))

    def along(self, slope: Tensor, z: Tensor, plus: Tensor | None = None) -> Tensor:
        (x, y), (c_x, c_y) = self.split(z), self.split(slope)
        moved = self.product(x, c_y) + self.product(c_x, y)
        return moved if plus is None else moved + plus

    def back(self, slope: Tensor, coefficients: Tensor) -> Tensor:
        return self.join(*self.pulled(coefficients, *self.split(slope)))

    def image(self, z: Interval) -> Interval:
        """By centre and radius; for one product per entry, the largest and smallest of those of the ends."""
        x, y = self._parts(z)
        if self.counts[0] == 1:
            ends = torch.stack([self.product(a, b) for a in (x.lower, x.upper) for b in (y.lower, y.upper)])
            return self._limited(Interval(ends.amin(0), ends.amax(0)))
        centre = self.product(x.centre, y.centre)
        radius = self.product(x.centre.abs() + x.radius, y.radius) + self.product(x.radius, y.centre.abs())
        return self._limited(Interval.around(centre, radius))

    def _limited(self, image: Interval) -> Interval:
        if self.limit is None:
            return image
        most = self.limit * (1 + 4 * torch.finfo(image.lower.dtype).eps)
        return Interval(image.lower.clamp(-most, most), image.upper.clamp(-most, most))

    def largest_value(self, z: Interval) -> Tensor:
        return self.product(*self.split(z.largest))

    def band(self, z: Interval) -> Band:
        slope = z.centre
        return Band(slope, -self.value(slope), self.value(_away(z, slope)))

    def lines(self, z: Interval) -> Lines:
        band = self.band(z)
        return Lines(band.slope, band.centre - band.radius, band.slope, band.centre + band.radius)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        """A sum of n products is wrong by at most gamma_n of their sizes, and gamma_n < (1 + n / 8) gamma_16."""
        return grain * (1 + self.counts[0] / 8) * self.product(*self.split(z.largest))

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        """With m the middle of a and b: B(a) - B(b) - L(a - b) = B(a_x - b_x, m_y - s_y) + B(m_x - s_x, a_y - b_y)."""
        return self.along(_away(z, slope), by)

    def strayed(self, z: Interval, below: Tensor, above: Tensor, slopes: tuple[Tensor, ...]) -> Tensor:
        """How much farther from its lines a product may be where operands lie outside their intervals by so much.

        B(r + o) - B(r) for the distances r from the slope inside the interval, and o outside: B(o_x, r_y + o_y) + B(r_x, o_y).
        """
        (o_x, o_y) = self.split(torch.maximum(below, above))
        found = []
        for slope in slopes:
            r_x, r_y = self.split(_away(z, slope))
            found.append(self.product(o_x, r_y + o_y) + self.product(r_x, o_y))
        return torch.stack(found).amax(0)

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        """Terms of B(x, c_y) + B(c_x, y) - B(c_x, c_y), twice since they add up to twice the size; coefficients have no more."""
        most = 2 * (2 * max(self.counts) + 2)
        return most, most

    def _parts(self, z: Interval) -> tuple[Interval, Interval]:
        lower, upper = self.split(z.lower), self.split(z.upper)
        return Interval(lower[0], upper[0]), Interval(lower[1], upper[1])


def _away(z: Interval, slope: Tensor) -> Tensor:
    """The largest distance from `slope` on an interval."""
    return torch.maximum((z.upper - slope).abs(), (slope - z.lower).abs())


# Entry by entry, for operands of one shape: channels side by side, so that a position still reads its own place only.


@dataclass(frozen=True)
class DualProduct(BilinearDual):
    """x * y for operands of one shape, whose channels stand side by side."""

    shape: Shape
    limit: float | None = None

    counts = (1, 1)

    def split(self, z: Tensor) -> Pair:
        x, y = z.chunk(2, dim=-len(self.shape))
        return x, y

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], dim=-len(self.shape))

    def joined(self) -> tuple[AffineDual, Shape]:
        return DualBeside(), (2 * self.shape[0], *self.shape[1:])

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def pulled(self, coefficients: Tensor, x: Tensor, y: Tensor) -> Pair:
        return coefficients * y, coefficients * x


class DualBeside(AffineDual):
    """Two operands of one shape, with their channels side by side."""

    exact = True

    def linear(self, *operands: Tensor) -> Tensor:
        return torch.cat(operands, 1)

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return coefficients.chunk(2, dim=1)

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return 1, 1

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        return Window.same(len(shapes[0]) - 1)

    def cropped(self, shape: Shape) -> DualBeside:
        return self


# Any other product, given by letters for the dimensions as in einsum.


@dataclass(frozen=True)
class DualBilinear(BilinearDual):
    """einsum("left,right->result", x, y): letters that the result has not are summed over. Operands are vectors side by side."""

    left: str
    right: str
    result: str
    shapes: tuple[Shape, Shape]
    limit: float | None = None

    def __post_init__(self) -> None:
        letters = (self.left, self.right, self.result)
        if any(len(set(part)) != len(part) for part in letters):
            raise ArgumentError(
                f"{','.join(letters[:2])}->{letters[2]}: a letter that is used twice in one place has no dual layer"
            )
        alone = set(self.left) ^ set(self.right)
        if not alone <= set(self.result) or not set(self.result) <= set(self.left + self.right):
            raise ArgumentError(
                f"{','.join(letters[:2])}->{letters[2]}: sums over one operand alone; sum it before the product"
            )

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.left + self.right, (*self.shapes[0], *self.shapes[1]), strict=True))

    @property
    def counts(self) -> tuple[int, int]:
        sizes = self.sizes

        def total(letters: set[str]) -> int:
            return math.prod(sizes[letter] for letter in letters)

        left, right, result = set(self.left), set(self.right), set(self.result)
        return total((left | right) - result), max(total((right | result) - left), total((left | result) - right))

    def split(self, z: Tensor) -> Pair:
        x, y = z.split([math.prod(shape) for shape in self.shapes], dim=-1)
        return x.reshape(*z.shape[:-1], *self.shapes[0]), y.reshape(*z.shape[:-1], *self.shapes[1])

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.flatten(x.dim() - len(self.left)) if self.left else x.unsqueeze(-1),
                          y.flatten(y.dim() - len(self.right)) if self.right else y.unsqueeze(-1)], dim=-1)  # fmt: skip

    def joined(self) -> tuple[AffineDual, Shape]:
        return DualVectors(), (sum(map(math.prod, self.shapes)),)

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum(f"...{self.left},...{self.right}->...{self.result}", x, y)

    def pulled(self, coefficients: Tensor, x: Tensor, y: Tensor) -> Pair:
        return (
            torch.einsum(f"...{self.result},...{self.right}->...{self.left}", coefficients, y),
            torch.einsum(f"...{self.result},...{self.left}->...{self.right}", coefficients, x),
        )


class DualVectors(AffineDual):
    """The entries of all operands as one vector."""

    exact = True

    def linear(self, *operands: Tensor) -> Tensor:
        return torch.cat([operand.reshape(len(operand), -1) for operand in operands], 1)

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        parts = coefficients.split([math.prod(shape) for shape in shapes], dim=1)
        return tuple(part.reshape(len(part), *shape) for part, shape in zip(parts, shapes, strict=True))

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return 1, 1


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def elementwise_product(call: Call, left: Shape, right: Shape) -> BilinearDual:
    """x * y, broadcast: a dimension of size 1 that the other operand repeats has no letter."""
    if left == right:
        return DualProduct(left)
    if len(left) != len(right):
        raise ArgumentError(
            f"{call.path}: multiplies tensors of {len(left) + 1} and {len(right) + 1} dimensions that both depend on the input, "
            f"so that the batch of one would meet another dimension of the other; unsqueeze the smaller one behind the batch"
        )
    letters = LETTERS[: len(left)]
    kept = [[i for i in range(len(left)) if a[i] == b[i] or a[i] != 1] for a, b in ((left, right), (right, left))]
    names = ["".join(letters[i] for i in places) for places in kept]
    shapes = tuple(left[i] for i in kept[0]), tuple(right[i] for i in kept[1])
    return DualBilinear(names[0], names[1], letters, shapes)


def matrix_product(call: Call, left: Shape, right: Shape) -> BilinearDual:
    """x @ y over the last two dimensions, for operands with as many dimensions before them."""
    if len(left) != len(right) or len(left) < 2:
        raise ArgumentError(
            f"{call.path}: a matrix product of two tensors that both depend on the input needs matrices in every example, got "
            f"{left} and {right}; unsqueeze vectors, and keep dimension 0 for the batch"
        )
    letters = LETTERS[: len(left) - 2]
    outer = [[i for i in range(len(letters)) if a[i] == b[i] or a[i] != 1] for a, b in ((left, right), (right, left))]
    names = ["".join(letters[i] for i in places) for places in outer]
    shapes = (*(left[i] for i in outer[0]), *left[-2:]), (*(right[i] for i in outer[1]), *right[-2:])
    return DualBilinear(f"{names[0]}xy", f"{names[1]}yz", f"{letters}xz", shapes)
