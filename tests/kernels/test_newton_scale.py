"""The default estimate: the median, Newton steps from it, and a gradient that uses every sample."""

import math

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.kernels import median
from autodual.kernels.median import correction, newton_scale
from autodual.kernels.selection import LARGEST_NETWORK

COUNTS = [1, 2, 3, 10, 50, LARGEST_NETWORK + 1]
KINDS = [
    ad.QuietGradient(),
    ad.QuietGradient(1),
    ad.MaximumLikelihood(0),
    ad.MaximumLikelihood(1),
    ad.MaximumLikelihood(),
]


def _cauchy(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.empty(shape, dtype=torch.float64).uniform_(-1.57, 1.57, generator=generator).tan().to(dtype)


def _by_the_formula(samples: Tensor, estimator: ad.QuietGradient | ad.MaximumLikelihood) -> tuple[Tensor, Tensor]:
    """Value [*shape] and gradient [k, *shape]."""
    k, power = len(samples), 1 if isinstance(estimator, ad.QuietGradient) else 2
    scale = samples.abs().sort(0).values[(k - 1) // 2]
    for _ in range(estimator.steps):
        u = samples / scale
        scale = scale * (((u**2 - 1) / (u**2 + 1)).sum(0) / (4 * u**2 / (1 + u**2) ** 2).sum(0)).exp()
    factor = 1 - 1 / k if k > 1 and estimator.steps else 1.0
    weights = scale * samples / (samples**2 + scale**2) ** power
    return scale * factor, factor * weights / (samples**2 / (samples**2 + scale**2) ** power).sum(0)


@pytest.mark.parametrize("k", COUNTS)
@pytest.mark.parametrize("estimator", KINDS, ids=repr)
@pytest.mark.parametrize("inside", [False, True], ids=["as they are", "channels inside"])
def test_value_and_gradient_are_those_of_the_formula(estimator: ad.QuietGradient, k: int, inside: bool) -> None:
    samples = _cauchy(k, 2, 3, 4, 5)
    if inside:
        samples = samples.movedim(2, -1).contiguous().movedim(-1, 2)
    samples.requires_grad_()
    value, gradient = _by_the_formula(samples.detach(), estimator)
    found, weight = estimator.scale(samples), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(found, value, rtol=1e-10, atol=0)
    (slope,) = torch.autograd.grad((found * weight).sum(), samples)
    torch.testing.assert_close(slope, gradient * weight, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("estimator", KINDS, ids=repr)
def test_many_units_are_treated_in_parts(estimator: ad.QuietGradient, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = _cauchy(10, 200).requires_grad_()
    whole = estimator.scale(samples)
    (gradient,) = torch.autograd.grad(whole.sum(), samples)
    monkeypatch.setattr(median, "CHUNK", 30)
    monkeypatch.setattr(median, "CACHED", 70)
    parts = estimator.scale(samples)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), samples)[0], gradient, rtol=1e-12, atol=0)


@pytest.mark.parametrize("factor", [1e-30, 1e-15, 1e15, 1e29])
@pytest.mark.parametrize("estimator", KINDS, ids=repr)
def test_it_is_homogeneous_whatever_the_size(estimator: ad.QuietGradient, factor: float) -> None:
    samples = _cauchy(20, 50, dtype=torch.float32).clamp(-30, 30)
    pairs = []
    for given in (samples, samples * factor):
        given = given.clone().requires_grad_()
        found = estimator.scale(given)
        pairs.append((found.detach(), torch.autograd.grad(found.sum(), given)[0]))
    torch.testing.assert_close(pairs[1][0], pairs[0][0] * factor, rtol=1e-5, atol=0)
    torch.testing.assert_close(pairs[1][1], pairs[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", KINDS, ids=repr)
def test_tiny_and_huge_samples_of_one_unit(estimator: ad.QuietGradient) -> None:
    samples = torch.tensor([1e-30, -1e-30, 2.0, -3.0, 1.0, 1e30, -1e30]).unsqueeze(1).requires_grad_()
    found = estimator.scale(samples)
    (gradient,) = torch.autograd.grad(found.sum(), samples)
    assert 0.5 < found.item() < 4
    assert bool(gradient.isfinite().all())
    assert (gradient * samples.detach().clamp(-1e6, 1e6)).sum().item() <= found.item() * 1.01


@pytest.mark.parametrize("k", [1, 2, 10, 51])
@pytest.mark.parametrize("estimator", KINDS, ids=repr)
def test_a_dead_unit_is_zero_and_has_no_gradient(estimator: ad.QuietGradient, k: int) -> None:
    samples = torch.zeros(k, 5)
    samples[:, 3] = 1e-42  # below the smallest normal number
    samples.requires_grad_()
    found = estimator.scale(samples)
    assert not found[:3].any()
    assert not torch.autograd.grad(found.sum(), samples)[0].any()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("k", [1, 3, 10, 50])
@pytest.mark.parametrize("estimator", KINDS, ids=repr)
def test_what_is_not_finite_is_heard_of(estimator: ad.QuietGradient, k: int, bad: float) -> None:
    samples = _cauchy(k, 4, dtype=torch.float32)
    samples[k // 2, 1] = bad
    samples[:, 2] = bad
    samples.requires_grad_()
    found = estimator.scale(samples)
    (gradient,) = torch.autograd.grad(found.sum(), samples)
    expected = torch.tensor([False, True, True, False])
    assert torch.equal(~found.isfinite(), expected)
    assert torch.equal(found.isnan(), expected & math.isnan(bad))
    assert torch.equal(~gradient.isfinite().all(0), expected)


def test_no_newton_step_from_the_median_is_longer_than_one() -> None:
    """Nothing is cut from the formula: k / 2 samples far above the others, which are the median, is the worst there is."""
    samples = torch.cat([torch.ones(25, 1), torch.full((25, 1), 1e12)]).double()
    assert newton_scale(samples, 1, 1).item() == pytest.approx(math.e * correction(50, 1))


@pytest.mark.parametrize("k", [5, 10, 20])
def test_one_newton_step_is_right_on_average(k: int) -> None:
    samples = torch.empty(k, 200_000, dtype=torch.float64).uniform_(
        0, math.pi, generator=torch.Generator().manual_seed(0)
    )
    found = ad.QuietGradient(1).scale(samples.tan())
    assert found.mean().item() == pytest.approx(1, abs=0.01)
    assert found.std().item() * math.sqrt(k) < math.pi / 2 * (1 + 3 / k)


def test_the_quiet_gradient_has_half_the_variance() -> None:
    """20 equal generators: the true gradient on each is 1."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.empty(50, 4000, 20, dtype=torch.float64).uniform_(0, math.pi, generator=generator).tan()
    spread = []
    for estimator in (ad.QuietGradient(1), ad.MaximumLikelihood()):
        g = torch.ones(4000, 20, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(estimator.scale((numbers * g).sum(2)).sum(), g)
        assert gradient.mean().item() == pytest.approx(1, abs=0.02)
        spread.append(gradient.var().item())
    assert spread[0] < 0.6 * spread[1]


# --------------------------------------------------------------------------------------------------------
# Second derivatives, compilers, transforms

FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script. is deprecated:DeprecationWarning")
"""PyTorch uses it itself when it first computes a forward-mode derivative."""


def test_second_derivatives_of_the_solution_are_right() -> None:
    samples = _cauchy(9, 6).requires_grad_()
    assert torch.autograd.gradcheck(ad.MaximumLikelihood(20).scale, samples)
    assert torch.autograd.gradgradcheck(ad.MaximumLikelihood(20).scale, samples)


@FORWARD_MODE
@pytest.mark.parametrize("estimator", KINDS[:-1], ids=repr)
def test_other_second_derivatives_are_refused(estimator: ad.QuietGradient) -> None:
    samples = _cauchy(9, 6).requires_grad_()
    (first,) = torch.autograd.grad(estimator.scale(samples).sum(), samples, create_graph=True)
    with pytest.raises(
        ad.ArgumentError, match=r"second derivatives .* use Projected\(k, estimator=MaximumLikelihood\(\)\)"
    ):
        torch.autograd.grad(first.square().sum(), samples)
    with pytest.raises(ad.ArgumentError, match="second derivatives"):
        torch.func.hessian(lambda v: estimator.scale(v).sum())(samples.detach())


@FORWARD_MODE
@pytest.mark.parametrize("estimator", KINDS, ids=repr)
def test_function_transforms(estimator: ad.QuietGradient) -> None:
    samples = _cauchy(4, 9, 6)
    parts = [s.requires_grad_() for s in samples.clone()]
    slopes = torch.stack([torch.autograd.grad(estimator.scale(s).square().sum(), s)[0] for s in parts])

    def loss(v: Tensor) -> Tensor:
        return estimator.scale(v).square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(samples[0]), slopes[0])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(samples), slopes)
    turned = samples.movedim(0, 1)
    torch.testing.assert_close(torch.func.vmap(estimator.scale, in_dims=1)(turned), estimator.scale(turned))
    direction = torch.ones_like(samples[0])
    value, along = torch.func.jvp(loss, (samples[0],), (direction,))
    torch.testing.assert_close(value, loss(samples[0]))
    torch.testing.assert_close(along, (slopes[0] * direction).sum())


@pytest.mark.parametrize(("estimator", "k"), [(KINDS[0], 1), (KINDS[1], 10), (KINDS[-1], 10)], ids=repr)
def test_compiled_as_one_graph(estimator: ad.QuietGradient, k: int) -> None:
    torch.compiler.reset()
    samples = _cauchy(k, 6)
    samples[:, 2] = 0
    samples[k // 2, 3] = math.nan
    samples.requires_grad_()
    compiled = torch.compile(estimator.scale, fullgraph=True, backend="aot_eager")(samples)
    plain = estimator.scale(samples)
    torch.testing.assert_close(compiled, plain, equal_nan=True)
    gradients = [torch.autograd.grad(found.sum(), samples, retain_graph=True)[0] for found in (compiled, plain)]
    torch.testing.assert_close(*gradients, equal_nan=True)


def test_second_derivatives_of_a_compiled_estimate_are_refused() -> None:
    torch.compiler.reset()
    samples = _cauchy(9, 6).requires_grad_()
    found = torch.compile(ad.QuietGradient().scale, fullgraph=True, backend="aot_eager")(samples)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(torch.autograd.grad(found.square().sum(), samples, create_graph=True)[0].sum(), samples)
