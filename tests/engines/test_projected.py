"""Random projections reproduce the authors' recorded draws, estimate without much bias, and are refused as proofs."""

import math
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.engines.prepare import dual_network
from autodual.engines.streams import Draws, StreamPass, Streams
from autodual.kernels.stream import Angles
from small import batch, mlp

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "golden_tiny_proj.npz"
K = 11


def _spread(unstable: np.ndarray, flat: np.ndarray) -> Tensor:
    """Recorded numbers fill the unstable entries in (example, projection, unit) order; ours are [k, N, n]."""
    mask = torch.from_numpy(unstable).bool().unsqueeze(1).expand(-1, K, -1)
    numbers = torch.zeros(mask.shape, dtype=torch.float64)
    numbers[mask] = torch.from_numpy(flat).double()
    return numbers.transpose(0, 1)


@pytest.mark.parametrize(
    ("tag", "ball"), [("l1_median_u_0.3", ad.LinfBall(0.3)), ("l2_normal_u_1.0", ad.L2Ball(1.0))], ids=["linf", "l2"]
)
def test_recorded_draws_give_the_recorded_bounds(tag: str, ball: ad.Perturbation) -> None:
    with np.load(GOLDEN, allow_pickle=False) as file:
        data = {name: file[name] for name in file.files}
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 25), nn.ReLU(), nn.Linear(25, 5)).double().eval()
    model.load_state_dict({k[2:]: torch.from_numpy(v) for k, v in data.items() if k.startswith("w.")})
    x = torch.from_numpy(data["X"]).double()
    network = dual_network(model, x)
    recorded = [data[name] for name in sorted(n for n in data if n.startswith(f"{tag}.draw"))]
    first = torch.from_numpy(recorded[0]).double().transpose(0, 1)
    numbers = {
        index: _spread(data[f"{tag}.relu{i}.I"], flat)
        for i, (index, flat) in enumerate(zip(network.activations, recorded[1:], strict=True), start=1)
    }
    fresh = {i: Angles.of(n) for i, n in numbers.items()}
    draws = Draws(fresh, first if "l2" in tag else Angles.of(first))
    engine = ad.Projected(K, False, ad.Median(), exact_first=False, draws=draws)
    found = engine.preactivations(network, ball.around(x)).intervals
    for i, index in enumerate(network.activations, start=1):
        for side, value in (("zl", found[index].lower), ("zu", found[index].upper)):
            torch.testing.assert_close(value, torch.from_numpy(data[f"{tag}.relu{i}.{side}"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "spread"),
    [(ad.Median(), math.pi / 2), (ad.GeometricMean(), math.pi / 2), (ad.MaximumLikelihood(), math.sqrt(2))],
)
def test_mean_and_spread_match_theory(estimator: ad.Estimator, spread: float) -> None:
    k, count = 200, 20_000
    angles = torch.empty(k, count, dtype=torch.float64).uniform_(
        -math.pi / 2, math.pi / 2, generator=torch.Generator().manual_seed(0)
    )
    samples = angles.tan()
    found = estimator.scale(samples)
    assert abs(found.mean().item() - 1) < 0.02, f"mean {found.mean():.4f}"
    assert abs(found.std().item() * math.sqrt(k) / spread - 1) < 0.05, (
        f"spread {found.std() * math.sqrt(k):.4f} / sqrt(k)"
    )


@pytest.mark.parametrize("k", [5, 10])
@pytest.mark.parametrize(
    ("estimator", "mean"),
    [(ad.GeometricMean(), 1.0), (ad.MaximumLikelihood(), 1.0), (ad.GeometricMean(unbiased=False), None)],
    ids=repr,
)
def test_few_projections_are_right_on_average(estimator: ad.Estimator, mean: float | None, k: int) -> None:
    angles = torch.empty(k, 400_000, dtype=torch.float64).uniform_(-math.pi / 2, math.pi / 2)
    expected = math.cos(math.pi / (2 * k)) ** -k if mean is None else mean
    found = estimator.scale(angles.tan()).mean().item()
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.L2Ball(0.3), ad.L1Ball(0.5)], ids=repr)
def test_converges_to_the_exact_bounds(ball: ad.Perturbation, merged: bool) -> None:
    model, x = mlp(6, 40, 40, 3), batch(2, 6)
    region, network = ball.around(x), dual_network(mlp(6, 40, 40, 3), x)
    exact = ad.bounds(model, region)
    columns = [
        ad.Projected(70, merged, generator=torch.Generator().manual_seed(s)).bounds(network, region) for s in range(60)
    ]
    assert all(isinstance(c, ad.EstimatedBounds) for c in columns)
    mean = torch.stack([c.output.width for c in columns]).mean()
    assert abs(mean.item() / exact.output.width.mean().item() - 1) < 0.05


def _most_streams_alive(depth: int, merged: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """Nodes whose streams are held at once, at most, in a chain of so many hidden layers."""
    made, alive = list[weakref.ref[Tensor]](), [0]
    for name in ("affine", "activation"):
        plain = getattr(StreamPass, name)

        def noting(*given: object, plain: Callable[..., Streams] = plain) -> Streams:
            result = plain(*given)
            made.append(weakref.ref(next(iter(result.values()))))
            alive.append(sum(reference() is not None for reference in made))
            return result

        monkeypatch.setattr(StreamPass, name, noting)
    x = batch(2, 6)
    network = dual_network(mlp(6, *[20] * depth, 3), x)
    with torch.no_grad():
        ad.Projected(5, merged).preactivations(network, ad.LinfBall(0.1).around(x))
    monkeypatch.undo()
    return max(alive)


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
def test_streams_are_dropped_once_nothing_reads_them(merged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [_most_streams_alive(depth, merged, monkeypatch) for depth in (3, 6, 12)] == [2, 2, 2]


def test_gradients_of_the_loss_are_finite_and_it_is_no_proof() -> None:
    model, x = mlp(6, 40, 3), batch(4, 6)
    engine = ad.Projected(8, estimator=ad.MaximumLikelihood())
    ad.RobustCrossEntropy(model, ad.LinfBall(0.1), engine)(x, torch.arange(4) % 3).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    for refused in (engine, ad.Dual(intermediate=engine)):
        with pytest.raises(ad.UnsoundError, match="estimate"):
            ad.certify(model, x, torch.arange(4) % 3, ad.LinfBall(0.1), refused)


def test_too_many_projections_fall_back_to_exact_bounds() -> None:
    model, x = mlp(6, 40, 3), batch(2, 6)
    with pytest.warns(UserWarning, match="using exact bounds"):
        found = ad.Projected(1000).bounds(dual_network(model, x), ad.LinfBall(0.1).around(x))
    torch.testing.assert_close(found.output.lower, ad.bounds(model, ad.LinfBall(0.1).around(x)).output.lower)
    assert isinstance(found, ad.EstimatedBounds)


@pytest.mark.parametrize("k", [0, -3, 2.5, True])
def test_k_must_be_a_positive_whole_number(k: object) -> None:
    with pytest.raises(ad.ArgumentError, match="k must be"):
        ad.Projected(k)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [-1, 2.5, True, None])
def test_steps_must_be_a_whole_number(steps: object) -> None:
    with pytest.raises(ad.ArgumentError, match="steps must be a whole number"):
        ad.MaximumLikelihood(steps)  # type: ignore[arg-type]
