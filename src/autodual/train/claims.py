"""What is certified must stand every attack: where both are known, they are held against each other."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual._tensor import full_precision
from autodual.certify.attack import attack
from autodual.sets import Perturbation
from autodual.train.data import ImageData

SHOWN = 10
ADVICE = "one of the two is wrong, so neither counts; please report this"


def check_claims(
    source: object,
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    certified: Tensor,
    broken: Tensor,
    advice: str = ADVICE,
) -> None:
    """Fail if an example is certified, and broken by an attack that holds in float64, too. source: of the certificates."""
    both = (certified & broken).nonzero().squeeze(1)
    if len(both) > 0:
        index = both.to(data.labels.device)
        refuse_broken(source, both[_broken_exactly(model, data.scaled(index), data.labels[index], ball)], advice)


def refuse_broken(source: object, examples: Tensor, advice: str = ADVICE) -> None:
    """Fail if there are any of these, which are certified, and broken by an attack."""
    if len(examples) == 0:
        return
    names = ", ".join(map(str, examples[:SHOWN].tolist()))
    more = f" and {len(examples) - SHOWN} more" if len(examples) > SHOWN else ""
    raise AutodualError(
        f"{source}: certified, but an attack gives them another label: examples {names}{more}; {advice}"
    )


def _broken_exactly(model: nn.Module, x: Tensor, labels: Tensor, ball: Perturbation) -> Tensor:
    """[N] bool: not by rounding alone, which may turn a score in float32 that a proof rightly trusts."""
    with full_precision():
        try:
            return attack(copy.deepcopy(model).double(), x.double(), labels, ball).success.cpu()
        except (RuntimeError, TypeError, AttributeError, copy.Error):  # a model that cannot do without float32
            return attack(model, x, labels, ball).success.cpu()
