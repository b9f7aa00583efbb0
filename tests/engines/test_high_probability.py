"""High-probability bounds: the paper's figures, coverage over many independent draws, and honest types."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines import effort, high_probability
from autodual.engines.backward.bands import PulledRadii
from autodual.engines.effort import Budget
from autodual.engines.high_probability import (
    ConfidenceRadius,
    gaussian_enlargement,
    geometric_enlargement,
    geometric_tail,
    log_tail_per_estimate,
    smallest_k,
)
from autodual.engines.prepare import dual_network
from autodual.engines.streams import CAUCHY, COLUMNS, GAUSS, Draws, draw
from autodual.kernels.stream import Angles
from small import batch, mlp

LABELS = torch.arange(4) % 3


def test_the_papers_example() -> None:
    network = dual_network(ad.models.small(1, 28).eval(), torch.rand(1, 1, 28, 28))
    region = ad.LinfBall(0.1).around(torch.rand(1, 1, 28, 28))
    paper = ad.HighProbability(delta=0.01, k=200, m=10, merged=False, exact_first=False).confidence(network, region)
    assert paper.estimates == 6572
    assert math.exp(log_tail_per_estimate(paper.delta, paper.estimates, paper.m)) == pytest.approx(0.262, abs=5e-4)
    assert geometric_tail(200, 0.22) == pytest.approx(0.083, abs=5e-4)
    assert (
        1 - 1 / geometric_enlargement(200, math.log(0.262)) < 0.22
    )  # the smallest relative error is smaller than the paper's
    assert ad.HighProbability().estimates(network, region) == 1668  # one per unit, and none for the first layer
    assert ad.HighProbability().estimates(network, ad.L2Ball(1.0).around(region.centre)) == 2 * 1668


@pytest.mark.parametrize("relative_error", [0.05, 0.22, 0.6, 0.95])
def test_the_tail_is_the_papers_expression(relative_error: float) -> None:
    log = math.log(1 - relative_error)
    g = relative_error**2 / (
        -0.5 * math.log(1 + (2 / math.pi * log) ** 2) + 2 / math.pi * math.atan(2 / math.pi * log) * log
    )
    assert geometric_tail(40, relative_error) == pytest.approx(math.exp(-40 * relative_error**2 / g), rel=1e-9)


@pytest.mark.parametrize("tail", [0.3, 0.01])
@pytest.mark.parametrize("k", [3, 20])
def test_enlarged_estimates_are_too_small_no_more_often_than_stated(k: int, tail: float) -> None:
    count, generator = 200_000, torch.Generator().manual_seed(0)
    cauchy = torch.empty(k, count, dtype=torch.float64).uniform_(0, math.pi, generator=generator).tan()
    small = (cauchy.abs().log().mean(0).exp() * geometric_enlargement(k, math.log(tail)) < 1).double().mean().item()
    assert small <= tail + 3 * math.sqrt(tail / count), f"geometric mean: {small:.4f}"
    gauss = torch.randn(k, count, dtype=torch.float64, generator=generator)
    small = (gauss.square().mean(0).sqrt() * gaussian_enlargement(k, math.log(tail)) < 1).double().mean().item()
    assert small == pytest.approx(tail, abs=4 * math.sqrt(tail / count)), f"chi-square: {small:.4f}"


def test_one_large_estimator_beats_the_maximum_of_several() -> None:
    many = geometric_enlargement(200, log_tail_per_estimate(0.01, 6572, 10))
    one = geometric_enlargement(2000, log_tail_per_estimate(0.01, 6572, 1))
    assert one == pytest.approx(many, rel=1e-4)  # the same factor, but the maximum of ten is larger than their mean
    assert one == pytest.approx(1.20, abs=0.005)


def _all_covered(network: DualNetwork, region: ad.InputSet, engine: ad.HighProbability) -> torch.Tensor:
    """[N]: whether every estimated radius is at least the exact one for the same dual layers."""
    found = engine.preactivations(network, region).intervals
    bands = {i: network.activation(i).band(v) for i, v in found.items()}
    covered = torch.ones(len(region), dtype=torch.bool)
    for index, interval in found.items():
        exact = PulledRadii(network, region, bands, Budget.unlimited()).of_units(network.nodes[index].inputs[0])[0]
        covered &= (interval.radius >= exact * (1 - 1e-12)).flatten(1).all(1)
    return covered


CASES = {
    "merged": (ad.LinfBall(0.1), ad.HighProbability(0.2, k=12)),
    "paper's form": (ad.LinfBall(0.1), ad.HighProbability(0.2, k=4, m=3, merged=False, exact_first=False)),
    "l2": (ad.L2Ball(0.3), ad.HighProbability(0.2, k=12, exact_first=False)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_coverage_over_two_thousand_independent_draws(case: str) -> None:
    ball, engine = CASES[case]
    x = batch(1, 6)
    network, region, draws = dual_network(mlp(6, 8, 7, 3), x), ball.around(x), 2000
    with torch.no_grad():
        failed = sum(not _all_covered(network, region, _with_seed(engine, seed)).item() for seed in range(draws))
    allowed = engine.delta + 3 * math.sqrt(engine.delta * (1 - engine.delta) / draws)
    assert failed / draws <= allowed, f"{failed} of {draws} draws failed; delta = {engine.delta}"


def test_without_the_enlargement_coverage_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coverage test can fail: plain estimates are too small about half the time."""
    monkeypatch.setattr(ConfidenceRadius, "of", classmethod(lambda cls, c, gaussian: cls(c.k, c.m, 1.0, 1.0)))
    ball, engine = CASES["merged"]
    x = batch(1, 6)
    network = dual_network(mlp(6, 8, 7, 3), x)
    with torch.no_grad():
        covered = sum(_all_covered(network, ball.around(x), _with_seed(engine, s)).item() for s in range(100))
    assert covered < 50


def _with_seed(engine: ad.HighProbability, seed: int) -> ad.HighProbability:
    return ad.HighProbability(engine.delta, engine.k, engine.m, engine.merged, engine.exact_first, seed=seed)


def test_the_certificate_is_its_own_type_and_says_what_it_rests_on() -> None:
    model, x = mlp(6, 8, 7, 3), batch(4, 6)
    labels = model(x).argmax(1)
    found = ad.certify(model, x, labels, ad.LinfBall(0.001), ad.HighProbability(0.05, k=20, seed=7))
    assert isinstance(found, ad.HighProbabilityCertificate)
    assert found.confidence == 0.95
    assert (found.basis.delta, found.basis.k, found.basis.m, found.basis.seed, found.basis.estimates) == (
        0.05,
        20,
        1,
        7,
        7,
    )
    assert found.certified.all()
    assert set(found.verdicts) == {ad.Verdict.PROBABLE}
    record = json.loads(found.to_json())
    assert (record["confidence"], record["delta"], record["estimates"], record["seed"]) == (0.95, 0.05, 7, 7)
    assert type(ad.certify(model, x, labels, ad.LinfBall(0.001))) is ad.Certificate
    assert not isinstance(found, ad.Certificate)
    assert not hasattr(found, "robust_error")


def test_confidence_follows_the_bounds() -> None:
    model, x = mlp(6, 8, 7, 3), batch(4, 6)
    region = ad.LinfBall(0.01).around(x)
    for engine in (
        ad.HighProbability(k=20),
        ad.Dual(intermediate=ad.HighProbability(k=20)),
        ad.Crown(intermediate=ad.HighProbability(k=20)),
    ):
        assert isinstance(ad.bounds(model, region, engine), ad.ProbableBounds)
        assert isinstance(ad.certify(model, x, LABELS, ad.LinfBall(0.01), engine), ad.HighProbabilityCertificate)


def test_the_same_seed_gives_the_same_bounds_and_another_seed_others() -> None:
    model, x = mlp(6, 8, 7, 3), batch(4, 6)
    margins = [
        ad.certify(model, x, LABELS, ad.LinfBall(0.1), ad.HighProbability(k=20, seed=s)).margins for s in (1, 1, 2)
    ]
    assert torch.equal(margins[0], margins[1])
    assert not torch.equal(margins[0], margins[2])


def test_more_projections_come_closer_to_the_exact_margins() -> None:
    model, x = mlp(6, 30, 30, 3), batch(4, 6)
    exact = ad.certify(model, x, LABELS, ad.LinfBall(0.05)).margins

    def gap(k: int) -> float:
        found = ad.certify(model, x, LABELS, ad.LinfBall(0.05), ad.HighProbability(k=k)).margins
        return (exact - found).nan_to_num(0.0).mean().item()

    assert gap(10) > gap(25) > gap(60) > 0


def test_a_network_with_one_layer_of_activations_needs_no_estimate() -> None:
    model, x = mlp(6, 8, 3), batch(4, 6)
    found = ad.certify(model, x, LABELS, ad.LinfBall(0.05), ad.HighProbability(k=10))
    assert isinstance(found, ad.HighProbabilityCertificate)
    assert found.basis.estimates == 0
    torch.testing.assert_close(found.margins, ad.certify(model, x, LABELS, ad.LinfBall(0.05)).margins)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.05, clip=(-5.0, 5.0)), ad.L1Ball(0.3)], ids=repr)
def test_other_balls(ball: ad.Perturbation) -> None:
    model, x = mlp(6, 600, 600, 3), batch(4, 6)
    found = ad.certify(model, x, LABELS, ball, ad.HighProbability(0.5, k=1200)).margins
    exact = ad.certify(model, x, LABELS, ball).margins
    finite = exact.isfinite()
    assert bool((found <= exact + 0.02).all())
    torch.testing.assert_close(found[finite], exact[finite], rtol=0.2, atol=0.1)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2, math.nan, "0.01", True])
def test_delta_must_be_a_probability(delta: object) -> None:
    with pytest.raises(ad.ArgumentError, match="delta must be a probability"):
        ad.HighProbability(delta)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"k": 0}, {"m": 0}, {"k": 2.5}, {"m": True}, {"columns": None}, {"columns": 0}])
def test_counts_must_be_whole_and_positive(arguments: dict[str, object]) -> None:
    with pytest.raises(ad.ArgumentError, match="must be a whole number, at least 1"):
        ad.HighProbability(**arguments)  # type: ignore[arg-type]


def test_too_few_projections_are_refused_and_the_smallest_number_is_named_and_works() -> None:
    model, x = mlp(6, 8, 7, 3), batch(4, 6)
    with pytest.raises(ad.ArgumentError, match=r"smallest k that works is (\d+)") as caught:
        ad.certify(model, x, LABELS, ad.LinfBall(0.05), ad.HighProbability(1e-6, k=1))
    needed = int(str(caught.value).rsplit(" ", 1)[1])
    ad.certify(model, x, LABELS, ad.LinfBall(0.05), ad.HighProbability(1e-6, k=needed))
    with pytest.raises(ad.ArgumentError, match="smallest k"):
        ad.certify(model, x, LABELS, ad.LinfBall(0.05), ad.HighProbability(1e-6, k=needed - 1))
    assert smallest_k(math.log(1e-6 / 7), geometric_enlargement) == needed


def test_a_search_over_radii_is_refused() -> None:
    model, x = mlp(6, 8, 7, 3), batch(4, 6)
    with pytest.raises(ad.ArgumentError, match="deltas add up"):
        ad.certified_radius(model, x, LABELS, ad.LinfBall(0.05), ad.HighProbability(k=20))


def test_layers_without_a_band_are_refused_at_once() -> None:
    class Lines(ad.ElementwiseDual):
        def value(self, z: torch.Tensor) -> torch.Tensor:
            return z.relu()

        def image(self, z: ad.Interval) -> ad.Interval:
            return ad.Interval(z.lower.relu(), z.upper.relu())

        def lines(self, z: ad.Interval) -> ad.Lines:
            return ad.Lines(
                torch.zeros_like(z.lower), torch.zeros_like(z.lower), torch.ones_like(z.lower), z.lower.abs()
            )

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    ad.register(Odd)(Lines)
    model, x = (
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), Odd(), nn.Linear(5, 3)).double().eval(),
        batch(4, 6),
    )
    for engine in (ad.HighProbability(), ad.Projected(5), ad.Dual(), ad.ForwardDual()):
        with pytest.raises(ad.UnsupportedOperationError, match=r"^3: Lines has no band"):
            ad.bounds(model, ad.LinfBall(0.1).around(x), engine)
    with pytest.raises(ad.UnsupportedOperationError, match=r"^3: Lines has no band"):
        ad.RobustCrossEntropy(model, ad.LinfBall(0.1), ad.Projected(5)).draw(x)
    assert isinstance(ad.bounds(model, ad.LinfBall(0.1).around(x), ad.Crown(intermediate=ad.IBP())), ad.SoundBounds)


@pytest.mark.parametrize("options", [{"k": 21}, {"k": 7, "m": 3}, {}], ids=str)
def test_more_projections_than_generators_estimate_nothing(options: dict[str, int]) -> None:
    model, x = mlp(6, 8, 7, 3), batch(4, 6)
    with pytest.warns(UserWarning, match="no fewer than the 21 generators that they stand for: using exact bounds"):
        found = ad.certify(model, x, LABELS, ad.LinfBall(0.05), ad.HighProbability(**options))  # type: ignore[arg-type]
    exact = ad.certify(model, x, LABELS, ad.LinfBall(0.05), ad.Dual(intermediate=ad.Dual()))
    assert isinstance(found, ad.HighProbabilityCertificate)
    assert found.basis.estimates == 0
    torch.testing.assert_close(found.margins, exact.margins)
    torch.testing.assert_close(found.slack, exact.slack)


def _estimated() -> tuple[DualNetwork, ad.InputSet]:
    """Three layers of activations, the last two of which are estimated."""
    x = batch(2, 6)
    return dual_network(mlp(6, 60, 50, 40, 3), x), ad.LinfBall(0.1).around(x)


@pytest.mark.parametrize("m", [1, 3])
def test_no_random_numbers_are_used_twice(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Draws] = []
    monkeypatch.setattr(high_probability, "draw", lambda *a: drawn.append(draw(*a)) or drawn[-1])  # type: ignore[func-returns-value]
    network, region = _estimated()
    ad.HighProbability(k=40, m=m).preactivations(network, region)
    assert len(drawn) == 2 * m
    for a, b in itertools.combinations(map(_numbers, drawn), 2):
        assert not bool(torch.isin(a, b).any())


def _numbers(draws: Draws) -> torch.Tensor:
    assert isinstance(draws.first, Angles)
    parts = [draws.first, *draws.fresh.values()]
    return torch.cat([t.flatten() for part in parts for t in (part.angles, part.turns) if t is not None])


@pytest.mark.parametrize("term", [CAUCHY, GAUSS, COLUMNS])
def test_projections_in_parts_read_as_they_do_together(term: int) -> None:
    samples, reading = torch.randn(30, 2, 5, dtype=torch.float64), ConfidenceRadius(30, 1, 1.3, 1.2)
    total = None
    for part in (samples if term == COLUMNS else samples[:7], samples if term == COLUMNS else samples[7:]):
        total = reading.add(term, total, part)
    assert total is not None
    torch.testing.assert_close(reading.finish(term, total), reading.finish(term, reading.add(term, None, samples)))


def test_small_parts_estimate_as_well_as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    network, region = _estimated()
    engine = ad.HighProbability(k=140)
    whole = engine.preactivations(network, region).intervals
    monkeypatch.setattr(high_probability, "VALUES_AT_ONCE", 60 * 2 * 9)
    for index, interval in engine.preactivations(network, region).intervals.items():
        ratio = (interval.radius.mean() / whole[index].radius.mean()).item()
        assert abs(ratio - 1) < 0.4, f"{network.nodes[index].name}: {ratio:.3f}"


@pytest.mark.parametrize(
    "engine",
    [
        ad.HighProbability(k=40),
        ad.Crown(intermediate=ad.HighProbability(k=40)),
        ad.Crown(intermediate=ad.Dual(intermediate=ad.HighProbability(k=40))),
    ],
    ids=repr,
)
def test_the_same_seed_gives_the_same_certificate_however_little_memory_is_free(
    engine: ad.BoundEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, ball = mlp(6, 30, 20, 10, 3), batch(4, 6), ad.LinfBall(0.05)
    before, bounds = ad.certify(model, x, LABELS, ball, engine), ad.bounds(model, ball.around(x), engine)
    monkeypatch.setattr(effort, "free_bytes", lambda device: 2 * 4 * 200 * 8 * 8)  # for two or three
    after = ad.certify(model, x, LABELS, ball, engine)
    torch.testing.assert_close(after.margins, before.margins, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(after.slack, before.slack, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ad.bounds(model, ball.around(x), engine).output.lower, bounds.output.lower)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.05), ad.L2Ball(0.05)], ids=repr)
def test_any_delta_that_is_a_number_works(ball: ad.Perturbation) -> None:
    x = batch(2, 6)
    network, region = dual_network(mlp(6, 300, 100, 3), x), ball.around(x)
    radii = [
        ad.HighProbability(delta, k=400).preactivations(network, region).intervals[network.activations[1]].radius
        for delta in (0.01, 1e-250, 1e-265, 5e-324)
    ]
    for smaller, larger in itertools.pairwise(radii):
        assert bool((smaller < larger).all())


def test_the_bound_for_tails_that_are_no_numbers_is_above_the_others() -> None:
    assert 1 < gaussian_enlargement(100, -599) < gaussian_enlargement(100, -601) < 1.1 * gaussian_enlargement(100, -599)


@pytest.mark.parametrize("seed", [2**64, 2**70, -(2**63) - 1, 1.5, True])
def test_a_seed_must_fit_into_64_bits(seed: object) -> None:
    with pytest.raises(ad.ArgumentError, match="seed must be a whole number"):
        ad.HighProbability(seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"merged": "no"}, {"exact_first": None}, {"merged": 1}], ids=str)
@pytest.mark.parametrize("kind", [ad.HighProbability, ad.Projected])
def test_switches_must_be_true_or_false(kind: type[ad.BoundEngine], options: dict[str, object]) -> None:
    with pytest.raises(ad.ArgumentError, match="must be True or False"):
        kind(**options)
