"""The routed cascade: its recursion against a literal one, thresholds at their borders, and their choice."""

import math

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.cascades import Cascade, RoutedCascade
from autodual.cascades.sound import reach
from autodual.cascades.stage import open_stages
from small import DOUBLE, batch, mlp

BALL = ad.LinfBall(0.06)
THRESHOLDS = [[0.0, 0.0], [0.1, 0.2], [0.5, 0.05], [math.inf, 0.1], [2.0, 3.0]]


class Differences(nn.Module):
    """All differences z_a - z_b of a model's scores, [N, C * C]."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model = model
        self.pairs = nn.Linear(classes, classes * classes, bias=False).to(DOUBLE)
        eye = torch.eye(classes, dtype=DOUBLE)
        with torch.no_grad():
            self.pairs.weight.copy_((eye.unsqueeze(1) - eye.unsqueeze(0)).reshape(-1, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.pairs(self.model(x))


def bounds_of_pairs(model: nn.Module, x: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    found = ad.bounds(Differences(model, classes).eval(), BALL.around(x)).output
    return found.lower.detach().reshape(-1, classes, classes), found.upper.detach().reshape(-1, classes, classes)


def by_recursion(models: list[nn.Module], thresholds: list[float], x: Tensor, labels: Tensor) -> tuple[list, list]:
    """ok(0) as DESIGN.md writes it, and with the wider test of "cannot answer wrongly" that the class documents."""
    classes = models[0](x).shape[1]
    pairs = [bounds_of_pairs(m, x, classes) for m in models]

    def ok(n: int, j: int, wide: bool) -> bool:
        (lower, upper), y, every = (p[n] for p in pairs[j]), int(labels[n]), range(classes)
        if j == len(models) - 1:
            return all(lower[y, w] > 1e-12 for w in every if w != y)
        t = thresholds[j]
        answers = all(lower[y, w] > t for w in every if w != y)
        beaten = {a: any(upper[a, b] <= t for b in every if b != a) for a in every}
        silent = all(lower[y, w] >= -t for w in every if w != y) or all(beaten.values())
        if wide:
            silent = all(beaten[a] for a in every if a != y)
        return silent and (answers or ok(n, j + 1, wide))

    return [ok(n, 0, False) for n in range(len(x))], [ok(n, 0, True) for n in range(len(x))]


@pytest.mark.parametrize("thresholds", THRESHOLDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_proof_is_the_recursion(thresholds: list[float], seed: int) -> None:
    models: list[nn.Module] = [mlp(4, 8, 3, seed=10 * seed + s) for s in range(3)]
    x, labels = batch(40, 4, seed=seed), torch.arange(40) % 3
    labels[:20] = models[-1](x[:20]).argmax(1)
    narrow, wide = by_recursion(models, thresholds, x, labels)
    record = RoutedCascade(models, thresholds, BALL).certify(x, labels)
    assert record.sound.tolist() == wide
    assert all(w or not n for n, w in zip(narrow, wide, strict=True))


@pytest.mark.parametrize("thresholds", THRESHOLDS)
def test_answers_are_those_of_the_first_sure_stage(thresholds: list[float]) -> None:
    models = [mlp(4, 8, 3, seed=s) for s in range(3)]
    x = batch(60, 4)
    answers = RoutedCascade(models, thresholds, BALL).predict(x)
    for n in range(60):
        for j, model in enumerate(models):
            first, second = model(x[n : n + 1])[0].topk(2).values
            if j == 2 or first - second > thresholds[j]:
                assert int(answers.label[n]) == int(model(x[n : n + 1]).argmax())
                assert int(answers.stage[n]) == j
                break


def test_reach_is_exact_for_linear_models() -> None:
    """The extremes of linear margins lie in the corners; with two classes, the wrong label's margin is one of them."""
    model, x = mlp(3, 2, seed=4), batch(20, 3)
    labels = torch.arange(20) % 2
    with torch.no_grad():
        found = reach(open_stages([model], x, BALL, ad.Dual())[0], x, labels)
        scores = torch.stack(
            [model(x + 0.06 * s) for s in torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3).double()]
        )
    own = scores.gather(2, labels.reshape(1, -1, 1).expand(len(scores), -1, 1)).squeeze(2)
    margin = own - scores.gather(2, 1 - labels.reshape(1, -1, 1).expand(len(scores), -1, 1)).squeeze(2)
    torch.testing.assert_close(found.answers_below, margin.amin(0))
    torch.testing.assert_close(found.silent_from, (-margin).amax(0))


def test_reach_holds_at_random_points() -> None:
    model, x = mlp(4, 10, 8, 4, seed=4), batch(20, 4)
    labels = torch.arange(20) % 4
    with torch.no_grad():
        found = reach(open_stages([model], x, BALL, ad.Dual())[0], x, labels)
        for _ in range(300):
            top = model(BALL.around(x).sample()).topk(2)
            margin, label = top.values[:, 0] - top.values[:, 1], top.indices[:, 0]
            assert (margin <= found.silent_from)[label != labels].all()
            assert (torch.where(label == labels, margin, -margin) >= found.answers_below).all()


# --- borders ----------------------------------------------------------------------------------------------------------------


class Constant(nn.Module):
    """The same scores for every input."""

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, len(scores)).to(DOUBLE)
        with torch.no_grad():
            self.layer.weight.zero_()
            self.layer.bias.copy_(torch.tensor(scores))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize(
    ("scores", "threshold", "stage"),
    [
        ((0.0, 0.0, 0.0), 0.0, 1),
        ((1.0, 1.0, 0.0), 0.0, 1),
        ((1.0, 0.0, 0.0), 1.0, 1),
        ((1.0, 0.0, 0.0), 0.999, 0),
        ((1.0, 0.0, 0.0), 0.0, 0),
        ((1.0, 0.0, 0.0), math.inf, 1),
    ],
)
def test_a_margin_must_exceed_the_threshold(scores: tuple[float, ...], threshold: float, stage: int) -> None:
    answers = RoutedCascade([Constant(*scores), Constant(0.0, 0.0, 5.0)], [threshold], BALL).predict(batch(3, 4))
    assert answers.stage.tolist() == [stage] * 3
    assert answers.label.tolist() == [0 if stage == 0 else 2] * 3


def test_a_stage_that_surely_passes_leaves_the_proof_to_the_next() -> None:
    """Its margins lie clearly below the threshold, though its label is another one."""
    x, labels, last = batch(20, 4), torch.arange(20) % 3, mlp(4, 8, 3)
    alone = ad.certify(last, x, labels, BALL).certified
    for first in (Constant(1.0, 0.9, 0.0), Constant(0.0, 0.0, 0.0)):
        assert torch.equal(RoutedCascade([first, last], [0.5], BALL).certify(x, labels).sound, alone)
    assert torch.equal(RoutedCascade([Constant(0.0, 0.0, 0.0), last], [1e-9], BALL).certify(x, labels).sound, alone)
    assert torch.equal(RoutedCascade([mlp(4, 8, 3, seed=9), last], [math.inf], BALL).certify(x, labels).sound, alone)


def test_on_the_border_nothing_is_proved() -> None:
    """A margin that equals the threshold up to rounding neither surely answers nor surely passes, unless it is exact."""
    x, labels = batch(5, 4), torch.zeros(5, dtype=torch.long)
    wrong_after = Constant(0.0, 1.0, 0.0)
    assert not RoutedCascade([Constant(1.0, 0.0, 0.0), wrong_after], [1.0], BALL).certify(x, labels).sound.any()
    assert RoutedCascade([Constant(1.0, 0.0, 0.0), wrong_after], [1.0 - 1e-9], BALL).certify(x, labels).sound.all()
    one = torch.ones(5, dtype=torch.long)
    just = RoutedCascade([Constant(1.0, 0.0, 0.0), wrong_after], [1.0 + 1e-9], BALL)
    assert just.certify(x, one).sound.all()


# --- fitting ----------------------------------------------------------------------------------------------------------------


def test_fitted_thresholds_are_at_least_as_good_as_any_tried() -> None:
    models = [mlp(4, 8, 3, seed=s) for s in range(2)]
    x = batch(150, 4, seed=1)
    labels = torch.where(torch.arange(150) % 2 == 0, models[0](x).argmax(1), models[1](x).argmax(1))
    fitted = RoutedCascade.fit(models, x, labels, BALL, candidates=1000)
    best = fitted.certify(x, labels).sound_certified_error
    for t in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, math.inf):
        assert best <= RoutedCascade(models, [t], BALL).certify(x, labels).sound_certified_error + 1e-12
    assert fitted.thresholds[0] >= 0
    assert len(fitted.thresholds) == 1


def test_fitting_several_stages_never_loses_to_the_last_alone() -> None:
    models = [mlp(4, 8, 3, seed=s) for s in range(4)]
    x = batch(60, 4, seed=1)
    labels = torch.stack([m(x).argmax(1) for m in models]).mode(0).values
    fitted = RoutedCascade.fit(models, x, labels, BALL, candidates=20)
    alone = ad.certify(models[-1], x, labels, BALL)
    assert fitted.certify(x, labels).sound_certified_error <= alone.robust_error
    assert len(fitted.thresholds) == 3
    assert RoutedCascade.fit(models[:1], x, labels, BALL).thresholds == ()


def test_a_better_first_stage_is_used() -> None:
    """The last stage is a constant: whoever certifies anything is the first."""
    good, x = mlp(4, 8, 3), batch(80, 4)
    labels = good(x).argmax(1)
    fitted = RoutedCascade.fit([good, Constant(1.0, 0.0, 0.0)], x, labels, ad.LinfBall(0.02))
    alone = ad.certify(good, x, labels, ad.LinfBall(0.02)).robust_error
    assert fitted.certify(x, labels).sound_certified_error <= alone + 0.05
    assert fitted.thresholds[0] < math.inf


def test_paper_and_routed_agree_where_all_stages_do() -> None:
    models, x = [mlp(4, 8, 3, seed=2)] * 2, batch(30, 4)
    labels = models[0](x).argmax(1)
    paper, routed = Cascade(models, BALL), RoutedCascade(models, [0.2], BALL)
    assert torch.equal(paper.certify(x, labels).sound, routed.certify(x, labels).sound)
