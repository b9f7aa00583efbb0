"""unsat is never said where a point of the box is a counterexample; sat never without one; both are found where they are easy."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.engines import Proof
from autodual.interchange.verification import Clock, Outcome, Verification, _written, competition_text, report, verify


def _property(text: str, folder: Path, inputs: int = 2, outputs: int = 2) -> ad.VnnLibProperty:
    head = "".join(f"(declare-const {k}_{i} Real)" for k, n in (("X", inputs), ("Y", outputs)) for i in range(n))
    path = folder / "property.vnnlib"
    path.write_text(head + text)
    return ad.load_vnnlib(path)


def _box(*ends: tuple[float, float]) -> str:
    return "".join(f"(assert (>= X_{i} {low!r}))(assert (<= X_{i} {high!r}))" for i, (low, high) in enumerate(ends))


def _network(seed: int, outputs: int = 3, width: int = 6) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    ).eval()


def _by_hand(network: nn.Sequential, x: np.ndarray) -> np.ndarray:
    """The network in NumPy and float64."""
    for layer in network:
        if isinstance(layer, nn.Linear):
            assert layer.bias is not None
            x = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        else:
            x = np.maximum(x, 0) if isinstance(layer, nn.ReLU) else np.tanh(x)
    return x


def _satisfied(asked: ad.VnnLibProperty, x: np.ndarray, y: np.ndarray) -> bool:
    for case in asked.cases:
        inside = bool((case.lower.numpy() <= x).all() and (x <= case.upper.numpy()).all())
        if inside and any(bool((d.rows.numpy() @ y <= d.limits.numpy()).all()) for d in case.disjuncts):
            return True
    return False


def _random_property(seed: int, folder: Path) -> ad.VnnLibProperty:
    draw = np.random.default_rng(seed)
    centre, radius = draw.uniform(-1, 1, 2), 10 ** draw.uniform(-2, -0.3)
    box = _box(*((float(c - radius), float(c + radius)) for c in centre))
    y = _by_hand(_network(seed), centre[None])[0]

    def row() -> str:
        a, b = draw.choice(3, 2, replace=False)
        gap = float(y[a] - y[b] - draw.uniform(-0.5, 1.0) * radius)
        return f"(<= (- Y_{a} Y_{b}) {gap!r})"

    parts = [f"(and {' '.join(row() for _ in range(draw.integers(1, 4)))})" for _ in range(draw.integers(1, 4))]
    return _property(box + f"(assert (or {' '.join(parts)}))", folder, 2, 3)


SEEDS = range(40)


def test_random_properties_are_never_decided_wrongly(tmp_path: Path) -> None:
    outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
    for seed in SEEDS:
        network, asked = _network(seed), _random_property(seed, tmp_path)
        found = verify(network, (2,), asked)
        outcomes[found.outcome] += 1
        grid = [
            np.linspace(float(low), float(high), 25)
            for low, high in zip(asked.cases[0].inner_lower, asked.cases[0].inner_upper, strict=True)
        ]
        points = np.array(list(itertools.product(*grid)))
        violated = any(_satisfied(asked, x, y) for x, y in zip(points, _by_hand(network, points), strict=True))
        if found.outcome is Outcome.UNSAT:
            assert not violated, seed
        if found.outcome is Outcome.SAT:
            assert found.counterexample is not None
            x = found.counterexample.inputs.numpy()
            assert _satisfied(asked, x, _by_hand(network, x[None])[0]), seed
            assert np.allclose(found.counterexample.outputs.numpy(), _by_hand(network, x[None])[0], atol=1e-12)
        if violated:  # a search in two dimensions finds it
            assert found.outcome is Outcome.SAT, seed
    assert outcomes[Outcome.UNSAT] >= 5
    assert outcomes[Outcome.SAT] >= 5
    assert outcomes[Outcome.TIMEOUT] == 0


class Sum(nn.Module):
    """The outputs x_0 + x_1 and x_0 - x_1 by exact weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.weight = nn.Parameter(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def _decide(text: str, folder: Path, **named: object) -> Verification:
    return verify(Sum().eval(), (2,), _property(_box((0.0, 1.0), (0.0, 1.0)) + text, folder), **named)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("(<= Y_0 -0.001)", Outcome.UNSAT),
        ("(<= Y_0 0.001)", Outcome.SAT),
        ("(>= Y_0 2.001)", Outcome.UNSAT),
        ("(>= Y_0 1.999)", Outcome.SAT),
        ("(and (>= Y_0 1.5) (<= Y_0 0.5))", Outcome.UNSAT),  # each is possible; their sum is not
        ("(and (>= Y_0 1.9) (>= Y_1 0.5))", Outcome.UNSAT),  # the sum is 2 X_0 >= 2.4
        ("(and (>= Y_0 0.5) (<= Y_1 0.5) (>= (+ Y_0 Y_1) 0.2))", Outcome.SAT),
        ("(or (<= Y_0 -1) (>= Y_1 5))", Outcome.UNSAT),
        ("(or (<= Y_0 -1) (>= Y_1 0.5))", Outcome.SAT),
        ("(<= X_0 0.5)", Outcome.SAT),  # any input of the box
        ("(<= 1 0)", Outcome.UNSAT),
    ],
)
def test_what_is_known(condition: str, outcome: Outcome, tmp_path: Path) -> None:
    found = _decide(f"(assert {condition})", tmp_path)
    assert found.outcome is outcome
    assert (found.counterexample is not None) == (outcome is Outcome.SAT)
    assert found.unsat_as_run == (outcome is Outcome.UNSAT)


def test_exactly_zero_is_not_unsat(tmp_path: Path) -> None:
    """Y_0 <= 0 is satisfied at one corner only: a bound of zero is no proof, and float64 cannot tell the corner's zero from more."""
    assert _decide("(assert (<= Y_0 0))", tmp_path).outcome is Outcome.UNKNOWN
    assert _decide("(assert (<= Y_0 -1e-300))", tmp_path).outcome is not Outcome.UNSAT


def test_a_bound_must_exceed_its_slack(tmp_path: Path) -> None:
    class Loose(ad.IBP):
        def prove(self, *args: Any) -> Proof:
            found = super().prove(*args)
            return replace(found, slack=torch.full_like(found.slack, 0.5))

    assert _decide("(assert (<= Y_0 -0.4))", tmp_path, engines=[Loose()]).outcome is Outcome.UNKNOWN
    assert _decide("(assert (<= Y_0 -0.6))", tmp_path, engines=[Loose()]).outcome is Outcome.UNSAT


def test_in_real_numbers_and_as_run_are_told_apart(tmp_path: Path) -> None:
    """A margin that float64 proves, and that the rounding of float32 may undo."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2)).eval()
    lower = ad.bounds(network, ad.Box(torch.zeros(1, 2), torch.full((1, 2), 0.01))).output.lower[0, 0].item()
    box = _box((0.0, 0.0099), (0.0, 0.0099))
    close = verify(network, (2,), _property(box + f"(assert (<= Y_0 {lower - 1e-10!r}))", tmp_path))
    assert close.outcome is Outcome.UNSAT
    far = verify(network, (2,), _property(box + f"(assert (<= Y_0 {lower - 1.0!r}))", tmp_path))
    assert far.unsat_as_run
    refutation = far.refutations[0][0]
    assert refutation is not None
    assert refutation.holds_as_run
    told = report(far)
    assert (told["rests_on"], told["unsat_as_run"]) == ("real numbers", True)
    tiny = _decide("(assert (<= Y_0 -1e-9))", tmp_path)
    assert tiny.outcome is Outcome.UNSAT
    assert not tiny.unsat_as_run
    assert report(tiny)["unsat_as_run"] is False


def test_what_only_one_engine_proves_within_rounding_is_kept(tmp_path: Path) -> None:
    """Float32 leaves the first disjunct open by its slack; the second, which the same engine cannot refute, must not hide that."""
    network = Sum().eval()

    class First(ad.IBP):
        """Says nothing about conditions on Y_1."""

        def prove(self, *args: Any) -> Proof:
            found, rows = super().prove(*args), args[2].rows
            return replace(found, lower=torch.where((rows[..., 1] != 0).T, -9.0, found.lower))

    class Second(ad.IBP):
        def prove(self, *args: Any) -> Proof:
            found, rows = super().prove(*args), args[2].rows
            return replace(found, lower=torch.where((rows[..., 0] != 0).T, -9.0, found.lower))

    asked = _property(_box((0.0, 1.0), (0.0, 1.0)) + "(assert (or (<= Y_0 -1e-9) (<= Y_1 -1.1)))", tmp_path)
    assert verify(network, (2,), asked, engines=[First()]).outcome is Outcome.UNKNOWN
    assert verify(network, (2,), asked, engines=[First(), Second()]).outcome is Outcome.UNSAT


POINT = "(assert (>= X_0 0.1)) (assert (<= X_0 0.1)) (assert (= (* 3 X_1) 1))"


def test_a_counterexample_that_float64_does_not_hold(tmp_path: Path) -> None:
    """The one allowed input is (1/10, 1/3); what is said is about that one, and not about the nearest numbers of float64."""
    found = verify(Sum().eval(), (2,), _property(POINT + "(assert (<= Y_0 0.434))", tmp_path))
    assert found.outcome is Outcome.SAT
    assert found.counterexample is not None
    assert found.counterexample.exact == {0: Fraction(1, 10), 1: Fraction(1, 3)}
    assert competition_text(found).splitlines()[1:3] == ["((X_0 0.1)", "(X_1 (/ 1 3))"]
    assert report(found)["counterexample"]["exact_inputs"] == {"X_0": "1/10", "X_1": "1/3"}
    assert verify(Sum().eval(), (2,), _property(POINT + "(assert (<= Y_0 0.433))", tmp_path)).outcome is Outcome.UNSAT


@pytest.mark.parametrize("limit", ["0.10000000000000000555", "0.100000000000000005", "0.1"])
def test_the_nearest_number_is_not_the_point(limit: str, tmp_path: Path) -> None:
    """The number of float64 that is nearest to 0.1 is larger, and satisfies what 0.1 does not."""
    point = "(assert (>= X_0 0.1)) (assert (<= X_0 0.1))"
    asked = _property(point + f"(assert (>= Y_0 {limit}))", tmp_path, 1, 1)
    assert verify(nn.ReLU().eval(), (1,), asked).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("value", "text"),
    [("1/10", "0.1"), ("-1/8", "-0.125"), ("1/3", "(/ 1 3)"), ("-7/6", "(/ -7 6)"), ("12345678901234567/5", "2469135780246913.4")],
)  # fmt: skip
def test_numbers_are_written_as_they_are(value: str, text: str) -> None:
    assert _written(Fraction(value)) == text


def test_the_stronger_engines_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property that the first engines leave open is tried by AlphaCrown, and decided by none of the cheaper ones."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1)).eval()
    region = ad.Box(torch.full((1, 2), -1.0), torch.ones(1, 2))
    best, alpha = (ad.bounds(network, region, e).output.lower.item() for e in (ad.Crown(), ad.AlphaCrown()))
    limit = (best + 3 * alpha) / 4
    assert best < limit < alpha
    asked = _property(_box((-1.0, 1.0), (-1.0, 1.0)) + f"(assert (<= Y_0 {limit!r}))", tmp_path, 2, 1)
    assert verify(network, (2,), asked, engines=[ad.IBP(), ad.Dual(), ad.Crown()]).outcome is Outcome.UNKNOWN
    found = verify(network, (2,), asked)
    assert found.outcome is Outcome.UNSAT
    assert found.refutations[0][0] is not None
    assert found.refutations[0][0].engine == "AlphaCrown()"


def test_a_search_ends_in_time_where_no_alarm_rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autodual.interchange.verification.QUICK", (10**9, 1))
    asked = _property(_box((0.0, 1.0), (0.0, 1.0)) + "(assert (<= Y_0 -1))", tmp_path)
    found: list[Verification] = []
    thread = threading.Thread(target=lambda: found.append(verify(Sum().eval(), (2,), asked, [ad.IBP()], Clock(0.5))))
    thread.start()
    thread.join(60)
    assert [f.outcome for f in found] == [Outcome.TIMEOUT]


def test_several_boxes_are_all_refuted_or_one_is_broken(tmp_path: Path) -> None:
    boxes = (
        "(assert (or (and (>= X_0 0) (<= X_0 1)) (and (>= X_0 2) (<= X_0 3)))) (assert (>= X_1 0)) (assert (<= X_1 1))"
    )
    refuted = verify(Sum().eval(), (2,), _property(boxes + "(assert (>= Y_0 4.1))", tmp_path))
    assert refuted.outcome is Outcome.UNSAT
    assert len(refuted.refutations) == 2
    broken = verify(Sum().eval(), (2,), _property(boxes + "(assert (>= Y_0 3.5))", tmp_path))
    assert broken.outcome is Outcome.SAT
    assert broken.counterexample is not None
    assert broken.counterexample.inputs[0].item() >= 2


def test_a_counterexample_must_hold_by_the_reference_too(tmp_path: Path) -> None:
    def another(x: Tensor) -> Tensor:
        return torch.ones(len(x), 2) * 100

    assert _decide("(assert (<= Y_0 0.5))", tmp_path, reference=another).outcome is Outcome.UNKNOWN


def test_an_engine_that_fails_proves_nothing(tmp_path: Path) -> None:
    class Broken(ad.IBP):
        def prove(self, *args: object) -> None:  # type: ignore[override]
            raise RuntimeError("out of order")

    found = _decide("(assert (<= Y_0 -1))", tmp_path, engines=[Broken()])
    assert found.outcome is Outcome.UNKNOWN
    assert "out of order" in found.notes[0]


@pytest.mark.filterwarnings("ignore:.*using exact bounds")
def test_an_engine_that_only_estimates_proves_nothing(tmp_path: Path) -> None:
    found = _decide("(assert (<= Y_0 -1))", tmp_path, engines=[ad.HighProbability()])
    assert found.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_bounds_that_are_not_numbers_prove_nothing(value: float, tmp_path: Path) -> None:
    class Nothing(ad.IBP):
        def prove(self, *args: Any) -> Proof:
            found = super().prove(*args)
            return replace(found, lower=torch.full_like(found.lower, value))

    found = _decide("(assert (<= Y_0 -1))", tmp_path, engines=[Nothing()])
    assert found.outcome is Outcome.UNKNOWN
    assert report(found)["cases"][0][0]["margin"] is None


def test_time_is_up(tmp_path: Path) -> None:
    started = time.monotonic()
    found = _decide("(assert (<= Y_0 0.5))", tmp_path, clock=Clock(1e-9))
    assert found.outcome is Outcome.TIMEOUT
    assert found.counterexample is None

    class Slow(ad.IBP):
        def prove(self, *args: object) -> None:  # type: ignore[override]
            while True:
                torch.zeros(10).sum()

    found = _decide("(assert (<= Y_0 -1))", tmp_path, clock=Clock(1.0), engines=[Slow()])
    assert found.outcome is Outcome.TIMEOUT
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("limit", [1e12, float("inf")])
def test_all_the_time_in_the_world(limit: float, tmp_path: Path) -> None:
    assert _decide("(assert (<= Y_0 -1))", tmp_path, clock=Clock(limit)).outcome is Outcome.UNSAT


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs alarms, which this system does not have")
def test_alarms_of_others_go_on(tmp_path: Path) -> None:
    rung = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    delay, interval = signal.setitimer(signal.ITIMER_REAL, 3.0)
    try:
        assert _decide("(assert (<= Y_0 -1))", tmp_path, clock=Clock(100.0)).outcome is Outcome.UNSAT
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert rung or 0 < left <= 3.0
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, delay, interval)


def test_many_disjuncts_and_boxes_of_many_sizes(tmp_path: Path) -> None:
    many = " ".join(f"(and (<= Y_0 {-i - 1}) (<= Y_1 5))" for i in range(500))
    started = time.process_time()
    assert _decide(f"(assert (or {many}))", tmp_path).outcome is Outcome.UNSAT
    assert time.process_time() - started < 20
    boxes = " ".join(
        f"(and (>= X_0 {i}) (<= X_0 {i + 1}) (or {' '.join(f'(<= Y_0 {-k - 1})' for k in range(i + 1))}))"
        for i in range(12)
    )
    head = f"(assert (>= X_1 0)) (assert (<= X_1 1)) (assert (or {boxes}))"
    found = verify(Sum().eval(), (2,), _property(head, tmp_path))
    assert found.outcome is Outcome.UNSAT
    assert [len(case) for case in found.refutations] == list(range(1, 13))
    assert all(
        r is not None and abs(r.margin - (c + k + 1)) < 1e-4
        for c, case in enumerate(found.refutations)
        for k, r in enumerate(case)
    )
    far = boxes.replace("(or ", "(or (>= Y_0 12.5) ")
    broken = verify(
        Sum().eval(), (2,), _property(f"(assert (>= X_1 0)) (assert (<= X_1 1)) (assert (or {far}))", tmp_path)
    )
    assert broken.outcome is Outcome.SAT
    assert broken.counterexample is not None
    assert broken.counterexample.inputs[0] >= 11


def test_numbers_beyond_the_network(tmp_path: Path) -> None:
    asked = _property(_box((-1e300, 1e300), (0.0, 1.0)) + "(assert (<= Y_0 -1))", tmp_path)
    with pytest.raises(
        ad.ArgumentError, match=r"allows X_0 between -1e\+300 and 1e\+300, but the network computes in torch.float32"
    ):
        verify(Sum().eval(), (2,), asked)


def test_other_numbers_of_inputs_or_outputs(tmp_path: Path) -> None:
    with pytest.raises(ad.ArgumentError, match="about 2 inputs, but the network has 3"):
        verify(nn.Linear(3, 2).eval(), (3,), _property(_box((0, 1), (0, 1)) + "(assert (<= Y_0 0))", tmp_path))
    with pytest.raises(ad.ArgumentError, match="about 2 outputs, but the network has 3"):
        verify(nn.Linear(2, 3).eval(), (2,), _property(_box((0, 1), (0, 1)) + "(assert (<= Y_0 0))", tmp_path))


def test_the_words_of_the_competition(tmp_path: Path) -> None:
    assert competition_text(_decide("(assert (<= Y_0 -1))", tmp_path)) == "unsat"
    found = _decide("(assert (<= Y_0 0.5))", tmp_path)
    lines = competition_text(found).splitlines()
    assert lines[0] == "sat"
    assert [line.strip("()").split()[0] for line in lines[1:]] == ["X_0", "X_1", "Y_0", "Y_1"]
    values = [float(line.strip("()").split()[1]) for line in lines[1:]]
    assert values[0] + values[1] == pytest.approx(values[2])
    assert values[2] <= 0.5
    assert "\n".join(lines[1:]).count("(") == "\n".join(lines[1:]).count(")") == 5


def test_the_search_gives_the_same_answer_twice(tmp_path: Path) -> None:
    first, second = (_decide("(assert (and (>= Y_0 1.2) (<= Y_0 1.3)))", tmp_path, seed=3) for _ in range(2))
    assert first.counterexample is not None
    assert second.counterexample is not None
    assert torch.equal(first.counterexample.inputs, second.counterexample.inputs)


def test_constants_are_those_of_the_file(tmp_path: Path) -> None:
    """HardSigmoid by float32's 1/6 reaches a value that it does not reach by 1/6; found by an adversary."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("HardSigmoid", ["x"], ["g"], alpha=float(np.float32(1 / 6)), beta=0.5),
        helper.make_node("Mul", ["x", "g"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, kind, [1, 1])] for name in "xy"]
    graph = helper.make_graph(nodes, "g", *ends)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "net.onnx"
    )
    (tmp_path / "asked.vnnlib").write_text(
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 2.5))(assert (>= X_0 2.4))"
        "(assert (>= Y_0 2.2916666821887097))"
    )
    found = verify(ad.load_onnx(tmp_path / "net.onnx"), (1,), ad.load_vnnlib(tmp_path / "asked.vnnlib"))
    assert found.outcome is not Outcome.UNSAT
