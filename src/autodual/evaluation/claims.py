"""What is certified must stand every attack in the same arithmetic: where both are known, they are held against each other."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual._tensor import full_precision
from autodual.cascades.records import CascadeCertificate
from autodual.certificates.attacks import attack
from autodual.data import ImageData
from autodual.evaluation.processes import ALONE, Group, Tell, on_all, silent
from autodual.runs.lines import Say
from autodual.sets import Perturbation

SHOWN = 10
ATTACK_STEPS, ATTACK_STARTS = 40, 4
ADVICE = "one of the two is wrong, so neither counts; please report this"


@dataclass(frozen=True)
class Broken:
    """What an attack breaks, clean inputs with a wrong label included: [N] bool each."""

    exact: Tensor
    """In real numbers: the counterexample was confirmed in float64."""
    as_run: Tensor
    """In the network as it runs, perhaps only by rounding."""

    @property
    def error(self) -> float:
        """Fraction that is broken in real numbers."""
        return self.exact.double().mean().item()

    @property
    def error_as_run(self) -> float:
        """Fraction that is broken in the network as it runs: the running model is what is attacked."""
        return self.as_run.double().mean().item()


def attacked(
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    tell: Tell = silent,
    what: str = "attacking",
    group: Group = ALONE,
    steps: int = ATTACK_STEPS,
    restarts: int = ATTACK_STARTS,
) -> Broken:
    """Attack all examples, some at a time, in the arithmetic that certificates speak of: no TF32, no autocast."""

    def one(x: Tensor, labels: Tensor) -> Broken:
        with full_precision():
            found = attack(model, x, labels, ball, steps, restarts)
        return Broken(found.success, found.success_as_run)

    parts = on_all(one, data, what, tell, group)
    return Broken(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Broken)))


def check_claims(
    source: object, certified: Tensor, certified_as_run: Tensor, broken: Broken, say: Say, advice: str = ADVICE
) -> None:
    """Fail if an example is certified and broken in the same arithmetic: in real numbers, or as the network runs.

    What is certified in real numbers, and broken only as the network runs, is no contradiction: `say` is told how many examples these
    are. source: where the certificates come from.
    """
    _refuse_broken(source, certified & broken.exact, "in real numbers", advice)
    _refuse_broken(source, certified_as_run & broken.as_run, "as the network runs", advice)
    _tell_rounding(source, certified & broken.as_run, say)


def check_together(
    source: object, certified: CascadeCertificate, found: Tensor, certified_wrong: Tensor, say: Say
) -> None:
    """Fail if an attack breaks what is proved about a whole cascade; claims of single stages, which the paper's cascade makes, may
    break.

    found: [N] bool, somewhere in the ball the answer is wrong; certified_wrong: it is, and comes with a certificate. The models are
    attacked as they run: what is proved in real numbers only may break by rounding, and `say` is told how often.
    """
    _refuse_broken(source, certified.sound_as_run & found, "as the models run")
    _refuse_broken(source, certified.no_wrong_certificate & certified_wrong, "with a certificate")
    _tell_rounding(source, certified.sound & found, say)


def _refuse_broken(source: object, wrong: Tensor, where: str, advice: str = ADVICE) -> None:
    """Fail if there are any of these [N], which are certified, and broken by an attack. where: in which arithmetic."""
    examples = wrong.nonzero().squeeze(1)
    if len(examples) == 0:
        return
    names = ", ".join(map(str, examples[:SHOWN].tolist()))
    more = f" and {len(examples) - SHOWN} more" if len(examples) > SHOWN else ""
    raise AutodualError(
        f"{source}: certified, but an attack gives them another label: examples {names}{more}; both {where}; {advice}"
    )


def _tell_rounding(source: object, examples: Tensor, say: Say) -> None:
    """Says how many examples [N] are certified in real numbers and not as run, and broken as run."""
    several = int(examples.sum())
    if several > 0:
        which = "1 example is" if several == 1 else f"{several} examples are"
        say(
            f"{source}: {which} certified in real numbers, and broken by the attack only as the network runs, by rounding: no "
            f"contradiction (none of them is certified as it runs)"
        )
