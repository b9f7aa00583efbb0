"""The oracles agree with each other, and refuse what they cannot answer."""

import sys

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.testing import corners, exact_minimum, triangle_minimum

X = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
ROWS = torch.eye(2, dtype=torch.float64)


def _mlp(*, last: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)] + ([] if last is None else [last])
    return nn.Sequential(*parts).double().eval()


def test_corners_of_a_box() -> None:
    points = corners(ad.LinfBall(0.5).around(X))
    assert points.shape == (8, 2, 3)
    torch.testing.assert_close((points - X).abs(), torch.full((8, 2, 3), 0.5, dtype=torch.float64))
    assert len({tuple(p) for p in (points[:, 0] - X[0]).sign().tolist()}) == 8


def test_corners_of_an_l1_ball() -> None:
    points = corners(ad.L1Ball(0.5).around(X))
    assert points.shape == (6, 2, 3)
    torch.testing.assert_close((points - X).abs().sum(-1), torch.full((6, 2), 0.5, dtype=torch.float64))


def test_corners_of_what_has_none_or_too_many() -> None:
    with pytest.raises(ad.ArgumentError, match="corners"):
        corners(ad.L2Ball(0.5).around(X))
    with pytest.raises(ad.ArgumentError, match="at most 16384 corners; got 20 features"):
        corners(ad.LinfBall(0.5).around(torch.zeros(1, 20)))


def test_on_a_linear_network_all_agree() -> None:
    model = nn.Linear(3, 2).double().eval()
    box = ad.LinfBall(0.4).around(X)
    with torch.no_grad():
        lower = ad.bounds(model, box).output.lower
    torch.testing.assert_close(triangle_minimum(model, box, ROWS), lower)
    torch.testing.assert_close(exact_minimum(model, box, ROWS), lower)


def test_a_concave_network_is_smallest_at_a_corner() -> None:
    """-|W| relu(z) is concave in x, so its exact minimum is among the corners."""
    model = _mlp()
    with torch.no_grad():
        model[2].weight.copy_(-model[2].weight.abs())
    box = ad.LinfBall(0.7).around(X)
    with torch.no_grad():
        values = torch.stack([model(x) for x in corners(box)])
    torch.testing.assert_close(exact_minimum(model, box, ROWS), values.amin(0), atol=1e-7, rtol=0)


def test_convolutions_and_branches_too() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 2, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)).double().eval()
    box = ad.LinfBall(0.2).around(torch.randn(1, 1, 3, 3, dtype=torch.float64))
    with torch.no_grad():
        dual = ad.bounds(model, box)
    linear, exact = (f(model, box, ROWS, dual.layers) for f in (triangle_minimum, exact_minimum))
    assert bool((dual.output.lower <= linear + 1e-7).all())
    assert bool((linear <= exact + 1e-7).all())


def test_other_activations_are_refused() -> None:
    with pytest.raises(ad.ArgumentError, match="3: the oracles know affine layers and ReLU, not DualTanh"):
        triangle_minimum(_mlp(last=nn.Tanh()), ad.LinfBall(0.1).around(X), ROWS)


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match="SciPy, which is not installed"):
        triangle_minimum(_mlp(), ad.LinfBall(0.1).around(X), ROWS)
