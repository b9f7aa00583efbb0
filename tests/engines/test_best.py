"""The best of several engines: sound, never worse than any of them, and no more work than it takes to decide."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines.best import _Lanes, better_of
from autodual.engines.effort import TimeLimitError
from autodual.engines.results import Minimum, Preactivations, Proof
from autodual.spec import Spec
from autodual.testing import check_engine
from small import DOUBLE, batch, convnet, mlp, tilted
from soundness.graphs import SETS, build, drawn_recipe, region
from soundness.properties import network_of, random_rows

CHEAP_FIRST = ad.BestOf(ad.IBP(), ad.Crown(lower="zero", intermediate=ad.IBP()), ad.Dual(), ad.Crown())
EVERYWHERE = ad.BestOf(ad.Dual(), ad.Crown(), every_activation=True)


@dataclass(frozen=True, repr=False)
class Counting(ad.BoundEngine):
    """Another engine, and how many examples it was given."""

    inner: ad.BoundEngine
    given: list[int] = field(default_factory=list)

    def preactivations(self, network: DualNetwork, region: ad.InputSet) -> Preactivations:
        return self.inner.preactivations(network, region)

    def bounds(self, network: DualNetwork, region: ad.InputSet) -> ad.Bounds:
        return self.inner.bounds(network, region)

    def minimum(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Minimum:
        return self.inner.minimum(network, region, spec)

    def prove(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Proof:
        self.given.append(len(region))
        found = self.inner.prove(network, region, spec)
        assert isinstance(found, Proof)
        return found


class TestSoundness:
    @pytest.mark.parametrize("seed", range(10))
    def test_bounds_hold(self, seed: int) -> None:
        recipe = drawn_recipe(seed)
        model, sets = build(recipe), region(SETS[seed % 6], recipe.shape, 2, seed)
        for engine in (CHEAP_FIRST, EVERYWHERE):
            check_engine(engine, model, sets)

    @pytest.mark.parametrize("seed", range(8))
    def test_never_below_any_of_them(self, seed: int) -> None:
        recipe = drawn_recipe(seed)
        sets = region(SETS[seed % 6], recipe.shape, 3, seed)
        network = network_of(build(recipe), sets)
        spec = random_rows(network, len(sets))
        with torch.no_grad():
            best = CHEAP_FIRST.minimum(network, sets, spec).lower
            bounds = CHEAP_FIRST.bounds(network, sets)
            for engine in CHEAP_FIRST.engines:
                assert (best >= engine.minimum(network, sets, spec).lower).all()
                other = engine.bounds(network, sets)
                assert (bounds.output.lower >= other.output.lower - 1e-9).all()
                assert (bounds.output.upper <= other.output.upper + 1e-9).all()

    def test_intervals_are_intersections_with_their_errors(self) -> None:
        model, x = convnet(torch.float32), batch(3, 1, 6, 6, dtype=torch.float32)
        sets = ad.LinfBall(0.1).around(x)
        network = network_of(model, sets)
        engines = ad.Dual(), ad.Crown()
        with torch.no_grad():
            both = ad.BestOf(*engines).provable(network, sets)
            each = [engine.provable(network, sets) for engine in engines]
        for index, interval in both.intervals.items():
            around = both.outside[index].around(interval)
            assert (interval.lower == torch.maximum(*(e.intervals[index].lower for e in each))).all()
            for one in each:  # what lies in all of them for certain is not cut off
                certain = one.outside[index].around(one.intervals[index])
                others = torch.maximum(*(e.outside[index].around(e.intervals[index]).lower for e in each))
                assert (around.lower <= torch.maximum(certain.lower, others) + 1e-6).all()

    def test_at_every_activation_both_go_on_from_the_intersection(self) -> None:
        model, sets = mlp(6, 12, 12, 12, 3, seed=2), ad.LinfBall(0.3).around(batch(4, 6))
        network = network_of(model, sets)
        with torch.no_grad():
            together = EVERYWHERE.preactivations(network, sets).intervals
            for engine in EVERYWHERE.engines:
                alone = engine.preactivations(network, sets).intervals
                second = network.activations[1]
                assert (together[second].lower >= alone[second].lower - 1e-12).all()
                assert (together[second].upper <= alone[second].upper + 1e-12).all()
            apart = ad.BestOf(ad.Dual(), ad.Crown()).preactivations(network, sets).intervals
            last = network.activations[2]
            assert together[last].width.sum() < apart[last].width.sum()

    def test_at_every_activation_all_know_how_far_outside_of_the_intersection_values_may_lie(self) -> None:
        """It depends on the errors of all of them, and all go on from the same interval."""
        x = batch(3, 1, 6, 6, dtype=torch.float32)
        sets = ad.LinfBall(0.1).around(x)
        network = network_of(convnet(torch.float32), sets)
        with torch.no_grad():
            lanes = _Lanes.of([ad.Dual(), ad.Crown()], network, sets, proof=True).lanes
            alone = [engine.provable(network, sets).outside for engine in (ad.Dual(), ad.Crown())]
        for index in network.activations:
            one, other = (lane.rounding.outside[network.source(index)] for lane in lanes)
            assert torch.equal(one.below, other.below)
            assert torch.equal(one.above, other.above)
        last = network.activations[-1]
        assert not torch.equal(alone[0][last].below, alone[1][last].below), "the engines do not differ"

    @pytest.mark.parametrize("proof", [True, False])
    def test_at_every_activation_interval_bounds_go_on_from_the_intersection(self, proof: bool) -> None:
        """The size of an activation, which its rounding is in proportion to, is that of the interval that all have agreed on."""
        sets = ad.LinfBall(0.3).around(batch(3, 6))
        network = network_of(mlp(6, 12, 12, 12, 3, seed=2), sets)
        with torch.no_grad():
            found = _Lanes.of([ad.Dual(intersect=True), ad.Crown(intersect=True)], network, sets, proof)
        for lane in found.lanes:
            assert lane.beside is not None
            for index, agreed in found.intervals.items():
                own = lane.beside.at(network.source(index))
                assert torch.equal(own.lower, agreed.lower)
                assert torch.equal(own.upper, agreed.upper)

    @pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
    def test_nothing_that_is_certified_can_be_broken(self, dtype: torch.dtype) -> None:
        model, x = convnet(dtype), batch(12, 1, 6, 6, dtype=dtype)
        labels = model(x).argmax(1)
        for engine in (CHEAP_FIRST, EVERYWHERE, ad.BestOf(ad.Dual(), ad.AlphaCrown(steps=3))):
            for eps in (0.02, 0.1, 0.2):
                found = ad.certify(model, x, labels, ad.LinfBall(eps), engine)
                broken = ad.attack(model, x, labels, ad.LinfBall(eps))
                assert not (found.certified & broken.success).any()
                assert not (found.certified_as_run & broken.success_as_run).any()

    def test_a_set_of_the_users_own(self) -> None:
        model, x, labels = mlp(4, 8, 8, 3), batch(5, 4), torch.tensor([0, 1, 2, 0, 1])
        best = ad.certify(model, x, labels, tilted(4, 0.2), CHEAP_FIRST)
        for engine in (ad.Dual(), ad.Crown()):
            one = ad.certify(model, x, labels, tilted(4, 0.2), engine)
            assert (best.certified | ~one.certified).all()

    def test_in_parts_that_fit_the_memory(self) -> None:
        model, x = convnet(), batch(5, 1, 6, 6)
        labels = model(x).argmax(1)
        large, small = (
            ad.certify(
                model,
                x,
                labels,
                ad.LinfBall(0.1),
                ad.BestOf(ad.Dual(max_bytes=b), ad.Crown(max_bytes=b), every_activation=True),
            )
            for b in (1 << 30, 20_000)
        )
        torch.testing.assert_close(large.margins, small.margins)


class TestDeciding:
    def test_what_one_engine_proves_is_proved(self) -> None:
        model, x = convnet(), batch(40, 1, 6, 6)
        labels = model(x).argmax(1)
        ball = ad.LinfBall(0.06)
        best = ad.certify(model, x, labels, ball, CHEAP_FIRST)
        each = [ad.certify(model, x, labels, ball, engine) for engine in CHEAP_FIRST.engines]
        assert (best.certified | ~torch.stack([e.certified for e in each]).any(0)).all()
        assert not each[0].certified.all()

    def test_every_bound_is_that_of_one_of_them(self) -> None:
        """For the same example and row: labels differ, and those that the first engine leaves open are no slice of the batch."""
        model, x = mlp(4, 8, 8, 5), batch(12, 4)
        labels, engines = model(x).argmax(1), (ad.IBP(), ad.Dual())
        best, *each = (ad.certify(model, x, labels, ad.LinfBall(0.05), e) for e in (ad.BestOf(*engines), *engines))
        same = torch.stack([(best.margins - one.margins).abs() <= 1e-9 for one in each])
        assert bool((same.any(0) | best.margins.isinf()).all())
        assert len(labels.unique()) > 1
        assert 0 < int(each[0].certified.sum()) < int(best.certified.sum())

    def test_what_is_decided_leaves_the_batch(self) -> None:
        model, x = mlp(6, 16, 16, 3, seed=1), batch(40, 6)
        labels, later = model(x).argmax(1), Counting(ad.Crown())
        labels[:5] = (labels[:5] + 1) % 3  # wrong at the centre of their sets, so that nothing can be proved
        plain = ad.certify(model, x, labels, ad.LinfBall(0.15), ad.Dual())
        ad.certify(model, x, labels, ad.LinfBall(0.15), ad.BestOf(ad.Dual(), later))
        open_ = int((~plain.certified_as_run & plain.right).sum())
        assert 0 < open_ < 35
        assert later.given == [open_]

    def test_no_engine_is_asked_if_nothing_is_open(self) -> None:
        model, x = convnet(), batch(4, 1, 6, 6)
        later = Counting(ad.Crown())
        ad.certify(model, x, model(x).argmax(1), ad.LinfBall(1e-6), ad.BestOf(ad.Dual(), later))
        assert later.given == []

    def test_the_rule_of_a_question_decides(self) -> None:
        """Of three classes, the label must be among the first two: one row is enough, where `Label` needs both."""
        model, x = convnet(), batch(30, 1, 6, 6)
        labels, later = model(x).argmax(1), Counting(ad.Crown())
        ball = ad.LinfBall(0.1)
        plain = ad.certify(model, x, ad.TopK(labels, 2), ball, ad.Dual())
        found = ad.certify(model, x, ad.TopK(labels, 2), ball, ad.BestOf(ad.Dual(), later))
        assert plain.certified.any()
        assert sum(later.given) == int((~plain.certified_as_run & plain.right).sum())
        assert (found.certified | ~plain.certified).all()

    def test_offsets_count(self) -> None:
        model, x = mlp(4, 8, 3), batch(6, 4)
        later = Counting(ad.Crown())
        wide = ad.Between(torch.full((3,), -1e6), torch.full((3,), 1e6))
        found = ad.certify(model, x, wide, ad.LinfBall(0.1), ad.BestOf(ad.IBP(), later))
        assert found.certified.all()
        assert later.given == []

    def test_radii(self) -> None:
        model, x = convnet(), batch(6, 1, 6, 6)
        labels = model(x).argmax(1)
        best, *each = (
            ad.certified_radius(model, x, labels, ad.LinfBall(0.3), engine, tol=0.01)
            for engine in (ad.BestOf(ad.Dual(), ad.Crown()), ad.Dual(), ad.Crown())
        )
        assert (best >= torch.maximum(*each) - 0.011).all()

    def test_when_time_is_up_what_was_proved_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, x = convnet(), batch(20, 1, 6, 6)
        labels = model(x).argmax(1)
        plain = ad.certify(model, x, labels, ad.LinfBall(0.05), ad.Dual())

        def late(*_: object) -> Proof:
            raise TimeLimitError("late")

        monkeypatch.setattr(ad.Crown, "prove", late)
        found = ad.certify(model, x, labels, ad.LinfBall(0.05), ad.BestOf(ad.Dual(), ad.Crown()))
        assert torch.equal(found.margins, plain.margins)


def _proof(lower: float, slack: float, run_error: float) -> Proof:
    return Proof(*(torch.tensor([[value]], dtype=DOUBLE) for value in (lower, slack, run_error)))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0.2, 0.01, 0.0), (0.3, 0.01, 0.0), (0.3, 0.01, 0.0)),  # the larger bound
        ((0.02, 0.01, 0.0), (0.3, 0.5, 0.0), (0.02, 0.01, 0.0)),  # a proof stays, whatever float32 says
        ((0.3, 0.5, 0.0), (0.02, 0.01, 0.0), (0.02, 0.01, 0.0)),
        (
            (-0.01, 0.001, 0.0),
            (0.05, 0.1, 0.0),
            (0.05, 0.1, 0.0),
        ),  # none is a proof: float64 may make one of the larger
        ((0.2, 0.01, 0.5), (0.1, 0.01, 0.05), (0.2, 0.01, 0.05)),  # the run error is the network's
        ((0.2, 0.18, 0.05), (0.1, 0.01, 0.05), (0.1, 0.01, 0.05)),  # as run is better than not
        ((float("nan"), 0.1, 0.0), (-3.0, 0.1, 0.0), (-3.0, 0.1, 0.0)),
        ((-3.0, 0.1, 0.0), (float("nan"), 0.1, 0.0), (-3.0, 0.1, 0.0)),
        ((-3.0, 0.1, float("nan")), (-4.0, 0.1, 0.2), (-3.0, 0.1, 0.2)),
    ],
)
def test_the_better_of_two_proofs(one: tuple, other: tuple, expected: tuple) -> None:
    found = better_of(_proof(*one), _proof(*other))
    numbers: list[Tensor] = [found.lower, found.slack, found.run_error]
    assert [number.item() for number in numbers] == pytest.approx(expected)


class TestManners:
    def test_it_is_shown_as_it_is_typed(self) -> None:
        assert repr(CHEAP_FIRST) == "BestOf(IBP(), Crown(intermediate=IBP(), lower='zero'), Dual(), Crown())"
        assert (
            eval(repr(CHEAP_FIRST), vars(ad) | {n: getattr(ad, n) for n in ("BestOf", "IBP", "Crown", "Dual")})
            == CHEAP_FIRST
        )
        assert repr(EVERYWHERE) == "BestOf(Dual(), Crown(), every_activation=True)"

    @pytest.mark.parametrize(
        ("engines", "options", "message"),
        [
            ((), {}, "at least one engine"),
            ((ad.Dual,), {}, r"call it: Dual\(\)"),
            (("dual",), {}, "takes engines"),
            ((ad.Dual(), ad.Projected(5)), {}, "is random"),
            ((ad.HighProbability(),), {}, "is random"),
            ((ad.Dual(),), {"every_activation": 1}, "every_activation must be True or False"),
            ((ad.IBP(), ad.Crown()), {"every_activation": True}, r"not for IBP\(\)"),
            ((ad.Dual(ad.IBP()), ad.Crown()), {"every_activation": True}, r"not for Dual\(intermediate=IBP\(\)\)"),
        ],
    )
    def test_refusals(self, engines: tuple, options: dict, message: str) -> None:
        with pytest.raises(ad.ArgumentError, match=message):
            ad.BestOf(*engines, **options)

    def test_an_estimate_among_them_makes_an_estimate(self) -> None:
        class Guess(Counting):
            def bounds(self, network: DualNetwork, region: ad.InputSet) -> ad.Bounds:
                found = self.inner.bounds(network, region)
                return ad.EstimatedBounds(found.output, found.layers)

        model, sets = mlp(4, 6, 3), ad.LinfBall(0.1).around(batch(2, 4))
        assert type(ad.bounds(model, sets, ad.BestOf(ad.Dual(), Guess(ad.Dual())))) is ad.EstimatedBounds
