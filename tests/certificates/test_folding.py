"""No certificate where a constant or a function is rounded by more than its result: margins of the wrong sign in exact numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import Net

ENGINES = (ad.Dual(), ad.Crown(), ad.IBP())
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=repr)
POINT = ad.LinfBall(0.0)


def _certified(model: nn.Module, x: Tensor, label: int, engine: ad.BoundEngine, ball: ad.Perturbation = POINT) -> bool:
    return bool(ad.certify(model.eval(), x, torch.tensor([label]), ball, engine).certified)


def _linear(weight: list[float], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight).reshape(2, 1))
        layer.bias.copy_(torch.tensor(bias))
    return layer


@every_engine
def test_batch_norm_with_a_large_mean(engine: ad.BoundEngine) -> None:
    """x lies between the zero of the exact function and that of one whose shift is folded in float32."""
    generator, tried = torch.Generator().manual_seed(0), 0
    for _ in range(16):
        mean, variance = 1000 * torch.rand((), generator=generator), 0.1 + torch.rand((), generator=generator)
        norm = nn.BatchNorm1d(2).eval()
        with torch.no_grad():
            norm.running_mean[0], norm.running_var[0] = mean, variance
            slope = torch.rsqrt(norm.running_var[0] + norm.eps)
            norm.bias[0] = mean * slope
        exact = 1 / (norm.running_var[0].double() + norm.eps).sqrt()
        true, folded = norm.bias[0].double() - mean.double() * exact, norm.bias[0] - mean * slope
        x = torch.tensor([[(-(true + folded.double()) / 2 / exact).item(), 0.0]])
        wrong = int(folded <= true)
        tried += int(folded != true)
        score = true + exact * x[0, 0].double()  # the other score is 0
        if (score > 0) != (wrong == 0):
            assert not _certified(norm, x, wrong, engine)
    assert tried > 4


@pytest.mark.parametrize("engine", [*ENGINES, ad.ForwardDual()], ids=repr)
@pytest.mark.parametrize("mean", [0.0, 1e38])
def test_batch_norm_with_a_slope_that_float32_hardly_holds(engine: ad.BoundEngine, mean: float) -> None:
    """The slope, 1e-42, is a denormal number of float32, wrong by a thousandth of it, and x is as large as it is small."""
    norm, x = nn.BatchNorm1d(1, eps=0.0).eval(), torch.tensor([[3e38]])
    with torch.no_grad():
        norm.weight[:], norm.running_var[:], norm.running_mean[:] = 1e-23, 1e38, mean
    true = (x.double() - norm.running_mean.double()) * norm.weight.double() / norm.running_var.double().sqrt()
    ran = norm(x).double()
    assert (ran - true).abs() > 1e-4 * true
    for sign in (1.0, -1.0):
        found = ad.certify(norm, x, ad.Positive([[sign]]), POINT, engine)
        lower = (found.margins.double() - found.slack).item()
        assert lower <= sign * true.item()
        assert lower - found.run_error.double().item() <= sign * ran.item()


FAINT: dict[str, Callable[[Tensor], Tensor]] = {
    "alpha of a sum": lambda x: torch.add(0 * x, x, alpha=1e-42),
    "alpha of a difference": lambda x: torch.sub(0 * x, x, alpha=1e-50),
    "slope": lambda x: nn.functional.leaky_relu(x, -1e-42),
    "scale": lambda x: nn.functional.elu_(x * 1, 1.0, 1e-42),
    "beta": lambda x: nn.functional.softplus(x, 1e-42),
}


@pytest.mark.parametrize("name", FAINT)
def test_a_factor_that_float32_hardly_holds_is_refused(name: str) -> None:
    with pytest.raises(ad.ArgumentError, match="float32 holds only some digits of factors"):
        ad.certify(Net(lambda m, x: FAINT[name](x)).float(), torch.tensor([[3e38]]), ad.Positive([[1.0]]), POINT)


@every_engine
@pytest.mark.parametrize("divisor", [3, 7, 199, 1_000_003])
def test_division_by_integers_in_float64(engine: ad.BoundEngine, divisor: int) -> None:
    """x / d against a number that is larger by 3e-9 of it, or smaller: less than float32 could tell."""
    model = Net(lambda m, x: x / torch.tensor([divisor, 1]))
    for x0, part in ((1.7451609041903944, 3e-9), (1.7451609041903944, -3e-9), (-0.3, 3e-9), (2.0, -3e-9)):
        x = torch.tensor([[x0, x0 / divisor * (1 - part)]], dtype=torch.float64)
        wrong = 0 if Fraction(x[0, 0].item()) / divisor < Fraction(x[0, 1].item()) else 1
        assert not _certified(model, x, wrong, engine)
        assert _certified(model, x, 1 - wrong, engine)


@every_engine
def test_constants_of_mixed_dtypes_side_by_side(engine: ad.BoundEngine) -> None:
    """An integer before a number must not cut off what the number has behind the point."""
    small = 2.0**-14

    def compute(m: nn.Module, x: Tensor) -> Tensor:
        count, half = torch.ones(len(x), 1, dtype=torch.long), torch.full((len(x), 1), 0.5)
        return torch.cat([0 * x, count - 1, half], 1) * small

    model = Net(compute).float()
    assert _certified(model, torch.rand(1, 1), 2, engine)
    assert not _certified(model, torch.rand(1, 1), 0, engine)


@pytest.mark.parametrize("engine", [ad.Dual(), ad.IBP()], ids=repr)
@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_gelu_cancels(engine: ad.BoundEngine, kind: str) -> None:
    """f is 1e-6 and wrong by 6e-8 there. The other score lies between f in float32 and f in float64."""
    for z in torch.linspace(-5.2, -4.2, 4).tolist():
        x = torch.tensor([[z]])
        single = nn.functional.gelu(x, approximate=kind)
        double = nn.functional.gelu(x.double(), approximate=kind)
        if single.double() == double:
            continue
        model = nn.Sequential(nn.Identity(), nn.GELU(kind), _linear([1e5, 0.0], [0.0, 0.0]))
        with torch.no_grad():
            model[2].bias[1] = (5e4 * (single.double() + double)).float().item()
        scores = copy.deepcopy(model).double()(x.double())[0]
        assert not _certified(model, x, int(scores[0] > scores[1]) ^ 1, engine)


UNDERFLOWS: dict[str, tuple[Callable[[], nn.Module], list[float], ad.Perturbation]] = {
    "squares of an l2 norm": (lambda: _linear([1.0, 0.0], [0.0, 0.0]), [1e-23], ad.L2Ball(2e-23)),
    "silu": (lambda: nn.Sequential(nn.SiLU(), _linear([1e37, 0.0], [0.0, -1.0])), [-89.0], POINT),
    "sigmoid": (lambda: nn.Sequential(nn.Sigmoid(), _linear([-1e38, 0.0], [1e-1, 0.0])), [-89.0], POINT),
    "softplus": (lambda: nn.Sequential(nn.Softplus(), _linear([-1e38, 0.0], [1e-8, 0.0])), [-104.0], POINT),
    "products": (lambda: nn.Sequential(nn.Linear(1, 1), _linear([-1e38, 0.0], [0.9e-8, 0.0])), [1e-16], POINT),
    "eps": (lambda: _linear([-1e38, 0.0], [0.5e-8, 0.0]), [0.0], ad.LinfBall(1e-46)),
}


@every_engine
@pytest.mark.parametrize("case", UNDERFLOWS.values(), ids=UNDERFLOWS.keys())
def test_what_underflows_is_counted(
    engine: ad.BoundEngine, case: tuple[Callable[[], nn.Module], list[float], ad.Perturbation]
) -> None:
    make, x, ball = case
    model = make()
    if isinstance(model, nn.Sequential) and isinstance(model[0], nn.Linear):
        with torch.no_grad():
            model[0].weight.fill_(1e-30)
            model[0].bias.zero_()
    point = torch.tensor([x])
    region = ball.around(point.double())
    worst = region.vertex(-torch.ones_like(point.double())), region.vertex(torch.ones_like(point.double()))
    margins = [scores[0, 0] - scores[0, 1] for scores in map(copy.deepcopy(model).double(), worst)]
    assert min(margins) < 0, "there is a counterexample"
    assert not _certified(model, point, 0, engine, ball)


@every_engine
@pytest.mark.parametrize("slope", [1e8, 123456789.0, 1e10, -1e8])
def test_a_steep_kink_keeps_the_slope_of_its_flat_side(engine: ad.BoundEngine, slope: float) -> None:
    """slope + (1 - slope) is 0 in float32, where it should be 1."""
    model = nn.Sequential(nn.Identity(), nn.LeakyReLU(slope), _linear([-1.0, 0.0], [5e-4, 0.0]))
    x, ball = torch.tensor([[4e-4]]), ad.LinfBall(2e-4)
    assert copy.deepcopy(model).double()(x.double() + 2e-4)[0, 0] < 0, "there is a counterexample"
    assert not _certified(model, x, 0, engine, ball)
    assert _certified(model, x, 0, engine, ad.LinfBall(5e-5))


TENTH, LARGE = torch.tensor([[0.1]], dtype=torch.float64), torch.tensor([2.0**24 + 0.1], dtype=torch.float64)
IN_DOUBLE: dict[str, tuple[Callable[[Tensor], Tensor], float, Fraction]] = {
    "linear": (lambda x: nn.functional.linear(x, TENTH), 3.0, 3 * Fraction(0.1)),
    "matrix on the right": (lambda x: x @ TENTH, 3.0, 3 * Fraction(0.1)),
    "matrix on the left": (lambda x: TENTH @ x, 3.0, 3 * Fraction(0.1)),
    "convolution": (lambda x: nn.functional.conv1d(x, TENTH.unsqueeze(2)), 3.0, 3 * Fraction(0.1)),
    "transposed": (lambda x: nn.functional.conv_transpose1d(x, TENTH.unsqueeze(2)), 3.0, 3 * Fraction(0.1)),
    "kink": (lambda x: nn.functional.prelu(x, TENTH[0]), -3.0, -3 * Fraction(0.1)),
    "batch norm": (
        lambda x: nn.functional.batch_norm(x, LARGE, torch.ones_like(LARGE), eps=0.0),
        2.0**24,
        2**24 - Fraction(LARGE.item()),
    ),
}


@every_engine
@pytest.mark.parametrize("name", IN_DOUBLE)
def test_constants_of_float64_in_a_model_of_float32(engine: ad.BoundEngine, name: str) -> None:
    """A part that the model computes in float64: the exact function has its constants as they are, which float32 would round."""
    compute, x, exact = IN_DOUBLE[name]
    model = Net(lambda m, x: compute(x.double().unsqueeze(2)).squeeze(2).float()).float()
    for sign in (1, -1):
        asked = ad.Positive([[float(sign)]], -sign * float(exact))
        found = ad.certify(model, torch.tensor([[x]]), asked, POINT, engine)
        lower = Fraction(found.margins.item()) - Fraction(found.slack.item())
        assert lower <= sign * (exact - Fraction(float(exact)))
        assert lower > -Fraction(abs(x)) / 10**4
