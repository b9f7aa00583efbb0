"""eps may be a number, a scalar tensor, one per example, or one per feature; what is ambiguous or does not fit is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import autodual as ad
from small import DOUBLE, batch, mlp

X = batch(3, 2, 4, 4)


def _tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


FITTING = {
    "number": (0.1, torch.full((3, 2, 4, 4), 0.1, dtype=DOUBLE)),
    "whole number": (1, torch.full((3, 2, 4, 4), 1.0, dtype=DOUBLE)),
    "scalar tensor": (torch.tensor(0.1, dtype=DOUBLE), torch.full((3, 2, 4, 4), 0.1, dtype=DOUBLE)),
    "single-precision tensor": (torch.tensor(0.5), torch.full((3, 2, 4, 4), 0.5, dtype=DOUBLE)),
    "per example": (_tensor(0.1, 0.2, 0.3), _tensor(0.1, 0.2, 0.3).reshape(3, 1, 1, 1).expand(3, 2, 4, 4)),
    "per channel": (_tensor(0.1, 0.2).reshape(2, 1, 1), _tensor(0.1, 0.2).reshape(1, 2, 1, 1).expand(3, 2, 4, 4)),
    "per feature": (batch(1, 2, 4, 4)[0], batch(1, 2, 4, 4).expand(3, 2, 4, 4)),
    "per example and feature": (batch(3, 2, 4, 4, seed=5), batch(3, 2, 4, 4, seed=5)),
    "per column": (_tensor(0.1, 0.2, 0.3, 0.4), _tensor(0.1, 0.2, 0.3, 0.4).expand(3, 2, 4, 4)),
}


@pytest.mark.parametrize(("eps", "radius"), FITTING.values(), ids=FITTING.keys())
def test_each_feature_of_each_example_gets_its_size(eps: float | Tensor, radius: Tensor) -> None:
    box = ad.LinfBall(eps).around(X).box()
    torch.testing.assert_close(box.upper - X, radius)
    torch.testing.assert_close(X - box.lower, radius)


@pytest.mark.parametrize(("eps", "radius"), FITTING.values(), ids=FITTING.keys())
def test_clipping_never_leaves_the_range(eps: float | Tensor, radius: Tensor) -> None:
    box = ad.LinfBall(eps, clip=(0.0, 1.0)).around(X).box()
    torch.testing.assert_close(box.lower, (X - radius).clamp(min=0))
    torch.testing.assert_close(box.upper, (X + radius).clamp(max=1))


@pytest.mark.parametrize("kind", [ad.L2Ball, ad.L1Ball])
@pytest.mark.parametrize("eps", [0.25, torch.tensor(0.25, dtype=DOUBLE), _tensor(0.1, 0.2, 0.3), _tensor(0.25)])
def test_other_balls_have_one_radius_per_example(kind: type[ad.L2Ball], eps: float | Tensor) -> None:
    region = kind(eps).around(X)
    expected = torch.as_tensor(eps, dtype=DOUBLE).reshape(-1).expand(3)
    torch.testing.assert_close((region.box().upper - X).flatten(1).amax(1), expected)


@pytest.mark.parametrize("kind", [ad.LinfBall, ad.L2Ball, ad.L1Ball])
@pytest.mark.parametrize("value", [0.1, 0.7, 0.9, 0.01, 1e-10], ids=str)
def test_a_size_that_float32_does_not_hold_is_rounded_up(kind: type[ad.LinfBall], value: float) -> None:
    """A proof is about no less than was asked for, whether it was a number or a tensor, and hardly about more."""
    single = X.float()
    for eps in (value, torch.tensor(value, dtype=DOUBLE), torch.tensor([value] * 3, dtype=DOUBLE)):
        radius = kind(eps).around(single).radius
        assert radius.dtype == torch.float32
        assert (radius.double() >= value).all()
        assert (radius.nextafter(torch.zeros_like(radius)).double() < value).all()


def test_a_scalar_tensor_may_change_between_calls() -> None:
    """A schedule writes into eps; nothing keeps the old value."""
    model, x, labels = mlp(4, 5, 3), batch(2, 4), torch.tensor([0, 1])
    eps = torch.tensor(0.01, dtype=DOUBLE)
    ball = ad.LinfBall(eps)
    loss = ad.RobustCrossEntropy(model, ball)
    for value in (0.01, 0.1, 0.0):
        eps.fill_(value)
        fixed = ad.LinfBall(value)
        assert torch.equal(ad.certify(model, x, labels, ball).margins, ad.certify(model, x, labels, fixed).margins)
        assert torch.equal(loss(x, labels), ad.RobustCrossEntropy(model, fixed)(x, labels))
    eps.fill_(-1.0)
    with pytest.raises(ad.ArgumentError, match=r"ball\.eps must be finite and not negative"):
        ad.certify(model, x, labels, ball)


def test_per_example_sizes_are_as_if_examples_came_alone() -> None:
    model, x, labels = mlp(4, 5, 3), batch(3, 4), torch.tensor([0, 1, 2])
    sizes = _tensor(0.0, 0.05, 0.2)
    for ball in (ad.LinfBall, ad.L2Ball, ad.L1Ball):
        together = ad.certify(model, x, labels, ball(sizes)).margins
        alone = [ad.certify(model, x[i : i + 1], labels[i : i + 1], ball(sizes[i].item())).margins for i in range(3)]
        torch.testing.assert_close(together, torch.cat(alone))


def test_bounds_are_differentiable_in_eps() -> None:
    eps = torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)
    for ball in (ad.LinfBall(eps), ad.L2Ball(eps), ad.L1Ball(eps)):
        width = ad.bounds(mlp(4, 5, 3), ball.around(batch(2, 4))).output.width.sum()
        (gradient,) = torch.autograd.grad(width, eps)
        assert gradient > 0


REFUSED_BY_SHAPE = {
    "one per example or per feature": (
        ad.LinfBall(torch.ones(4)),
        (4, 4),
        "could be one per example or one per feature",
    ),
    "wrong count": (ad.LinfBall(torch.ones(5)), (3, 4), r"eps of shape \(5,\) does not fit x of shape \(3, 4\)"),
    "channels without space": (ad.LinfBall(torch.ones(2)), (3, 2, 4, 4), r"does not fit"),
    "too many dimensions": (ad.LinfBall(torch.ones(1, 1, 4)), (3, 4), "does not fit"),
    "l2 per feature": (ad.L2Ball(torch.ones(4)), (3, 4), r"L2Ball: eps must be one number or one per example \[3\]"),
    "l1 per feature": (ad.L1Ball(torch.ones(1, 4)), (3, 4), r"L1Ball: eps must be one number or one per example \[3\]"),
}


@pytest.mark.parametrize(("ball", "shape", "message"), REFUSED_BY_SHAPE.values(), ids=REFUSED_BY_SHAPE.keys())
def test_sizes_that_do_not_fit_are_refused(ball: ad.Perturbation, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        ball.around(batch(*shape))


def test_the_ambiguity_is_resolved_as_the_message_says() -> None:
    x, sizes = batch(4, 4), _tensor(0.1, 0.2, 0.3, 0.4)
    by_example = ad.LinfBall(sizes.reshape(4, 1)).around(x).box().width / 2
    by_feature = ad.LinfBall(sizes.reshape(1, 4)).around(x).box().width / 2
    torch.testing.assert_close(by_example, sizes.unsqueeze(1).expand(4, 4))
    torch.testing.assert_close(by_feature, sizes.expand(4, 4))


@pytest.mark.parametrize("kind", [ad.LinfBall, ad.L2Ball, ad.L1Ball])
@pytest.mark.parametrize(
    ("eps", "message"),
    [
        pytest.param(-0.1, "not negative", id="negative"),
        pytest.param(float("nan"), "finite", id="nan"),
        pytest.param(float("inf"), "finite", id="infinite"),
        pytest.param(torch.tensor([0.1, -0.1]), "values from", id="negative in a tensor"),
        pytest.param(torch.tensor(1), "floating-point tensor", id="integers"),
        pytest.param(10**40, "finite", id="beyond float32"),
        pytest.param(10**400, "finite", id="beyond float64"),
        pytest.param(torch.tensor(0.1, device="meta"), "eps is on the device 'meta'", id="no values"),
        pytest.param(torch.tensor([0.1]).to_sparse(), "eps is a tensor of the layout 'sparse_coo'", id="sparse"),
        pytest.param("0.1", "a number or a tensor, got str", id="text"),
        pytest.param(True, "a number or a tensor, got bool", id="bool"),
        pytest.param(None, "a number or a tensor, got NoneType", id="nothing"),
    ],
)
def test_sizes_without_meaning_are_refused(kind: type[ad.LinfBall], eps: float, message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        kind(eps)


@pytest.mark.parametrize(
    "clip",
    [
        (1.0, 0.0), (0.0, 0.0), (0.0,), (0.0, 1.0, 2.0), 1.0, (0.0, float("nan")), (None, 1), (0, None), ("0", "1"),
        (torch.zeros(3, 1, 1), torch.ones(3, 1, 1)),
    ],
)  # fmt: skip
def test_ranges_without_meaning_are_refused(clip: tuple[float, float]) -> None:
    with pytest.raises(ad.ArgumentError, match="clip must be"):
        ad.LinfBall(0.1, clip=clip)


@pytest.mark.parametrize(
    ("eps", "advice"),
    [
        ([1.0, 2.0], "got list; make it a tensor with torch.as_tensor"),
        (np.ones(2), "got ndarray; make it a tensor with torch.as_tensor"),
        ({"age": 1.0}, "got dict; give one size per feature as a tensor, in the order of the columns"),
        ("8/255", "got str; write a number, such as 8 / 255"),
        (None, "got NoneType$"),
    ],
)
def test_sizes_of_other_types_say_what_to_write(eps: Any, advice: str) -> None:
    with pytest.raises(ad.ArgumentError, match=advice):
        ad.LinfBall(eps)


def test_a_range_for_each_feature_is_a_box() -> None:
    with pytest.raises(
        ad.ArgumentError, match=r"clip must be .*; for a range of each feature, clamp the ends of a Box"
    ):
        ad.LinfBall(0.1, clip=(torch.zeros(3), torch.ones(3)))  # type: ignore[arg-type]


def test_grey_levels_outside_the_range_are_named() -> None:
    with pytest.raises(ad.ArgumentError, match=r"ranges from .*; divide grey levels by the highest"):
        ad.LinfBall(0.1, clip=(0.0, 1.0)).around(255 * X)


def test_an_eps_in_grey_levels_is_noticed() -> None:
    x, labels = batch(2, 4).clamp(0, 1), torch.tensor([0, 1])
    with pytest.warns(UserWarning, match="eps = 8 is more than the whole range of the data"):
        ad.certify(mlp(4, 3), x, labels, ad.LinfBall(8, clip=(0, 1)))


def test_a_range_may_end_beyond_all_numbers() -> None:
    assert ad.LinfBall(0.1, clip=(0, 10**400)).clip == (0.0, float("inf"))


def test_inputs_outside_the_range_are_refused() -> None:
    with pytest.raises(ad.ArgumentError, match=r"x lies outside clip = \(0.0, 1.0\): it ranges from"):
        ad.LinfBall(0.1, clip=(0.0, 1.0)).around(X + 0.5)


def test_with_eps_keeps_everything_else() -> None:
    assert ad.LinfBall(0.1, clip=(0.0, 1.0)).with_eps(0.2) == ad.LinfBall(0.2, clip=(0.0, 1.0))
    assert ad.L2Ball(0.1).with_eps(0.2) == ad.L2Ball(0.2)
    assert ad.L1Ball(0.1).with_eps(0.2) == ad.L1Ball(0.2)


def test_balls_do_not_copy_or_change_the_inputs() -> None:
    x = X.clone()
    ad.LinfBall(0.3, clip=(0.0, 1.0)).around(x).sample()
    ad.L1Ball(0.3).around(x).project(x + 1)
    assert torch.equal(x, X)
