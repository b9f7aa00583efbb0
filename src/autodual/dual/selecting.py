"""Operations that choose, repeat, turn and add up entries at places that are known beforehand, and products with constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape, is_being_captured
from autodual.dual.arithmetic import DualEinsum, DualScale
from autodual.dual.base import AffineDual, factor, parameter, register, rewrite
from autodual.dual.convex import recorded
from autodual.dual.products import BilinearDual, DualBilinear
from autodual.dual.shape import DualMonotone
from autodual.graph import Call, Operand, depends


def _moves(function: Callable[[Tensor], Tensor]) -> DualMonotone:
    return DualMonotone(function, exact=True)


@register(torch.roll, torch.Tensor.roll)
def _roll(call: Call) -> DualMonotone:
    shifts, dims = call.argument(1, "shifts"), call.argument(2, "dims", None)
    if dims is None or dims in ((), []):
        call.dimension(0)  # it would roll all entries of the batch
    places = [call.dimension(d) + 1 for d in (dims if isinstance(dims, list | tuple) else (dims,))]
    amounts = shifts if isinstance(shifts, list | tuple) else (shifts,)
    return _moves(lambda x: x.roll(tuple(amounts), places))


@register(torch.rot90, torch.Tensor.rot90)
def _rot90(call: Call) -> DualMonotone:
    turns, dims = call.argument(1, "k", 1), call.argument(2, "dims", (0, 1))
    places = [call.dimension(d) + 1 for d in dims]
    return _moves(lambda x: x.rot90(turns, places))


@register(torch.index_select, torch.Tensor.index_select)
def _index_select(call: Call) -> DualMonotone:
    dim, index = call.dimension(call.argument(1, "dim")) + 1, parameter(call, 2, "index")
    return _moves(lambda x: x.index_select(dim, index))


@register(torch.Tensor.repeat, torch.tile, torch.Tensor.tile)
def _repeat(call: Call) -> DualMonotone:
    given = call.args[1:] if len(call.args) > 2 else call.argument(1, "dims" if call.kwargs.get("dims") else "repeats")
    counts = tuple(given) if isinstance(given, list | tuple) else (given,)
    rank = len(call.operand.shape) + 1
    if len(counts) > rank or (len(counts) == rank and counts[0] != 1):
        call.dimension(0)
    times = (1,) * (rank - len(counts)) + counts
    return _moves(lambda x: x.repeat(times))


@register(torch.cumsum, torch.Tensor.cumsum)
def _cumsum(call: Call) -> DualMonotone:
    dim = call.dimension(call.argument(1, "dim")) + 1
    return DualMonotone(lambda x: x.cumsum(dim))


@register(torch.diagonal, torch.Tensor.diagonal)
def _diagonal(call: Call) -> DualMonotone:
    offset = call.argument(1, "offset", 0)
    first, second = (call.dimension(call.argument(i, f"dim{i - 1}", i - 2)) + 1 for i in (2, 3))
    return _moves(lambda x: x.diagonal(offset, first, second))


@register(torch.Tensor.unfold)
def _windows(call: Call) -> DualMonotone:
    dim = call.dimension(call.argument(1, "dimension")) + 1
    size, step = call.argument(2, "size"), call.argument(3, "step")
    return _moves(lambda x: x.unfold(dim, size, step))


@register(nn.Unfold, F.unfold)
def _unfold(call: Call) -> DualMonotone:
    options = _window_options(call, 1)
    return _moves(lambda x: F.unfold(x, **options))


@register(nn.Fold, F.fold)
def _fold(call: Call) -> DualMonotone:
    size, options = parameter(call, 1, "output_size"), _window_options(call, 2)
    return DualMonotone(lambda x: F.fold(x, size, **options))


def _window_options(call: Call, first: int) -> dict[str, Any]:
    """How F.fold and F.unfold move their window. first: the position of these arguments."""
    usual = {"kernel_size": None, "dilation": 1, "padding": 0, "stride": 1}
    return {name: parameter(call, i, name, value) for i, (name, value) in enumerate(usual.items(), start=first)}


@register(nn.PixelUnshuffle, F.pixel_unshuffle)
def _pixel_unshuffle(call: Call) -> DualMonotone:
    factor = parameter(call, 1, "downscale_factor")
    return _moves(lambda x: F.pixel_unshuffle(x, factor))


@register(nn.ChannelShuffle, F.channel_shuffle)
def _channel_shuffle(call: Call) -> DualMonotone:
    groups = parameter(call, 1, "groups")
    return _moves(lambda x: x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2))


@register(torch.Tensor.detach, torch.detach)
def _detach(call: Call) -> DualScale:
    """Values stay what they are; a bound is differentiated through all the same."""
    return DualScale(1.0, None, call.shape)


# In terms of what exists.


@rewrite(torch.movedim, torch.moveaxis, torch.Tensor.movedim, torch.Tensor.moveaxis)
def _movedim(input: Any, source: Any, destination: Any) -> Any:
    if not depends(input):
        return NotImplemented
    rank = input.dim()
    start, end = ([d % rank for d in ((v,) if isinstance(v, int) else v)] for v in (source, destination))
    others = iter(d for d in range(rank) if d not in start)
    place = dict(zip(end, start, strict=True))
    return input.permute([place[d] if d in place else next(others) for d in range(rank)])


@rewrite(torch.fliplr, torch.Tensor.fliplr)
def _fliplr(input: Any) -> Any:
    return input.flip(1) if depends(input) else NotImplemented


@rewrite(torch.concatenate)
def _concatenate(tensors: Any, dim: int = 0) -> Any:
    return torch.cat(tensors, dim) if any(map(depends, tensors)) else NotImplemented


@rewrite(torch.diff, torch.Tensor.diff)
def _diff(input: Any, n: int = 1, dim: int = -1) -> Any:
    for _ in range(n if depends(input) else 0):
        count = input.shape[dim] - 1
        input = input.narrow(dim, 1, count) - input.narrow(dim, 0, count)
    return input if depends(input) else NotImplemented


@rewrite(torch.tril, torch.Tensor.tril)
def _tril(input: Any, diagonal: int = 0) -> Any:
    return _triangle(input, lambda ones: ones.tril(diagonal))


@rewrite(torch.triu, torch.Tensor.triu)
def _triu(input: Any, diagonal: int = 0) -> Any:
    return _triangle(input, lambda ones: ones.triu(diagonal))


def _triangle(input: Any, cut: Callable[[Tensor], Tensor]) -> Any:
    if not depends(input) or input.dim() < 3:
        return NotImplemented
    return input * cut(torch.ones(input.shape[-2:], dtype=input.dtype, device=input.device))


@rewrite(nn.Softshrink)
def _softshrink_module(module: Any, input: Any) -> Any:
    return softshrink(input, module.lambd)


@rewrite(F.softshrink)
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """x - clamp(x, -lambda, lambda)."""
    return input - input.clamp(-lambd, lambd) if depends(input) and lambd >= 0 else NotImplemented


@rewrite(torch.addcmul, torch.Tensor.addcmul)
def _addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    if not any(map(depends, (input, tensor1, tensor2))):
        return NotImplemented
    return input + (tensor1 * value * tensor2 if _scaled_first(input, value) else tensor1 * tensor2 * value)


@rewrite(torch.addcdiv, torch.Tensor.addcdiv)
def _addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    if not any(map(depends, (input, tensor1, tensor2))):
        return NotImplemented
    return input + (tensor1 * value / tensor2 if _scaled_first(input, value) else tensor1 / tensor2 * value)


def _scaled_first(like: Any, value: float) -> bool:
    """Whether a product of three begins with the number: on CPUs it does, on GPUs the number comes last, and so may overflow or
    underflow come on the way. One is left out: it changes nothing."""
    return value != 1 and like.device.type == "cpu"


def scaled_product(product: Tensor, left: Tensor, right: Tensor, alpha: float) -> Tensor:
    """alpha * product, which is left @ right. For rewrites."""
    return product * alpha


@dataclass(frozen=True)
class DualScaledProduct(AffineDual):
    """A multiple of a matrix product. Programs multiply either side by the number, both by its root, or the product, as shapes and
    sizes of batches ask for; sides may overflow and underflow there where the product does neither."""

    alpha: float
    products: int
    """How many an entry is the sum of."""
    constant: Tensor | None
    """The side that is no operand, if there is one."""

    def linear(self, *operands: Tensor) -> Tensor:
        return operands[0] * self.alpha

    def absolute(self, *operands: Tensor) -> Tensor:
        return operands[0] * abs(self.alpha)

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        nothing = (coefficients.new_zeros(len(coefficients), *shape) for shape in shapes[1:])
        return coefficients * self.alpha, *nothing

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return 2, 1

    def run_error(self, grain: float, *operands: Tensor) -> Tensor | None:
        """A side may lose the smallest normal number to underflow, in every product with the other one."""
        product, *sides = operands
        sizes = [side.flatten(1).amax(1) for side in sides]
        sizes += [] if self.constant is None else [self.constant.abs().amax().to(product).expand(len(product))]
        single, largest = torch.finfo(torch.float32), torch.stack(sizes).amax(0)
        lost = 2 * self.products * max(1.0, abs(self.alpha)) * single.tiny * largest
        error = torch.where(1.1 * abs(self.alpha) * largest <= single.max, lost, torch.inf)
        return error.reshape(-1, *[1] * (product.dim() - 1))


@register(scaled_product)
def _scaled_product(call: Call) -> DualScaledProduct:
    sides = call.argument(1, "left"), call.argument(2, "right")
    constant = next((side.to(call.floating(side)) for side in sides if isinstance(side, Tensor)), None)
    return DualScaledProduct(factor(call, call.argument(3, "alpha"), "alpha"), sides[0].shape[-1], constant)


@rewrite(torch.addmm, torch.Tensor.addmm)
def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _plus_product(input, mat1, mat2, beta, alpha)


@rewrite(torch.baddbmm, torch.Tensor.baddbmm)
def _baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _plus_product(input, batch1, batch2, beta, alpha)


def _plus_product(added: Any, left: Any, right: Any, beta: float, alpha: float) -> Any:
    if not any(map(depends, (added, left, right))):
        return NotImplemented
    product = torch.matmul(left, right)
    if alpha != 1:
        product = recorded(scaled_product, product, left, right, alpha) if depends(product) else product * alpha
    return product + (added if beta == 1 else added * beta)


@rewrite(torch.lerp, torch.Tensor.lerp)
def _lerp(input: Any, end: Any, weight: Any) -> Any:
    return input + (end - input) * weight if any(map(depends, (input, end, weight))) else NotImplemented


# Masks that are constant.


@dataclass(frozen=True)
class DualChoice(AffineDual):
    """Entries of one operand where a mask is set, and of the other, or of constants, elsewhere."""

    mask: Tensor
    """[*shape of the result] bool."""
    sides: tuple[Tensor | None, Tensor | None]
    """Constants, or None for the next operand."""
    shape: Shape

    def linear(self, *operands: Tensor) -> Tensor:
        following = iter(operands)
        zero = operands[0].new_zeros(())
        parts = [next(following) if side is None else zero for side in self.sides]
        return torch.where(self.mask, parts[0], parts[1]).expand(len(operands[0]), *self.shape)

    def bias(self) -> Tensor | None:
        constants = [side for side in self.sides if side is not None]
        if not constants:
            return None
        zero = torch.zeros((), dtype=constants[0].dtype, device=constants[0].device)
        first, second = (zero if side is None else side for side in self.sides)
        return torch.where(self.mask, first, second).expand(self.shape)


@register(torch.where)
def _where(call: Call) -> DualChoice:
    condition = call.argument(0, "condition")
    return _choice(call, condition, call.argument(1, "input"), call.argument(2, "other"))


@register(torch.Tensor.where)
def _where_method(call: Call) -> DualChoice:
    return _choice(call, call.argument(1, "condition"), call.argument(0, "input"), call.argument(2, "other"))


@register(torch.masked_fill, torch.Tensor.masked_fill)
def _masked_fill(call: Call) -> DualChoice:
    return _choice(call, call.argument(1, "mask"), call.argument(2, "value"), call.argument(0, "input"))


def _choice(call: Call, mask: Any, first: Any, second: Any) -> DualChoice:
    if isinstance(mask, Operand):
        raise ArgumentError(
            f"{call.path}: a mask that depends on the input makes the network jump; say it by ReLU, abs, clamp or torch.maximum"
        )
    chosen = call.constant(mask, call.shape).expand(call.shape)
    sides = tuple(
        None if isinstance(side, Operand) else _filling(call, side, chosen.device) for side in (first, second)
    )
    return DualChoice(chosen, (sides[0], sides[1]), call.shape)


def _filling(call: Call, value: Any, device: torch.device) -> Tensor:
    """The device writes a number itself: a copy would wait for it, and is refused while a CUDA graph is captured."""
    constant = (
        call.constant(value, call.shape)
        if isinstance(value, Tensor)
        else torch.full((), value, dtype=torch.float64, device=device)
    )
    found = constant.to(call.floating(constant))
    if not is_being_captured(found) and not bool(found.isfinite().all()):
        raise ArgumentError(
            f"{call.path}: fills with an infinite number or NaN, so that nothing finite can be said about the result; only a softmax "
            f"may follow a mask of -inf, at once. Use a finite number, or F.scaled_dot_product_attention with a mask"
        )
    return found


# einsum with constants, and of two operands that depend on the input.


@register(torch.einsum)
def _einsum(call: Call) -> AffineDual | BilinearDual:
    operands = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], list | tuple) else call.args[1:]
    equation = call.argument(0, "equation")
    if not isinstance(equation, str) or len(operands) not in (1, 2):
        raise ArgumentError(
            f"{call.path}: einsum has a dual layer for an equation and one or two operands; take it in steps"
        )
    parts, result = _letters(call, equation, len(operands))
    sizes = {
        letter: n for part, o in zip(parts, operands, strict=True) for letter, n in zip(part, _sizes(o), strict=False)
    }
    if len(operands) == 1:
        parts, operands = [*parts, ""], [*operands, torch.ones((), dtype=call.dtype or torch.get_default_dtype())]
    left, right = operands
    if isinstance(left, Operand) and isinstance(right, Operand):
        names = [_example(call, part, result) for part in parts]
        for name, operand in zip(names, operands, strict=True):
            if any(sizes[letter] != n for letter, n in zip(name, operand.shape, strict=True)):
                raise ArgumentError(
                    f"{call.path}: einsum({equation!r}) has a letter for dimensions of different sizes, one of which PyTorch repeats; "
                    f"use expand beforehand"
                )
        return DualBilinear(names[0], names[1], result[1:], (left.shape, right.shape))
    place = 0 if isinstance(left, Operand) else 1
    name, other, weight = _example(call, parts[place], result), parts[1 - place], operands[1 - place]
    if parts[place][0] in other or any(len(set(part)) != len(part) for part in (name, other)):
        raise ArgumentError(
            f"{call.path}: einsum({equation!r}) multiplies along the batch, or takes a diagonal; index it beforehand"
        )
    constant = weight.to(call.floating(weight))

    def total(letters: set[str]) -> int:
        return math.prod(sizes.get(letter, 1) for letter in letters)

    forward, back = set(name + other) - set(result), set(other + result[1:]) - set(name)
    return DualEinsum(name, other, result[1:], constant, (total(forward), total(back)))


def _sizes(operand: Any) -> tuple[int, ...]:
    return (1, *operand.shape) if isinstance(operand, Operand) else tuple(operand.shape)


def _letters(call: Call, equation: str, count: int) -> tuple[list[str], str]:
    """The letters of every operand, and of the result."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    if "." in equation or len(parts) != count:
        raise ArgumentError(
            f"{call.path}: einsum({equation!r}) has a dual layer only with a letter for every dimension"
        )
    if not arrow:
        result = "".join(sorted(c for c in set("".join(parts)) if "".join(parts).count(c) == 1))
    return parts, result


def _example(call: Call, part: str, result: str) -> str:
    """The letters of an example: the batch comes first, in an operand and in the result."""
    if not part or not result or part[0] != result[0] or part[0] in part[1:]:
        raise ArgumentError(
            f"{call.path}: einsum does not leave dimension 0, the batch, in its place, so one example's output would depend on the "
            f"others; certificates are per example"
        )
    return part[1:]
