"""The hunt finds what is planted: a layer that understates a bound, an error that nobody counts, a capture that misses a hook."""

from __future__ import annotations

import decimal
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from autodual.dual.piecewise import DualReLU
from autodual.interval import Interval
from autodual.sets import Box

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def hunt(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import hunt

    yield hunt
    for name in [n for n in sys.modules if n == "hunt" or n.startswith("hunting")]:
        monkeypatch.delitem(sys.modules, name)


def _relu_case(engine: str = "ad.IBP()") -> Any:
    """relu over [-1, 3], which must not be certified to stay below 3."""
    from hunting.case import Ball, Case, Layer

    wide = Layer("nn.Linear(1, 2)", (("weight", [[1.234567, 0.0][:1], [0.0]]), ("bias", [0.0, 0.0])))
    head = Layer("nn.Linear(2, 2)", (("weight", [[-1.0, 0.0], [0.0, 0.0]]), ("bias", [3.4567, 0.0])))
    layers = (
        wide,
        Layer("nn.Tanh()"),
        Layer("nn.Linear(2, 2)", (("weight", [[4.0, 0.0], [0.0, 1.0]]), ("bias", [0.0, 0.0]))),
        Layer("nn.ReLU()"),
        head,
    )
    return Case(layers, [1.0], Ball("linf", 2.0), engine=engine, witness=[3.0])


def _understated(self: DualReLU, z: Interval) -> Interval:
    return Interval(z.lower.relu(), 0.5 * z.upper.relu())


def test_a_case_that_holds_is_no_finding(hunt: ModuleType) -> None:
    from hunting.check import violated

    assert violated(_relu_case()) is None


def test_a_planted_bug_is_found_and_shrunk_to_a_script_that_shows_it(
    hunt: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hunting.check import Shrinker

    monkeypatch.setattr(DualReLU, "image", _understated)
    found = Shrinker(seconds=3.0).finding(_relu_case())
    assert found is not None
    assert "nn.ReLU" in found.name
    assert "nn.Tanh" not in found.script
    assert len(found.script.splitlines()) <= 12
    exec(found.script, {})
    assert "tensor([True])" in capsys.readouterr().out


def test_random_seeds_find_a_planted_bug(hunt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from hunting.check import Shrinker

    monkeypatch.setattr(
        Box,
        "radius",
        property(lambda box: 0.9 * box.whole, lambda box, radius: setattr(box, "whole", radius)),
        raising=False,
    )
    shrinker = Shrinker(0.5)
    assert any(hunt.try_seed("networks", seed, shrinker)[1] for seed in range(60))


def test_a_rule_that_asks_for_too_little_is_found(hunt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from hunting.check import Shrinker

    from autodual.spec import AtLeast

    shrinker, seeds = Shrinker(0.5), range(40)
    assert not any(hunt.try_seed("specifications", seed, shrinker)[1] for seed in seeds)
    monkeypatch.setattr(AtLeast, "holds", lambda rule, rows: rows.any(1))
    assert any(hunt.try_seed("specifications", seed, shrinker)[1] for seed in seeds)


def test_a_factor_that_is_taken_for_exact_is_found(hunt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from hunting.check import Shrinker

    from autodual.engines import prepare

    shrinker, seeds = Shrinker(0.5), range(40)
    assert not any(hunt.try_seed("faint", seed, shrinker)[1] for seed in seeds)
    monkeypatch.setattr(prepare, "_near", lambda exact, rounded: torch.ones_like(exact, dtype=torch.bool))
    assert any(hunt.try_seed("faint", seed, shrinker)[1] for seed in seeds)


def test_a_run_writes_what_it_tried(hunt: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "hunt.md"
    assert hunt.main(["--minutes", "0.01", "--kind", "cascades", "--out", str(out)]) == 0
    assert "| cascades |" in out.read_text()
    assert "| cascades |" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["folded", "faint", "constants", "rewrites", "radii", "cascades", "specifications"])
def test_a_seed_gives_the_same_cases_again(hunt: ModuleType, kind: str) -> None:
    from hunting.check import Shrinker

    first, second = (hunt.try_seed(kind, 3, Shrinker(0.5)) for _ in range(2))
    assert first[0] == second[0]
    assert [f.name for f in first[1]] == [f.name for f in second[1]]


@pytest.mark.slow
def test_every_kind_runs(hunt: ModuleType) -> None:
    from hunting.check import Shrinker

    for kind in hunt.KINDS:
        tried, found = hunt.try_seed(kind, 0, Shrinker(0.2))
        assert tried >= 0
        assert not any(" in " + kind in f.name for f in found), found[0].script


MODULES = [
    nn.ReLU(), nn.LeakyReLU(0.3), nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.Hardsigmoid(), nn.Hardswish(), nn.Sigmoid(), nn.Tanh(),
    nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Softplus(2.0, 3.0), nn.ELU(0.7), nn.CELU(0.6), nn.SELU(),
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_decimal_functions_agree_with_pytorch(hunt: ModuleType, module: nn.Module) -> None:
    from hunting.reference import ELEMENTWISE

    for z in (-7.3, -3.0, -1.1, -1e-9, 0.0, 0.4, 1.4, 2.9, 6.5, 14.0):
        expected = module(torch.tensor(z, dtype=torch.float64)).item()
        assert float(ELEMENTWISE[type(module)](module, Decimal(z))) == pytest.approx(expected, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("kind", ["linf", "l2", "l1"])
def test_points_lie_in_their_set(hunt: ModuleType, kind: str) -> None:
    from hunting.case import Ball

    ball, x = Ball(kind, 0.3), torch.tensor([0.25, -1.5, 3.0])
    points = ball.points(x, 50, torch.Generator().manual_seed(0))
    assert sum(ball.contains(x.tolist(), p) for p in points.tolist()) >= 25
    outside = (x.double() + torch.tensor([0.0, 0.0, 0.3000001])).tolist()
    assert not ball.contains(x.tolist(), outside)


TINY_AND_LARGE = (5e-324, 1e-261, 1e-44, 1e-9, 0.0099, 0.3, 3.0, 14.9, 88.7, 300.0, 600.0, 1e4)


@pytest.mark.parametrize(
    "module",
    [
        *(
            nn.Softplus(),
            nn.Softplus(100.0, 1.0),
            nn.Softplus(0.5, 20.0),
            nn.ELU(0.7),
            nn.CELU(0.7),
            nn.SELU(),
            nn.Tanh(),
        ),
        *(nn.Sigmoid(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Hardsigmoid(), nn.Hardswish(), nn.LeakyReLU(1e-30)),
    ],
    ids=repr,
)
def test_the_reference_has_the_digits_that_it_needs(hunt: ModuleType, module: nn.Module) -> None:
    """Twice as many digits change none of the first 100 of a value: not of a tiny one, either."""
    from hunting.reference import CONTEXT, ELEMENTWISE, UnknownError

    def value(v: float, digits: int) -> Decimal:
        with decimal.localcontext(CONTEXT, prec=digits):
            return ELEMENTWISE[type(module)](module, Decimal(v))

    for size in TINY_AND_LARGE:
        for v in (size, -size):
            try:
                few, many = value(v, CONTEXT.prec), value(v, 2 * CONTEXT.prec)
            except UnknownError:
                continue
            with decimal.localcontext(CONTEXT):
                assert abs(few - many) <= abs(many) * Decimal("1e-100"), v
                assert (few == 0) == (many == 0), v


def test_pi_has_the_digits_that_are_asked_for(hunt: ModuleType) -> None:
    from hunting.reference import DIGITS, PI, _pi

    assert abs(PI - _pi(2 * DIGITS)) < Decimal(10) ** -DIGITS
    assert float(PI) == math.pi
