"""Any question: what is certified holds at every point, what an attack finds is broken there, and bounds are below exact minima."""

import json
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.certificates.proof import _with_offsets
from autodual.engines.results import Proof
from autodual.testing import corners, exact_minimum
from small import DOUBLE, ENGINES, Ellipsoid, Net, batch, mlp, tilted

N, C = 8, 4
X = batch(N, 3)
MODEL = mlp(3, 12, 10, C, seed=9)
LABELS = MODEL(X).argmax(1)
SECOND = MODEL(X).topk(2, 1).indices[:, 1]
ROWS = torch.randn(3, C, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
CLEAN = MODEL(X).detach()

Meaning = Callable[[Tensor], Tensor]
"""[N, C] outputs -> [N] bool, in the plainest words."""
QUESTIONS: dict[str, tuple[ad.Specification, Meaning]] = {
    "label": (ad.Label(LABELS), lambda z: z.argmax(1) == LABELS),
    "targeted": (
        ad.Label(LABELS, targets=SECOND[:, None]),
        lambda z: z.gather(1, LABELS[:, None])[:, 0] > z.gather(1, SECOND[:, None])[:, 0],
    ),
    "top 2": (ad.TopK(SECOND, 2), lambda z: (z >= z.gather(1, SECOND[:, None])).sum(1) <= 2),
    "top 3": (ad.TopK(LABELS, 3), lambda z: (z >= z.gather(1, LABELS[:, None])).sum(1) <= 3),
    "interval": (ad.Between(CLEAN - 0.5, CLEAN + 0.75), lambda z: ((z > CLEAN - 0.5) & (z < CLEAN + 0.75)).all(1)),
    "one output": (ad.Between(upper=0.5, output=1), lambda z: z[:, 1] < 0.5),
    "rows": (ad.Positive(ROWS, 1.0), lambda z: (z @ ROWS.T + 1 > 0).all(1)),
    "any row": (ad.Positive(ROWS, needed=1), lambda z: (z @ ROWS.T > 0).any(1)),
    "no disjunct": (
        ad.AllOf([ad.Positive(ROWS[:2], 0.5, needed=1), ad.Positive(-ROWS[1:], 0.25, needed=1)]),
        lambda z: (z @ ROWS[:2].T + 0.5 > 0).any(1) & (0.25 - z @ ROWS[1:].T > 0).any(1),
    ),
    "one or the other": (
        ad.AnyOf([ad.Label(LABELS), ad.Label(SECOND)]),
        lambda z: (z.argmax(1) == LABELS) | (z.argmax(1) == SECOND),
    ),
}
every_question = pytest.mark.parametrize("name", QUESTIONS)
SETS: dict[str, ad.Perturbation | ad.InputSet] = {
    "linf": ad.LinfBall(0.1),
    "clipped": ad.LinfBall(0.1, clip=(0.0, 1.0)),
    "l2": ad.L2Ball(0.15),
    "l1": ad.L1Ball(0.2),
    "of a user": tilted(3, 0.15),
    "box": ad.Box(X - 0.05, X + torch.linspace(0.0, 0.2, 3, dtype=DOUBLE)),
    "ball as a set": ad.L2Ball(0.15).around(X),
    "set of a user": tilted(3, 0.15).around(X),
}


def points(ball: ad.Perturbation | ad.InputSet) -> list[Tensor]:
    """Points of the sets: the clean ones, random ones, extreme ones in random directions, and all corners of boxes."""
    region = ball if isinstance(ball, ad.InputSet) else ball.around(X)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, *X.shape, generator=generator, dtype=DOUBLE)
    found = [X, *(region.sample(generator) for _ in range(100)), *(region.vertex(d) for d in noise)]
    return found + (list(corners(region)) if isinstance(region, ad.Box) else [])


@cache
def outputs(ball: ad.Perturbation | ad.InputSet) -> list[Tensor]:
    with torch.no_grad():
        return [MODEL(p) for p in points(ball)]


def broken_somewhere(meaning: Meaning, ball: ad.Perturbation | ad.InputSet) -> Tensor:
    return torch.stack([~meaning(z) for z in outputs(ball)]).any(0)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
@every_question
def test_what_is_certified_holds_at_every_point(name: str, engine: ad.BoundEngine) -> None:
    specification, meaning = QUESTIONS[name]
    for size in (0.02, 0.1):
        ball = ad.LinfBall(size)
        certificate = ad.certify(MODEL, X, specification, ball, engine)
        assert not (certificate.certified & broken_somewhere(meaning, ball)).any()
        assert torch.equal(certificate.right, meaning(CLEAN))
        assert certificate.margins.shape == certificate.slack.shape == certificate.run_error.shape
        wrong = [v is ad.Verdict.WRONG for v in certificate.verdicts]
        assert wrong == (~meaning(CLEAN)).tolist()
        assert [v is ad.Verdict.CERTIFIED for v in certificate.verdicts] == certificate.certified.tolist()
        assert bool((certificate.certified | ~certificate.certified_as_run).all())


def questions_and_sets() -> list[Any]:
    """Fast: every question about an l-infinity ball and about three other sets, by turns. Slow: all the rest."""
    found = []
    for turn, name in enumerate(QUESTIONS):
        for number, kind in enumerate(SETS):
            fast = number == 0 or (number + turn) % 7 in (0, 2, 3)
            found.append(pytest.param(name, kind, id=f"{name}-{kind}", marks=() if fast else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("name", "kind"), questions_and_sets())
def test_every_set_certifies_and_breaks(name: str, kind: str) -> None:
    """Certified examples hold everywhere, attacked ones are broken where the attack says, inside their set."""
    (specification, meaning), ball = QUESTIONS[name], SETS[kind]
    certified = ad.certify(MODEL, X, specification, ball).certified
    found = ad.attack(MODEL, X, specification, ball, steps=20, generator=torch.Generator().manual_seed(0))
    broken = broken_somewhere(meaning, ball)
    assert not (certified & broken).any()
    assert not (certified & found.success).any()
    assert torch.equal(found.success, ~meaning(MODEL(found.examples)))
    assert torch.equal(found.success, found.success_as_run)
    region = ball if isinstance(ball, ad.InputSet) else ball.around(X)
    rows = torch.randn(300, *X.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    assert ((rows * found.examples).flatten(2).sum(-1) >= region.minimise(rows) - 1e-9).all()


def test_the_questions_are_worth_asking() -> None:
    """Every verdict occurs, and attacks find most of what hundreds of points find."""
    verdicts, found, there = set(), 0, 0
    for specification, meaning in QUESTIONS.values():
        for size in (0.02, 0.1, 0.2):
            ball = ad.LinfBall(size)
            verdicts.update(ad.certify(MODEL, X, specification, ball).verdicts)
            broken = broken_somewhere(meaning, ball)
            found += int((ad.attack(MODEL, X, specification, ball).success & broken).sum())
            there += int(broken.sum())
    assert verdicts == {ad.Verdict.CERTIFIED, ad.Verdict.UNKNOWN, ad.Verdict.WRONG}
    assert found >= 0.99 * there > 20


@pytest.mark.parametrize("engine", [ad.IBP(), ad.Dual(), ad.Crown()], ids=repr)
def test_margins_are_below_exact_minima(engine: ad.BoundEngine) -> None:
    """A mixed-integer program knows the minimum of every row over the box."""
    model, x = mlp(3, 6, 5, C), X[:3]
    offsets = torch.tensor([0.5, -0.25, 2.0], dtype=DOUBLE)
    certificate = ad.certify(model, x, ad.Positive(ROWS, offsets), ad.LinfBall(0.1), engine)
    exact = exact_minimum(model, ad.LinfBall(0.1).around(x), ROWS) + offsets
    assert bool((certificate.margins <= exact + 1e-6).all())
    assert bool((certificate.certified <= (exact > -1e-6).all(1)).all())


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_a_linear_network_is_decided_exactly(dtype: torch.dtype) -> None:
    """Over a box the minimum of a row is known; limits just inside and just outside of it tell the two verdicts apart."""
    model, x = mlp(3, 2, dtype=dtype), X.to(dtype)
    region = ad.LinfBall(0.25).around(x)
    values = torch.stack([model(p).double() for p in corners(region)])
    lowest, highest = values.amin(0).detach(), values.amax(0).detach()
    near = 1e-3
    inside = ad.certify(model, x, ad.Between(lowest - near, highest + near), ad.LinfBall(0.25))
    assert inside.certified.all()
    assert inside.certified_as_run.all()
    for lower, upper in ((lowest + near, highest + near), (lowest - near, highest - near)):
        assert not ad.certify(model, x, ad.Between(lower, upper), ad.LinfBall(0.25)).certified.any()
        assert ad.attack(model, x, ad.Between(lower, upper), ad.LinfBall(0.25)).success.all()


def test_top_k_counts_classes_that_may_be_better() -> None:
    """Certified if and only if fewer than k margins are unproved: counted from the label's own certificate."""
    for size in (0.02, 0.05, 0.1, 0.2):
        margins = ad.certify(MODEL, X, LABELS, ad.LinfBall(size))
        unproved = ~(margins.margins > margins.slack) & ~torch.nn.functional.one_hot(LABELS, C).bool()
        for k in (1, 2, 3):
            found = ad.certify(MODEL, X, ad.TopK(LABELS, k), ad.LinfBall(size))
            assert torch.equal(found.certified, unproved.sum(1) < k)


def test_labels_and_their_specification_are_the_same_question() -> None:
    one, other = (ad.certify(MODEL, X, asked, ad.LinfBall(0.1)) for asked in (LABELS, ad.Label(LABELS)))
    assert one.subject == other.subject
    assert torch.equal(one.margins, other.margins)
    top = ad.certify(MODEL, X, ad.TopK(LABELS, 1), ad.LinfBall(0.1))
    assert torch.equal(one.certified, top.certified)


def test_a_set_and_its_ball_are_bounded_alike() -> None:
    for ball in (ad.LinfBall(0.1), ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.L2Ball(0.1)):
        one, other = (ad.certify(MODEL, X, LABELS, given) for given in (ball, ball.around(X)))
        torch.testing.assert_close(one.margins, other.margins)
        assert torch.equal(one.certified, other.certified)


@every_question
def test_a_radius_is_itself_certified(name: str) -> None:
    specification, meaning = QUESTIONS[name]
    radius = ad.certified_radius(MODEL, X, specification, ad.LinfBall(0.3), tol=0.01)
    assert (radius[~meaning(CLEAN)] == 0).all()
    there = ad.certify(MODEL, X, specification, ad.LinfBall(radius.clone()))
    assert there.certified[radius > 0].all()
    assert not broken_somewhere(meaning, ad.LinfBall(radius.clone()))[radius > 0].any()


def test_networks_with_one_output() -> None:
    """[N, 1], and a bare [N]."""
    bare = Net(lambda m, x: m.body(x).squeeze(1), body=mlp(3, 8, 1))
    for model in (mlp(3, 8, 1), bare):
        value = model(X).detach().reshape(N, 1)
        certificate = ad.certify(model, X, ad.Between(value - 1.0, value + 1.0), ad.LinfBall(0.05))
        assert certificate.certified.all()
        assert certificate.margins.shape == (N, 2)
        narrow = ad.Between(value - 1e-4, value + 1e-4)
        assert not ad.certify(model, X, narrow, ad.LinfBall(0.05)).certified.any()
        assert ad.attack(model, X, narrow, ad.LinfBall(0.05)).success.all()
        assert (ad.certified_radius(model, X, ad.Between(value - 1.0, value + 1.0), ad.LinfBall(0.1)) > 0.04).all()


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_outputs_with_several_dimensions(engine: ad.BoundEngine) -> None:
    model = Net(lambda m, x: m.body(x).reshape(-1, 2, 3), body=mlp(3, 8, 6))
    flat = model(X).detach().flatten(1)
    certificate = ad.certify(model, X, ad.Between(flat - 2.0, flat + 2.0), ad.LinfBall(0.05), engine)
    assert certificate.certified.all()
    assert certificate.margins.shape == (N, 12)
    torch.testing.assert_close(
        certificate.margins, ad.certify(model.body, X, ad.Between(flat - 2.0, flat + 2.0), ad.LinfBall(0.05), engine).margins
    )  # fmt: skip


@every_question
def test_single_precision_claims_no_more(name: str) -> None:
    """Slack covers the distance to the bounds of float64, also where rows and limits are no numbers of float32."""
    specification = QUESTIONS[name][0]
    model, x = mlp(3, 12, 10, C, seed=9, dtype=torch.float32), X.float()
    for size in (0.02, 0.1):
        single = ad.certify(model, x, specification, ad.LinfBall(size))
        wide = ad.certify(
            mlp(3, 12, 10, C, seed=9, dtype=torch.float32).double(), x.double(), specification, ad.LinfBall(size)
        )
        known = wide.margins.isfinite()
        assert bool((single.margins.double() - wide.margins <= single.slack)[known].all())
        assert single.margins.dtype == torch.float32
        found = ad.attack(model, x, specification, ad.LinfBall(size))
        assert not (found.success & single.certified).any()
        assert not (found.success_as_run & single.certified_as_run).any()


def test_rows_that_float32_cannot_hold_are_asked_as_they_are() -> None:
    """With 0.1 rounded to float32, the first row would be positive; exactly it is not, by one part in a hundred million."""
    model = Net(lambda m, x: x[:, :2] * 1.0).float()
    x = torch.tensor([[1.0, 1.0, 0.0]])
    rounded = torch.tensor(0.1, dtype=torch.float32).item()
    assert rounded > 0.1, "so the row is negative, and zero if rounded"
    negative = ad.Positive([[0.1, -rounded]], 1e-12)
    certificate = ad.certify(model, x, negative, ad.LinfBall(0.0))
    assert certificate.verdicts == [ad.Verdict.WRONG]
    assert not certificate.certified.any()
    assert ad.attack(model, x, negative, ad.LinfBall(0.0), steps=0).success.all()
    assert ad.certify(model, x, ad.Positive([[-0.1, rounded]]), ad.LinfBall(0.0)).certified.all()


def test_rows_that_need_float64_prove_nothing_without_it() -> None:
    """A set that cannot say what it is in float64 leaves only float32, where the rows are other ones."""
    model, x = mlp(3, 12, 10, C, seed=9, dtype=torch.float32), X.float()
    asked, region = ad.Positive([[0.1, 0.0, 0.0, 0.0]], 100.0), Ellipsoid(x, 0.01 * torch.eye(3).expand(N, 3, 3))
    with pytest.warns(UserWarning, match="could not be looked at in float64"):
        found = ad.certify(model, x, asked, region)
    assert not found.certified.any()
    assert ad.certify(model, x, ad.Positive([[0.5, 0.0, 0.0, 0.0]], 100.0), region).certified.all()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_offsets_are_added_without_rounding_up(dtype: torch.dtype) -> None:
    """In rational numbers: the bound is never above the sum, and no more than two roundings below it."""
    generator = torch.Generator().manual_seed(0)
    lower = (torch.randn(200, 3, generator=generator, dtype=DOUBLE) * 10.0 ** torch.randint(-9, 9, (200, 3))).to(dtype)
    offsets = torch.randn(3, generator=generator, dtype=DOUBLE)
    question = ad.Positive(torch.eye(3), offsets).put(torch.zeros(200, 1), (3,))
    found = _with_offsets(Proof(lower, lower, lower), question).lower
    assert found.dtype == dtype
    for before, after in zip(lower.double().tolist(), found.double().tolist(), strict=True):
        for a, b, offset in zip(before, after, offsets.tolist(), strict=True):
            exact = Fraction(a) + Fraction(offset)
            assert Fraction(b) <= exact
            assert exact - Fraction(b) <= 2 * Fraction(torch.finfo(dtype).eps) * abs(exact) + Fraction(2) ** -1000
    for odd in (torch.inf, -torch.inf, torch.nan):
        assert not (
            _with_offsets(Proof(torch.full((1, 3), odd, dtype=dtype), lower, lower), question).lower.isfinite()
        ).any()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_limit_that_is_reached_is_never_certified(dtype: torch.dtype) -> None:
    """The output is x itself: the limit is attained, and one step beyond is not."""
    model = Net(lambda m, x: x * 1.0).to(dtype)
    x = torch.tensor([[0.1], [1e-3], [777.0]], dtype=dtype)
    ends = ad.LinfBall(0.0).around(x)
    for offset, certified in ((0.0, False), (-1e-30, False), (1e-2, True)):
        found = ad.certify(model, x, ad.Between(upper=x.double() + offset), ends)
        assert (found.certified == certified).all()


def test_high_probability() -> None:
    """A question of several rows has one probability of failure, as a label has."""
    model = mlp(3, 300, 40, C, seed=9)
    labels = model(X).argmax(1)
    asked = ad.AllOf([ad.TopK(labels, 2), ad.Between(-50.0, 50.0)])
    probable = ad.certify(model, X, asked, ad.LinfBall(0.01), ad.HighProbability(k=60))
    assert isinstance(probable, ad.HighProbabilityCertificate)
    assert ad.Verdict.PROBABLE in probable.verdicts
    assert str(probable).startswith(
        f"{int(probable.certified.sum())} of 8 certified, each with probability 0.99, at l-infinity 0.01"
    )
    exact = ad.certify(model, X, asked, ad.LinfBall(0.01))
    assert probable.margins.shape == exact.margins.shape
    assert bool((probable.certified <= exact.certified).all())


def test_every_question_is_a_subject_of_its_own() -> None:
    subjects = [
        ad.certify(MODEL, X, specification, ad.LinfBall(0.1)).subject for specification, _ in QUESTIONS.values()
    ]
    near = ad.Positive(torch.nextafter(ROWS, torch.tensor(9.0, dtype=DOUBLE)), 1.0)
    others = [
        ad.Positive(ROWS, 1.5),
        near,
        ad.Positive(ROWS, 1.0, needed=2),
        ad.TopK(LABELS, 2),
        ad.Label(LABELS, (LABELS[:, None] + 1) % C),
    ]
    subjects += [ad.certify(MODEL, X, asked, ad.LinfBall(0.1)).subject for asked in others]
    assert len({(s.inputs, s.question) for s in subjects}) == len(subjects)
    again = ad.certify(MODEL, X.clone(), ad.Positive(ROWS.clone(), 1.0), ad.LinfBall(0.1)).subject
    assert again == ad.certify(MODEL, X, ad.Positive(ROWS, torch.tensor(1.0)), ad.LinfBall(0.1)).subject
    boxes = [ad.certify(MODEL, X, LABELS, ad.Box(X - e, X + e)).subject for e in (0.1, 0.1, 0.2)]
    assert boxes[0] == boxes[1] != boxes[2]


@every_question
def test_json_says_what_was_asked(name: str) -> None:
    certificate = ad.certify(MODEL, X, QUESTIONS[name][0], ad.LinfBall(0.1))
    record = json.loads(certificate.to_json())
    assert record["question"] == certificate.subject.question
    assert record["certified"] == certificate.certified.tolist()
    assert record["certified_accuracy"] == certificate.certified_accuracy == 1 - certificate.robust_error
    assert ("labels" in record) == (certificate.question.labels is not None)
    if "labels" not in record:
        assert record["right"] == certificate.right.tolist()
        with pytest.raises(ad.ArgumentError, match="which has no labels"):
            _ = certificate.labels


BALL = ad.LinfBall(0.1)
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "radius of a box": (
        lambda: ad.certified_radius(MODEL, X, LABELS, ad.Box(X, X)),
        "ball: a Box has one size, and a radius is searched for over many; use a perturbation such as LinfBall",
    ),
    "a set of other inputs": (lambda: ad.certify(MODEL, X, LABELS, ad.Box(X[:2], X[:2])), "a set must have the shape"),
    "a set in float32": (lambda: ad.certify(MODEL, X, LABELS, ad.Box(X.float(), X.float())), "a set must have the shape, dtype"),
    "x outside of its box": (lambda: ad.certify(MODEL, X, LABELS, ad.Box(X + 0.1, X + 0.2)), "x lies outside of its set at example 0"),
    "x outside of its ball": (lambda: ad.attack(MODEL, X, LABELS, ad.L2Ball(0.1).around(X + 0.2)), "x lies outside of its set"),
    "an infinite set": (lambda: ad.certify(MODEL, X, LABELS, ad.Box.around(X, X / 0)), "radius must be finite"),
    "a class": (lambda: ad.certify(MODEL, X, ad.TopK, BALL), "such as TopK\\(labels, 3\\), got the class TopK"),
    "a list": (lambda: ad.certify(MODEL, X, [0] * N, BALL), "labels must be a tensor of integer class numbers, got list"),
    "rows that do not fit": (lambda: ad.certify(MODEL, X, ad.Positive([[1.0, 2.0]]), BALL), "the model has 4 outputs"),
    "rows that do not fit an attack": (lambda: ad.attack(MODEL, X, ad.Positive([[1.0, 2.0]]), BALL), "the model has 4 outputs"),
    "rows that do not fit a radius": (lambda: ad.certified_radius(MODEL, X, ad.TopK(LABELS, 4), BALL), "k must be less than 4"),
    "labels of one output": (lambda: ad.certify(mlp(3, 1), X, LABELS, BALL), r"or ask for Between\(lower=0.0\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_questions_are_refused_in_one_sentence(name: str) -> None:
    ask, message = BAD[name]
    with pytest.raises(ad.ArgumentError, match=message) as caught:
        ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ball", "said"),
    [
        (ad.LinfBall(2 / 255), "at l-infinity 2/255"),
        (ad.LinfBall(torch.tensor(8 / 255)), "at l-infinity 8/255"),
        (ad.LinfBall(0.1, clip=(0.0, 1.0)), "at l-infinity 0.1 in [0, 1]"),
        (ad.LinfBall(0.2), "at l-infinity 0.2"),
        (ad.L2Ball(0.123456789), "at l2 0.123457"),
        (ad.L1Ball(torch.tensor([1 / 255, 0.5] * 4)), "at l1 1/255 to 0.5"),
        (ad.LinfBall(0.0), "at l-infinity 0"),
        (ad.Box(X, X), "in a Box each"),
        (tilted(3, 0.1), "under Tilted"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_certificate_prints_as_one_line(ball: ad.Perturbation | ad.InputSet, said: str) -> None:
    certificate = ad.certify(MODEL, X, LABELS, ball)
    count = int(certificate.certified.sum())
    assert str(certificate).startswith(f"{count} of 8 certified {said} by Dual()")
    assert repr(certificate) == f"<Certificate: {certificate}>"


def test_the_line_counts_what_is_unknown_and_wrong() -> None:
    labels = LABELS.clone()
    labels[:2] = (labels[:2] + 1) % C
    certificate = ad.certify(MODEL, X, labels, ad.LinfBall(0.1))
    proved = int(certificate.certified.sum())
    assert str(certificate) == f"{proved} of 8 certified at l-infinity 0.1 by Dual(), {6 - proved} unknown, 2 wrong"
    top = ad.certify(MODEL, X, ad.TopK(labels, 2), ad.LinfBall(0.1))
    assert re.fullmatch(r"\d of 8 certified at l-infinity 0.1 for TopK\(k=2\) by Dual\(\).*", str(top))
