"""The one search of the library: its steps, its checkpoints, and runs that leave."""

import math

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.certificates.descent import FIRST_STEP, Seen, checkpoints, descend
from small import DOUBLE, batch, mlp, tilted

X = batch(6, 4)


def bowl(centre: Tensor) -> object:
    """Squared distance to a point: merit and loss."""

    def objective(points: Tensor, numbers: Tensor) -> Seen:
        distance = (points - centre[numbers]).square().sum(1)
        return Seen(distance, distance.detach())

    return objective


def test_checkpoints_are_those_of_the_paper() -> None:
    """Croce and Hein 2020, section 3.1: p_0 = 0, p_1 = 0.22, p_j+1 = p_j + max(p_j - p_j-1 - 0.03, 0.06), w_j = ceil(p_j n)."""
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(40) == [9, 17, 23, 28, 32, 35, 38]
    for steps in (0, 1, 2, 3, 7, 1000):
        found = checkpoints(steps)
        assert found == sorted(set(found))
        assert all(0 < step < steps for step in found)


SETS: dict[str, ad.InputSet] = {
    "box": ad.LinfBall(0.3).within(X),
    "clipped": ad.LinfBall(0.3, clip=(0.0, 1.0)).within(X),
    "l2": ad.L2Ball(0.5).within(X),
    "l1": ad.L1Ball(0.7).within(X),
    "of a user": tilted(4, 0.4).around(X),
}


@pytest.mark.parametrize("name", SETS)
def test_the_nearest_point_of_a_set_is_found(name: str) -> None:
    """A convex problem with a known answer: the projection, or the point itself where it lies inside."""
    region = SETS[name]
    inside = region.centre + 0.3 * (region.vertex(torch.ones_like(X)) - region.centre)
    _, merit = descend(bowl(inside), region, X, 200)
    assert (merit < 1e-2).all()
    far = region.centre + 5.0
    projected = region.project(far)
    if projected is not None:
        points, _ = descend(bowl(far), region, X, 200)
        torch.testing.assert_close(points, projected, atol=0.02, rtol=0)


@pytest.mark.parametrize("name", SETS)
def test_every_point_that_is_looked_at_lies_inside(name: str) -> None:
    region, seen = SETS[name], list[Tensor]()
    model = mlp(4, 8, 1)

    def objective(points: Tensor, numbers: Tensor) -> Seen:
        seen.append(points.detach().clone())
        value = model(points).squeeze(1)
        return Seen(value, value.detach())

    points, merit = descend(objective, region, X, 30)
    assert len(seen) == 31, "one pass for the start and one for every step"
    rows = torch.randn(100, *X.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    for point in seen:
        assert ((rows * point).sum(-1) >= region.minimise(rows) - 1e-12).all()
    values = torch.stack([model(point).squeeze(1) for point in seen]).detach()
    torch.testing.assert_close(merit, values.amin(0))
    torch.testing.assert_close(model(points).squeeze(1), merit)


def test_steps_are_halved_from_the_best_point_when_they_do_not_help() -> None:
    """On a V around a point, a step of the whole set jumps over it again and again, until it is halved."""
    x = torch.zeros(1, 1, dtype=DOUBLE)
    region, sizes = ad.LinfBall(1.0).within(x), list[float]()

    def objective(points: Tensor, numbers: Tensor) -> Seen:
        sizes.append(points.item())
        value = (points - 0.1).abs().squeeze(1)
        return Seen(value, value.detach())

    points, merit = descend(objective, region, x, 100)
    assert FIRST_STEP == 2.0
    assert merit.item() < 0.02
    assert abs(points.item() - 0.1) == pytest.approx(merit.item())
    assert max(abs(a - b) for a, b in zip(sizes[-8:], sizes[-7:], strict=False)) < 0.1


def test_runs_that_are_finished_leave_at_the_next_checkpoint() -> None:
    asked = list[list[int]]()

    def objective(points: Tensor, numbers: Tensor) -> Seen:
        asked.append(numbers.tolist())
        value = points.sum(1)
        return Seen(value, value.detach())

    def finished(numbers: Tensor, merits: Tensor) -> Tensor:
        return numbers % 2 == 0

    points, merit = descend(objective, SETS["box"], X, 40, finished)
    assert asked[9] == [0, 1, 2, 3, 4, 5]
    assert asked[10] == asked[-1] == [1, 3, 5]
    torch.testing.assert_close(points, X - 0.3)
    torch.testing.assert_close(merit, (X - 0.3).sum(1))
    asked.clear()
    descend(objective, SETS["of a user"], X, 40, finished)
    assert asked[-1] == [0, 1, 2, 3, 4, 5], "a set that cannot be taken apart keeps all of its runs"


def test_a_search_without_slope_or_with_nan_stays_where_it_is() -> None:
    def flat(points: Tensor, numbers: Tensor) -> Seen:
        value = 0 * points.sum(1) + 1
        return Seen(value, value.detach())

    def nowhere(points: Tensor, numbers: Tensor) -> Seen:
        value = (points.sum(1) - 1e9).sqrt()
        return Seen(value, value.detach())

    for objective in (flat, nowhere):
        points, _ = descend(objective, SETS["l2"], X, 10)
        assert torch.equal(points, X)


def test_it_tells_how_far_it_is() -> None:
    told = list[float]()
    descend(bowl(X), SETS["box"], X, 4, tell=told.append)
    assert told == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


# The attack that uses it.

MODEL = mlp(4, 16, 12, 5, seed=3)
LABELS = MODEL(X).argmax(1)


@pytest.mark.parametrize("loss", ["margin", "cross-entropy", "dlr", "targeted", None])
@pytest.mark.parametrize("ball", [ad.LinfBall(0.3), ad.L2Ball(0.4), ad.L1Ball(0.6)], ids=repr)
def test_every_loss_finds_counterexamples(loss: str | None, ball: ad.Perturbation) -> None:
    found = ad.attack(MODEL, X, LABELS, ball, loss=loss, restarts=8)
    assert torch.equal(found.success, MODEL(found.examples).argmax(1) != LABELS)
    strongest = torch.stack(
        [ad.attack(MODEL, X, LABELS, ball, loss=each, restarts=8).success for each in ("margin", "targeted")]
    ).any(0)
    assert strongest.any()
    assert int(found.success.sum()) >= int(strongest.sum()) - 1
    assert not (found.success & ad.certify(MODEL, X, LABELS, ball).certified).any()


def test_a_target_for_every_class() -> None:
    """z = 1, 0.9 + 0.05 x_0, 0.3 + 0.06 sum x, 0.5: the nearest class never wins, random points do not, and the third one does."""
    model = nn.Sequential(nn.Linear(20, 4)).to(DOUBLE).eval()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[1, 0] = 0.05
        model[0].weight[2] = 0.06
        model[0].bias.copy_(torch.tensor([1.0, 0.9, 0.3, 0.5]))
    x, labels = torch.zeros(1, 20, dtype=DOUBLE), torch.tensor([0])
    assert not ad.attack(model, x, labels, ad.LinfBall(1.0), loss="margin", restarts=1).success.any()
    assert [
        bool(ad.attack(model, x, labels, ad.LinfBall(1.0), loss="targeted", restarts=n).success) for n in (1, 2, 3)
    ] == [False, False, True]


def test_starts_of_an_example_do_not_depend_on_its_batch() -> None:
    whole = ad.attack(MODEL, X, LABELS, ad.LinfBall(0.1), restarts=6)
    for part in (slice(0, 1), slice(2, 5)):
        alone = ad.attack(MODEL, X[part], LABELS[part], ad.LinfBall(0.1), restarts=6)
        torch.testing.assert_close(alone.margins, whole.margins[part])


def test_little_memory_changes_nothing_but_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from autodual.certificates import attacks

    whole = ad.attack(MODEL, X, LABELS, ad.LinfBall(0.1), restarts=6)
    runs = list[int]()

    def count(objective: object, region: ad.InputSet, starts: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
        runs.append(len(starts))
        return descend(objective, region, starts, *rest)

    monkeypatch.setattr(attacks, "descend", count)
    monkeypatch.setattr(attacks._Search, "_runs_at_once", lambda self, bytes_each: 4)
    parts = ad.attack(MODEL, X, LABELS, ad.LinfBall(0.1), restarts=6)
    assert max(runs) == 4
    torch.testing.assert_close(parts.margins, whole.margins)
    monkeypatch.undo()
    monkeypatch.setattr(attacks, "descend", count)
    runs.clear()
    ad.attack(MODEL, X, LABELS, ad.LinfBall(0.1), restarts=6)
    assert len(runs) == 2, "the first start, and then all others at once"


def test_what_is_wrong_already_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    from autodual.certificates import attacks

    def unexpected(*arguments: object) -> tuple[Tensor, Tensor]:
        raise AssertionError

    monkeypatch.setattr(attacks, "descend", unexpected)
    found = ad.attack(MODEL, X, (LABELS + 1) % 5, ad.LinfBall(0.1), restarts=8)
    assert found.success.all()
    assert torch.equal(found.examples, X)


def test_any_number_of_outputs_is_attacked_by_every_loss() -> None:
    """Losses that need labels, or three classes, fall back on the margin."""
    two = mlp(4, 8, 2)
    for loss in ("margin", "cross-entropy", "dlr", "targeted"):
        ad.attack(two, X, two(X).argmax(1), ad.LinfBall(0.3), loss=loss)
        value = mlp(4, 8, 1)(X).detach()
        found = ad.attack(mlp(4, 8, 1), X, ad.Between(value - 0.01, value + 0.01), ad.LinfBall(0.3), loss=loss)
        assert found.success.all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "hinge"}, "loss must be one of margin, cross-entropy, dlr, targeted, or None"),
        ({"steps": 1.5}, "attack needs whole numbers"),
        ({"restarts": 0}, "attack needs whole numbers"),
        ({"restarts": True}, "attack needs whole numbers"),
    ],
)
def test_bad_options_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        ad.attack(MODEL, X, LABELS, ad.LinfBall(0.1), **arguments)


def test_points_are_inside_by_exact_arithmetic() -> None:
    """In float32, where sums of x and a step are rounded: checked in rational numbers."""
    from fractions import Fraction

    model, x = mlp(4, 16, 12, 5, seed=3, dtype=torch.float32), X.float()
    labels = model(x).argmax(1)
    for ball, contains in (
        (ad.LinfBall(0.1), lambda moved, eps: max(map(abs, moved)) <= eps),
        (ad.L2Ball(0.2), lambda moved, eps: sum(m * m for m in moved) <= eps * eps),
        (ad.L1Ball(0.3), lambda moved, eps: sum(map(abs, moved)) <= eps),
        (ad.LinfBall(0.1).around(x), lambda moved, eps: max(map(abs, moved)) <= Fraction(torch.tensor(0.1).item()) + Fraction(2**-26)),
    ):  # fmt: skip
        found = ad.attack(model, x, labels, ball, restarts=8)
        for before, after in zip(x.double().tolist(), found.examples.double().tolist(), strict=True):
            moved = [Fraction(a) - Fraction(b) for a, b in zip(after, before, strict=True)]
            eps = Fraction(ball.eps) if isinstance(ball, ad.Perturbation) else Fraction(0)
            assert contains(moved, eps)
    assert math.isfinite(found.margins.sum().item())
