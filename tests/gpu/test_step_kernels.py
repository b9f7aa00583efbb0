"""Kernels that a step's small operations are gathered in equal their plain twins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

import pytest
import torch
from torch import Tensor

from autodual import kernels
from autodual.dual.base import ElementwiseDual
from autodual.dual.piecewise import DualReLU
from autodual.interval import Interval
from autodual.kernels import chord, weigh
from autodual.spec import margins

pytestmark = pytest.mark.gpu


def _gradients(results: list[Tensor], weights: list[Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    total = sum((r * w.to(r)).sum() for r, w in zip(results, weights, strict=True))
    return torch.autograd.grad(total, inputs, retain_graph=True)


@pytest.mark.parametrize("rows", [1, 10])
@pytest.mark.parametrize("examples", [1, 7])
@pytest.mark.parametrize("shape", [(256,), (3, 41, 43), (9000,)])
@pytest.mark.parametrize("shared", [False, True], ids=["own radius", "shared radius"])
def test_rows_through_an_activation(rows: int, examples: int, shape: tuple[int, ...], shared: bool) -> None:
    torch.manual_seed(0)
    c = torch.randn(rows, examples, *shape, device="cuda")
    c.view(-1)[::5] = 0
    c.requires_grad_()
    slope = torch.rand(examples, *shape, device="cuda", requires_grad=True)
    radius = torch.rand(1 if shared else examples, *shape, device="cuda", requires_grad=True)
    assert weigh.weighable(c, radius, slope, in_graph=True)
    assert not weigh.weighable(c, radius, slope)
    found = weigh.weigh(c, slope, radius)
    exact = c.double() * slope.double(), (c.double().abs() * radius.double()).flatten(2).sum(2)
    assert torch.equal(found[0], c * slope)
    torch.testing.assert_close(found[1].double(), exact[1], rtol=1e-5, atol=1e-5)
    weights = [torch.randn_like(found[0]), torch.randn_like(found[1])]
    for a, b in zip(
        _gradients([*found], weights, (c, slope, radius)),
        _gradients([*exact], weights, (c, slope, radius)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    alone = weigh.weighted_l1(c, radius)
    assert torch.equal(alone, found[1])
    for a, b in zip(
        _gradients([alone], weights[1:], (c, radius)), _gradients([exact[1]], weights[1:], (c, radius)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_rows_that_are_not_weighed_by_the_kernel() -> None:
    rows, radius = torch.ones(2, 3, 300, device="cuda"), torch.ones(3, 300, device="cuda")
    weighable = partial(weigh.weighable, in_graph=True)
    assert weighable(rows, radius, radius)
    assert not weighable(rows[:, :1], radius, radius)
    assert not weighable(rows, radius, radius[:1])
    assert not weighable(rows[..., :50], radius[:, :50], radius[:, :50])
    assert not weighable(rows.double(), radius.double(), radius.double())


@pytest.mark.parametrize("shared", [False, True], ids=["own radius", "shared radius"])
@pytest.mark.parametrize("wanted", [(2, 4), (0, 1, 2, 3, 4), (3,), (1,)], ids=str)
def test_a_relu_around_a_centre(shared: bool, wanted: tuple[int, ...], watch: Callable[..., list[str]]) -> None:
    calls = watch(chord, "launch_forward_around", "launch_backward_around")
    torch.manual_seed(0)
    centre = torch.randn(4, 3, 9, 9, device="cuda")
    radius = torch.rand(1 if shared else 4, 3, 9, 9, device="cuda")
    centre.view(-1)[::7] = 0
    radius.view(-1)[::5] = 0
    centre.requires_grad_()
    radius.requires_grad_()
    found = DualReLU().relax(centre, radius)
    exact = ElementwiseDual.relax(DualReLU(), centre.double(), radius.double())
    results = [[r.interval.lower, r.interval.upper, r.band.slope, r.band.radius, r.middle] for r in (found, exact)]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    weights = [torch.randn_like(centre) for _ in wanted]
    width = (centre.abs() + radius + 1e-9).detach()
    for a, b in zip(*(_gradients([r[i] for i in wanted], weights, (centre, radius)) for r in results), strict=True):
        assert bool(((a - b).abs() <= 1e-5 * sum(w.abs() for w in weights).sum(0) * (1 + 1 / width)).all())
    assert calls == ["launch_forward_around", "launch_backward_around"]


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_rows_of_margins(classes: int) -> None:
    labels = torch.tensor([1, 0, classes - 1], device="cuda")
    found = margins(labels, classes, torch.float32).rows
    assert torch.equal(found.cpu(), margins(labels.cpu(), classes, torch.float32).rows)
    broken = margins(torch.tensor([classes, -1], device="cuda"), classes, torch.float32).rows
    assert bool(broken.isnan().all())


def test_every_family_works_here() -> None:
    assert all(kernels.ready(family, torch.device("cuda", 0)) for family in get_args(kernels.Family))


def test_an_interval_around_is_the_same_either_way() -> None:
    centre, radius = torch.randn(2, 7, device="cuda"), torch.rand(2, 7, device="cuda")
    found, plain = DualReLU().relax(centre, radius).interval, Interval.around(centre, radius)
    assert torch.equal(found.lower, plain.lower)
    assert torch.equal(found.upper, plain.upper)
