"""Both precisions, with and without gradients, give the same bounds up to their rounding."""

import pytest
import torch
from torch import nn

import autodual as ad
from small import DOUBLE, ENGINES, batch, bounds_of, convnet

every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
BALLS = [ad.LinfBall(0.1), ad.L2Ball(0.2), ad.L1Ball(0.3)]


def _pair() -> tuple[nn.Module, nn.Module]:
    double = convnet()
    single = convnet(torch.float32)
    single.load_state_dict(double.state_dict())
    double.load_state_dict(single.state_dict())
    return single, double


@every_engine
@pytest.mark.parametrize("ball", BALLS, ids=lambda b: type(b).__name__)
def test_single_and_double_precision_agree(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    single, double = _pair()
    x = batch(2, 1, 6, 6, dtype=torch.float32)
    region = ball.with_eps(torch.tensor(ball.eps)).around(x.double())  # eps as float32 holds it
    found, exact = ad.bounds(single, ball.around(x), engine), ad.bounds(double, region, engine)
    for a, b in zip((*found.layers.values(), found.output), (*exact.layers.values(), exact.output), strict=True):
        assert a.lower.dtype == a.upper.dtype == torch.float32
        assert b.lower.dtype == b.upper.dtype == DOUBLE
        for added in (b.lower - a.lower.double(), a.upper.double() - b.upper):  # what rounding outwards adds
            assert (added >= -1e-12).all()
            assert (added <= 0.01 * b.width + 1e-6).all()


@every_engine
@pytest.mark.parametrize("ball", BALLS, ids=lambda b: type(b).__name__)
def test_recording_gradients_changes_no_number(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    model, region = convnet(), ball.around(batch(2, 1, 6, 6))
    with torch.no_grad():
        without = bounds_of(model, region, engine)
    for a, b in zip(without, bounds_of(model, region, engine), strict=True):
        assert not a.requires_grad
        assert b.requires_grad
        torch.testing.assert_close(a, b.detach())


@every_engine
@pytest.mark.parametrize("ball", BALLS, ids=lambda b: type(b).__name__)
def test_bounds_are_differentiable_in_the_inputs(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    model, x = convnet(), batch(2, 1, 6, 6).requires_grad_()
    direction = torch.randn(2, 1, 6, 6, dtype=DOUBLE)

    def width(x: torch.Tensor) -> torch.Tensor:
        output = ad.bounds(model, ball.around(x), engine).output
        return (output.lower + 2 * output.upper).sum()

    (gradient,) = torch.autograd.grad(width(x), x)
    step = 1e-6
    with torch.no_grad():
        slope = (width(x + step * direction) - width(x - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-4, atol=1e-6)


@every_engine
def test_numbers_in_the_model_have_the_precision_of_the_input(engine: ad.BoundEngine) -> None:
    """0.1 in Python is a double: a model in double precision must not meet its single-precision neighbour."""

    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((0.1 * x + 0.3) / 3 - 0.7).relu() * 1.1 + (2.3 - x)

    x = batch(2, 6)
    output = ad.bounds(Numbers(), ad.LinfBall(0.0).around(x), engine).output
    torch.testing.assert_close(output.lower, Numbers()(x), rtol=1e-12, atol=1e-12)


@every_engine
def test_padding_has_the_precision_of_the_input(engine: ad.BoundEngine) -> None:
    model, x = nn.ConstantPad1d(1, 0.1), batch(2, 1, 6)
    output = ad.bounds(model, ad.LinfBall(0.0).around(x), engine).output
    torch.testing.assert_close(output.lower, model(x), rtol=1e-14, atol=1e-14)
