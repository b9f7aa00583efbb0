"""check_dual_layer finds each way in which a dual layer can be wrong, and says where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import DualLayer, Window
from autodual.dual.arithmetic import DualLinear, DualScale
from autodual.dual.conv import DualConv
from autodual.dual.piecewise import DualReLU
from autodual.dual.smooth import DualGELU, DualTanh
from autodual.testing import check_dual_layer


class Rectifier(nn.Module):
    """ReLU under a name of its own, so that a broken dual layer can be registered for it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)


class Squash(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


class Weighted(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Filter(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class WrongValue(DualReLU):
    def value(self, z: Tensor) -> Tensor:
        return 1.001 * z.relu()


class LowImage(DualReLU):
    def image(self, z: ad.Interval) -> ad.Interval:
        return ad.Interval(z.lower.relu(), 0.9 * z.upper.relu())


class NarrowBand(DualReLU):
    def band(self, z: ad.Interval) -> ad.Band:
        band = super().band(z)
        return ad.Band(band.slope, band.centre, 0.98 * band.radius)


class WideBand(DualReLU):
    def band(self, z: ad.Interval) -> ad.Band:
        band = super().band(z)
        return ad.Band(band.slope, band.centre, 1.02 * band.radius)


class WideForOne(DualReLU):
    def band(self, z: ad.Interval) -> ad.Band:
        band = super().band(z)
        last = torch.arange(z.lower.shape[-1]) == z.lower.shape[-1] - 1
        return ad.Band(band.slope, band.centre, torch.where(last, 1.02, 1.0) * band.radius)


class HighLine(DualReLU):
    def lines(self, z: ad.Interval) -> ad.Lines:
        lines = super().lines(z)
        return ad.Lines(lines.upper_slope, lines.lower_offset, lines.upper_slope, lines.upper_offset - 1e-6)


class SwallowsNan(DualReLU):
    def band(self, z: ad.Interval) -> ad.Band:
        return super().band(ad.Interval(*(torch.where(e.isnan(), 0.5, e) for e in (z.lower, z.upper))))


class BentWhereStraight(DualReLU):
    def straight(self, z: ad.Interval) -> Tensor:
        return (z.lower >= -0.1) | (z.upper <= 0)


class StraightNearby(DualTanh):
    """Straight on intervals so small that its bands have hardly a radius."""

    def straight(self, z: ad.Interval) -> Tensor:
        return z.width < 1e-7


class StraightAtNan(DualReLU):
    def straight(self, z: ad.Interval) -> Tensor:
        return ~((z.lower < 0) & (z.upper > 0))


class NoGradient(DualReLU):
    def band(self, z: ad.Interval) -> ad.Band:
        return super().band(z.detach())


class BrokenGradient(DualReLU):
    def band(self, z: ad.Interval) -> ad.Band:
        band = super().band(z)
        zero = (z.upper - z.lower) / (z.upper - z.lower) - 1  # 0, or 0 / 0 without width
        return ad.Band(band.slope, band.centre, band.radius + torch.where(z.width > 0, zero, torch.zeros_like(zero)))


class LooseLines(DualTanh):
    def lines(self, z: ad.Interval) -> ad.Lines:
        band = self.band(z)
        return ad.Lines(band.slope, band.centre - 2 * band.radius, band.slope, band.centre + 2 * band.radius)


@dataclass(frozen=True)
class WrongBias(DualLinear):
    def apply(self, *operands: Tensor) -> Tensor:
        return super().apply(*operands) + 1e-3


@dataclass(frozen=True)
class HiddenBias(DualLinear):
    """Right as a whole, but the bias is in the linear part."""

    def linear(self, *operands: Tensor) -> Tensor:
        return super().linear(*operands) + self.bias_vector

    def apply(self, *operands: Tensor) -> Tensor:
        return self.linear(*operands)


@dataclass(frozen=True)
class WrongTranspose(DualLinear):
    def transpose(self, coefficients: Tensor, shapes: tuple[Any, ...]) -> tuple[Tensor, ...]:
        return (0.999 * super().transpose(coefficients, shapes)[0],)


@dataclass(frozen=True)
class SignedAbsolute(DualLinear):
    def absolute(self, *operands: Tensor) -> Tensor:
        return self.linear(*operands)


@dataclass(frozen=True)
class SmallWindow(DualConv):
    def window(self, shapes: tuple[Any, ...]) -> Window | None:
        window = super().window(shapes)
        assert window is not None
        return Window(window.stride, window.low, tuple(h - 1 for h in window.high))


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x)


class Normed(nn.BatchNorm1d):
    """The shift nearly cancels: mean * slope is large, and so is the bias."""

    def __init__(self) -> None:
        super().__init__(3)
        with torch.no_grad():
            for values in (self.running_mean, self.bias):
                assert values is not None
                values.copy_(torch.tensor([310.8, 1e4 / 3, -77.7]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class OnlyRelative(DualGELU):
    """GELU cancels for negative inputs, so that its error is absolute."""

    def error(self, z: ad.Interval, size: Tensor, grain: float) -> Tensor:
        return grain * size


class RoughValue(DualReLU):
    """Rounds in float32, and says that it does not."""

    def value(self, z: Tensor) -> Tensor:
        return ((z + 1) - 1).relu() if z.dtype == torch.float32 else z.relu()


class StandsStill(DualReLU):
    def moved(self, z: ad.Interval, by: Tensor, slope: Tensor) -> Tensor:
        return 0.9 * super().moved(z, by, slope)


@dataclass(frozen=True)
class SaysExact(DualLinear):
    exact = True


@dataclass(frozen=True)
class SilentConstants(DualScale):
    def constant_error(self, *operands: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class SilentRun(DualScale):
    def run_error(self, grain: float, *operands: Tensor) -> Tensor | None:
        return None


def _folded(layer: type[DualScale]) -> Callable[[ad.Call], DualLayer]:
    """In the dtype of the module, where a large mean costs digits."""

    def build(call: ad.Call) -> DualLayer:
        m: Any = call.module
        slope = torch.rsqrt(m.running_var + m.eps) * m.weight
        terms = m.bias.abs() + (m.running_mean * slope).abs()
        return layer(slope, m.bias - m.running_mean * slope, call.shape, terms)

    return build


def _linear(layer: type[DualLinear]) -> Callable[[ad.Call], DualLayer]:
    return lambda call: layer(call.module.weight, call.module.bias)


def _conv(call: ad.Call) -> DualLayer:
    m = call.module
    return SmallWindow(m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)


BROKEN: dict[str, tuple[type[nn.Module], Any, str]] = {
    "value": (Rectifier, WrongValue, "value against the module's"),
    "image": (Rectifier, LowImage, "image cuts off values above"),
    "unsound band": (Rectifier, NarrowBand, r"band: the function is not .* at l = .*, u = .*, z = "),
    "loose band": (Rectifier, WideBand, "radius is more than 1% above the smallest possible"),
    "loose band of one feature": (Rectifier, WideForOne, "radius is more than 1% above the smallest possible"),
    "unsound lines": (Rectifier, HighLine, "lines: the function is not"),
    "NaN": (Rectifier, SwallowsNan, "band of an interval with a NaN end is finite"),
    "straight": (Rectifier, BentWhereStraight, r"straight\(\) holds where the band has a radius"),
    "straight nearby": (Squash, StraightNearby, r"straight\(\) holds where a smaller interval has another slope"),
    "straight at NaN": (Rectifier, StraightAtNan, r"straight\(\) holds on an interval with a NaN end"),
    "no gradient": (Rectifier, NoGradient, "gradient of the band in the lower end against finite differences"),
    "gradient not finite": (Rectifier, BrokenGradient, "gradient of the band in the lower end is not finite"),
    "loose lines": (Squash, LooseLines, "line is more than 1% of the range away from the envelope"),
    "bias": (Weighted, _linear(WrongBias), "value against the module's"),
    "hidden bias": (Weighted, _linear(HiddenBias), "apply against linear"),
    "transpose": (Weighted, _linear(WrongTranspose), "transpose for operand 0 against the one found by autodiff"),
    "absolute": (Weighted, _linear(SignedAbsolute), "absolute"),
    "window": (Filter, _conv, "reads operand 0 outside of its Window"),
    "error of the function": (Gate, OnlyRelative, "as it runs in float32, is farther from the exact function than"),
    "error of the value": (Rectifier, RoughValue, r"error\(\) understates what the value in float32 is wrong by"),
    "moved": (Rectifier, StandsStill, r"moved\(\) understates how far the function leaves a line"),
    "exact": (Weighted, _linear(SaysExact), "as it runs in float32, is farther from the exact function than"),
    "error of constants": (Normed, _folded(SilentConstants), r"constant_error\(\) understates what the constants"),
    "error of folding": (Normed, _folded(SilentRun), "the dual layers' value against the module's"),
}
ARGUMENTS = {Rectifier: (), Squash: (), Weighted: (4, 3), Filter: (2, 2, 3), Gate: (), Normed: ()}


@pytest.mark.parametrize(("module", "layer", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_finds_what_is_wrong(module: type[nn.Module], layer: Any, message: str) -> None:
    fresh = type(module.__name__, (module,), {"forward": module.forward})
    ad.register(fresh)(layer)
    with pytest.raises(AssertionError, match=message):
        check_dual_layer(fresh(*ARGUMENTS[module]), lines_tightness=0.01)


def test_accepts_a_layer_that_is_right() -> None:
    fresh = type("Rectifier", (Rectifier,), {"forward": Rectifier.forward})
    ad.register(fresh)(DualReLU)
    check_dual_layer(fresh())


def test_tightness_can_be_left_unchecked() -> None:
    fresh = type("Rectifier", (Rectifier,), {"forward": Rectifier.forward})
    ad.register(fresh)(WideBand)
    check_dual_layer(fresh(), tightness=None)


def test_names_the_operation_that_fails_in_a_composition() -> None:
    fresh = type("Rectifier", (Rectifier,), {"forward": Rectifier.forward})
    ad.register(fresh)(NarrowBand)
    with pytest.raises(AssertionError, match=r"Sequential \(float64\), 1: band"):
        check_dual_layer(nn.Sequential(nn.Linear(3, 2), fresh()), torch.zeros(1, 3))


def test_layers_that_differ_in_a_field_are_not_taken_for_the_same() -> None:
    @dataclass(frozen=True)
    class Numbered(DualReLU):
        number: int

        def band(self, z: ad.Interval) -> ad.Band:
            band = super().band(z)
            return ad.Band(band.slope, band.centre, (0.98 if self.number == 2 else 1) * band.radius)

    rectifiers = []
    for number in (1, 1, 2):
        fresh = type("Rectifier", (Rectifier,), {"forward": Rectifier.forward})
        ad.register(fresh)(lambda call, n=number: Numbered(n))
        rectifiers.append(fresh())
    with pytest.raises(AssertionError, match=r"Sequential \(float64\), 2: band"):
        check_dual_layer(nn.Sequential(*rectifiers), torch.zeros(1, 3))


@pytest.mark.parametrize(
    "module", [nn.Linear(6, 2), nn.Conv1d(3, 2, 3), nn.Conv3d(2, 1, 2), nn.BatchNorm2d(4), nn.MaxPool1d(4), nn.ReLU()]
)
def test_guesses_an_input(module: nn.Module) -> None:
    check_dual_layer(module)


def test_says_what_it_tried_when_nothing_fits() -> None:
    with pytest.raises(AssertionError, match=r"give an example. Tried \(5,\)"):
        check_dual_layer(nn.Unflatten(1, (11, 13)))


def test_leaves_the_module_alone() -> None:
    module = nn.Linear(3, 2).train()
    check_dual_layer(module)
    assert module.training
    assert module.weight.dtype == torch.float32


class Bandless(ad.ElementwiseDual):
    """ReLU between two lines that are not parallel."""

    def value(self, z: torch.Tensor) -> torch.Tensor:
        return z.relu()

    def image(self, z: ad.Interval) -> ad.Interval:
        return ad.Interval(z.lower.relu(), z.upper.relu())

    def lines(self, z: ad.Interval) -> ad.Lines:
        return DualReLU().lines(z)


class WrongLines(Bandless):
    def lines(self, z: ad.Interval) -> ad.Lines:
        right = super().lines(z)
        return ad.Lines(right.lower_slope, right.lower_offset + 0.1, right.upper_slope, right.upper_offset)


def test_a_layer_may_do_without_a_band() -> None:
    class Bent(Rectifier):
        pass

    ad.register(Bent)(Bandless)
    check_dual_layer(Bent())


def test_the_lines_of_a_layer_without_a_band_are_checked() -> None:
    class BadlyBent(Rectifier):
        pass

    ad.register(BadlyBent)(WrongLines)
    with pytest.raises(AssertionError, match="lines: the function is not above its lower line"):
        check_dual_layer(BadlyBent())


def test_a_reason_that_every_shape_has_is_told_once() -> None:
    with pytest.raises(
        AssertionError, match=r"no usual input shape fits: .*'softsign' has no dual layer.*give an example$"
    ) as refused:
        check_dual_layer(torch.nn.Softsign())
    assert str(refused.value).count("softsign") == 1
