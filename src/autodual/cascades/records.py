"""What several models answer together, what of it is proved, and what an attack made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.certificates.certificate import collapse


@dataclass(frozen=True)
class Answers:
    """One answer per input, [N] each."""

    label: Tensor
    certified: Tensor
    """bool. Paper's cascade: the answering *stage* gives this label everywhere in the ball around the received input. Routed
    cascade and sum: *all models together* do."""
    stage: Tensor
    """Which stage answers, counted from 0; always 0 for a sum, which answers as one."""

    def at(self, index: Tensor) -> Answers:
        return Answers(self.label[index], self.certified[index], self.stage[index])

    def put(self, index: Tensor, other: Answers) -> Answers:
        """These answers, with `other` at the places `index`."""
        pairs = ((self.label, other.label), (self.certified, other.certified), (self.stage, other.stage))
        return Answers(*(mine.index_copy(0, index, theirs) for mine, theirs in pairs))


@dataclass(frozen=True)
class CascadeAttack:
    """The worst inputs found: inside the ball, and answered again from scratch before they count."""

    examples: Tensor
    """[N, *shape]: the clean input where nothing worse was found."""
    labels: Tensor
    answers: Answers
    """What the models together answer at `examples`."""

    @property
    def found(self) -> Tensor:
        """[N] bool: the answer there is wrong, with or without a certificate."""
        return self.answers.label != self.labels

    @property
    def certified_wrong(self) -> Tensor:
        """[N] bool: the answer there is wrong *and* comes with a certificate."""
        return self.found & self.answers.certified

    @property
    def error(self) -> float:
        """Fraction of the examples that get a wrong answer somewhere in their ball: a lower bound on the true robust error."""
        return _mean(self.found)

    @classmethod
    def join(cls, parts: Sequence[CascadeAttack]) -> CascadeAttack:
        """The record of several batches, in order."""
        _some(parts)
        examples, labels = torch.cat([p.examples for p in parts]), torch.cat([p.labels for p in parts])
        return cls(examples, labels, _join_answers([p.answers for p in parts]))


@dataclass(frozen=True)
class CascadeCertificate:
    """What several models answer to clean inputs, and what is proved about the balls around these."""

    kind: str
    """paper, routed or sum."""
    stages: int
    """Stages that answer one by one; 1 for a sum."""
    labels: Tensor
    answers: Answers
    sound: Tensor
    """[N] bool: proved that every input of the ball is answered with the label."""
    sound_as_run: Tensor
    """[N] bool: proved for the models as they run in their own dtype, too."""
    no_wrong_certificate: Tensor
    """[N] bool: proved that no input of the ball is given a wrong label with a certificate."""
    perturbation: str
    engine: str

    @property
    def error(self) -> float:
        """Fraction of the clean inputs that get a wrong answer."""
        return _mean(self.answers.label != self.labels)

    @property
    def claimed(self) -> Tensor:
        """[N] bool: the answer is right, and certified by whoever gives it. For the paper's cascade that proves nothing about
        the cascade: see `sound`."""
        return (self.answers.label == self.labels) & self.answers.certified

    @property
    def stage_certified_error(self) -> float:
        """Fraction that is not `claimed`: the paper's robust error of a cascade. For routed cascades and sums the claim is
        sound, so this equals `sound_certified_error`."""
        return 1.0 - _mean(self.claimed)

    @property
    def sound_certified_error(self) -> float:
        """Fraction not proved to be answered rightly everywhere in the ball: an upper bound on the error under any attack."""
        return 1.0 - _mean(self.sound)

    @property
    def sound_certified_error_as_run(self) -> float:
        """`sound_certified_error` for the models as they run, in their own dtype."""
        return 1.0 - _mean(self.sound_as_run)

    @property
    def collapsed(self) -> str | None:
        """A sentence about a cascade that gives one answer for everything; None for any other."""
        return collapse(self.answers.label.tolist(), self.labels.tolist())

    def by_stage(self) -> list[dict[str, int]]:
        """Who answers what: how many answers each stage gives, and how many of them are certified, correct, and both or only the
        former."""
        right, certified = self.answers.label == self.labels, self.answers.certified
        rows = []
        for stage in range(self.stages):
            own = self.answers.stage == stage
            counts = {
                "answers": own,
                "certified": own & certified,
                "correct": own & right,
                "certified_correct": own & certified & right,
                "certified_wrong": own & certified & ~right,
            }
            rows.append({"stage": stage, **{name: int(flags.sum()) for name, flags in counts.items()}})
        return rows

    def summary(self, attack: CascadeAttack | None = None) -> dict[str, Any]:
        """The numbers of `cascade.json`; with those of an attack on the same examples if it is given."""
        numbers: dict[str, Any] = {
            "kind": self.kind,
            "perturbation": self.perturbation,
            "engine": self.engine,
            "examples": len(self.labels),
            "stages": self.by_stage(),
            **self._errors(),
            "no_wrong_certificate": _mean(self.no_wrong_certificate),
            "collapsed": self.collapsed,
        }
        return numbers if attack is None else numbers | self.beside(attack)

    def beside(self, attack: CascadeAttack) -> dict[str, Any]:
        """What an attack on these examples found, and what was claimed and proved about the same ones."""
        if not torch.equal(attack.labels, self.labels):
            raise ArgumentError("attack: was made on other examples than this certificate")
        return {
            "attacked_examples": len(attack.labels),
            "attacked_error": attack.error,
            "attacked_certified_error": _mean(attack.certified_wrong),
            "broken_claims": int((self.claimed & attack.found).sum()),
            "broken_proofs": int((self.sound_as_run & attack.found).sum()),
            "on_attacked": self._errors(),
        }

    def _errors(self) -> dict[str, float]:
        names = ("error", "stage_certified_error", "sound_certified_error", "sound_certified_error_as_run")
        return {name: getattr(self, name) for name in names}

    def to_json(self, attack: CascadeAttack | None = None) -> str:
        """The summary, and every example."""
        lists = {
            "labels": self.labels,
            "predicted": self.answers.label,
            "certified": self.answers.certified,
            "stage": self.answers.stage,
            "sound": self.sound,
            "sound_as_run": self.sound_as_run,
        }
        if attack is not None:
            lists |= {"attacked": attack.found, "attacked_certified": attack.certified_wrong}
        return json.dumps(
            self.summary(attack) | {name: values.tolist() for name, values in lists.items()}, allow_nan=False
        )

    def take(self, count: int) -> CascadeCertificate:
        """The certificate of the first examples."""
        answers = Answers(
            *(values[:count] for values in (self.answers.label, self.answers.certified, self.answers.stage))
        )
        names = ("labels", "sound", "sound_as_run", "no_wrong_certificate")
        cut: dict[str, Any] = {name: getattr(self, name)[:count] for name in names}
        return replace(self, answers=answers, **cut)

    @classmethod
    def join(cls, parts: Sequence[CascadeCertificate]) -> CascadeCertificate:
        """The certificate of several batches, in order."""
        _some(parts)
        first = parts[0]
        same = {(p.kind, p.stages, p.perturbation, p.engine) for p in parts}
        if len(same) > 1:
            raise ArgumentError(f"join: these certificates are not about one combination: {sorted(map(str, same))}")
        names = ("labels", "sound", "sound_as_run", "no_wrong_certificate")
        joined: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in names}
        return replace(first, answers=_join_answers([p.answers for p in parts]), **joined)


def _mean(flags: Tensor) -> float:
    return flags.double().mean().item()


def _some(parts: Sequence[object]) -> None:
    if len(parts) == 0:
        raise ArgumentError("join: needs at least one part")


def _join_answers(parts: Sequence[Answers]) -> Answers:
    return Answers(*(torch.cat([getattr(p, name) for p in parts]) for name in ("label", "certified", "stage")))
