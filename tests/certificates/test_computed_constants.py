"""Constants that a model computes: what float32 and float64 make of them differently never certifies anything wrongly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad

ENGINES = [ad.Dual(), ad.Crown(), ad.IBP()]


class Computed(nn.Module):
    """c is 1 in real numbers and in float64, and 0 in float32."""

    def __init__(self, head: list[list[float]], bias: list[float], compute: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("big", torch.tensor(1e8))
        self.head, self.compute = nn.Linear(len(head[0]), 2), compute
        with torch.no_grad():
            self.head.weight[:], self.head.bias[:] = torch.tensor(head), torch.tensor(bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.compute(x, (self.big + 1) - self.big))


def _beside(x: Tensor, c: Tensor) -> Tensor:
    return torch.cat([x, c.reshape(1, 1).expand(len(x), 1)], 1)


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_a_constant_that_float32_loses_is_not_certified_as_run(engine: ad.BoundEngine) -> None:
    model = Computed([[1.0, 1.0], [0.0, 0.0]], [0.0, 0.495], _beside).eval()
    x, ball = torch.tensor([[0.5]]), ad.LinfBall(0.01)
    certificate = ad.certify(model, x, torch.tensor([0]), ball, engine)
    assert certificate.certified.item()
    assert not certificate.certified_as_run.item()
    assert model(x - 0.009).argmax(1).item() == 1


class OnlySingle(ad.Dual):
    """An engine that cannot be asked in float64."""

    def prove(self, network: Any, region: ad.InputSet, spec: Any) -> Any:
        if region.centre.dtype == torch.float64:
            raise ad.MemoryBudgetError("no room for float64")
        return super().prove(network, region, spec)


def test_what_needs_float64_and_cannot_have_it_is_not_certified() -> None:
    """x - c is positive as float32 computes c, and negative in real numbers."""
    model, x = Computed([[1.0, -1.0], [0.0, 0.0]], [0.0, 0.0], _beside).eval(), torch.tensor([[0.5]])
    assert model(x).argmax(1).item() == 0
    assert not ad.certify(model, x, torch.tensor([0]), ad.LinfBall(0.01)).certified.item()
    with pytest.warns(UserWarning, match="could not be looked at in float64"):
        certificate = ad.certify(model, x, torch.tensor([0]), ad.LinfBall(0.01), OnlySingle())
    assert not certificate.certified.item()


NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pad": lambda x, c: F.pad(x, (0, 1), value=c),
    "alpha": lambda x, c: torch.cat([torch.sub(x, x.flip(1), alpha=c), x], 1),
    "leaky": lambda x, c: _beside(F.leaky_relu(x, c), torch.zeros(())),
}


@pytest.mark.parametrize("compute", NUMBERS.values(), ids=NUMBERS.keys())
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_numbers_that_float32_loses_are_refused_or_proved_in_real_numbers(
    engine: ad.BoundEngine, compute: Callable[[Tensor, Tensor], Tensor]
) -> None:
    model, x = Computed([[1.0, -1.0], [0.0, 0.0]], [0.0, 0.0], compute).eval(), torch.tensor([[0.5]])
    try:
        certificate = ad.certify(model, x, model(x).argmax(1), ad.LinfBall(0.0), engine)
    except (ad.AutodualError, TypeError):
        return
    exact = model.double()(x.double())
    assert not (certificate.certified.item() and exact.argmax(1).item() != certificate.labels.item())


def test_indices_that_depend_on_the_precision_are_refused() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.tensor([2.0, 1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, torch.argsort(1e8 + self.keys, stable=True)]

    with pytest.raises(ad.CaptureError, match="whole numbers that depend on the precision"):
        ad.certify(Sorted().eval(), torch.tensor([[0.5, 0.0]]), torch.tensor([0]), ad.LinfBall(0.0))


def test_upsampling_that_reads_other_pixels_in_float64_is_refused() -> None:
    class Nearest(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, size=46).flatten(1)

    with pytest.raises(ad.ArgumentError, match="depends on the precision"):
        ad.bounds(Nearest().eval(), ad.LinfBall(0.1).around(torch.rand(1, 1, 14)))
    assert ad.bounds(nn.Upsample(scale_factor=2).eval(), ad.LinfBall(0.1).around(torch.rand(1, 1, 14)))


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_an_average_that_overflows_before_it_is_divided_is_not_certified_as_run(engine: ad.BoundEngine) -> None:
    class Average(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mean = x.mean(1, keepdim=True) * 1e-38
            return torch.cat([2 - mean, 0 * mean], 1)

    x = torch.full((1, 4), 0.84e38)
    certificate = ad.certify(Average().eval(), x, torch.tensor([0]), ad.LinfBall(0.02e38), engine)
    assert not certificate.certified_as_run.item()


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_factors_that_float32_has_no_normal_number_for(engine: ad.BoundEngine) -> None:
    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scaled = (x * 2.3e-45) * 1e7 - 2.5
            return torch.cat([scaled, 0 * scaled], 1)

    certificate = ad.certify(Small().eval(), torch.tensor([[1e38]]), torch.tensor([0]), ad.LinfBall(0.0), engine)
    assert not certificate.certified.item()  # 2.3 - 2.5 < 0; float32 computes with 2.8e-45


class TinyProduct(nn.Module):
    """x a b, with a product of parameters that float32 has only a denormal number for, or none."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([a])), nn.Parameter(torch.tensor([b]))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.a * self.b)


@pytest.mark.parametrize("engine", [*ENGINES, ad.ForwardDual()], ids=repr)
@pytest.mark.parametrize("b", [1e-20, 1e-24])
def test_a_tiny_constant_before_a_huge_input(engine: ad.BoundEngine, b: float) -> None:
    model, x = TinyProduct(1e-22, b).eval(), torch.tensor([[3e38]])
    true = (x.double() * model.a.double() * model.b.double()).item()
    assert abs(model(x).item() - true) > 1e-4 * true
    for sign in (1.0, -1.0):
        found = ad.certify(model, x, ad.Positive([[sign]]), ad.LinfBall(0.0), engine)
        lower = (found.margins.double() - found.slack).item()
        assert lower <= sign * true
        assert lower - found.run_error.double().item() <= sign * model(x).item()
