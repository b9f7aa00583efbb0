"""A module is bounded as what it computes, not as what it inherits from."""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import build
from small import DOUBLE, batch


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Standardised(nn.Conv2d):
    """Weight standardisation, as it is usually written."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class OwnConvolution(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight.abs(), bias)


class ShiftedReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x - 0.1)


class Named(nn.Linear):
    """Only a name and a constructor of its own: still a linear layer."""

    def __init__(self) -> None:
        super().__init__(4, 3)


class PositiveWeight(nn.Linear):
    @property
    def positive(self) -> Tensor:
        return self.weight.abs()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.positive, self.bias)


def _with_own_forward() -> nn.Module:
    layer = nn.Linear(4, 3)

    def forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * 3

    layer.forward = types.MethodType(forward, layer)
    return layer


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Doubled(4, 3), (4,)),
    "convolution": (lambda: Standardised(2, 3, 3, padding=1), (2, 5, 5)),
    "convolution by _conv_forward": (lambda: OwnConvolution(2, 3, 3), (2, 5, 5)),
    "activation": (ShiftedReLU, (4,)),
    "constructor only": (Named, (4,)),
    "property": (lambda: PositiveWeight(4, 3), (4,)),
    "forward of one object": (_with_own_forward, (4,)),
}


@pytest.mark.parametrize(("make", "shape"), CASES.values(), ids=CASES.keys())
def test_subclasses_compute_what_their_forward_says(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = nn.Sequential(make()).to(DOUBLE).eval()
    x = batch(5, *shape) * 2 - 1
    torch.testing.assert_close(build(ad.capture(model, x[:2])).forward(x), model(x))
    region = ad.LinfBall(0.1).around(x)
    output = ad.bounds(model, region).output
    for _ in range(10):
        assert output.contains(model(region.sample()), tolerance=1e-9).all()


class CappedAttention(nn.MultiheadAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)[0].clamp(-0.01, 0.01), None


def _encoder_layer(activation: Callable[[Tensor], Tensor], **parts: nn.Module) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, activation=activation)
    for name, part in parts.items():
        setattr(layer, name, part)
    return layer.to(DOUBLE).eval()


def _capped() -> nn.Module:
    return nn.Hardtanh(-0.01, 0.01)


class Widened(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).abs() + 1


PARTS: dict[str, Callable[[], nn.Module]] = {
    **dict.fromkeys(("dropout", "dropout1", "dropout2"), _capped),
    "linear1": lambda: Widened(4, 6),
}


@pytest.mark.parametrize(("name", "make"), PARTS.items(), ids=PARTS.keys())
def test_all_parts_of_an_encoder_layer_count(name: str, make: Callable[[], nn.Module]) -> None:
    """PyTorch calls all of them, but for ReLU and GELU only while gradients are wanted: then there is no one function."""
    x = batch(2, 3, 4)
    model = _encoder_layer(F.silu, **{name: make()})
    torch.testing.assert_close(build(ad.capture(model, x)).forward(x), model(x))
    with pytest.raises(ad.AutodualError, match=f"its {name} is a .* two functions"):
        ad.capture(_encoder_layer(F.relu, **{name: make()}), x)


def test_attention_of_an_encoder_layer_is_what_it_computes() -> None:
    x, hooked = batch(2, 3, 4), _encoder_layer(F.silu)
    hooked.self_attn.register_forward_hook(lambda module, args, out: (out[0].clamp(-0.01, 0.01), None))
    for model in (_encoder_layer(F.silu, self_attn=CappedAttention(4, 2, batch_first=True)), hooked):
        with pytest.raises(ad.AutodualError, match="multi_head_attention_forward"):
            ad.capture(model, x)
    with pytest.raises(ad.AutodualError, match="its self_attn is a CappedAttention"):
        ad.capture(_encoder_layer(F.relu, self_attn=CappedAttention(4, 2, batch_first=True)), x)


class CappedCall(nn.Linear):
    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs).clamp(max=100)


class CappedBlock(nn.Sequential):
    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs).clamp(max=100)


def _with_own_call() -> nn.Module:
    layer = nn.Linear(4, 3)
    vars(layer)["_call_impl"] = lambda x: F.linear(x, layer.weight).clamp(max=100)
    return layer


@pytest.mark.parametrize("make", [lambda: CappedCall(4, 3), lambda: CappedBlock(nn.Linear(4, 3)), _with_own_call])
def test_another_way_to_be_called_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ad.CaptureError, match=r"^0: .* overrides _call_impl"):
        ad.capture(nn.Sequential(make()).to(DOUBLE).eval(), batch(2, 4))


class Capped(Tensor):
    """Linear layers are something else with it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made.as_subclass(Tensor).clamp(max=100) if func is F.linear else made


class OwnProduct(Tensor):
    """No function of PyTorch is told, but an operator is another one."""

    def __mul__(self, other: Any) -> Any:
        return (self.as_subclass(Tensor) * other).clamp(max=100)


class Tagged(nn.Parameter):
    """Only a name, and an attribute."""

    frozen = True

    def __repr__(self) -> str:
        return "tagged"


def _parameter_of(kind: type[Tensor]) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3, dtype=DOUBLE))
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(kind))
    return model


def _buffer_of(kind: type[Tensor]) -> nn.Module:
    model = nn.BatchNorm1d(4, dtype=DOUBLE).eval()
    model.running_mean = model.running_mean.as_subclass(kind)
    return model


class _Computes(nn.Module):
    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.constants = [constant]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.constants[0]


@pytest.mark.parametrize("kind", [Capped, OwnProduct])
@pytest.mark.parametrize(
    "make",
    [_parameter_of, _buffer_of, lambda kind: _Computes(torch.ones(4, dtype=DOUBLE).as_subclass(kind))],
    ids=["parameter", "buffer", "constant"],
)
def test_tensors_with_operations_of_their_own_are_refused(
    make: Callable[[type[Tensor]], nn.Module], kind: type
) -> None:
    with pytest.raises(ad.CaptureError, match=f"{kind.__name__}, a class of tensors that overrides"):
        ad.capture(make(kind), batch(2, 4))


@pytest.mark.parametrize("kind", [Capped, OwnProduct])
def test_inputs_with_operations_of_their_own_are_refused(kind: type[Tensor]) -> None:
    with pytest.raises(ad.CaptureError, match=f"^x: is a {kind.__name__}"):
        ad.certify(_parameter_of(Tensor), batch(2, 4).as_subclass(kind), torch.tensor([0, 1]), ad.LinfBall(0.1))


def test_tensors_with_nothing_but_a_name_are_fine() -> None:
    model = nn.Linear(4, 3, dtype=DOUBLE)
    model.weight = Tagged(model.weight.detach())
    x = batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))
