"""Slopes that may be chosen are all valid; optimised ones are sound, never worse than those of Crown(), and near the optimum."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import DualNetwork, Lines
from autodual.dual.piecewise import DualClip, DualKink, DualReLU
from autodual.dual.smooth import DualELU, DualGELU, DualHardswish, DualSigmoid, DualSiLU, DualSoftplus, DualTanh
from autodual.engines.backward.dual import BackwardEngine
from autodual.engines.backward.rows import Plan, local_windows, plan_for
from autodual.engines.backward.slopes import SlopeSolver
from autodual.engines.effort import Effort, TimeLimitError, watched
from autodual.spec import Spec
from autodual.testing import check_engine, triangle_minimum
from small import DOUBLE, Ellipsoid, batch, convnet, mlp, tilted
from soundness.graphs import CLASSES, MIXES, SETS, build, drawn_recipe, region
from soundness.properties import network_of, random_rows

LAYERS = {
    "relu": DualReLU(),
    "leaky": DualKink(0.1),
    "falling": DualKink(1.5),
    "abs": DualKink(-1.0),
    "per channel": DualKink(torch.tensor([-0.5, 0.0, 0.3, 2.0, 1.0], dtype=DOUBLE)),
    "hardtanh": DualClip(-1.0, 1.0),
    "relu6": DualClip(0.0, 6.0),
    "clamp_min": DualClip(0.5, torch.inf),
    "clamp_max": DualClip(-torch.inf, 0.5),
    "hardsigmoid": DualClip(-3.0, 3.0, 1 / 6, 0.5),
    "tanh": DualTanh(),
    "sigmoid": DualSigmoid(),
    "softplus": DualSoftplus(),
    "softplus with a jump": DualSoftplus(2.0, 1.0),
    "elu": DualELU(2.0),
    "gelu": DualGELU(),
    "silu": DualSiLU(),
    "hardswish": DualHardswish(),
}
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def _intervals() -> ad.Interval:
    ends = torch.tensor([-4.0, -1.5, -0.3, 0.0, 0.7, 2.0, 7.0], dtype=DOUBLE)
    pairs = [(low, high) for low in ends for high in ends if low <= high]
    lower, upper = (torch.stack(side).unsqueeze(1).expand(-1, 5).contiguous() for side in zip(*pairs, strict=True))
    return ad.Interval(lower, upper)


def _assert_valid(lines: Lines, layer: ad.ElementwiseDual, z: ad.Interval) -> None:
    for part in torch.linspace(0, 1, 101, dtype=DOUBLE):
        point = z.lower + part * z.width
        value = layer.value(point)
        assert (lines.lower_slope * point + lines.lower_offset <= value + 1e-9).all()
        assert (lines.upper_slope * point + lines.upper_offset >= value - 1e-9).all()


class TestFreeSlopes:
    @every_layer
    def test_every_choice_is_a_pair_of_lines_around_the_function(self, layer: ad.ElementwiseDual) -> None:
        z = _intervals()
        free = layer.free_slopes(z)
        assert free is not None
        for part in (0.0, 0.25, 0.6, 1.0):
            lower, upper = (span.lower + part * span.width for span in (free.lower, free.upper))
            lines = layer.lines_with(z, lower, upper)
            _assert_valid(lines, layer, z)
            assert (lines.lower_offset.abs() <= free.offset + 1e-12).all()
            assert (lines.upper_offset.abs() <= free.offset + 1e-12).all()

    @every_layer
    def test_the_layers_own_lines_are_among_them(self, layer: ad.ElementwiseDual) -> None:
        z = _intervals()
        own, free = layer.lines(z), layer.free_slopes(z)
        assert free is not None
        assert free.lower.contains(own.lower_slope).all()
        assert free.upper.contains(own.upper_slope).all()
        again = layer.lines_with(z, own.lower_slope, own.upper_slope)
        torch.testing.assert_close(again.lower_offset, own.lower_offset)
        torch.testing.assert_close(again.upper_offset, own.upper_offset)

    @every_layer
    def test_rows_may_have_slopes_of_their_own(self, layer: ad.ElementwiseDual) -> None:
        z = _intervals()
        free = layer.free_slopes(z)
        assert free is not None
        parts = torch.tensor([0.0, 0.3, 1.0], dtype=DOUBLE).reshape(-1, 1, 1)
        together = layer.lines_with(
            z, free.lower.lower + parts * free.lower.width, free.upper.lower + parts * free.upper.width
        )
        for number, part in enumerate((0.0, 0.3, 1.0)):
            one = layer.lines_with(
                z, free.lower.lower + part * free.lower.width, free.upper.lower + part * free.upper.width
            )
            torch.testing.assert_close(together.lower_offset.expand(3, *z.lower.shape)[number], one.lower_offset)
            torch.testing.assert_close(together.upper_offset.expand(3, *z.lower.shape)[number], one.upper_offset)

    @every_layer
    def test_no_line_outside_of_the_range_is_better_anywhere(self, layer: ad.ElementwiseDual) -> None:
        """A line below with a slope beyond the range lies nowhere above the line at the range's end."""
        z = _intervals()
        free = layer.free_slopes(z)
        assert free is not None
        for end, step in ((free.lower.lower, -0.1), (free.lower.upper, 0.1)):
            inside = layer.lines_with(z, end, free.upper.lower)
            beyond = (
                layer.value(p) - (end + step) * p
                for p in z.lower + torch.linspace(0, 1, 2001, dtype=DOUBLE).reshape(-1, 1, 1) * z.width
            )
            offset = torch.stack(list(beyond)).amin(0)  # no lower than the true one
            for point in (z.lower, z.upper, z.centre):
                assert (
                    (end + step) * point + offset <= end * point + inside.lower_offset + 1e-4 * (1 + z.width)
                ).all() or isinstance(layer, DualSoftplus)

    def test_of_a_relu(self) -> None:
        z = ad.Interval(*torch.tensor([[-1.0, 0.5, -2.0, 0.0, -1.0], [3.0, 2.0, -1.0, 0.0, 0.0]], dtype=DOUBLE))
        free = DualReLU().free_slopes(z)
        assert free.lower.lower.tolist() == [0, 1, 0, 0, 0]
        assert free.lower.upper.tolist() == [1, 1, 0, 0, 0]
        assert free.upper.lower is free.upper.upper


class _Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x.softmax(1)


@pytest.mark.parametrize("engine", [ad.AlphaCrown(steps=5), ad.Crown(lower="zero"), ad.Crown(lower="one")], ids=repr)
def test_lines_of_a_reciprocal_hold_where_bounds_reach_below_its_domain(engine: ad.BoundEngine) -> None:
    """The sum of exponentials in a softmax is at least 1, but its lower bound may be negative."""
    model = nn.Sequential(nn.Linear(2, 3), _Softmax(), nn.Linear(3, 2)).to(DOUBLE).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1, 4], [4, -3], [3, 2]]))
        model[0].bias.copy_(torch.tensor([-3, 1, 1]))
        model[2].weight.copy_(torch.tensor([[2, 2, 1], [1, -2, 3]]))
        model[2].bias.zero_()
    found = ad.bounds(model, ad.LinfBall(1.0).around(torch.zeros(1, 2, dtype=DOUBLE)), engine).output
    steps = torch.linspace(-1, 1, 41, dtype=DOUBLE)
    values = model(torch.cartesian_prod(steps, steps))
    assert (found.lower <= values).all()
    assert (values <= found.upper).all()


class TestLowerSlope:
    @pytest.mark.parametrize("lower", ["zero", "one"])
    def test_of_unstable_relus(self, lower: str) -> None:
        model, x = mlp(4, 6, 3), batch(2, 4)
        network, sets = network_of(model, ad.LinfBall(0.5).around(x)), ad.LinfBall(0.5).around(x)
        solver = ad.Crown(lower=lower).solver(network, sets, _budget(), _no_errors())  # type: ignore[arg-type]
        interval = ad.bounds(model, sets, ad.IBP()).layers["1"]
        solver.relax(2, interval)
        unstable = (interval.lower < 0) & (interval.upper > 0)
        assert unstable.any()
        assert (solver.chosen[2].lower_slope[unstable] == (lower == "one")).all()
        own = DualReLU().lines(interval)
        assert torch.equal(solver.chosen[2].lower_slope[~unstable], own.lower_slope[~unstable])
        assert torch.equal(solver.chosen[2].upper_slope, own.upper_slope)

    @pytest.mark.parametrize("lower", ["zero", "one"])
    @pytest.mark.parametrize("seed", range(6))
    def test_bounds_hold(self, lower: str, seed: int) -> None:
        recipe = drawn_recipe(seed)
        check_engine(ad.Crown(lower=lower), build(recipe), region(SETS[seed % 6], recipe.shape, 2, seed))  # type: ignore[arg-type]

    def test_adaptive_is_what_it_was(self) -> None:
        assert ad.Crown() == ad.Crown(lower="adaptive")
        assert repr(ad.Crown()) == "Crown()"
        assert repr(ad.Crown(lower="zero")) == "Crown(lower='zero')"

    def test_zero_with_intervals_is_never_below_them(self) -> None:
        """Below, the interval of an unstable ReLU starts at zero, as its line does; above, the chord is below the interval's end."""
        for seed in range(10):
            model, sets = mlp(5, 8, 7, 3, seed=seed), ad.LinfBall(0.3).around(batch(3, 5, seed=seed))
            network = network_of(model, sets)
            spec = random_rows(network, 1)
            with torch.no_grad():
                lines = ad.Crown(lower="zero", intermediate=ad.IBP()).minimum(network, sets, spec).lower
                plain = ad.IBP().minimum(network, sets, spec).lower
            assert (lines >= plain - 1e-9).all()

    @pytest.mark.parametrize("lower", ["half", None, 0.0])
    def test_others_are_refused(self, lower: object) -> None:
        with pytest.raises(ad.ArgumentError, match="lower must be one of 'adaptive', 'zero', 'one'"):
            ad.Crown(lower=lower)  # type: ignore[arg-type]


def _budget() -> object:
    from autodual.engines.effort import Budget

    return Budget.unlimited()


def _no_errors() -> object:
    from autodual.engines.rounding import NoErrors

    return NoErrors()


class TestSoundness:
    @pytest.mark.parametrize("seed", [*range(12), *(pytest.param(s, marks=pytest.mark.slow) for s in range(12, 24))])
    def test_bounds_hold_and_margins_are_never_below_crown(self, seed: int) -> None:
        """Drawn networks of all kinds: branches, batch norm, pooling, all activations; all sets."""
        recipe = drawn_recipe(seed)
        model, sets = build(recipe), region(SETS[seed % 6], recipe.shape, 2, seed)
        engine = ad.AlphaCrown(steps=3)
        check_engine(engine, model, sets)
        network = network_of(model, sets)
        spec = random_rows(network, len(sets))
        with torch.no_grad():
            for verb in ("minimum", "prove"):
                found, plain = (getattr(e, verb)(network, sets, spec).lower for e in (engine, ad.Crown()))
                assert (found >= plain).all()

    def test_a_set_of_the_users_own(self) -> None:
        model, x = mlp(4, 8, 8, 3), batch(3, 4)
        ball = tilted(4, 0.3)
        assert isinstance(ball.around(x), Ellipsoid)
        check_engine(ad.AlphaCrown(steps=3), model, ball.around(x))
        found, plain = (
            ad.certify(model, x, torch.tensor([0, 1, 2]), ball, e).margins for e in (ad.AlphaCrown(steps=3), ad.Crown())
        )
        assert (found >= plain).all()

    def test_every_row_has_its_own_bound(self) -> None:
        """Several rows of an example are open, and far apart: a bound of another row would be above values of this one."""
        model, x = mlp(4, 8, 8, 5), batch(12, 4)
        labels, ball = model(x).argmax(1), ad.LinfBall(0.4)
        certificate = ad.certify(model, x, labels, ball, ad.AlphaCrown(steps=3))
        generator = torch.Generator().manual_seed(0)
        scores = torch.stack(
            [model(ball.around(x).vertex(torch.randn(x.shape, generator=generator))) for _ in range(200)]
        )
        lowest = (scores.gather(2, labels.expand(200, -1).unsqueeze(2)) - scores).amin(0)
        others = certificate.margins.isfinite()
        assert (certificate.margins <= lowest + 1e-9)[others].all()
        assert int((certificate.margins < 0).sum(1).max()) > 2

    @pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
    def test_margins_hold_at_attacks(self, dtype: torch.dtype) -> None:
        model, x = convnet(dtype), batch(6, 1, 6, 6, dtype=dtype)
        labels = model(x).argmax(1)
        ball = ad.LinfBall(0.15)
        certificate = ad.certify(model, x, labels, ball, ad.AlphaCrown())
        attacked = ad.attack(model, x, labels, ball)
        assert not (certificate.certified & attacked.success).any()
        points = ball.around(x)
        for seed in range(20):
            scores = model(points.sample(torch.Generator().manual_seed(seed)))
            real = scores.gather(1, labels.unsqueeze(1)) - scores
            others = certificate.margins.isfinite()
            assert (certificate.margins - certificate.slack - certificate.run_error <= real)[others].all()


class _Drawn(SlopeSolver):
    """Slopes are not searched for, but drawn, far from any optimum; a second computation takes those of the first."""

    seen: dict[tuple[int, ...], Tensor]
    again: bool
    calls = 0

    def _plan(self, index: int, own: ad.Interval) -> Plan:
        return plan_for(
            self.network, index, local_windows(self.network, index, self.region)
        )  # whatever rounding makes of units

    def _improve(self, index, rows, slopes, sides):  # type: ignore[no-untyped-def]
        self.calls += 1
        for activation, own in slopes.items():
            for number, side in enumerate(own.sides):
                key = self.calls, activation, number
                if side is not None and self.again:
                    side.best = self.seen[key].to(side.slope) if key in self.seen else side.best
                elif side is not None:
                    generator = torch.Generator().manual_seed(index)
                    part = torch.rand(side.slope.shape, generator=generator, dtype=side.slope.dtype)
                    side.best = torch.clamp(side.lowest + part * side.width, side.lowest, side.highest)
                    self.seen[key] = side.best


class TestRounding:
    @pytest.mark.parametrize("seed", range(2010, 2040))
    def test_float32_moves_bounds_by_less_than_their_slack(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """For the same slopes, which are drawn: those of a search differ with the precision."""
        seen: dict[tuple[int, ...], Tensor] = {}

        def solver(self: ad.AlphaCrown, network: DualNetwork, *given: object) -> SlopeSolver:
            made = _Drawn(network, *given, 1, 1.0)  # type: ignore[arg-type]
            made.seen, made.again = seen, network.run_dtype is DOUBLE
            return made

        monkeypatch.setattr(ad.AlphaCrown, "solver", solver)
        recipe = drawn_recipe(seed)
        single = build(recipe).float()
        double = copy.deepcopy(single).double()
        x = 2 * torch.rand(3, *recipe.shape, generator=torch.Generator().manual_seed(seed)) - 1
        ball = (ad.LinfBall(2**-4), ad.L2Ball(2**-2), ad.L1Ball(2**-1), ad.LinfBall(2**-10))[seed % 4]
        rows = torch.randn(4, 1, CLASSES, generator=torch.Generator().manual_seed(seed))
        proofs = []
        with torch.no_grad():
            for model, points in ((single, x), (double, x.double())):
                network = replace(network_of(model, ball.around(points)), run_dtype=points.dtype)
                spec = Spec(rows.to(points))
                proofs.append(BackwardEngine.prove(ad.AlphaCrown(), network, ball.around(points), spec))
        low, high = proofs
        assert ((low.lower.double() - high.lower).abs() / low.slack.double()).max() < 1

    @pytest.mark.parametrize("seed", range(6))
    def test_float32_claims_no_more_than_the_linear_program(self, seed: int) -> None:
        model = mlp(5, 9, 9, CLASSES, seed=seed, dtype=torch.float32)
        sets = ad.LinfBall(2**-2).around(batch(2, 5, seed=seed, dtype=torch.float32))
        rows = torch.eye(CLASSES)
        with torch.no_grad():
            proof = ad.AlphaCrown(intermediate=ad.IBP()).prove(network_of(model, sets), sets, Spec(rows.unsqueeze(1)))
            double = copy.deepcopy(model).double()
            exact = triangle_minimum(double, ad.LinfBall(2**-2).around(sets.centre.double()), rows.double())
        assert (proof.lower.double() - proof.slack.double() <= exact + 1e-6).all()


class TestTightness:
    @pytest.mark.parametrize("seed", range(8))
    def test_near_the_linear_program_with_the_same_intervals(self, seed: int) -> None:
        model = mlp(5, 12, 10, 8, CLASSES, seed=seed)
        sets = ad.LinfBall(0.3).around(batch(2, 5, seed=seed))
        network, rows = network_of(model, sets), torch.eye(CLASSES, dtype=DOUBLE)
        spec = Spec(rows.unsqueeze(1))
        with torch.no_grad():
            layers = ad.Dual().bounds(network, sets).layers
            plain, few, many = (
                e.minimum(network, sets, spec).lower
                for e in (ad.Crown(ad.Dual()), ad.AlphaCrown(ad.Dual()), ad.AlphaCrown(ad.Dual(), steps=200))
            )
            optimum = triangle_minimum(model, sets, rows, layers)
        assert (many <= optimum + 1e-6).all()
        gap = (optimum - plain).sum()
        assert gap > 0.01
        assert (optimum - many).sum() <= 0.02 * gap
        assert (optimum - few).sum() <= 0.2 * gap

    def test_every_layer_counts(self) -> None:
        """Slopes for the margins alone gain little where slopes for all bounds gain much."""
        model, x = mlp(6, 20, 20, 20, 3, seed=3), batch(8, 6, seed=3)
        labels = model(x).argmax(1)

        def smallest(engine: ad.BoundEngine) -> Tensor:
            return ad.certify(model, x, labels, ad.LinfBall(0.6), engine).margins.amin(1)

        crown, last, every = map(smallest, (ad.Crown(), ad.AlphaCrown(ad.Crown()), ad.AlphaCrown()))
        assert (last >= crown).all()
        assert (every >= crown).all()
        assert (every - crown).mean() > 1.5 * (last - crown).mean() > 0

    def test_more_steps_are_not_looser(self) -> None:
        model, x = mlp(6, 16, 16, 3, seed=1), batch(8, 6, seed=1)
        labels = model(x).argmax(1)
        means = [
            ad.certify(model, x, labels, ad.LinfBall(0.3), ad.AlphaCrown(steps=s)).margins.amin(1).mean()
            for s in (1, 5, 40)
        ]
        assert means[0] < means[1] < means[2]


class TestExtremes:
    def test_stable_networks_are_exact(self) -> None:
        """No unit is unstable: nothing is searched for, and bounds are those of a linear function."""
        model, x = mlp(4, 6, 6, 3), batch(2, 4)
        with torch.no_grad():
            model[0].bias += 100.0
            model[2].bias += 10000.0
        sets = ad.LinfBall(0.1).around(x)
        found, plain = ad.bounds(model, sets, ad.AlphaCrown()), ad.bounds(model, sets, ad.Crown())
        torch.testing.assert_close(found.output.lower, plain.output.lower, rtol=1e-12, atol=0.0)
        torch.testing.assert_close(found.output.upper, plain.output.upper, rtol=1e-12, atol=0.0)

    def test_dead_networks_have_one_output(self) -> None:
        model, x = mlp(4, 6, 6, 3), batch(2, 4)
        with torch.no_grad():
            model[2].bias -= 10000.0
        found = ad.bounds(model, ad.LinfBall(0.1).around(x), ad.AlphaCrown())
        expected = model[4].bias.expand(2, 3)
        torch.testing.assert_close(found.output.lower, expected, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(found.output.upper, expected, atol=1e-9, rtol=1e-9)

    @pytest.mark.parametrize("ball", [ad.LinfBall(0.0), ad.L2Ball(0.0), ad.L1Ball(0.0)], ids=repr)
    def test_single_points(self, ball: ad.Perturbation) -> None:
        model, x = convnet(), batch(3, 1, 6, 6)
        labels = model(x).argmax(1)
        assert ad.certify(model, x, labels, ball, ad.AlphaCrown()).certified.all()

    def test_networks_with_products(self) -> None:
        """A product has no slopes to choose, and reads two values of each unit."""

        class Attention(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                each = torch.stack([x, 1 - x], 2)
                return nn.functional.scaled_dot_product_attention(each, each, each, is_causal=True).flatten(1)

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), Attention(), nn.Linear(6, 3)).double().eval()
        x = torch.randn(4, 2, dtype=torch.float64)
        labels, ball = model(x).argmax(1), ad.LinfBall(0.05)
        margins = ad.certify(model, x, labels, ball, ad.AlphaCrown(steps=3)).margins
        assert (margins >= ad.certify(model, x, labels, ball, ad.Crown()).margins).all()
        for _ in range(200):
            scores = model(x + 0.05 * (2 * torch.rand_like(x) - 1))
            assert (scores.gather(1, labels[:, None]) - scores >= torch.where(margins.isfinite(), margins, 0.0)).all()

    def test_a_curve_with_a_choice_on_one_side_only(self) -> None:
        """Hardswish where it is convex on one unit's interval and both on the other's: only one line of it may be chosen."""
        model = nn.Sequential(nn.Linear(3, 2), nn.Hardswish()).double().eval()
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([[-0.9, 1.0, 2.0], [0.06, -2.0, -2.0]]))
            model[0].bias.zero_()
        x = torch.tensor([[-4.580648422241211, 27.77320671081543, 60.0]], dtype=torch.float64)
        ball = ad.LinfBall(torch.tensor([[0.0, 45.42436981201172, 0.0]], dtype=torch.float64))
        found = ad.bounds(model, ball.around(x), engine=ad.AlphaCrown(steps=3, lr=2.0)).output
        for part in torch.linspace(-1, 1, 101, dtype=torch.float64):
            value = model(x + part * torch.tensor([[0.0, 45.42436981201172, 0.0]], dtype=torch.float64))
            assert ((found.lower <= value) & (value <= found.upper)).all()

    def test_a_network_without_activations(self) -> None:
        model, x = nn.Sequential(nn.Linear(4, 3)).to(DOUBLE).eval(), batch(2, 4)
        found, plain = (ad.bounds(model, ad.LinfBall(0.1).around(x), e).output for e in (ad.AlphaCrown(), ad.Crown()))
        assert torch.equal(found.lower, plain.lower)

    def test_what_overflows_is_never_certified(self) -> None:
        model, x = mlp(2, 4, 3), batch(1, 2)
        with torch.no_grad():
            model[0].weight *= 1e200
            model[2].weight *= 1e200
        labels = torch.tensor([0])
        network = network_of(mlp(2, 4, 3), ad.LinfBall(0.1).around(x))
        with torch.no_grad():
            broken = ad.Box.around(x, torch.full_like(x, torch.nan))
            proof = ad.AlphaCrown().prove(network, broken, Spec(torch.eye(3, dtype=DOUBLE).unsqueeze(1)))
        assert not (proof.lower > proof.slack).any()
        try:
            found = ad.certify(model, x, labels, ad.LinfBall(1e10), ad.AlphaCrown())
        except ad.AutodualError:
            return
        assert not found.certified.any()

    def test_examples_are_independent(self) -> None:
        """What is found for an example does not depend on the others, but for rounding."""
        model, x = mlp(5, 12, 12, 3), batch(6, 5)
        labels = model(x).argmax(1)
        together = ad.certify(model, x, labels, ad.LinfBall(0.2), ad.AlphaCrown(steps=4)).margins
        alone = torch.cat(
            [
                ad.certify(model, x[i : i + 1], labels[i : i + 1], ad.LinfBall(0.2), ad.AlphaCrown(steps=4)).margins
                for i in range(6)
            ]
        )
        torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-3)


class TestManners:
    def test_it_is_deterministic(self) -> None:
        model, x = convnet(), batch(4, 1, 6, 6)
        labels = model(x).argmax(1)
        once, again = (ad.certify(model, x, labels, ad.LinfBall(0.2), ad.AlphaCrown()).margins for _ in range(2))
        assert torch.equal(once, again)

    def test_inference_mode_is_refused(self) -> None:
        """It rules gradients out altogether, also those of slopes."""
        model, x = convnet(), batch(8, 1, 6, 6)
        with torch.inference_mode(), pytest.raises(ad.ArgumentError, match="use torch"):
            ad.certify(model, x, torch.zeros(8, dtype=torch.long), ad.LinfBall(0.2), ad.AlphaCrown())

    def test_no_gradient_is_left_behind(self) -> None:
        model, x = convnet(), batch(4, 1, 6, 6)
        found = ad.certify(model, x, model(x).argmax(1), ad.LinfBall(0.2), ad.AlphaCrown(steps=2))
        assert all(p.grad is None for p in model.parameters())
        assert not found.margins.requires_grad

    def test_a_loss_has_gradients(self) -> None:
        model, x = mlp(4, 6, 6, 3), batch(3, 4)
        network = network_of(model, ad.LinfBall(0.3).around(x))
        assert isinstance(network, DualNetwork)
        lower = (
            ad.AlphaCrown(steps=2)
            .minimum(network, ad.LinfBall(0.3).around(x), Spec(torch.eye(3, dtype=DOUBLE).unsqueeze(1)))
            .lower
        )
        gradients = torch.autograd.grad(lower.sum(), list(model.parameters()))
        assert all(bool(g.isfinite().all()) for g in gradients)
        assert any(bool(g.any()) for g in gradients)

    def test_when_time_is_up_what_crown_has_proved_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, x = convnet(), batch(4, 1, 6, 6)
        labels = model(x).argmax(1)
        plain = ad.certify(model, x, labels, ad.LinfBall(0.2), ad.Crown())

        def late(*_: object) -> None:
            raise TimeLimitError("late")

        monkeypatch.setattr(SlopeSolver, "_improve", late)
        found = ad.certify(model, x, labels, ad.LinfBall(0.2), ad.AlphaCrown())
        assert torch.equal(found.margins, plain.margins)

    def test_steps_look_at_the_clock(self) -> None:
        model, x = convnet(), batch(4, 1, 6, 6)
        network, sets = network_of(model, ad.LinfBall(0.2).around(x)), ad.LinfBall(0.2).around(x)
        looks = []

        class Watching(Effort):
            def check(self, elapsed: float | None = None) -> None:
                looks.append(1)

        with torch.no_grad(), watched(Watching()):
            ad.AlphaCrown(steps=7).preactivations(network, sets)
        assert len(looks) >= 14

    @pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
    def test_small_budgets_prove_as_much(self, dtype: torch.dtype) -> None:
        """Slopes of a row are its own, so chunks of rows find the same, but for rounding, which steps may enlarge."""
        model, x = convnet(dtype), batch(4, 1, 6, 6, dtype=dtype)
        labels = model(x).argmax(1)
        large, small = (
            ad.certify(model, x, labels, ad.LinfBall(0.2), ad.AlphaCrown(max_bytes=b)).margins
            for b in (1 << 30, 40_000)
        )
        torch.testing.assert_close(large, small, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"steps": 0}, "steps must be a whole number"),
            ({"steps": True}, "steps must be a whole number"),
            ({"steps": 2.0}, "steps must be a whole number"),
            ({"lr": 0.0}, "lr must be a positive number"),
            ({"lr": float("nan")}, "lr must be a positive number"),
            ({"intermediate": ad.HighProbability()}, "is random"),
            ({"intermediate": 3}, "intermediate must be an engine"),
        ],
    )
    def test_refusals(self, options: dict, message: str) -> None:
        with pytest.raises(ad.ArgumentError, match=message):
            ad.AlphaCrown(**options)

    def test_an_estimate_stays_an_estimate(self) -> None:
        with pytest.raises(ad.ArgumentError, match="random"):
            ad.AlphaCrown(intermediate=ad.Projected(5))

    def test_layers_without_a_choice_keep_their_lines(self) -> None:
        class Own(ad.ElementwiseDual):
            """As ReLU, with lines of its own and no others."""

            inner = DualReLU()
            value, image, band, lines = inner.value, inner.image, inner.band, inner.lines

        model, x = mlp(4, 6, 6, 3), batch(2, 4)
        sets = ad.LinfBall(0.3).around(x)
        network = network_of(model, sets)
        nodes = tuple(replace(n, layer=Own()) if isinstance(n.layer, DualReLU) else n for n in network.nodes)
        plain, spec = replace(network, nodes=nodes), Spec(torch.eye(3, dtype=DOUBLE).unsqueeze(1))
        with torch.no_grad():
            found, crown = (e.minimum(plain, sets, spec).lower for e in (ad.AlphaCrown(), ad.Crown()))
        torch.testing.assert_close(found, crown)


def test_drawn_networks_are_of_all_kinds() -> None:
    layers = [layer for seed in range(24) for layer in drawn_recipe(seed).layers]
    assert {mix for mix, _ in layers} == set(MIXES)
    assert {activation for _, activation in layers} >= {"relu", "tanh", "sigmoid", "hardtanh"}
