"""What is called sound, is: tried on exhaustive grids over two-dimensional balls, and by the attack."""

import functools
import math

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.cascades import Cascade, RoutedCascade, SumEnsemble
from autodual.cascades.base import Combination
from small import DOUBLE, batch, mlp

SEEDS = range(6)
SIDE = 25
"""Grid points along each side of a ball."""
COUNT = 30
BALLS: dict[str, ad.Perturbation] = {
    "linf": ad.LinfBall(0.12),
    "linf, clipped": ad.LinfBall(0.12, clip=(0.0, 1.0)),
    "l2": ad.L2Ball(0.14),
    "l1": ad.L1Ball(0.16),
}
KINDS = ("paper", "routed", "sum")


def problem(seed: int) -> tuple[list[nn.Module], Tensor, Tensor]:
    """Three nets whose labels agree often, but not always; the labels are those of most of them, some of them spoilt."""
    base = mlp(2, 12, 3, seed=seed)
    models: list[nn.Module] = []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        model = mlp(2, 12, 3, seed=seed)
        with torch.no_grad():
            for own, shared in zip(model.parameters(), base.parameters(), strict=True):
                own.copy_(shared + 0.25 * torch.randn(own.shape, generator=generator, dtype=DOUBLE))
        models.append(model)
    x = batch(COUNT, 2, seed=seed)
    labels = torch.stack([m(x).argmax(1) for m in models]).mode(0).values
    labels[::10] = (labels[::10] + 1) % 3
    return models, x, labels


def combination(kind: str, seed: int, ball: ad.Perturbation) -> Combination:
    models = problem(seed)[0]
    if kind == "routed":
        return RoutedCascade(models, [(0.0, 0.1, 0.3)[seed % 3], (0.2, math.inf, 0.05)[seed % 3]], ball)
    return Cascade(models, ball) if kind == "paper" else SumEnsemble(models, ball)


def grid(ball: ad.Perturbation, x: Tensor) -> Tensor:
    """[P, N, 2]: points of every ball, border and corners included; those of the square around it that lie outside are pulled in."""
    side = torch.linspace(-1, 1, SIDE, dtype=DOUBLE)
    steps = torch.cartesian_prod(side, side).unsqueeze(1)
    region = ball.around(x)
    points = torch.stack([region.project(region.centre + s * region.radius.expand_as(x)) for s in steps])
    return points.clamp(*ball.clip) if isinstance(ball, ad.LinfBall) and ball.clip else points


@functools.cache
def tried(kind: str, seed: int, ball: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of every example: sound, no wrong certificate, claimed; somewhere on the grid wrong, and wrong with a certificate."""
    together = combination(kind, seed, BALLS[ball])
    _, x, labels = problem(seed)
    record = together.certify(x, labels)
    points = grid(BALLS[ball], x)
    answers = together.predict(points.flatten(0, 1))
    wrong = answers.label.reshape(-1, COUNT) != labels
    certified = answers.certified.reshape(-1, COUNT)
    return record.sound, record.no_wrong_certificate, record.claimed, wrong.any(0), (wrong & certified).any(0)


every = pytest.mark.parametrize(
    ("kind", "seed", "ball"), [(k, s, b) for k in KINDS for s in SEEDS for b in BALLS if s < 2 or b == "linf"]
)


@every
def test_no_grid_point_contradicts_what_is_sound(kind: str, seed: int, ball: str) -> None:
    sound, silent, claimed, wrong, certified_wrong = tried(kind, seed, ball)
    assert not (sound & wrong).any()
    assert not (silent & certified_wrong).any()
    assert not (sound & ~silent).any()
    if kind != "paper":
        assert torch.equal(sound, claimed)


@every
def test_the_attack_never_beats_what_is_sound(kind: str, seed: int, ball: str) -> None:
    together = combination(kind, seed, BALLS[ball])
    _, x, labels = problem(seed)
    generator = torch.Generator().manual_seed(seed)
    attack = together.attack(x, labels, steps=10, restarts=2, generator=generator)
    sound, silent, _, wrong, certified_wrong = tried(kind, seed, ball)
    assert not (sound & attack.found).any()
    assert not (silent & attack.certified_wrong).any()
    again = together.predict(attack.examples)
    assert torch.equal(again.label != labels, attack.found)
    assert torch.equal(again.certified & attack.found, attack.certified_wrong)
    missed = (wrong & ~attack.found).sum()
    if (
        kind == "paper"
    ):  # the others certify a wrong label only where the clean input gets one, too: nothing to search for
        missed += (certified_wrong & ~attack.certified_wrong).sum()
    assert missed == 0, "and it finds all that the grid finds"
    shift = (attack.examples - x).abs()
    size = {"l2": shift.norm(dim=1), "l1": shift.sum(1)}.get(ball, shift.amax(1))
    assert (size <= BALLS[ball].eps + 1e-12).all()


def test_all_of_this_happens() -> None:
    """None of the sets above is empty: the paper's claims break, some with a certificate, and much is sound."""
    total = {k: torch.zeros(5, dtype=torch.long) for k in KINDS}
    broken = 0
    for kind in KINDS:
        for seed in SEEDS:
            found = tried(kind, seed, "linf")
            total[kind] += torch.tensor([int(f.sum()) for f in found])
            broken += int((found[2] & found[4]).sum()) if kind == "paper" else 0
    assert all(total[kind][0] >= 30 for kind in KINDS), total
    assert all(total[kind][3] >= 20 for kind in KINDS), total
    assert broken >= 3, "claims of the paper's cascade that a certified wrong answer breaks"
