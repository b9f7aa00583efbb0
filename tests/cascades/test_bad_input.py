"""Bad calls of combinations are refused with a message that says what to do; NaN certifies nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.cascades import Cascade, RoutedCascade, SumEnsemble
from autodual.cascades.base import Combination, inside
from autodual.engines.results import Proof
from small import DOUBLE, batch, mlp, tilted

BALL = ad.LinfBall(0.05)
X, LABELS = batch(6, 4), torch.arange(6) % 3


def nets(*classes: int) -> list[nn.Module]:
    return [mlp(4, 8, c, seed=s) for s, c in enumerate(classes)]


MAKERS: dict[str, Callable[..., Combination]] = {
    "paper": lambda models, ball=BALL, engine=None: Cascade(models, ball, engine),
    "routed": lambda models, ball=BALL, engine=None: RoutedCascade(
        models, [0.1] * max(0, len(models) - 1) if isinstance(models, list) else [], ball, engine
    ),
    "sum": lambda models, ball=BALL, engine=None: SumEnsemble(models, ball, engine),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())

CONSTRUCTION: dict[str, tuple[dict[str, Any], str]] = {
    "no models": ({"models": []}, "needs at least one model"),
    "one module": ({"models": mlp(4, 3)[0]}, r"got one Linear; write \[model\]"),
    "a function": ({"models": [mlp(4, 3), torch.relu]}, r"models\[1\] must be a torch.nn.Module"),
    "a class": ({"models": [nn.ReLU]}, r"models\[0\] must be .* the class ReLU"),
    "nothing": ({"models": None}, "models must be a list of modules, got NoneType"),
    "no ball": ({"models": nets(3), "ball": 0.1}, "ball must be a perturbation"),
    "eps per example": ({"models": nets(3), "ball": ad.LinfBall(torch.ones(6))}, "must be one number for all inputs"),
    "engine is a class": ({"models": nets(3), "engine": ad.Dual}, "call it: Dual"),
}


@every
@pytest.mark.parametrize(("arguments", "message"), CONSTRUCTION.values(), ids=CONSTRUCTION.keys())
def test_construction(make: Callable[..., Combination], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        make(**arguments)


def _training() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).to(DOUBLE)


USE: dict[str, tuple[dict[str, Any], Tensor, Tensor, str]] = {
    "different classes": ({"models": nets(3, 4)}, X, LABELS, r"same classes, but they have \[3, 4\]"),
    "one class": ({"models": nets(1)}, X, LABELS * 0, "at least two classes"),
    "not a classifier": (
        {"models": [nn.Sequential(nn.Unflatten(1, (2, 2))).eval()]},
        X,
        LABELS,
        "stage 0: the model's output",
    ),
    "training mode": ({"models": [*nets(3), _training()]}, X, LABELS, "stage 1: model: 1 is dropout in training mode"),
    "another precision": (
        {"models": [*nets(3), mlp(4, 3).float()]},
        X,
        LABELS,
        "stage 1: model and x have different dtypes",
    ),
    "labels too large": ({"models": nets(3, 3)}, X, LABELS + 1, r"labels must lie in 0 \.\.\. 2"),
    "labels too small": ({"models": nets(3, 3)}, X, LABELS - 1, r"labels must lie in 0 \.\.\. 2"),
    "too few labels": ({"models": nets(3, 3)}, X, LABELS[:4], r"labels must have shape \[6\]"),
    "labels of floats": ({"models": nets(3, 3)}, X, LABELS.double(), "labels must be a tensor of integer"),
    "x of NaN": ({"models": nets(3, 3)}, X * float("nan"), LABELS, "NaN or infinite"),
    "x out of range": ({"models": nets(3, 3), "ball": ad.LinfBall(0.1, clip=(0.0, 0.5))}, X, LABELS, "outside clip"),
    "another shape": ({"models": nets(3, 3)}, batch(6, 5), LABELS, "stage 0"),
    "deltas add up": (
        {"models": [mlp(4, 8, 8, 3)], "engine": ad.HighProbability(k=19)},
        X,
        LABELS,
        "their deltas add up",
    ),
}


@every
@pytest.mark.parametrize(("arguments", "x", "labels", "message"), USE.values(), ids=USE.keys())
def test_use(
    make: Callable[..., Combination], arguments: dict[str, Any], x: Tensor, labels: Tensor, message: str
) -> None:
    together = make(**arguments)
    with pytest.raises(ad.AutodualError, match=message):
        together.certify(x, labels)
    with pytest.raises(ad.AutodualError, match=message):
        together.attack(x, labels)


@every
def test_estimates_certify_nothing(make: Callable[..., Combination]) -> None:
    for engine in (ad.Projected(k=4), ad.Dual(intermediate=ad.Projected(k=4))):
        with pytest.raises(ad.UnsoundError, match="only estimate"):
            make([mlp(4, 8, 8, 3)], BALL, engine).predict(X)


@every
def test_a_nan_in_a_model_is_an_error(make: Callable[..., Combination]) -> None:
    models = nets(3, 3)
    with torch.no_grad():
        models[1][0].weight[0, 0] = float("nan")  # type: ignore[index]
    with pytest.raises(ad.ArgumentError, match=r"stage 1: .*0\.weight holds NaN"):
        make(models).predict(X)


@dataclass(frozen=True)
class Broken(ad.Dual):
    """Bounds or slacks that no proof should survive."""

    lower: float = 1.0
    slack: float = 0.0

    def prove(self, network: Any, region: Any, spec: Any) -> Proof:
        proof = super().prove(network, region, spec)
        return replace(
            proof, lower=torch.full_like(proof.lower, self.lower), slack=torch.full_like(proof.slack, self.slack)
        )


@every
@pytest.mark.parametrize(
    ("lower", "slack"), [(float("nan"), 0.0), (float("inf"), 0.0), (1.0, float("nan")), (1.0, float("inf")), (0.0, 0.0)]
)
def test_nan_and_infinity_never_certify(make: Callable[..., Combination], lower: float, slack: float) -> None:
    models = nets(3, 3)
    record = make(models, BALL, Broken(lower=lower, slack=slack)).certify(X, models[1](X).argmax(1))
    assert not record.answers.certified.any()
    assert not record.sound.any()
    assert record.sound_certified_error == record.stage_certified_error == 1.0


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ([], "2 models need 1"),
        ([0.1, 0.2], "2 models need 1, one for each but the last, which always answers; got 2"),
        ([-0.1], r"thresholds\[0\] must be a number, not negative"),
        ([float("nan")], r"thresholds\[0\] must be a number, not negative"),
        (["0.1"], r"thresholds\[0\] must be a number"),
        ([True], r"thresholds\[0\] must be a number"),
        (0.1, "thresholds must be a list of numbers, got float"),
    ],
)
def test_thresholds(thresholds: Any, message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        RoutedCascade(nets(3, 3), thresholds, BALL)


def test_fitting() -> None:
    with pytest.raises(ad.ArgumentError, match="labels must lie in"):
        RoutedCascade.fit(nets(3, 3), X, LABELS + 1, BALL)
    with pytest.raises(ad.ArgumentError, match="at least one model"):
        RoutedCascade.fit([], X, LABELS, BALL)
    with pytest.raises(ad.ArgumentError, match="candidates must be a whole number"):
        RoutedCascade.fit(nets(3, 3), X, LABELS, BALL, candidates=0)


class Wider(ad.LinfBall):
    """A subclass may do anything."""


def test_the_papers_cascade_needs_symmetry() -> None:
    for ball in (tilted(4, 0.1), Wider(0.1)):
        with pytest.raises(ad.ArgumentError, match=r"not known to be symmetric.*RoutedCascade or SumEnsemble"):
            Cascade(nets(3), ball)


@pytest.mark.parametrize("kind", ["routed", "sum"])
def test_the_others_do_not(kind: str) -> None:
    ball = tilted(4, 0.1)
    together = MAKERS[kind](nets(3, 3), ball)
    record, attack = together.certify(X, LABELS), together.attack(X, LABELS, steps=10, restarts=2)
    assert not (record.sound & attack.found).any()
    assert torch.equal(record.no_wrong_certificate, record.sound)
    assert ball.around(X).holds(attack.examples).all()


@every
@pytest.mark.parametrize(("steps", "restarts"), [(-1, 1), (1, 0), (1.5, 1), (1, True)])
def test_effort(make: Callable[..., Combination], steps: Any, restarts: Any) -> None:
    with pytest.raises(ad.ArgumentError, match="steps >= 0 and restarts >= 1"):
        make(nets(3)).attack(X, LABELS, steps=steps, restarts=restarts)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.L2Ball(0.1), ad.L1Ball(0.1), ad.LinfBall(0.1, clip=(0.0, 1.0))])
def test_points_outside_the_ball_are_known_as_such(ball: ad.Perturbation) -> None:
    x = torch.full((4, 3), 0.95, dtype=DOUBLE)
    shift = torch.tensor([[0.1, 0, 0], [-0.1, 0, 0], [-0.1001, 0, 0], [float("nan"), 0, 0]], dtype=DOUBLE)
    clipped = isinstance(ball, ad.LinfBall) and ball.clip is not None
    assert inside(ball, x, x + shift).tolist() == [not clipped, True, False, False]
