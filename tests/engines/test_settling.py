"""Units that a cheaper bound settles get no rows, and nothing behind them changes."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines.backward import bands, settling
from autodual.engines.backward.bands import DualSolver, PulledRadii, Solver
from autodual.engines.effort import Budget
from autodual.engines.prepare import dual_network
from autodual.engines.rounding import NoErrors, Rounding
from autodual.interval import Interval
from autodual.spec import Spec
from small import DOUBLE, Net, batch, convnet, mlp

IMAGE = (2, 8, 8)


def _joined(join: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    """A network with a skip from one activation to the next but one."""
    return lambda: Net(
        lambda m, x: m.last(join(m, m.first(x)).relu().flatten(1)),
        first=nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU()),
        a=nn.Conv2d(4, 4, 3, padding=1),
        b=nn.Conv2d(4, 4, 3, padding=1),
        last=nn.Linear(64, 3),
    )


def _chain(*layers: nn.Module) -> Callable[[], nn.Module]:
    """A first convolution, these layers, and two dense ones."""
    ends = nn.Flatten(), nn.LazyLinear(10), nn.ReLU(), nn.Linear(10, 3)
    return lambda: copy.deepcopy(nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *layers, *ends))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "strides": _chain(nn.ReLU(), nn.Conv2d(4, 6, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU()),
    "groups": _chain(nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU()),
    "normalised": _chain(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU()),
    "leaky": _chain(nn.LeakyReLU(0.1), nn.Conv2d(4, 5, 3, stride=2), nn.PReLU(5, init=-0.3), nn.AvgPool2d(2)),
    "clipped": _chain(nn.Hardtanh(), nn.Conv2d(4, 5, 3, stride=2), nn.ReLU6(), nn.Conv2d(5, 5, 2), nn.Hardsigmoid()),
    "curved": _chain(nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2), nn.Tanh(), nn.Conv2d(5, 5, 2), nn.ReLU()),
    "skip": _joined(lambda m, h: m.b(m.a(h).relu()) + h),
    "two branches": _joined(lambda m, h: m.a(h).relu() + m.b(h).relu()),
    "read twice": _joined(lambda m, h: (lambda z: m.b(z.relu()) + z)(m.a(h))),
    "two activations": _joined(lambda m, h: (lambda z: m.b(z.relu()) - nn.functional.hardtanh(z))(m.a(h))),
    "dense": lambda: nn.Sequential(nn.Flatten(), *mlp(128, 12, 12, 9, 3)),
}
every_model = pytest.mark.parametrize("name", MODELS)
SETS = {
    "box": lambda x: ad.LinfBall(0.05, clip=(0.0, 1.0)).around(x),
    "l2": lambda x: ad.L2Ball(0.2).around(x),
    "l1": lambda x: ad.L1Ball(0.5).around(x),
}


def _model(name: str, dtype: torch.dtype = DOUBLE) -> nn.Module:
    """A drawn network, many of whose units keep their sign."""
    model = MODELS[name]().to(dtype).eval()
    model(batch(1, *IMAGE).to(dtype))
    torch.manual_seed(len(name))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.reset_parameters()  # they were drawn when this file was imported
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.uniform_(0.5, 2.0)
                module.running_mean.normal_()
            elif isinstance(module, nn.Conv2d | nn.Linear):
                module.bias.uniform_(-0.5, 0.5)
    return model


def _problem(name: str, kind: str = "box", count: int = 5) -> tuple[DualNetwork, ad.InputSet, Spec]:
    model, x = _model(name), batch(count, *IMAGE, seed=1).sigmoid()
    network = dual_network(model, x)
    return network, SETS[kind](x), Spec(torch.randn(4, count, *network.nodes[network.output].shape, dtype=DOUBLE))


DEFAULTS = {name: getattr(settling, name) for name in ("MOST_CHOSEN", "MOST_AFTER_ONE", "DEARER", "SHARED")}


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settles wherever it may, however little it gains."""
    monkeypatch.setattr(settling, "MOST_CHOSEN", 1.0)
    monkeypatch.setattr(settling, "MOST_AFTER_ONE", 1.0)
    monkeypatch.setattr(settling, "DEARER", 0.0)
    monkeypatch.setattr(settling, "SHARED", 0.0)
    monkeypatch.setattr(settling, "LEAST", 0.0)


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many units were left out, node by node."""
    counts: list[int] = []
    before = PulledRadii.of_some_units

    def counted(self: PulledRadii, index: int, chosen: Tensor) -> bands.UnitRadii:
        counts.append(int((~chosen).sum()) * len(self.region) // len(chosen))
        return before(self, index, chosen)

    monkeypatch.setattr(PulledRadii, "of_some_units", counted)
    return counts


def _lowest(network: DualNetwork, region: ad.InputSet, spec: Spec) -> Iterator[Tensor]:
    yield ad.Dual().minimum(network, region, spec).lower
    yield ad.Dual().prove(network, region, spec).lower


@every_model
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("dearer", [0.0, 1e9], ids=["open", "read"])
@torch.no_grad()
def test_margins_stay_the_same(
    name: str, kind: str, dearer: float, monkeypatch: pytest.MonkeyPatch, left_out: list[int]
) -> None:
    problem = _problem(name, kind)
    monkeypatch.setattr(settling, "DEARER", dearer)
    found = list(_lowest(*problem))
    assert sum(left_out) > 0 or kind != "box"
    monkeypatch.setattr(DualSolver, "settle", Solver.settle)
    for lower, expected in zip(found, _lowest(*problem), strict=True):
        torch.testing.assert_close(lower, expected, rtol=1e-12, atol=1e-12)


@every_model
@torch.no_grad()
def test_rows_that_all_examples_share(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    problem = _problem(name)
    found = list(_lowest(*problem))
    monkeypatch.setattr(settling, "values_at_hand", lambda _: False)
    for lower, expected in zip(found, _lowest(*problem), strict=True):
        torch.testing.assert_close(lower, expected, rtol=1e-12, atol=1e-12)


@every_model
@pytest.mark.parametrize("proof", [False, True])
@torch.no_grad()
def test_settled_units_have_wider_intervals_and_the_same_band(name: str, proof: bool) -> None:
    network, region, _ = _problem(name)
    pairs = []
    for settles in (True, False):
        rounding = Rounding(network, region) if proof else NoErrors()
        solver = DualSolver(network, region, Budget.unlimited(), rounding)
        found: dict[int, Interval] = {}
        for index in network.activations:
            source = network.source(index)
            if source not in found:
                found[source] = solver.settle(index) if settles else solver.bound(source)
            solver.relax(index, found[source])
        pairs.append((found, solver.bands))
    (wide, wide_bands), (exact, exact_bands) = pairs
    for source, interval in exact.items():
        assert (wide[source].lower <= interval.lower + 1e-12).all()
        assert (wide[source].upper >= interval.upper - 1e-12).all()
    for index, band in exact_bands.items():
        torch.testing.assert_close(wide_bands[index].slope, band.slope, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(wide_bands[index].radius, band.radius, rtol=1e-12, atol=1e-12)


@every_model
def test_bounds_that_are_asked_for_are_exact(name: str, left_out: list[int]) -> None:
    network, region, spec = _problem(name)
    with torch.no_grad():
        ad.Dual().bounds(network, region)
        ad.Dual().preactivations(network, region)
        ad.Dual().enclose(network, region)
    ad.Dual().minimum(network, region, spec)  # with gradients
    assert not left_out


@every_model
@torch.no_grad()
def test_certificates_in_float32_hold_as_run(name: str, left_out: list[int]) -> None:
    model, x = _model(name, torch.float32), batch(5, *IMAGE, seed=1).sigmoid().float()
    labels, ball = model(x).argmax(1), ad.LinfBall(0.05, clip=(0.0, 1.0))
    found = ad.certify(model, x, labels, ball, ad.Dual())
    assert sum(left_out) > 0
    others = found.margins.isfinite()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        points = ball.around(x).vertex(torch.randn(x.shape, generator=generator))
        scores = model(points)
        margins = scores.gather(1, labels.unsqueeze(1)) - scores
        assert (found.margins - found.slack - found.run_error <= margins)[others].all()


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["alive", "dead"])
@torch.no_grad()
def test_settled_units_have_room_for_rounding(sign: float, left_out: list[int]) -> None:
    """Weights of one sign: the cheaper bound is the exact one, and is reached at a corner, so that rounding alone decides."""
    torch.manual_seed(0)
    for _ in range(10):
        model = nn.Sequential(nn.Linear(900, 700), nn.ReLU(), nn.Linear(700, 50), nn.ReLU(), nn.Linear(50, 2)).eval()
        for layer in (model[0], model[2]):
            layer.weight.abs_()
        model[2].weight.mul_(sign)
        x, eps = torch.rand(2, 900) + 1, 2**-7
        region = ad.LinfBall(eps).around(x)
        network = dual_network(model, x)
        rounding = Rounding(network, region)
        solver = DualSolver(network, region, Budget.unlimited(), rounding)
        for index in network.activations:
            interval = solver.settle(index)
            solver.relax(index, interval)
        assert left_out.pop() == interval.lower.numel()
        inside = rounding.outside[network.source(index)].around(interval)
        for end in (-eps, eps):
            values = model[:3].double()(x.double() + end)
            model.float()
            assert (inside.lower.double() <= values).all()
            assert (values <= inside.upper.double()).all()


@torch.no_grad()
def test_settled_units_have_room_for_the_rounding_of_a_large_bias(left_out: list[int]) -> None:
    """A bias so large that its last place is worth more than all that the inputs can do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 2)).eval()
    model[2].bias.uniform_(1e6, 2e6).mul_(torch.randn(200).sign())
    x, eps = torch.rand(2, 20), 2**-12
    region, network = ad.LinfBall(eps).around(x), dual_network(model, x)
    rounding = Rounding(network, region)
    solver = DualSolver(network, region, Budget.unlimited(), rounding)
    for index in network.activations:
        interval = solver.settle(index)
        solver.relax(index, interval)
    assert left_out.pop() == interval.lower.numel()
    inside = rounding.outside[network.source(index)].around(interval)
    values = model[:3].double()(x.double())
    assert (inside.lower.double() <= values).all()
    assert (values <= inside.upper.double()).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("proof", [False, True])
@torch.no_grad()
def test_nothing_that_is_not_finite_is_settled(value: float, proof: bool) -> None:
    network, region, _ = _problem("dense")
    solver = DualSolver(network, region, Budget.unlimited(), Rounding(network, region) if proof else NoErrors())
    first, second = network.activations[:2]
    solver.relax(first, solver.settle(first))
    source, radii = network.source(second), solver._pulled_radii()
    centre = torch.full_like(solver.centre(source), 100.0)
    centre[1, 2] = value
    chosen = solver._settling.chosen(source, centre, radii.plan(source), radii.operations)
    assert chosen is not None
    assert chosen.nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.6, 1.0])
def test_blocks_hold_every_unit_once(limit: int, part: float) -> None:
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(40, 9, generator=generator) < part * torch.rand(40, 1, generator=generator) * 2
    whole = torch.zeros(2, 40, 9)
    for block in settling.blocks(chosen, limit):
        assert block.units.numel() <= max(limit, len(block.units))
        assert len(block.units) <= limit
        values = torch.stack([block.units + 1, block.examples.expand_as(block.units)], dim=1).float()
        block.put(values, whole)
    expected = torch.stack([torch.arange(1.0, 10).expand(40, 9), torch.arange(40.0).unsqueeze(1).expand(40, 9)])
    torch.testing.assert_close(whole, expected * chosen)


def test_small_networks_settle_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without being forced to, if most units keep their sign."""
    for name, value in DEFAULTS.items():
        monkeypatch.setattr(settling, name, value)
    model, x = convnet(), batch(4, 1, 6, 6)
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            with torch.no_grad():
                layer.bias.fill_(-5.0)
    with torch.no_grad():
        network, region = dual_network(model, x), ad.LinfBall(0.01).around(x)
        chosen = []
        solver = DualSolver(network, region, Budget.unlimited(), NoErrors())
        before = solver._settling.chosen
        monkeypatch.setattr(solver._settling, "chosen", lambda *a: chosen.append(before(*a)) or chosen[-1])
        for index in network.activations:
            solver.relax(index, solver.settle(index))
    assert chosen[0] is None
    assert all(units is not None and not units.any() for units in chosen[1:])
