"""Perturbation size and learning rate by epoch. [REFERENCE: Training]

Both follow the length of the training: the paper's 20, 30 and 10 of 60 epochs are a third, a half and a sixth of any number of
epochs, unless the config gives them in epochs.
"""

from __future__ import annotations

from typing import Any

from autodual._errors import ArgumentError
from autodual.train.config import PARTS, TrainConfig


def eps_at(config: TrainConfig, epoch: int) -> float:
    """Linear from the start value over the first epochs, then constant."""
    ramp = in_epochs(config, "eps_part")
    if ramp <= 1 or epoch >= ramp - 1:
        return config.eps
    start = min(config.eps_start, config.eps)
    return start + (config.eps - start) * epoch / (ramp - 1)


def lr_at(config: TrainConfig, epoch: int) -> float:
    """Constant at first, then halved every so many epochs."""
    constant, every = in_epochs(config, "lr_part"), in_epochs(config, "lr_halve_part")
    if every == 0 or epoch < constant:
        return config.lr
    return config.lr * 0.5 ** ((epoch - constant) // every + 1)


def in_epochs(config: TrainConfig, part: str) -> int:
    """A part of the training in whole epochs; or the epochs that the config gives instead.

    At least one unless the part is 0. A ramp takes two if there are two: without one at a smaller eps, there is none.
    """
    given: int | None = getattr(config, PARTS[part])
    if given is not None:
        return given
    share: float = getattr(config, part)
    least = min(2, config.epochs) if part == "eps_part" else 1
    return 0 if share == 0 else max(least, int(share * config.epochs + 0.5))


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
    if reached is not None and reached < config.eps:
        raise ArgumentError(
            f"eps_epochs is {config.eps_epochs}, but training ends after {config.epochs}, at eps {reached:g} instead of "
            f"{config.eps:g}, which is certified. Train for at least {config.eps_epochs} epochs, or leave eps_epochs out "
            f"(--no-eps-epochs): eps then grows over {config.eps_part:.0%} of the training (eps_part)"
        )
