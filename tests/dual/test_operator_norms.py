"""Bounds on the l2 norm of a layer: never below the norm of its matrix, and not far above it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from autodual.dual.arithmetic import DualLinear
from autodual.dual.base import AffineDual, schur_test, spectral_norm
from autodual.dual.conv import DualConv, DualConvTranspose, kernel_norm


def matrix_of(layer: AffineDual, shape: tuple[int, ...]) -> Tensor:
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return layer.linear(basis).flatten(1)


def drawn_convolution(seed: int) -> tuple[AffineDual, tuple[int, ...]]:
    """Strides, padding, dilation, groups, even and odd kernels, in one and two dimensions; every second one is transposed."""
    generator = torch.Generator().manual_seed(seed)
    dims = 1 + seed % 2

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(torch.randint(low, high + 1, (dims,), generator=generator).tolist())

    kernel, stride, dilation, padding, size = some(1, 4), some(1, 2), some(1, 2), some(0, 2), some(7, 9)
    groups, per_group = 1 + seed % 3, some(1, 3)
    outer, inner = groups * per_group[0], per_group[-1]
    weight = torch.randn(outer, inner, *kernel, dtype=torch.float64, generator=generator)
    weight = weight.abs() if seed % 5 == 0 else weight  # where the largest frequency is zero
    if seed % 4 < 2:
        return DualConv(weight, None, stride, padding, dilation, groups), (groups * inner, *size)
    return DualConvTranspose(weight, None, stride, padding, (0,) * dims, groups, dilation), (outer, *size)


@pytest.mark.parametrize("seed", range(60))
def test_convolutions(seed: int) -> None:
    layer, shape = drawn_convolution(seed)
    exact = torch.linalg.matrix_norm(matrix_of(layer, shape), 2).item()
    (found,) = layer.operator_norms((shape,), torch.zeros((), dtype=torch.float64))
    (plain,) = AffineDual.operator_norms(layer, (shape,), torch.zeros((), dtype=torch.float64))
    assert found >= exact
    assert plain >= exact


def test_the_grid_of_frequencies_misses_little() -> None:
    """Against all frequencies that a circle of 64 positions has."""
    torch.manual_seed(0)
    for taps in (1, 2, 3, 4, 5, 7):
        weight = torch.randn(6, 5, taps, taps, dtype=torch.float64)
        frequencies = torch.fft.fft2(weight, s=(64, 64)).permute(2, 3, 0, 1)
        exact = torch.linalg.matrix_norm(frequencies, 2).max().item()
        assert exact <= kernel_norm(weight, 1) <= 1.25 * exact
        assert exact <= kernel_norm(weight, 1, around=(64, 64)) <= 1.25 * exact


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
def test_waves_between_the_frequencies_of_the_grid(taps: int) -> None:
    for wave in torch.linspace(0, math.pi, 50, dtype=torch.float64):
        weight = torch.cos(wave * torch.arange(taps)).reshape(1, 1, -1)
        exact = torch.fft.fft(weight, n=4096).abs().max().item()
        assert exact <= kernel_norm(weight, 1) <= 1.1 * exact


def test_a_small_circle_needs_no_other_frequencies() -> None:
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = DualConv(weight, None, (1, 1), (1, 1), (1, 1), 1)
    exact = torch.linalg.matrix_norm(matrix_of(layer, (3, 4, 4)), 2).item()
    assert exact <= layer.operator_norms(((3, 4, 4),), weight)[0] <= kernel_norm(weight, 1)


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (1, 7), (7, 1), (1, 1)])
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200, 0.0])
def test_matrices(shape: tuple[int, int], scale: float) -> None:
    weight = scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = torch.linalg.matrix_norm(weight, 2).item()
    (found,) = DualLinear(weight).operator_norms((shape[1:],), weight)
    assert exact <= found <= 1.15 * exact + 1e-300


def test_equal_singular_values_are_the_worst_case() -> None:
    assert 1 <= spectral_norm(torch.eye(512)) <= 1.15


def test_every_example_has_a_map_of_its_own() -> None:
    slope = torch.tensor([[1.0, -3.0], [0.5, 0.0], [0.0, 0.0]], dtype=torch.float64)
    found = schur_test(lambda x: slope.abs() * x, torch.ones_like(slope))
    assert torch.equal(found > 0, torch.tensor([True, True, False]))
    assert found.tolist() == pytest.approx([3.03, 0.505, 0.0])


def test_faint_maps_have_a_norm() -> None:
    """1e-30 squared is below all numbers of float32."""
    assert schur_test(lambda x: 1e-30 * x, torch.ones(1, 4)).item() >= 1e-30
    assert schur_test(lambda x: 1e30 * x, torch.ones(1, 4)).item() < 1.1e30


def test_what_does_not_depend_on_the_operand_has_norm_zero() -> None:
    assert schur_test(lambda x: torch.zeros(2, 3), torch.ones(2, 4)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("part", [1.0, 0.999])
def test_an_absolute_without_gradients(part: float) -> None:
    """Column sums come from gradients; a layer of the user's own may compute |W| x without them, or some of it."""
    weight = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    class Detached(AffineDual):
        def linear(self, *operands: Tensor) -> Tensor:
            return operands[0] @ weight.T

        def absolute(self, *operands: Tensor) -> Tensor:
            (x,) = operands
            return (part * x.detach() + (1 - part) * x) @ weight.abs().T

    exact = torch.linalg.matrix_norm(weight, 2).item()
    assert exact <= Detached().operator_norms(((4,),), weight)[0] <= 5 * exact
