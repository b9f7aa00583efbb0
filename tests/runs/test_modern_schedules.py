"""Schedules of newer methods: each is its formula, and constant where it is not asked for."""

from __future__ import annotations

import pytest

import autodual as ad
from autodual.runs.config import TrainConfig
from autodual.runs.schedule import check_ramp, crown_weight_at, eps_at, lr_at, regularise_at, weight_at

BATCHES = 7
SMOOTH = TrainConfig(eps=0.2, epochs=10, eps_schedule="smooth", warm_up=2, eps_epochs=6, train_eps_factor=1.5)


def test_the_smooth_ramp_counts_steps() -> None:
    """The published formula, in steps."""
    first, last, end = 2 * BATCHES, 8 * BATCHES, 0.2 * 1.5
    mid = first + 0.25 * (last - first)
    a = end / ((last - mid) * 4 * (mid - first) ** 3 + (mid - first) ** 4)
    for epoch in range(10):
        for batch in range(BATCHES):
            step = epoch * BATCHES + batch + 1
            if step <= first:
                expected = 1e-6
            elif step <= mid:
                expected = max(1e-6, a * (step - first) ** 4)
            elif step <= last:
                expected = a * (mid - first) ** 4 + 4 * a * (mid - first) ** 3 * (step - mid)
            else:
                expected = end
            assert eps_at(SMOOTH, epoch, (batch + 1) / BATCHES) == pytest.approx(expected, rel=1e-9)
    assert eps_at(SMOOTH, 7) == eps_at(SMOOTH, 9, 0.1) == pytest.approx(0.3)


def test_a_linear_ramp_may_begin_later_and_go_further() -> None:
    plain = TrainConfig(eps=0.1, epochs=9, eps_epochs=4)
    later = plain.with_changes(warm_up=2, train_eps_factor=2.0)
    assert [eps_at(later, e) for e in range(3)] == [1e-6, 1e-6, 0.01]
    assert eps_at(later, 5) == eps_at(later, 8) == 0.2
    assert eps_at(plain, 3, 0.1) == 0.1


def test_a_part_of_the_training_gives_way_to_the_warm_up() -> None:
    short = TrainConfig(epochs=2, eps_schedule="smooth", warm_up=1, eps_part=1.0)
    check_ramp(short)
    assert eps_at(short, 1) == 0.1
    with pytest.raises(
        ad.ArgumentError, match=r"eps_epochs is 4 after 2 of warm-up, but training ends after 5.*at least 6"
    ):
        check_ramp(TrainConfig(epochs=5, eps_schedule="smooth", warm_up=2, eps_epochs=4))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 1.0])
def test_weights_follow_eps(part: float) -> None:
    config = TrainConfig(
        eps=0.1, train_eps_factor=1.2, engine="crown-ibp", robust_weight_start=0.2, robust_weight=0.6, crown_weight_start=1.0,
        crown_weight=0.3, regularise=0.5,
    )  # fmt: skip
    eps = part * 0.12
    assert weight_at(config, eps) == pytest.approx(1 - max(0.4, 0.8 * (1 - part * 0.6)))
    assert crown_weight_at(config, eps) == pytest.approx(1 - 0.7 * part)
    assert regularise_at(config, eps) == pytest.approx(0.5 * (1 - part))
    assert weight_at(config.with_changes(robust_weight_start=None), eps) == 0.6
    assert crown_weight_at(config.with_changes(crown_weight_start=None), eps) == 0.3


def test_kappa_ends_where_it_is_to_end() -> None:
    config = TrainConfig(engine="ibp", robust_weight_start=0.0, robust_weight=0.5)
    assert [weight_at(config, eps) for eps in (0.0, 0.05, 0.1)] == pytest.approx([0.0, 0.25, 0.5])


def test_milestones_are_epochs_or_parts_of_the_training() -> None:
    config = TrainConfig(lr=1.0, epochs=16, lr_milestones=(12, 14), lr_factor=0.2)
    rates = [lr_at(config, epoch) for epoch in range(16)]
    assert rates == pytest.approx([1.0] * 12 + [0.2] * 2 + [0.04] * 2)
    parts = config.with_changes(lr_milestones=("3/4", "7/8"))
    assert [lr_at(parts, epoch) for epoch in range(16)] == rates
    assert lr_at(parts.with_changes(epochs=160), 119) == 1.0
    assert lr_at(parts.with_changes(epochs=160), 140) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr_milestones": [3, 2]}, "lr_milestones must be positive and ascending"),
        ({"lr_milestones": [0]}, "lr_milestones must be positive and ascending"),
        ({"lr_milestones": "3,4"}, "lr_milestones must be a list of finite numbers or nothing, got '3,4'"),
        ({"lr_factor": 0}, "lr_factor must be positive"),
        ({"box_part": 0}, "box_part must be positive"),
        ({"box_part": 1.5}, "box_part must lie between 0 and 1"),
        ({"box_part": 0.5, "norm": "l2"}, "box_part is for norm linf, got 0.5 with norm l2"),
        ({"mix_with": "adversarial", "engine": "none"}, "mix_with is about bounds, and engine is none: .* at natural"),
        ({"regularise": 0.5, "engine": "none"}, "regularise is about bounds"),
        ({"crown_weight": 0.5}, "crown_weight is for engine crown-ibp, not projected"),
        ({"batch_statistics": "adversarial"}, "batch_statistics of adversarial examples need an attack"),
        ({"eps": 0.6, "train_eps_factor": 2}, "train_eps_factor times eps must be at most 1"),
        ({"warm_up": 60}, "warm_up must leave epochs to train in, got 60 of 60"),
        ({"average": "mean"}, "average must be one of none, ema, swa"),
        ({"attack_restarts": 0}, "attack_restarts must be at least 1"),
        ({"average_decay": 1}, "average_decay must lie between 0 and 1, and below 1"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        TrainConfig.from_mapping(values)
