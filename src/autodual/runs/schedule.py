"""Perturbation size, learning rate and weights of the losses by epoch. [REFERENCE: Training]

Both sizes follow the length of the training: the paper's 20, 30 and 10 of 60 epochs are a third, a half and a sixth of any number of
epochs, unless the config gives them in epochs.
"""

from __future__ import annotations

from typing import Any

from autodual._errors import ArgumentError
from autodual.runs.config import PARTS, TrainConfig

SMALLEST_EPS = 1e-6
"""What eps is at least while it grows: bounds of boxes without any width say nothing about how they would grow."""
SMOOTH_MID, SMOOTH_POWER = 0.25, 4


def final_eps(config: TrainConfig) -> float:
    """The largest size that is trained against."""
    return config.eps * config.train_eps_factor


def eps_at(config: TrainConfig, epoch: int, part: float = 1.0) -> float:
    """Size of the perturbation in an epoch, of which a part is done: it grows over the epochs after the warm-up, then stays.

    A linear ramp has one size for each epoch. A smooth one has one for each step; see `smooth_ramp`.
    """
    ramp, end, since = in_epochs(config, "eps_part"), final_eps(config), epoch - config.warm_up
    if since < 0:
        return min(SMALLEST_EPS, end)
    if config.eps_schedule == "smooth":
        return end if since + part >= ramp else min(end, max(SMALLEST_EPS, end * smooth_ramp((since + part) / ramp)))
    if ramp <= 1 or since >= ramp - 1:
        return end
    start = min(config.eps_start, end)
    return start + (end - start) * since / (ramp - 1)


def smooth_ramp(x: float) -> float:
    """From 0 at 0 to 1 at 1: a x^4 up to x = m = 1/4, then the tangent there; a = 1 / (4 (1 - m) m^3 + m^4)."""
    m, p = SMOOTH_MID, SMOOTH_POWER
    a = 1 / ((1 - m) * p * m ** (p - 1) + m**p)
    return a * x**p if x < m else a * m**p + a * p * m ** (p - 1) * (x - m)


def weight_at(config: TrainConfig, eps: float) -> float:
    """Weight of the robust loss at a size: 1 - kappa, with kappa = max(end, start (1 - (1 - end) eps / final eps)).

    start and end are what robust_weight_start and robust_weight leave to the usual loss.
    """
    if config.robust_weight_start is None:
        return config.robust_weight
    start, end = 1 - config.robust_weight_start, 1 - config.robust_weight
    return 1 - max(end, start * (1 - (1 - end) * eps / final_eps(config)))


def crown_weight_at(config: TrainConfig, eps: float) -> float:
    """Weight of the bounds of crown-ibp at a size, linear in it; the rest is that of interval bounds."""
    if config.crown_weight_start is None:
        return config.crown_weight
    return config.crown_weight_start + (config.crown_weight - config.crown_weight_start) * eps / final_eps(config)


def regularise_at(config: TrainConfig, eps: float) -> float:
    """Weight of the two terms that fade out as eps grows."""
    return config.regularise * (1 - eps / final_eps(config))


def lr_at(config: TrainConfig, epoch: int) -> float:
    """Learning rate in an epoch: multiplied by a factor at every milestone; without any, constant and then halved every so often."""
    if config.lr_milestones is not None:
        passed = sum(epoch >= (m if m >= 1 else max(1, int(m * config.epochs + 0.5))) for m in config.lr_milestones)
        return config.lr * config.lr_factor**passed
    constant, every = in_epochs(config, "lr_part"), in_epochs(config, "lr_halve_part")
    if every == 0 or epoch < constant:
        return config.lr
    return config.lr * 0.5 ** ((epoch - constant) // every + 1)


def in_epochs(config: TrainConfig, part: str) -> int:
    """A part of the training in whole epochs; or the epochs that the config gives instead.

    At least one unless the part is 0. A linear ramp takes two if there are two: without one at a smaller eps, there is none. A ramp
    after a warm-up takes no more than the epochs that are left.
    """
    given: int | None = getattr(config, PARTS[part])
    if given is not None:
        return given
    share: float = getattr(config, part)
    least = min(2, config.epochs) if part == "eps_part" and config.eps_schedule == "linear" else 1
    epochs = max(least, int(share * config.epochs + 0.5))
    if part == "eps_part" and config.warm_up > 0:
        epochs = min(epochs, config.epochs - config.warm_up)
    return 0 if share == 0 else epochs


def by_epochs(config: TrainConfig) -> dict[str, Any]:
    """The config as plain values, its schedule in epochs: equal for configs that train alike, however they say it."""
    values = {name: value for name, value in config.to_mapping().items() if name not in PARTS}
    return values | {epochs: in_epochs(config, part) for part, epochs in PARTS.items()}


def trained_eps(config: TrainConfig, epoch: int) -> float | None:
    """Size of the perturbation that an epoch is trained against; None for standard training, which sees none."""
    return None if config.engine == "none" and not config.adversarial else eps_at(config, epoch)


def check_ramp(config: TrainConfig) -> None:
    """Refuse a training that ends before eps is reached: its network would be certified for more than it was trained for."""
    reached = trained_eps(config, config.epochs - 1)
    if reached is not None and reached < final_eps(config):
        after = f" after {config.warm_up} of warm-up" if config.warm_up else ""
        raise ArgumentError(
            f"eps_epochs is {config.eps_epochs}{after}, but training ends after {config.epochs}, at eps {reached:g} instead of "
            f"{final_eps(config):g}{', which is certified' if config.train_eps_factor == 1 else ''}. Train for at least "
            f"{(config.eps_epochs or 0) + config.warm_up} epochs, or leave eps_epochs out "
            f"(--no-eps-epochs): eps then grows over {config.eps_part:.0%} of the training (eps_part)"
        )
