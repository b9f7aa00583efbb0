"""The attack on a cascade: in batches of any size, told of at every step, and stopped at any."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autodual.cascades import Cascade, Combination, RoutedCascade, SumEnsemble
from autodual.data import ImageData
from autodual.digits import load_digits, load_digits_network
from autodual.evaluation.processes import StoppedError, Watch
from autodual.sets import LinfBall
from autodual.training import stages
from autodual.training.stages import attack_all, attack_batch
from small import mlp

IMAGES, LABELS = (t[:8] for t in load_digits("test"))
DATA = ImageData((IMAGES * 16).round().to(torch.uint8), LABELS, tuple("0123456789"), "digits", scale=16)
BALL = LinfBall(0.08, clip=(0.0, 1.0))


def models() -> list[nn.Module]:
    other = load_digits_network()
    with torch.no_grad():
        for value in other.parameters():
            value.add_(0.7 * value.std() * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    return [other, load_digits_network()]


MADE: dict[str, Combination] = {
    "paper": Cascade(models(), BALL),
    "routed": RoutedCascade(models(), [1.0], BALL),
    "sum": SumEnsemble(models(), BALL),
}


@pytest.mark.parametrize("kind", MADE)
def test_the_size_of_a_batch_does_not_matter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attack_all(MADE[kind], DATA, steps=4)
    monkeypatch.setattr(stages, "attack_batch", lambda *_: 3)
    parts = attack_all(MADE[kind], DATA, steps=4)
    assert whole.found.any()
    assert torch.equal(whole.found, parts.found)
    assert torch.equal(whole.certified_wrong, parts.certified_wrong)
    torch.testing.assert_close(whole.examples, parts.examples)


def test_it_is_told_of_at_every_step_and_stopped_at_the_next() -> None:
    told: list[tuple[str, int, int]] = []

    def draw(what: str, done: int, of: int) -> None:
        told.append((what, done, of))

    attack_all(MADE["paper"], DATA, Watch(draw=draw), steps=4)
    assert len(told) > 5
    assert {(what, of) for what, _, of in told} == {("attacking the cascade", 8)}
    done = [at for _, at, _ in told]
    assert done == sorted(done)
    assert done[-1] == 8
    for steps in (1, 3):
        told.clear()
        with pytest.raises(StoppedError):
            attack_all(MADE["paper"], DATA, Watch(draw=draw, stop=lambda: len(told) >= steps), steps=4)  # noqa: B023
        assert len(told) == steps


def test_batches_shrink_with_the_square_of_the_hidden_units() -> None:
    """Where the search follows bounds; scores alone take little."""

    def wide(units: int) -> list[nn.Module]:
        return [nn.Sequential(nn.Flatten(), *mlp(64, units, 10, dtype=torch.float32)).eval()]

    assert attack_batch(Cascade(wide(4000), BALL), DATA) == (1 << 30) // (16 * 4064**2) == 4
    assert attack_batch(Cascade(wide(40000), BALL), DATA) == 1
    assert attack_batch(SumEnsemble(wide(4000), BALL), DATA) == 100
    assert attack_batch(MADE["paper"], DATA) > 50
