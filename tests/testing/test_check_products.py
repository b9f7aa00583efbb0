"""check_dual_layer finds each way in which the dual layer of a product can be wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import Band
from autodual.dual.products import DualProduct
from autodual.testing import check_dual_layer
from small import Net


class NarrowBand(DualProduct):
    def band(self, z: ad.Interval) -> Band:
        band = super().band(z)
        return replace(band, radius=0.98 * band.radius)


class WideBand(DualProduct):
    def band(self, z: ad.Interval) -> Band:
        band = super().band(z)
        return replace(band, radius=1.05 * band.radius)


class LowImage(DualProduct):
    def image(self, z: ad.Interval) -> ad.Interval:
        image = super().image(z)
        return ad.Interval(image.lower, image.centre)


class SwappedBack(DualProduct):
    def pulled(self, coefficients: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return coefficients * x, coefficients * y


class ForgetsOne(DualProduct):
    def along(self, slope: Tensor, z: Tensor, plus: Tensor | None = None) -> Tensor:
        moved = self.product(self.split(z)[0], self.split(slope)[1])
        return moved if plus is None else moved + plus


class NoError(DualProduct):
    def error(self, z: ad.Interval, size: Tensor, grain: float) -> Tensor:
        return torch.zeros_like(size)


class MovesLittle(DualProduct):
    def moved(self, z: ad.Interval, by: Tensor, slope: Tensor) -> Tensor:
        return 0.7 * super().moved(z, by, slope)


class StraysLittle(DualProduct):
    def strayed(self, z: ad.Interval, below: Tensor, above: Tensor, slopes: tuple[Tensor, ...]) -> Tensor:
        return 0.5 * super().strayed(z, below, above, slopes)


class ForgetsUnknown(DualProduct):
    def band(self, z: ad.Interval) -> Band:
        band = super().band(z)
        return Band(*(part.nan_to_num(0.0, 0.0, 0.0) for part in (band.slope, band.centre, band.radius)))


BROKEN = {
    NarrowBand: "does not hold the product",
    WideBand: "wider than the product",
    LowImage: "image cuts off values above",
    SwappedBack: r"<nu, along\(z\)>",
    ForgetsOne: r"<nu, along\(z\)>",
    NoError: "understates",
    MovesLittle: r"moved\(\) understates",
    StraysLittle: r"strayed\(\) understates",
    ForgetsUnknown: "pass for a proof",
}


def _model(kind: type[DualProduct]) -> nn.Module:
    class Times(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * y

    def build(call: Any) -> DualProduct:
        return kind(call.shape)

    ad.register(Times)(build)
    return Net(lambda m, x: m.times(x, x.flip(1)), times=Times())


def test_a_right_one_passes() -> None:
    check_dual_layer(_model(DualProduct), torch.zeros(2, 3, 2))


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_wrong_one_is_found(kind: type[DualProduct]) -> None:
    with pytest.raises(AssertionError, match=BROKEN[kind]):
        check_dual_layer(_model(kind), torch.zeros(2, 3, 2))
