"""A certificate says early that it will take long, shows how far it is, and keeps what it has proved when its time is up."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines import effort
from autodual.engines.backward.slopes import SlopeSolver
from autodual.engines.effort import Progress, duration


@pytest.fixture
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    images, labels = ad.load_digits("test")
    return ad.load_digits_network(), images[:12], labels[:12]


BALL = ad.LinfBall(0.05, clip=(0.0, 1.0))


class TestTimeLimit:
    @pytest.mark.parametrize("timeout", [0, -1.0, True, "soon", float("nan")])
    def test_must_be_positive(self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor], timeout: float) -> None:
        with pytest.raises(ad.ArgumentError, match="timeout must be a positive number of seconds"):
            ad.certify(*problem, BALL, timeout=timeout)

    def test_enough_time_changes_nothing(self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
        alone, limited = ad.certify(*problem, BALL), ad.certify(*problem, BALL, timeout=1e6)
        assert limited.reached is None
        assert alone.subject == limited.subject
        torch.testing.assert_close(alone.margins, limited.margins)
        assert torch.equal(alone.certified, limited.certified)

    @pytest.mark.parametrize("eps", [0.05, torch.full((12, 1, 1, 1), 0.05)], ids=["one eps", "eps of each"])
    def test_what_was_proved_stays(
        self,
        problem: tuple[nn.Module, torch.Tensor, torch.Tensor],
        eps: float | torch.Tensor,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The clock jumps past the limit after the third batch: of 1, 2 and 4 examples."""
        batches: list[int] = []
        model, x, labels = problem
        if isinstance(eps, torch.Tensor):
            eps = eps.reshape(12, *[1] * (x.dim() - 1))
        before = ad.Dual.prove

        def prove(self: ad.Dual, network: object, region: object, spec: object) -> object:
            batches.append(len(region))  # type: ignore[arg-type]
            if len(batches) > 3:
                raise effort.TimeLimitError("time is up")
            return before(self, network, region, spec)  # type: ignore[arg-type]

        monkeypatch.setattr(ad.Dual, "prove", prove)
        found = ad.certify(model, x, labels, ad.LinfBall(eps, clip=(0.0, 1.0)), timeout=1e6)
        monkeypatch.undo()
        assert batches == [1, 2, 4, 5]
        assert found.reached is not None
        assert found.reached.tolist() == [True] * 7 + [False] * 5
        full = ad.certify(*problem, BALL)
        assert found.certified.tolist() == full.certified.tolist()[:7] + [False] * 5
        assert all(v is not ad.Verdict.CERTIFIED for v in found.verdicts[7:])
        assert str(found).endswith("5 not reached in time")
        assert json.loads(found.to_json())["reached"] == found.reached.tolist()

    @pytest.mark.parametrize(
        ("engine", "second"),
        [(ad.BestOf(ad.Dual(), ad.Crown()), (ad.Crown, "prove")), (ad.AlphaCrown(), (SlopeSolver, "_improve"))],
        ids=["BestOf", "AlphaCrown"],
    )
    def test_what_an_engine_was_kept_from_is_not_reached(
        self,
        problem: tuple[nn.Module, torch.Tensor, torch.Tensor],
        engine: ad.BoundEngine,
        second: tuple[type, str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Some examples are proved, and the time is up before anything else is tried on the others."""
        ball = ad.LinfBall(0.09, clip=(0.0, 1.0))

        def late(*_: object) -> None:
            raise effort.TimeLimitError("late")

        monkeypatch.setattr(*second, late)
        found = ad.certify(*problem, ball, engine)
        assert found.reached is not None
        assert torch.equal(found.reached, found.certified_as_run | ~found.right)
        assert 0 < int(found.reached.sum()) < len(found.reached)

    def test_no_time_at_all(self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
        found = ad.certify(*problem, BALL, timeout=1e-9)
        assert not found.certified.any()
        assert found.reached is not None
        assert not found.reached.any()

    def test_sets_of_ones_own_stay_together(self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
        model, x, labels = problem
        box = ad.Box((x - 0.02).clamp(0, 1), (x + 0.02).clamp(0, 1))
        assert torch.equal(
            ad.certify(model, x, labels, box, timeout=1e6).margins, ad.certify(model, x, labels, box).margins
        )


class TestAnnouncement:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name in ((effort, "PATIENCE"), (effort, "OFTEN"), (effort, "SURE")):
            monkeypatch.setattr(module, name, -1.0)

    def test_long_work_is_announced_once(
        self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(effort, "LONG", 0.0)
        with pytest.warns(
            UserWarning, match=r"Dual\(\) will take about .* for 12 examples .*Dual\(intermediate=IBP\(\)\)"
        ) as told:
            ad.certify(*problem, BALL)
        assert len(told) == 1

    def test_short_work_is_not(self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ad.certify(*problem, BALL)

    def test_a_limit_is_announcement_enough(
        self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(effort, "LONG", 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ad.certify(*problem, BALL, timeout=1e6)

    def test_progress_is_reported(self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
        told: list[Progress] = []
        ad.certify(*problem, BALL, progress=told.append)
        assert told
        assert 0 < told[-1].fraction <= 1

    def test_a_line_is_shown_and_removed(
        self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor], capsys: pytest.CaptureFixture[str]
    ) -> None:
        ad.certify(*problem, BALL, progress=True)
        shown = capsys.readouterr().err
        assert "Dual(): " in shown
        assert "left" in shown
        assert shown.endswith(" \r")
        ad.certify(*problem, BALL, progress=False)
        assert capsys.readouterr().err == ""

    def test_other_values_are_refused(self, problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
        with pytest.raises(ad.ArgumentError, match="progress must be"):
            ad.certify(*problem, BALL, progress="yes")


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (ad.Dual(), ["Dual(intermediate=IBP())"]),
        (ad.Crown(), ["Dual()", "Crown(intermediate=IBP())"]),
        (ad.Crown(intermediate=ad.IBP()), ["IBP()"]),
        (ad.IBP(), []),
    ],
    ids=repr,
)
def test_cheaper_engines(engine: ad.Dual, expected: list[str]) -> None:
    assert [repr(e) for e in engine.cheaper] == expected


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3.2, "3 s"),
        (89.0, "89 s"),
        (90.0, "1.5 min"),
        (660.0, "11 min"),
        (7200.0, "2 h"),
        (1e6, "278 h"),
        (float("inf"), "a long time"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
