"""Perturbation size and learning rate by epoch. [REFERENCE: Training]"""

from __future__ import annotations

from autodual.train.config import TrainConfig


def eps_at(config: TrainConfig, epoch: int) -> float:
    """Linear from the start value over the first epochs, then constant."""
    if config.eps_epochs <= 1 or epoch >= config.eps_epochs - 1:
        return config.eps
    start = min(config.eps_start, config.eps)
    return start + (config.eps - start) * epoch / (config.eps_epochs - 1)


def lr_at(config: TrainConfig, epoch: int) -> float:
    """Constant at first, then halved every so many epochs."""
    if config.lr_halve_every == 0 or epoch < config.lr_epochs:
        return config.lr
    return config.lr * 0.5 ** ((epoch - config.lr_epochs) // config.lr_halve_every + 1)
