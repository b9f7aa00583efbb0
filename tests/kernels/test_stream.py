"""The hand-written pieces of a stream equal the plain ones: medians, passing an activation, and turned angles."""

import math

import pytest
import torch
from torch import Tensor

from autodual._tensor import channels_inside
from autodual.kernels.median import median_of_sizes
from autodual.kernels.selection import LARGEST_NETWORK
from autodual.kernels.stream import Angles, fresh_stream, pass_and_add


@pytest.mark.parametrize("k", [1, 2, 3, 7, 10, 31, 50, 64, 100, LARGEST_NETWORK, LARGEST_NETWORK + 1, 200])
def test_median_equals_sorting(k: int) -> None:
    samples = torch.randn(k, 3, 40, dtype=torch.float64)
    expected = samples.abs().sort(0).values[(k - 1) // 2]
    assert torch.equal(median_of_sizes(samples), expected)


def test_median_of_zeros_and_ones_sorts_everything() -> None:
    """A network that is right for all sequences of zeros and ones is right for all numbers; 2^10 of them are all there are."""
    samples = torch.tensor([[(n >> bit) & 1 for n in range(1024)] for bit in range(10)], dtype=torch.float64)
    assert torch.equal(median_of_sizes(samples), samples.sort(0).values[4])


def test_median_keeps_nan() -> None:
    samples = torch.randn(20, 20)
    samples.fill_diagonal_(torch.nan)
    assert bool(median_of_sizes(samples).isnan().all())


def test_gradient_goes_to_the_middle_sample_with_its_sign() -> None:
    samples = torch.randn(10, 50, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, dtype=torch.float64)
    (found,) = torch.autograd.grad((median_of_sizes(samples) * weight).sum(), samples)
    (expected,) = torch.autograd.grad((samples.abs().median(0).values * weight).sum(), samples)
    assert torch.equal(found, expected)


def test_no_gradient_from_a_dead_unit() -> None:
    samples = torch.zeros(10, 4, requires_grad=True)
    (found,) = torch.autograd.grad(median_of_sizes(samples).sum(), samples)
    assert not found.any()


def _inputs(shared: bool, inside: bool) -> tuple[Tensor, Tensor, Tensor, Angles]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    stream, slope, radius = random(5, 1 if shared else 3, 2, 4, 4), random(3, 2, 4, 4), random(3, 2, 4, 4)
    if inside:
        slope, radius = channels_inside(slope), channels_inside(radius)
    return (
        stream.requires_grad_(),
        slope.requires_grad_(),
        radius.requires_grad_(),
        Angles(random(5, 1, 2, 4, 4), random(3, 2, 4, 4)),
    )


@pytest.mark.parametrize("inside", [True, False], ids=["channels inside", "as they are"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared stream", "own streams"])
def test_passing_an_activation_equals_the_formula(shared: bool, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autodual.kernels.stream.CACHED", 200)  # several parts
    stream, slope, radius, angles = _inputs(shared, inside)
    weight = torch.randn(5, 3, 2, 4, 4, dtype=torch.float64)
    plain = slope * stream + radius * (angles.angles + angles.turns).tan()
    found = pass_and_add(stream, slope, radius, angles)
    torch.testing.assert_close(found, plain, rtol=1e-14, atol=1e-14)
    for a, b in zip(
        torch.autograd.grad((found * weight).sum(), (stream, slope, radius)),
        torch.autograd.grad((plain * weight).sum(), (stream, slope, radius)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared", [True, False], ids=["shared stream", "own streams"])
def test_gradients_of_gradients(shared: bool) -> None:
    stream, slope, radius, angles = _inputs(shared, False)
    assert torch.autograd.gradgradcheck(lambda *values: pass_and_add(*values, angles), (stream, slope, radius))
    assert torch.autograd.gradgradcheck(lambda values: fresh_stream(values, angles), radius)
    assert torch.autograd.gradgradcheck(
        lambda values: median_of_sizes(values), torch.randn_like(stream[:, 0]).requires_grad_()
    )


def test_a_fresh_stream_and_its_gradient() -> None:
    _, _, radius, angles = _inputs(False, False)
    found = fresh_stream(radius, angles)
    torch.testing.assert_close(found, radius * angles.numbers())
    (gradient,) = torch.autograd.grad(found.sum(), radius)
    torch.testing.assert_close(gradient, angles.numbers().sum(0))


def test_turned_angles_are_cauchy_and_independent_between_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 200_000
    angles = Angles(
        torch.empty(1, 1, count, dtype=torch.float64).uniform_(0, math.pi, generator=generator),
        torch.empty(2, count, dtype=torch.float64).uniform_(0, math.pi, generator=generator),
    )
    first, second = (angles.numbers()[0].atan() / math.pi + 0.5).unbind(0)
    cells = torch.zeros(8, 8, dtype=torch.float64).index_put_(
        ((first * 8).long().clamp(max=7), (second * 8).long().clamp(max=7)),
        torch.ones(count, dtype=torch.float64),
        True,
    )
    chi_square = ((cells - count / 64).square() / (count / 64)).sum().item()
    assert chi_square < 63 + 5 * math.sqrt(2 * 63), f"chi-square {chi_square:.1f} with 63 degrees of freedom"
