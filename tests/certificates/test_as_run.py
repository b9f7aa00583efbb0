"""`certified_as_run` holds for the model as PyTorch evaluates it: in any order of summation, batch size, layout, number of threads."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from small import Net

ACTIVATIONS = (
    nn.ReLU(), nn.LeakyReLU(0.1), nn.PReLU(), nn.Hardtanh(), nn.ReLU6(), nn.Hardsigmoid(), nn.Hardswish(), nn.Tanh(), nn.Sigmoid(),
    nn.Softplus(), nn.Softplus(0.7, 0.3), nn.ELU(), nn.CELU(0.5), nn.SELU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Identity(),
)  # fmt: skip
BALL = ad.LinfBall(2.0**-30)


def _ramp(model: nn.Sequential, x: Tensor, reach: float, count: int = 24) -> tuple[Tensor, Tensor]:
    """Inputs along a line on which the margin of label 0 goes from -reach to reach in exact numbers, and those margins."""
    exact = copy.deepcopy(model).double()

    def margin(at: Tensor) -> Tensor:
        scores = exact(at)
        return scores[:, 0] - scores[:, 1]

    start = x.double().requires_grad_()
    (slope,) = torch.autograd.grad(margin(start).sum(), start)
    with torch.no_grad():
        model[-1].bias[0] -= margin(x.double()).float().item()
        exact = copy.deepcopy(model).double()
        steps = torch.linspace(-reach, reach, count, dtype=torch.float64).unsqueeze(1)
        points = (x.double() + steps * slope / slope.square().sum()).float()
        return points, margin(points.double())


def _labels_as_run(model: nn.Sequential, x: Tensor) -> Iterator[Tensor]:
    """What the model says in several ways to run it."""
    yield model(x).argmax(1)
    yield torch.cat([model(row).argmax(1) for row in x.split(1)])
    yield torch.cat([model(rows).argmax(1) for rows in x.split(5)])
    yield model(x.flip(0)).argmax(1).flip(0)
    yield model(x.t().contiguous().t()).argmax(1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        yield model(x).argmax(1)
    finally:
        torch.set_num_threads(threads)
    for seed in range(3):
        permuted, features, hidden = (
            copy.deepcopy(model),
            torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed)),
            torch.randperm(model[-1].in_features, generator=torch.Generator().manual_seed(seed)),
        )
        permuted[0].weight.data = model[0].weight[hidden][:, features]
        permuted[0].bias.data = model[0].bias[hidden]
        permuted[-1].weight.data = model[-1].weight[:, hidden]
        yield permuted(x[:, features]).argmax(1)
    weight, bias, last = model[0].weight, model[0].bias, model[-1]
    hidden = torch.stack([_one_by_one((weight * row).flip(1)) + bias for row in x])
    yield (_one_by_one(model[1](hidden).unsqueeze(1) * last.weight) + last.bias).argmax(1)


def _one_by_one(terms: Tensor) -> Tensor:
    """Sums along the last dimension, each rounded to float32; cumsum on a CPU adds up in float64."""
    return torch.from_numpy(np.add.accumulate(terms.numpy(), axis=-1)[..., -1])


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@torch.no_grad()
def test_no_way_to_run_the_model_breaks_the_certificate(activation: nn.Module) -> None:
    torch.manual_seed(0)
    for scale, reach in ((1.0, 2e-6), (100.0, 1e-3), (1.0, 1e-2)):
        model = nn.Sequential(nn.Linear(12, 32), copy.deepcopy(activation), nn.Linear(32, 2)).eval()
        model[-1].weight *= scale
        with torch.enable_grad():
            x, margins = _ramp(model, torch.rand(1, 12), reach)
        found = ad.certify(model, x, torch.zeros(len(x), dtype=torch.int64), BALL)
        assert not (found.certified & (margins <= 0)).any()
        assert not (found.certified_as_run & ~found.certified).any()
        for labels in _labels_as_run(model, x):
            assert not (found.certified_as_run & (labels != 0)).any()
    assert found.certified_as_run.sum() > 8, "the error is not useless"


def test_certified_in_real_numbers_and_not_as_run() -> None:
    """1e7 is added and subtracted: in float32 nothing is left of 0.6."""
    first, last = nn.Linear(1, 1), nn.Linear(1, 2)
    with torch.no_grad():
        first.weight.fill_(1.0)
        first.bias.fill_(1e7)
        last.weight.copy_(torch.tensor([[1.0], [0.0]]))
        last.bias.copy_(torch.tensor([-1e7, 0.05]))
    model, x, labels, ball = (
        nn.Sequential(first, last).eval(),
        torch.tensor([[0.6]]),
        torch.tensor([0]),
        ad.LinfBall(0.3),
    )
    broken = ad.attack(model, x, labels, ball)
    for engine in (ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual()):
        found = ad.certify(model, x, labels, ball, engine)
        assert found.certified.item()
        assert not found.certified_as_run.item()
    assert broken.success_as_run.item()
    assert not broken.success.item(), "in real numbers there is no counterexample"


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP()], ids=repr)
@pytest.mark.parametrize(
    ("activation", "size"), [(nn.Identity(), 2e38), (nn.ReLU(), 2e38), (nn.Hardswish(), 3.5e37)], ids=str
)
def test_a_model_that_overflows_inside_the_set_is_not_certified_as_run(
    activation: nn.Module, size: float, engine: ad.BoundEngine
) -> None:
    """Two equal units that cancel in real numbers are infinite in a corner in float32, and their difference is no number."""
    model = nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model[0].weight.fill_(size)
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[0.0, 0.0], [1e-38, -1e-38]]))
        model[2].bias.copy_(torch.tensor([0.0, -1.0]))
    x, corner = torch.tensor([[0.6, 0.6]]), torch.tensor([[0.875, 0.875]])
    assert model(x).argmax(1).item() == 0
    assert not model(corner).isfinite().all()
    found = ad.certify(model, x, torch.tensor([0]), ad.LinfBall(0.3), engine)
    assert not found.certified_as_run.item()
    if engine == ad.Dual() and not isinstance(activation, nn.Hardswish):
        assert found.certified.item(), "in real numbers nothing is infinite"


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP()], ids=repr)
@pytest.mark.parametrize(
    ("operation", "factor", "end"),
    [(torch.cosh, 1.0, 89.05), (torch.sinh, 1.0, 89.05), (F.gelu, 1e38, 1.85)],
    ids=["cosh", "sinh", "gelu"],
)
def test_an_activation_that_overflows_on_the_way_is_not_certified_as_run(
    operation: Callable[[Tensor], Tensor], factor: float, end: float, engine: ad.BoundEngine
) -> None:
    """exp(z) is twice as large as cosh(z), and GELU may halve last: PyTorch's programs for many numbers at once overflow first."""

    def scores(m: Net, x: Tensor) -> Tensor:
        h = operation(x * factor) * 2e-38
        return torch.cat([2 * h + 1, h], 1)

    model, x = Net(scores).eval(), torch.zeros(5, 1)
    x[4] = end - 0.45  # corners of the first examples are evaluated beforehand, so that such an example comes last
    eps = torch.tensor([0, 0, 0, 0, 0.5])
    found = ad.certify(model, x, torch.zeros(5, dtype=torch.long), ad.LinfBall(eps), engine)
    assert operation(torch.full((1,), end, dtype=torch.float64) * factor) < torch.finfo(torch.float32).max
    assert found.certified[4], "in real numbers nothing is infinite"
    assert not found.certified_as_run[4]


def _refused_as_run_alone(
    scores: Callable[[Net, Tensor], Tensor], x: Tensor, reach: float, engine: ad.BoundEngine | None = None
) -> None:
    """x is certified in real numbers, and not as run. Four zeros come first: at corners of the first sets, outputs must be finite."""
    x = torch.cat([x.new_zeros(4, *x.shape[1:]), x])
    found = ad.certify(Net(scores).eval(), x, torch.zeros(5, dtype=torch.long), ad.LinfBall(reach), engine)
    assert found.certified[4], "in real numbers nothing is infinite"
    assert not found.certified_as_run[4]


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual()], ids=repr)
@pytest.mark.parametrize("divisor", [1000, -1000])
def test_an_average_by_a_large_divisor_that_overflows_on_the_way_is_not_certified_as_run(
    divisor: int, engine: ad.BoundEngine
) -> None:
    """Entries are added up, to 4.8e38 here, before they are divided by a number that may be larger than that of entries."""

    def scores(m: Net, x: Tensor) -> Tensor:
        h = F.avg_pool2d(x * 1.2e38, 2, divisor_override=divisor).flatten(1) * math.copysign(1e-38, divisor)
        return torch.cat([h * 0 + 1, h], 1)

    assert not Net(scores)(torch.ones(1, 1, 2, 2)).isfinite().all()
    _refused_as_run_alone(scores, torch.full((1, 1, 2, 2), 0.7), 0.3, engine)


@pytest.mark.parametrize(
    ("operation", "last"), [(torch.addcmul, 1e-38), (torch.addcdiv, 1e38)], ids=["addcmul", "addcdiv"]
)
def test_a_product_of_three_that_overflows_on_the_way_is_not_certified_as_run(
    operation: Callable[..., Tensor], last: float
) -> None:
    """On a CPU, the number is multiplied first: 2 * 2.25e38 is infinite, and times 1e-38 it would be 4.5."""

    def scores(m: Net, x: Tensor) -> Tensor:
        h = operation(x * 0, x * 3e38, torch.full((1, 1), last, dtype=x.dtype), value=2.0)
        return torch.cat([h * 0 + 20, h], 1)

    assert not Net(scores)(torch.full((1, 1), 0.75)).isfinite().all()
    _refused_as_run_alone(scores, torch.full((1, 1), 0.5), 0.25)


def test_a_multiple_of_a_product_that_overflows_on_the_way_is_not_certified_as_run() -> None:
    """Programs for products may multiply one side by the number first, 2 * 2.25e38, as they like for some shapes."""

    def scores(m: Net, x: Tensor) -> Tensor:
        h = torch.addmm(x[:, :1] * 0, x * 3e38, torch.full((1, 2), 1e-38, dtype=x.dtype), alpha=2.0)[:, :1]
        return torch.cat([h * 0 + 20, h], 1)

    _refused_as_run_alone(scores, torch.full((1, 1), 0.5), 0.25)


def test_attention_that_overflows_on_the_way_is_not_certified_as_run() -> None:
    """Both sides are multiplied by the root of the scale, 2 * 1.8e38, before their product is 7.2."""

    def scores(m: Net, x: Tensor) -> Tensor:
        keys = torch.full((1, 2, 1), 1e-38, dtype=x.dtype).expand(len(x), 2, 1)
        found = F.scaled_dot_product_attention(x[:, :, None] * 2e38, keys, keys * 1e38, scale=4.0)[:, :1, 0]
        return torch.cat([found * 0 + 5, found], 1)

    assert not Net(scores)(torch.full((1, 2), 0.9)).isfinite().all()
    _refused_as_run_alone(scores, torch.full((1, 2), 0.5), 0.4)


def test_a_multiple_of_a_product_that_underflows_on_the_way_is_not_certified_as_run() -> None:
    """1e-25 * x is nothing if x is 1e-25, and times 1e37 it would be 1e-13."""

    def scores(m: Net, x: Tensor) -> Tensor:
        h = torch.addmm(x[:, :1] * 0, (x + 1) * 1e-25, torch.full((1, 1), 1e37, dtype=x.dtype), alpha=1e-25)
        return torch.cat([h * 1e13, h * 0 + 0.5], 1)

    found = ad.certify(Net(scores).eval(), torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), ad.LinfBall(0.25))
    assert found.certified.all()
    assert not found.certified_as_run.any()


@pytest.mark.parametrize(
    "normalise", [lambda x: F.group_norm(x, 1), lambda x: F.layer_norm(x, (16,))], ids=["group", "layer"]
)
def test_a_norm_whose_squares_overflow_is_not_certified_as_run(normalise: Callable[[Tensor], Tensor]) -> None:
    """PyTorch adds up squares of values, 4e38 here, where the squares of their distances from the mean are 1e36 at most."""

    def scores(m: Net, x: Tensor) -> Tensor:
        h = normalise(x * 1e19 + torch.linspace(0, 2e18, 16, dtype=x.dtype))
        return torch.cat([h[:, :1] + 2, h[:, :1]], 1)

    model, x, corner = Net(scores).float(), torch.zeros(5, 1), torch.full((64, 1), 4.0)
    x[4] = 0.6
    found = ad.certify(model, x, torch.zeros(5, dtype=torch.long), ad.LinfBall(torch.tensor([0, 0, 0, 0, 3.5])))
    assert not model(corner).isfinite().all()
    assert found.certified[4], "in real numbers nothing is infinite"
    assert not found.certified_as_run[4]


@pytest.mark.parametrize("divisor", [1e39, torch.tensor(1e39, dtype=torch.float64)], ids=["number", "tensor"])
def test_a_divisor_that_float32_takes_for_infinity_is_refused(divisor: float | Tensor) -> None:
    """The result is 0.1 x in real numbers, and zero as it runs."""
    model = Net(lambda m, x: torch.cat([x * 1e38 / divisor, 0.09 * x - 0.1], 1)).eval()
    x = torch.ones(5, 1)
    with pytest.raises(ad.ArgumentError, match=r"divides by 1e\+39"):
        ad.certify(model, x, torch.zeros(5, dtype=torch.long), ad.LinfBall(torch.tensor([0, 0, 0, 0, 0.5])))
    exact = ad.certify(model, x.double(), torch.zeros(5, dtype=torch.long), ad.LinfBall(0.5))
    assert exact.certified_as_run.all()


@pytest.mark.parametrize("base", [1.001, 1e300, 3e-45], ids=str)
def test_a_base_whose_logarithm_float32_does_not_keep_is_refused(base: float) -> None:
    """1.001 ** 1100 is 3.00267 as it runs and 3.00252 in real numbers; 1e300 is infinite in float32."""
    model = Net(lambda m, x: torch.cat([base**x, 0 * x + 2.0], 1))
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(5, 1, dtype=dtype)
        x[4] = 1.1 / math.log(base)
        ball = ad.LinfBall(torch.tensor([0, 0, 0, 0, 1e-6], dtype=dtype))
        if dtype == torch.float32:
            with pytest.raises(ad.ArgumentError, match="another logarithm"):
                ad.certify(model.float(), x, torch.ones(5, dtype=torch.long), ball)
        else:
            found = ad.certify(model.double(), x, torch.ones(5, dtype=torch.long), ball)
            assert found.certified_as_run.tolist() == [True] * 4 + [False], "exp(1.1) is 3.004"


@pytest.mark.parametrize(("eps", "variance"), [(2e-45, 0.0), (1e38, 3e38)], ids=["denormal", "overflowing"])
def test_a_variance_plus_eps_that_float32_does_not_hold_is_refused(eps: float, variance: float) -> None:
    """Batch normalisation then divides by another number as it runs: by infinity, or by one that is wrong by a fifth."""
    norm = nn.BatchNorm1d(1, eps=eps)
    norm.running_var.fill_(variance)
    model = Net(lambda m, x: torch.cat([m.norm(x * (variance + eps) ** 0.5), 0.5 * x], 1), norm=norm).float()
    x, labels = torch.zeros(5, 1), torch.zeros(5, dtype=torch.long)
    x[4] = 0.5
    with pytest.raises(ad.ArgumentError, match=r"variance \+ eps"):
        ad.certify(model, x, labels, ad.LinfBall(torch.tensor([0, 0, 0, 0, 0.1])))


def test_a_softplus_with_a_tiny_beta_counts_what_its_exponential_loses() -> None:
    """At the lower end, exp(beta z) is 0.6 of the smallest number of float32, which rounds it up before it is divided by beta."""

    def scores(m: Net, x: Tensor) -> Tensor:
        h = F.softplus(x * 1e32, beta=1e-30) * 1e14
        return torch.cat([h, 0 * x + 0.1], 1)

    model, x, low = Net(scores).eval(), torch.full((1, 1), -1.0279), torch.full((1, 1), -1.0379)
    found = ad.certify(model, x, torch.tensor([0]), ad.LinfBall(0.01), ad.IBP())
    assert model(low).argmax(1).item() == 0
    assert model.double()(low.double()).argmax(1).item() == 1
    assert not found.certified.item()
    assert not found.certified_as_run.item()


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown()], ids=repr)
def test_the_error_as_run_costs_little(engine: ad.BoundEngine) -> None:
    """The digits network: at most 0.3 points of all examples."""
    model, (x, labels) = ad.load_digits_network(), ad.load_digits("test")
    for eps in (0.05, 0.1):
        found = ad.certify(model, x, labels, ad.LinfBall(eps), engine)
        lost = found.certified.double().mean() - found.certified_as_run.double().mean()
        assert found.certified.any()
        assert 0 <= lost <= 0.003


class Skipping(nn.Module):
    """Convolutions with a skip, so that patches, dense rows and branches all carry errors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(c, 6, 3, padding=1) for c in (2, 6, 6))
        self.fourth, self.fifth, self.last = nn.Linear(6 * 64, 80), nn.Linear(80, 60), nn.Linear(60, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = (x + self.third(self.second(x).relu())).relu()
        hidden: Tensor = self.fifth(self.fourth(x.flatten(1)).relu()).relu()
        return self.last(hidden)


def _deep_and_flat(activation: nn.Module) -> nn.Sequential:
    layers = [layer for _ in range(6) for layer in (nn.Linear(40, 40), activation)]
    return nn.Sequential(*layers, nn.Linear(40, 4))


DEEP_NETWORKS = {
    "skipping": (Skipping, (2, 8, 8)),
    "relu": (lambda: _deep_and_flat(nn.ReLU()), (40,)),
    "tanh": (lambda: _deep_and_flat(nn.Tanh()), (40,)),
}


@pytest.mark.parametrize("name", DEEP_NETWORKS)
def test_deep_networks_pull_their_run_errors_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds at sampled points, and is far below what absolute weights add up to from layer to layer."""
    make, shape = DEEP_NETWORKS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.rand(5, *shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2
    labels, ball = model(x).argmax(1), ad.LinfBall(0.01)
    pulled = ad.certify(model, x, labels, ball).run_error
    monkeypatch.setattr(sys.modules["autodual.engines.backward.bands"], "DEEP", 99)
    added_up = ad.certify(model, x, labels, ball).run_error
    assert (pulled <= 1.001 * added_up).all()
    assert pulled.sum() < 0.7 * added_up.sum()
    exact = copy.deepcopy(model).double()
    region = ball.within(x)
    for seed in range(20):
        points = region.sample(torch.Generator().manual_seed(seed))
        apart = model(points).double() - exact(points.double())
        moved = apart.gather(1, labels.unsqueeze(1)) - apart
        assert (moved.abs() <= pulled).all()
