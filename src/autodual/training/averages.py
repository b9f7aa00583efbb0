"""The weights that count: averages over a training, and statistics of batch normalisation that fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from autodual.data import Examples
from autodual.runs.config import TrainConfig
from autodual.training.objectives import evaluating


class Average:
    """An average of weights and floating-point buffers: over steps, exponentially (ema), or over the ends of the last epochs (swa).

    ema: after step t, every value moves by 1 - min(decay, (1 + t) / (10 + t)) of the way to its present one, so that the first weights
    are forgotten. swa: the mean of the values at the ends of the last `average_epochs` epochs.
    """

    def __init__(self, config: TrainConfig, model: nn.Module) -> None:
        self.kind, self.decay = config.average, config.average_decay
        self.first = max(0, config.epochs - config.average_epochs) if config.average == "swa" else 0
        self.sources = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        self.values = {name: value.detach().clone() for name, value in self.sources.items()}
        device = next((value.device for value in self.values.values()), None)
        self._pace = torch.ones((), device=device)

    def before_step(self, step: int) -> None:
        """Sets how far the next update moves, for the step of this number, from 0."""
        if self.kind == "ema":
            self._pace.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    def after_step(self) -> None:
        """A moving average follows the weights; it can be part of a captured step."""
        if self.kind == "ema":
            self._move()

    def end_epoch(self, epoch: int) -> None:
        """A mean of epochs takes in the weights of this one."""
        if self.kind == "swa" and epoch >= self.first:
            self._pace.fill_(1 / (epoch - self.first + 1))
            self._move()

    def begun(self, epoch: int) -> bool:
        """Whether there is an average at the end of this epoch."""
        return epoch >= self.first

    @torch.no_grad()
    def _move(self) -> None:
        for value, source in zip(self.values.values(), self.sources.values(), strict=True):
            value.lerp_(source, self._pace.to(value.dtype))

    def load(self, values: Mapping[str, Tensor]) -> None:
        for name, value in self.values.items():
            value.copy_(values[name])

    def apply(self) -> None:
        """Gives the model the averaged values."""
        with torch.no_grad():
            for name, source in self.sources.items():
                source.copy_(self.values[name])


@torch.no_grad()
def take_statistics(model: nn.Module, data: Examples, batch: int) -> None:
    """Sets running statistics of batch normalisation to the means of those of all whole batches of the data, in order. ("precise BN")

    A single batch that is not whole counts; otherwise the rest that is left does not. Other modules are in evaluation mode meanwhile.
    """
    found = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None
    ]
    if not found:
        return
    momenta = [module.momentum for module in found]
    with evaluating(model):
        for module in found:
            module.reset_running_stats()
            module.momentum, module.training = None, True  # None: a plain mean
        for number in range(max(1, len(data) // batch)):
            model(data.scaled(slice(number * batch, (number + 1) * batch)))
    for module, momentum in zip(found, momenta, strict=True):
        module.momentum = momentum


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Gives the model its weights and buffers back at the end, in place."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(before[name])
