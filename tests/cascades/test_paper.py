"""The paper's cascade: evaluation equals its rule, example by example; and what its certificate does not promise is found."""

import json

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.cascades import Cascade, RoutedCascade, SumEnsemble
from autodual.cascades.records import CascadeAttack, CascadeCertificate
from small import DOUBLE, ENGINES, batch, convnet, mlp

BALLS = {
    "linf": ad.LinfBall(0.06),
    "linf, clipped": ad.LinfBall(0.08, clip=(0.0, 1.0)),
    "l2": ad.L2Ball(0.08),
    "l1": ad.L1Ball(torch.tensor(0.1, dtype=DOUBLE)),
}
every_ball = pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS.keys())


def linear(weight: list[list[float]], bias: list[float]) -> nn.Module:
    layer = nn.Linear(len(weight[0]), len(weight)).to(DOUBLE)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return nn.Sequential(layer).eval()


def by_hand(
    models: list[nn.Module], x: Tensor, ball: ad.Perturbation, engine: ad.BoundEngine | None = None
) -> tuple[list[int], list[bool], list[int]]:
    """[SPAD Alg. 2], one example at a time, with nothing but the public certify()."""
    labels, certified, stages = [], [], []
    for n in range(len(x)):
        one = x[n : n + 1]
        for j, model in enumerate(models):
            label = model(one).argmax(1)
            proved = bool(ad.certify(model, one, label, ball, engine).certified)
            if proved or j == len(models) - 1:
                labels.append(int(label))
                certified.append(proved)
                stages.append(j)
                break
    return labels, certified, stages


@every_ball
@pytest.mark.parametrize("count", [1, 2, 3])
def test_evaluation_is_the_papers_rule(ball: ad.Perturbation, count: int) -> None:
    x, labels = batch(25, 4, seed=3), torch.arange(25) % 3
    models: list[nn.Module] = [mlp(4, 8, 3, seed=s) for s in range(count)]
    expected = by_hand(models, x, ball)
    cascade = Cascade(models, ball)
    for answers in (cascade.predict(x), cascade.certify(x, labels).answers):
        assert (answers.label.tolist(), answers.certified.tolist(), answers.stage.tolist()) == expected
    record = cascade.certify(x, labels)
    right = [a == b for a, b in zip(expected[0], labels.tolist(), strict=True)]
    claimed = sum(r and c for r, c in zip(right, expected[1], strict=True))
    assert record.error == pytest.approx(1 - sum(right) / 25)
    assert record.stage_certified_error == pytest.approx(1 - claimed / 25)
    for j, row in enumerate(record.by_stage()):
        mine = [n for n in range(25) if expected[2][n] == j]
        assert row == {
            "stage": j,
            "answers": len(mine),
            "certified": sum(expected[1][n] for n in mine),
            "correct": sum(right[n] for n in mine),
            "certified_correct": sum(expected[1][n] and right[n] for n in mine),
            "certified_wrong": sum(expected[1][n] and not right[n] for n in mine),
        }
    for n in range(25):
        one = x[n : n + 1]
        agree = all(int(m(one).argmax(1)) == labels[n] for m in models)
        last = bool(ad.certify(models[-1], one, labels[n : n + 1], ball).certified)
        assert bool(record.no_wrong_certificate[n]) == agree
        assert bool(record.sound[n]) == (agree and last)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_every_engine_that_proves_will_do(engine: ad.BoundEngine) -> None:
    x, models = batch(10, 4), [mlp(4, 8, 3, seed=s) for s in range(2)]
    answers = Cascade(models, ad.LinfBall(0.05), engine).predict(x)
    assert (answers.label.tolist(), answers.certified.tolist(), answers.stage.tolist()) == by_hand(
        list(models), x, ad.LinfBall(0.05), engine
    )


def test_images_and_single_precision() -> None:
    models, x = [convnet(torch.float32) for _ in range(2)], batch(6, 1, 6, 6, dtype=torch.float32)
    ball, labels = ad.LinfBall(0.05, clip=(0.0, 1.0)), torch.arange(6) % 3
    for kind in (Cascade(models, ball), RoutedCascade(models, [0.05], ball), SumEnsemble(models, ball)):
        record, attack = kind.certify(x, labels), kind.attack(x, labels, steps=8, restarts=2)
        assert not (record.sound & attack.found).any()
        assert attack.examples.dtype == torch.float32
        assert (attack.examples >= 0).all()
        assert (attack.examples <= 1).all()


def test_one_stage_is_the_certificate_of_the_model() -> None:
    model, x, labels, ball = mlp(4, 8, 3), batch(30, 4), torch.arange(30) % 3, ad.LinfBall(0.05)
    plain = ad.certify(model, x, labels, ball)
    for kind in (Cascade([model], ball), RoutedCascade([model], [], ball), SumEnsemble([model], ball)):
        record = kind.certify(x, labels)
        assert torch.equal(record.sound, plain.certified)
        assert record.stage_certified_error == record.sound_certified_error == pytest.approx(plain.robust_error)
        assert record.error == pytest.approx(plain.error)


# --- the attack -------------------------------------------------------------------------------------------------------------

EPS = 0.1
ALWAYS_ZERO = linear([[0, 0], [0, 0]], [1.0, -1.0])
"""Certifies label 0 everywhere."""
BY_FIRST = linear([[0, 0], [1, 0]], [0.0, 0.0])
"""Label 1 where x0 > 0; certified from x0 > eps on."""
X, ZERO = torch.tensor([[0.05, 0.0]], dtype=DOUBLE), torch.tensor([0])


def test_a_constructed_case_certifies_a_wrong_label_and_the_attack_finds_it() -> None:
    """Stage 0 mislabels x without certifying; stage 1 rescues it. At x0 > eps, stage 0 certifies its mistake."""
    cascade = Cascade([BY_FIRST, ALWAYS_ZERO], ad.LinfBall(EPS))
    record = cascade.certify(X, ZERO)
    assert record.stage_certified_error == 0.0, "the paper's metric claims that x is robust"
    assert record.sound_certified_error == 1.0, "the sound part does not"
    assert not record.no_wrong_certificate.any()
    attack = cascade.attack(X, ZERO)
    assert attack.found.all()
    assert attack.certified_wrong.all()
    assert EPS < attack.examples[0, 0] <= 0.05 + EPS + 1e-12
    again = cascade.predict(attack.examples)
    assert (int(again.label), bool(again.certified), int(again.stage)) == (1, True, 0)
    summary = record.summary(attack)
    assert (summary["attacked_error"], summary["attacked_certified_error"], summary["broken_claims"]) == (1.0, 1.0, 1)


def test_the_attack_gets_past_a_stage_that_is_right() -> None:
    """Stage 0 certifies the truth at x, but not where x1 is larger; there, stage 1 can be made to certify its mistake."""
    in_the_way = linear([[0, -1], [0, 0]], [0.15, 0.0])
    for ball in (ad.LinfBall(EPS), ad.L2Ball(1.6 * EPS), ad.LinfBall(EPS, clip=(-1.0, 1.0))):
        cascade = Cascade([in_the_way, BY_FIRST, ALWAYS_ZERO], ball)
        attack = cascade.attack(X, ZERO, restarts=5, generator=torch.Generator().manual_seed(0))
        if isinstance(ball, ad.LinfBall):
            assert cascade.certify(X, ZERO).claimed.all()
            assert attack.certified_wrong.all()
            assert int(attack.answers.stage) == 1
        else:  # x0 > 1.6 eps needs a shift of 1.1 eps, which leaves 1.16 eps for x1: more than enough
            assert attack.certified_wrong.all()


def test_without_a_wrong_stage_no_wrong_label_is_certified_but_answers_may_be_wrong() -> None:
    model = linear([[0, 0], [1, 0]], [0.0, -0.1])  # label 0 with margin 0.05 at x: right, not certified
    cascade = Cascade([model, model], ad.LinfBall(EPS))
    record, attack = cascade.certify(X, ZERO), cascade.attack(X, ZERO)
    assert record.no_wrong_certificate.all()
    assert not record.sound.any()
    assert attack.found.all()
    assert not attack.certified_wrong.any()


def test_nothing_to_find() -> None:
    cascade = Cascade([ALWAYS_ZERO, ALWAYS_ZERO], ad.LinfBall(EPS))
    attack = cascade.attack(X, ZERO, restarts=3)
    assert not attack.found.any()
    assert torch.equal(attack.examples, X)


def test_a_clean_mistake_counts_without_searching() -> None:
    attack = Cascade([ALWAYS_ZERO], ad.LinfBall(EPS)).attack(X, torch.tensor([1]), steps=0)
    assert attack.certified_wrong.all()
    assert torch.equal(attack.examples, X)


def test_another_engine_may_guide_the_search() -> None:
    for guide in (ad.IBP(), ad.Crown()):
        attack = Cascade([BY_FIRST, ALWAYS_ZERO], ad.LinfBall(EPS)).attack(X, ZERO, guide=guide)
        assert attack.certified_wrong.all()


def test_attacks_are_repeatable_and_leave_no_trace() -> None:
    models, x, labels = [mlp(4, 8, 3, seed=s) for s in range(2)], batch(8, 4), torch.arange(8) % 3
    cascade = Cascade(models, ad.L2Ball(0.1))
    with torch.inference_mode():
        first = cascade.attack(x.clone(), labels, steps=5, restarts=2, generator=torch.Generator().manual_seed(1))
    state = torch.get_rng_state()
    second = cascade.attack(x, labels, steps=5, restarts=2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first.examples, second.examples)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for m in models for p in m.parameters())


@pytest.mark.parametrize("kind", [Cascade, SumEnsemble])
def test_the_attack_tells_after_every_step_how_far_it_is_and_can_be_ended_there(kind: type) -> None:
    models, x, labels = [mlp(4, 8, 3, seed=s) for s in range(2)], batch(9, 4), torch.arange(9) % 3
    told: list[float] = []
    kind(models, ad.LinfBall(0.05)).attack(x, labels, steps=3, restarts=2, tell=told.append)
    assert len(told) >= 8
    assert len(told) % 8 == 0
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] == 1

    class EnoughError(Exception):
        pass

    def stop(part: float) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        kind(models, ad.LinfBall(0.05)).attack(x, labels, tell=stop)


# --- records ----------------------------------------------------------------------------------------------------------------


def test_batches_join_to_the_whole() -> None:
    models, x, labels = [mlp(4, 8, 3, seed=s) for s in range(2)], batch(9, 4), torch.arange(9) % 3
    for kind in (Cascade(models, ad.LinfBall(0.05)), SumEnsemble(models, ad.LinfBall(0.05))):
        whole = kind.certify(x, labels)
        parts = [kind.certify(a, b) for a, b in zip(x.split(4), labels.split(4), strict=True)]
        attacks = [kind.attack(a, b, steps=3) for a, b in zip(x.split(4), labels.split(4), strict=True)]
        joined, attack = CascadeCertificate.join(parts), CascadeAttack.join(attacks)
        assert joined.to_json() == whole.to_json()
        read = json.loads(joined.to_json(attack))
        assert read["examples"] == len(read["sound"]) == len(read["attacked"]) == 9
        assert read["kind"] == kind.kind
        assert read["attacked_error"] == pytest.approx(attack.error)
        with pytest.raises(ad.ArgumentError, match="other examples"):
            whole.summary(attacks[0])
    with pytest.raises(ad.ArgumentError, match="at least one part"):
        CascadeCertificate.join([])
    other = Cascade(models, ad.LinfBall(0.06)).certify(x, labels)
    with pytest.raises(ad.ArgumentError, match="not about one combination"):
        CascadeCertificate.join([whole, other])
