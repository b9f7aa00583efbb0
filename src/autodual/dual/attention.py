"""Softmax, attention and gates, rewritten in terms of exponentials, reciprocals and products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.dual.base import AffineDual, register, rewrite
from autodual.dual.convex import log_above, power_above, recorded
from autodual.dual.selecting import scaled_product
from autodual.graph import Call, depends
from autodual.graph.network import mark_as_last
from autodual.graph.tracer import value_of

# Softmax.
#
# softmax_i = exp(x_i) / sum_j exp(x_j) is written in its shifted form,
#
#     softmax_i  =  1 / sum_j exp(x_j - x_i),
#
# in which the sum has exp(0) = 1 among its terms: it is never below 1, and a reciprocal on [1, inf) has no pole. What all scores have
# in common cancels in the differences, and bounds know it; nothing overflows where no score is far above another. PyTorch subtracts
# the largest score instead and divides: as many roundings, of no larger numbers.


def differences(x: Tensor, dim: int) -> Tensor:
    """x_j - x_i, with i along `dim` and j along the dimension after it. For rewrites."""
    return x.unsqueeze(dim) - x.unsqueeze(dim + 1)


@dataclass(frozen=True)
class DualDifferences(AffineDual):
    """x_j - x_i for all pairs along a dimension, which is counted without the batch."""

    dim: int

    def linear(self, *operands: Tensor) -> Tensor:
        return differences(operands[0], self.dim + 1)

    def absolute(self, *operands: Tensor) -> Tensor:
        """A difference of an entry with itself is zero, and does not move."""
        (x,) = operands
        return self._of_others(x.unsqueeze(self.dim + 1) + x.unsqueeze(self.dim + 2))

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        """Coefficients of an entry with itself are left out: they would cancel only up to rounding, which nobody counts there."""
        others = self._of_others(coefficients)
        return (others.sum(self.dim + 1) - others.sum(self.dim + 2),)

    def _of_others(self, pairs: Tensor) -> Tensor:
        """Zero for an entry with itself."""
        count = pairs.shape[self.dim + 1]
        other = 1 - torch.eye(count, dtype=pairs.dtype, device=pairs.device)
        return pairs * other.reshape(count, count, *[1] * (pairs.dim() - self.dim - 3))

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return 2, 2 * shapes[0][self.dim]


@register(differences)
def _differences(call: Call) -> DualDifferences:
    return DualDifferences(call.dimension(call.argument(1, "dim")))


def _sums(x: Any, dim: int, keep: Tensor | None) -> Any:
    """sum_j exp(x_j - x_i) >= 1 over the j that a mask keeps; 1 for an i that it does not."""
    apart = recorded(differences, x, dim)
    if keep is None:
        return torch.exp(apart).sum(dim + 1)
    pairs = (keep.unsqueeze(dim) & keep.unsqueeze(dim + 1)).to(x.dtype)
    mask = keep.to(x.dtype)
    return (torch.exp(apart * pairs) * pairs).sum(dim + 1) * mask + (1 - mask)


def _softmax_of(x: Any, dim: int, keep: Tensor | None) -> Any:
    found = recorded(power_above, _sums(x, dim, keep), -1.0, 1.0)
    return found if keep is None else found * keep.to(x.dtype)


def _scores(x: Any, dim: Any) -> tuple[Any, Tensor | None, int] | None:
    """The scores of a call, which of them a mask before it keeps, and the dimension; None if there is nothing to rewrite."""
    if not depends(x) or not isinstance(dim, int):
        return None
    if dim % x.dim() == 0:
        raise ArgumentError(
            "softmax: works across the batch dimension, so one example's output would depend on the others; certificates are "
            "per example. Keep dimension 0 for the batch"
        )
    given, keep = _unmasked(x)
    return given, keep, dim % x.dim()


def _unmasked(x: Any) -> tuple[Any, Tensor | None]:
    """What a mask was put on, with which entries it leaves, if x is masked_fill(given, constant mask, -inf) or the like."""
    node = x.node
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name not in ("masked_fill", "where") or len(node.args) != 3 or node.kwargs:
        return x, None
    first, mask, fill = node.args if name == "masked_fill" else (node.args[1], node.args[0], node.args[2])
    values = x.tracer.values
    numbers = [values.get(a, a) if isinstance(a, fx.Node) else a for a in (mask, fill)]
    constant = not any(isinstance(a, fx.Node) and depends(x.tracer.proxy(a)) for a in (mask, fill))
    if not constant or not isinstance(numbers[0], Tensor) or not isinstance(first, fx.Node):
        return x, None
    if not bool((torch.as_tensor(numbers[1]) == -torch.inf).all()):  # any finite score may be the largest
        return x, None
    kept = (~numbers[0] if name == "masked_fill" else numbers[0]).expand(x.shape)
    if not bool((kept == kept[:1]).all()):
        return x, None
    given = x.tracer.proxy(first)
    given.value = values[first]
    return given, kept[:1].clone()


def _alive(keep: Tensor | None, dim: int) -> None:
    if keep is not None and not bool(keep.any(dim).all()):
        raise ArgumentError(
            "softmax: a mask leaves nothing of some row, which makes it NaN; let every row keep an entry"
        )


@rewrite(torch.softmax, torch.Tensor.softmax, F.softmax)
def softmax(input: Any, dim: Any = None, *rest: Any, **named: Any) -> Any:
    found = _scores(input, dim)
    if found is None or not _is_usual(rest, named):
        return NotImplemented
    x, keep, dim = found
    _alive(keep, dim)
    return mark_as_last(_softmax_of(x, dim, keep), "softmax")


@rewrite(torch.log_softmax, torch.Tensor.log_softmax, F.log_softmax)
def log_softmax(input: Any, dim: Any = None, *rest: Any, **named: Any) -> Any:
    """-log sum_j exp(x_j - x_i)."""
    found = _scores(input, dim)
    if found is None or not _is_usual(rest, named) or found[1] is not None:
        return NotImplemented
    return mark_as_last(-recorded(log_above, _sums(found[0], found[2], None), 1.0), "log_softmax")


def _is_usual(rest: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Without a dtype of its own."""
    given = dict(named)
    given.pop("_stacklevel", None)
    return given.pop("dtype", None) is None and not given and all(r is None or isinstance(r, int) for r in rest)


@rewrite(nn.Softmax)
def _softmax_module(module: Any, input: Any) -> Any:
    return softmax(input, module.dim)


@rewrite(nn.LogSoftmax)
def _log_softmax_module(module: Any, input: Any) -> Any:
    return log_softmax(input, module.dim)


@rewrite(nn.Softmax2d)
def _softmax2d(module: Any, input: Any) -> Any:
    return softmax(input, -3)


@rewrite(nn.Softmin)
def _softmin_module(module: Any, input: Any) -> Any:
    return softmax(-input, module.dim)


@rewrite(F.softmin)
def _softmin(input: Any, dim: Any = None, *rest: Any, **named: Any) -> Any:
    return softmax(-input, dim, *rest, **named) if depends(input) else NotImplemented


@rewrite(torch.logsumexp, torch.Tensor.logsumexp)
def _logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """x_0 + log sum_j exp(x_j - x_0), along one dimension."""
    if not depends(input) or not isinstance(dim, int) or dim % input.dim() == 0:
        return NotImplemented
    first = input.narrow(dim, 0, 1)
    total = first + recorded(log_above, torch.exp(input - first).sum(dim, keepdim=True), 1.0)
    return total if keepdim else total.squeeze(dim)


@rewrite(torch.logaddexp, torch.Tensor.logaddexp)
def _logaddexp(input: Any, other: Any) -> Any:
    """a + log(1 + exp(b - a))."""
    if not depends(input) and not depends(other):
        return NotImplemented
    return input - F.logsigmoid(input - other)


# Gates and attention.


@rewrite(F.glu)
def glu(input: Any, dim: int = -1) -> Any:
    if not depends(input):
        return NotImplemented
    value, gate = input.chunk(2, dim)
    return value * torch.sigmoid(gate)


@rewrite(nn.GLU)
def _glu_module(module: Any, input: Any) -> Any:
    return glu(input, module.dim)


@rewrite(F.scaled_dot_product_attention)
def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """softmax(q k' scale + mask) v."""
    if dropout_p or enable_gqa or depends(attn_mask) or not any(map(depends, (query, key, value))):
        return NotImplemented
    keys, scale = key.transpose(-2, -1), query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query, keys)
    # PyTorch may multiply both sides by the root of the scale instead, and only a large one overflows there.
    large = abs(scale) > 1 and depends(scores)
    scores = recorded(scaled_product, scores, query, keys, scale) if large else scores * scale
    keep: Tensor | None = None
    if is_causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    mask: Any = value_of(attn_mask)
    if mask is not None and mask.dtype == torch.bool:
        keep = mask
    elif mask is not None and bool(mask.isinf().any()):
        keep, scores = ~mask.isinf(), scores + mask.masked_fill(mask.isinf(), 0)
    elif mask is not None:
        scores = scores + attn_mask
    dim = scores.dim() - 1
    if keep is not None:
        keep = keep.expand(scores.shape)
        if not bool((keep == keep[:1]).all()):
            return NotImplemented
        keep = keep[:1].clone()
    _alive(keep, dim)
    weights = _softmax_of(scores, dim, keep) if depends(scores) else torch.softmax(scores, dim)
    return torch.matmul(weights, value)


@rewrite(nn.MultiheadAttention)
def _multihead_attention(
    module: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Projections, attention per head, and a projection of what the heads say side by side."""
    m = module
    plain = key_padding_mask is None and m.bias_k is None and not m.add_zero_attn and m._qkv_same_embed_dim
    if not plain or not m.batch_first or (m.dropout and m.training) or query.dim() != 3:
        raise ArgumentError(
            "MultiheadAttention: has a dual layer with batch_first=True, keys and values of the embedding's size, and without "
            "key_padding_mask, bias_kv, zero attention and active dropout; use such a one, or F.scaled_dot_product_attention"
        )
    if depends(attn_mask):
        raise ArgumentError("MultiheadAttention: attn_mask depends on the input; use F.scaled_dot_product_attention")
    given: Any = value_of(attn_mask)
    if is_causal and given is not None and not _leaves_out_what_follows(given):
        raise ArgumentError(
            "MultiheadAttention: is_causal=True promises that attn_mask leaves out all later positions and nothing else, and it does "
            "not; PyTorch goes by one or the other, so that there are two functions. Leave is_causal out"
        )
    weights = m.in_proj_weight.chunk(3)
    biases = (None,) * 3 if m.in_proj_bias is None else m.in_proj_bias.chunk(3)
    parts = []
    for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
        projected = F.linear(x, weight, bias)
        parts.append(projected.unflatten(-1, (m.num_heads, m.head_dim)).transpose(1, 2))
    mask = attn_mask
    if given is not None and given.dtype == torch.bool:
        mask = ~given  # True means "leave out" here, and "keep" in F.scaled_dot_product_attention
    if given is not None and given.dim() == 3:
        mask = mask.unflatten(0, (-1, m.num_heads))
    found = attention(parts[0], parts[1], parts[2], mask)
    if found is NotImplemented:
        return NotImplemented
    joined = found.transpose(1, 2).flatten(2)
    return F.linear(joined, m.out_proj.weight, m.out_proj.bias), None


def _leaves_out_what_follows(mask: Tensor) -> bool:
    """Whether a mask of nn.MultiheadAttention, True or -inf for "leave out", is the causal one."""
    later = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
    causal = (
        later if mask.dtype == torch.bool else torch.zeros_like(later, dtype=mask.dtype).masked_fill(later, -torch.inf)
    )
    return bool((mask == causal).all())


_ENCODER_PARTS: dict[str, tuple[type[nn.Module], ...]] = {
    "self_attn": (nn.MultiheadAttention,),
    **dict.fromkeys(("linear1", "linear2"), (nn.Linear,)),
    **dict.fromkeys(("norm1", "norm2"), (nn.LayerNorm,)),
    **dict.fromkeys(("dropout", "dropout1", "dropout2"), (nn.Dropout, nn.Identity)),
}
"""What the parts of a TransformerEncoderLayer are."""


def _runs_as(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module computes what one of these classes does."""
    return "forward" not in vars(module) and any(type(module).forward is kind.forward for kind in kinds)


@rewrite(nn.TransformerEncoderLayer)
def _encoder_layer(
    module: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
) -> Any:
    """Attention and two linear layers, with their residual connections.

    With ReLU and GELU, PyTorch may take a fast path, which reads the parameters of its parts and calls none of them.
    """
    m = module
    if src_key_padding_mask is not None or m.training:
        raise ArgumentError(
            "TransformerEncoderLayer: has a dual layer in eval mode and without src_key_padding_mask; call model.eval(), and leave "
            "padding out"
        )
    mask: Any = value_of(src_mask)
    added = isinstance(mask, Tensor) and mask.dtype != torch.bool and bool(((mask != 0) & (mask != -torch.inf)).any())
    if m.activation_relu_or_gelu and added:
        raise ArgumentError(
            "TransformerEncoderLayer: its mask holds numbers that are neither 0 nor -inf, which PyTorch adds in training and reads as "
            "-inf without gradients, so that the layer is two functions; use a mask of 0 and -inf, or of truth values"
        )
    other = [name for name, kinds in _ENCODER_PARTS.items() if not _runs_as(getattr(m, name), kinds)]
    if m.activation_relu_or_gelu and other:
        raise ArgumentError(
            f"TransformerEncoderLayer: its {other[0]} is a {type(getattr(m, other[0])).__name__}, which PyTorch calls in training and "
            f"passes over without gradients, so that the layer is two functions; write the layer out in a module of your own"
        )

    def attend(x: Any) -> Any:
        return m.dropout1(m.self_attn(x, x, x, attn_mask=src_mask, need_weights=False, is_causal=is_causal)[0])

    def feed(x: Any) -> Any:
        return m.dropout2(m.linear2(m.dropout(m.activation(m.linear1(x)))))

    if m.norm_first:
        x = src + attend(m.norm1(src))
        return x + feed(m.norm2(x))
    x = m.norm1(src + attend(src))
    return m.norm2(x + feed(x))
