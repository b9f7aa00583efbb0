"""What a trained row is worth, measured once on the test images: by every engine, by attack, in pieces that survive interruption.

Lines of certificates lie in the run folder, one file for each engine, until the row is done. Then `results/` gets one record,
`evaluation.json`, and one compressed file with what was found about every image, `certificates.npz`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import MemoryBudgetError
from autodual._files import write_json
from autodual._tensor import full_precision
from autodual.cascades import Cascade, Combination, RoutedCascade, SumEnsemble
from autodual.cascades.records import CascadeCertificate
from autodual.certificates.attacks import attack
from autodual.certificates.certificate import collapse
from autodual.data import Examples
from autodual.engines import BoundEngine, Crown, Dual
from autodual.engines.prepare import dual_network
from autodual.engines.results import generators
from autodual.evaluation import judge
from autodual.evaluation.evaluate import ATTACK_STARTS, ATTACK_STEPS, Broken, check_claims, check_together
from autodual.evaluation.judge import (
    RENEWED,
    Judged,
    Ledger,
    at_once,
    cascade_to_file,
    columns,
    finished_lines,
    judge_to_file,
    problem_of,
)
from autodual.evaluation.processes import ALONE, Group, Watch, batch_size
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.lines import AttackLine, CascadeAttackLine, lines_of
from autodual.runs.records import AttackFigures, CascadeErrors, parse, plain, read
from autodual.runs.row_records import BestSound, CascadeFigures, Choice, EngineFigures, NetworkFigures, RowFigures
from autodual.sets import Perturbation
from autodual.training.setup import make_ball
from autodual.training.stages import Parts, attack_batch, attacked_part, certify_all

ROW_ENGINES: dict[str, BoundEngine] = {name: judge.ENGINES[name] for name in ("dual", "ibp", "crown")}
"""The paper's exact bound comes first, the dearest last."""
ON_REQUEST: dict[str, BoundEngine] = {"alpha": judge.ENGINES["alpha"]}
"""Engines that a row is complete without: they take seconds for an image, and get only those that are still open."""
WHOLE_UNITS = 12_000
"""All engines certify all images of networks up to so many units. Of larger ones, where an image may take seconds, only intervals do.
The config's own engine gets those that the attack does not break, which is all that can be certified, and `CHECKED` others; further
engines get those that are still open, which no engine before has certified. What is best is the same."""
CHECKED = 200
"""Images that the attack has broken, and that are certified all the same: that no engine succeeds tests both."""
CLAIMS = ("certified", "certified_as_run")


def engines_of(config: TrainConfig, small: bool) -> dict[str, BoundEngine]:
    """The engines that a row is complete with. The first one's figures are the row's: without it there is no evaluation. Others may
    be too large for this machine.

    small: whether every engine can certify every image in a reasonable time. If not, what `best` tries on an image one after the other
    are engines of their own, since the dear ones of them need not try what the attack breaks; and where interval bounds are as good as
    any, which `best-ibp` says, the dear ones are left out.
    """
    own, others = config.evaluate_engine, ROW_ENGINES
    if not small and own == "best-ibp":
        others = {"ibp": others["ibp"]}
    if not small and own == "best":
        own = "best-ibp"
    return {own: judge.ENGINES[own]} | others


@dataclass(frozen=True)
class Spent:
    """campaign.json in the run folder: seconds of each part, added up over all calls; and how many rows ran side by side at most."""

    seconds: dict[str, float]
    side_by_side: int


@dataclass
class Notes:
    """Keeps what was spent on a row up to date, in its file, which the first of several processes writes."""

    file: Path
    spent: Spent
    group: Group = ALONE

    @classmethod
    def of(cls, run: Run, side_by_side: int, group: Group, known: Spent) -> Notes:
        """known: what the results say, where the run folder has no such file."""
        file = run.folder / "campaign.json"
        before = group.by_first(lambda: read(Spent, file) if file.exists() else known)
        notes = cls(file, Spent(before.seconds, max(side_by_side, before.side_by_side)), group)
        notes.write()
        return notes

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.spent.seconds[what] = round(self.spent.seconds.get(what, 0.0) + time.monotonic() - started, 3)
            self.write()

    def write(self) -> None:
        if self.group.first:
            write_json(self.file, plain(self.spent))


Arrays = dict[str, np.ndarray]
Report = Callable[[RowFigures, Arrays, bool], None]
"""Told after each part what is known so far: figures, what was found about every image, and whether that is all."""


@dataclass(frozen=True)
class EarlierFindings:
    """What earlier calls have found out about the same weights: finished parts are taken from here, on whatever machine."""

    figures: NetworkFigures | None = None
    arrays: Arrays = field(default_factory=dict)

    def engine(self, name: str) -> EngineFigures | None:
        known = self.figures is not None and f"{name}_certified" in self.arrays
        return self.figures.engines.get(name) if known and self.figures is not None else None

    def broken(self) -> Broken | None:
        if "attacked" not in self.arrays:
            return None
        return Broken(*(torch.from_numpy(self.arrays[name]) for name in ("attacked", "attacked_as_run")))


OWN_FIGURES = ("error", "collapsed", "robust_error", "robust_error_as_run")
"""Figures of the whole row that the run of its own engine brings."""


def evaluate_network(
    config: TrainConfig, run: Run, model: nn.Module, data: Examples, notes: Notes, watch: Watch, report: Report,
    engines: Collection[str] | None = None, earlier: EarlierFindings | None = None,
) -> None:  # fmt: skip
    """Certifies every image by these engines (or by all that the row needs) and by the row's own, and attacks it. Fails if the attack
    breaks what an engine has certified.

    The report is complete when all of `engines_of(config)` have run, now or before.
    """
    ball, earlier, is_small = make_ball(config), earlier or EarlierFindings(), _is_small(model, data)
    needed = engines_of(config, is_small)
    own, *_ = needed
    engines = tuple(needed) if engines is None else engines
    broken = earlier.broken()
    if broken is None:
        with notes.timed("attack"):
            broken = _attack_network(run, model, data, ball, watch)
    ran: dict[str, EngineFigures] = {}
    row_figures: dict[str, Any] = {
        "pgd_error": broken.error_as_run, "pgd_error_exact": broken.error, "pgd_steps": ATTACK_STEPS,
    }  # fmt: skip
    if earlier.figures is not None:
        row_figures |= {name: getattr(earlier.figures, name) for name in OWN_FIGURES}
    arrays: Arrays = earlier.arrays | {"attacked": broken.exact.numpy(), "attacked_as_run": broken.as_run.numpy()}
    for name, engine in (needed | ROW_ENGINES | ON_REQUEST).items():
        known = earlier.engine(name)
        if known is not None:
            ran[name] = known
        elif name in (own, *engines):
            file = run.folder / f"certificates-{name}.jsonl"
            judges_all = name == "ibp" or (name in needed and is_small)
            positions = None if judges_all else _positions_to_judge(ran, arrays, with_some_broken=name == own)
            try:
                with notes.timed(name):
                    judged = _judge(file, model, data, positions, ball, engine, watch)
            except MemoryBudgetError as error:
                if name == own:
                    raise
                watch.say(f"{name}: not run: {error}")
                ran[name] = EngineFigures(engine=repr(engine), not_run=str(error))
                continue
            verdicts = _verdict_arrays(name, judged, positions, len(data), exact=name == own)
            certified, as_run = (torch.from_numpy(verdicts[f"{name}_{claim}"]) for claim in CLAIMS)
            check_claims(file, certified, as_run, broken, watch.say)
            seconds = notes.spent.seconds[name]
            ran[name] = _engine_figures(judged, engine, data, seconds, decides=judges_all or name == own)
            arrays |= verdicts
            if name == own:
                predicted = judged.predicted if judges_all else _predictions(model, data)
                row_figures |= _own_figures(ran[name], judged, predicted, data)
                arrays |= {"labels": _compact(data.labels.cpu()), "predicted": _compact(predicted)}
            report(NetworkFigures(**row_figures, engines=dict(ran)), arrays, False)
    if set(ran) >= set(needed):
        report(NetworkFigures(**row_figures, engines=ran, **_best(ran, arrays)), arrays, True)


def _is_small(model: nn.Module, data: Examples) -> bool:
    """Whether every engine can certify every image in a reasonable time."""
    return generators(dual_network(model, data.scaled(slice(0, 1)))) <= WHOLE_UNITS


def _positions_to_judge(ran: dict[str, EngineFigures], arrays: Arrays, with_some_broken: bool) -> Tensor:
    """Positions, ascending, of the images that nobody has broken in real numbers, and no engine so far has certified as run.

    with_some_broken: `CHECKED` of the broken ones are added.
    """
    decided = arrays["attacked"].copy()
    for name, figures in ran.items():
        if figures.not_run is None:
            decided |= arrays[f"{name}_certified_as_run"]
    positions = (~decided).nonzero()[0]
    if with_some_broken:
        positions = np.sort(np.concatenate([positions, arrays["attacked"].nonzero()[0][:CHECKED]]))
    return torch.from_numpy(positions)


def _judge(
    file: Path, model: nn.Module, data: Examples, positions: Tensor | None, ball: Perturbation, engine: BoundEngine, watch: Watch
) -> Judged:  # fmt: skip
    """Verdicts on all images, or on those at `positions`, in batches that can be stopped in between: fewer images of a larger network,
    and for the dearest engine."""
    if positions is not None and len(positions) == 0:
        nothing = torch.zeros(0, dtype=torch.int64)
        return Judged(nothing, nothing, nothing.bool(), nothing.bool(), nothing.float(), nothing.float())
    if positions is not None:
        data = data.select(positions.to(data.labels.device))
    step = at_once(model, data)
    step = max(1, step // 10) if isinstance(engine, Crown) or engine in ON_REQUEST.values() else step
    renewed = RENEWED if positions is None else (*RENEWED, "data", "examples")  # other images may be open now
    return judge_to_file(Ledger(file, watch, renewed=renewed, step=step), model, data, ball, engine)


def _predictions(model: nn.Module, data: Examples) -> Tensor:
    """The label of every image."""
    size = batch_size(data)
    with torch.no_grad(), full_precision():
        parts = [model(data.scaled(slice(start, start + size))).argmax(1) for start in range(0, len(data), size)]
    return torch.cat(parts).cpu()


def _engine_figures(
    judged: Judged, engine: BoundEngine, data: Examples, seconds: float, decides: bool
) -> EngineFigures:
    """Counts; and errors, where the images that were tried decide for all: none of the others can be certified."""
    device, tried = data.device, len(judged.labels)
    certified, as_run = int(judged.certified.sum()), int(judged.certified_as_run.sum())
    return EngineFigures(
        images=len(data) if decides else tried, tried=tried if decides and tried < len(data) else None,
        certified=certified, certified_as_run=as_run, robust_error=1 - certified / len(data) if decides else None,
        robust_error_as_run=1 - as_run / len(data) if decides else None, engine=repr(engine), seconds=seconds,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )  # fmt: skip


def _own_figures(figures: EngineFigures, judged: Judged, predicted: Tensor, data: Examples) -> dict[str, Any]:
    """`OWN_FIGURES`, from what the row's own engine found and the labels predicted for all images."""
    labels = data.labels.cpu()
    error = (predicted != labels).double().mean().item()
    collapsed = collapse(predicted.tolist(), labels.tolist(), judged.margins.tolist(), data.classes)
    return dict(zip(OWN_FIGURES, (error, collapsed, figures.robust_error, figures.robust_error_as_run), strict=True))


def _best(ran: dict[str, EngineFigures], arrays: Arrays) -> dict[str, Any]:
    """An image counts as certified if one of the engines certifies it."""
    names = [name for name, figures in ran.items() if figures.not_run is None]
    certified, as_run = (np.any([arrays[f"{name}_{claim}"] for name in names], axis=0) for claim in CLAIMS)
    return {
        "certified_best": int(certified.sum()), "certified_best_as_run": int(as_run.sum()),
        "robust_error_best": 1 - float(certified.mean()), "robust_error_best_as_run": 1 - float(as_run.mean()),
    }  # fmt: skip


def _verdict_arrays(name: str, judged: Judged, positions: Tensor | None, images: int, exact: bool) -> Arrays:
    """What an engine found about each image; those at other positions than were judged are not certified, and have no margin.

    exact: margins are kept as they are; if not, in half the space, since their verdicts are kept beside them.
    """
    judged_at = slice(None) if positions is None else positions
    certified, as_run = torch.zeros(2, images, dtype=torch.bool).unbind()
    margins = torch.full((images,), torch.nan)
    certified[judged_at], as_run[judged_at] = judged.certified, judged.certified_as_run
    margins[judged_at] = judged.margins.float()
    kept = margins if exact else margins.clamp(-6e4, 6e4).half()
    return {
        f"{name}_certified": certified.numpy(),
        f"{name}_certified_as_run": as_run.numpy(),
        f"{name}_margin": kept.numpy(),
    }


def _compact(labels: Tensor) -> np.ndarray:
    """Labels or numbers of stages, a byte each where they fit."""
    return labels.to(torch.uint8 if int(labels.max()) < 256 else torch.int64).numpy()


def _attack_network(run: Run, model: nn.Module, data: Examples, ball: Perturbation, watch: Watch) -> Broken:
    def find(part: slice) -> list[AttackLine]:
        with full_precision():
            found = attack(model, data.scaled(part), data.labels[part], ball, ATTACK_STEPS, ATTACK_STARTS)
        return lines_of(AttackLine, part.start, found.success, found.success_as_run)

    problem = replace(
        problem_of([model], data, ball, Dual()), engine=f"attack({ATTACK_STEPS} steps, {ATTACK_STARTS} starts)"
    )
    file = run.folder / "attack.jsonl"
    # What broke an image once breaks it, and certificates hold in every order of sums: a finished attack counts on any machine.
    lines = watch.group.by_first(lambda: finished_lines(file, problem, AttackLine, data))
    if lines is None:
        lines = Ledger(file, watch, renewed=RENEWED).fill(AttackLine, problem, find, data, "attacking")
    return Broken(*columns(lines, "broken", "broken_as_run"))


def evaluate_cascade(
    config: TrainConfig, run: Run, stages: list[nn.Module], parts: Parts, notes: Notes, watch: Watch, report: Report
) -> None:
    """Finds four figures: what stages certify (the paper's metric), what an attack leaves of it, what is sound of it, and the best
    sound combination of the same stages, which is chosen on other images than those it is tested on."""
    data, cascade = parts.test, Cascade(stages, make_ball(config))
    file = run.folder / "cascade-certificates.jsonl"
    with notes.timed("cascade"):
        certified = cascade_to_file(Ledger(file, watch, renewed=RENEWED, step=at_once(stages[0], data)), cascade, data)
    summary = certified.summary()
    found = parse(CascadeFigures, summary | {"cascade_engine": summary["engine"]})
    arrays: Arrays = {
        "labels": _compact(certified.labels), "answer": _compact(certified.answers.label), "stage": _compact(certified.answers.stage),
        "certified": certified.answers.certified.numpy(), "sound": certified.sound.numpy(),
        "sound_as_run": certified.sound_as_run.numpy(), "no_wrong_certificate": certified.no_wrong_certificate.numpy(),
    }  # fmt: skip
    report(found, arrays, False)
    with notes.timed("best combination"):
        found = replace(found, best_sound=_best_sound(config, run, stages, parts, watch, arrays))
    report(found, arrays, False)
    with notes.timed("cascade attack"):
        found = replace(found, attack=_attack_cascade(run, cascade, certified, data, watch, arrays))
    report(found, arrays, True)


def _attack_cascade(
    run: Run, cascade: Cascade, certified: CascadeCertificate, data: Examples, watch: Watch, arrays: Arrays
) -> AttackFigures:
    """Attacks the first images, and adds what it found about each to `arrays`."""
    some = attacked_part(data)

    def find(part: slice) -> list[CascadeAttackLine]:
        with full_precision():
            broken = cascade.attack(some.scaled(part), some.labels[part], steps=20)
        return lines_of(CascadeAttackLine, part.start, broken.found, broken.certified_wrong)

    problem = problem_of(cascade.models, some, cascade.ball, cascade.engine)
    ledger = Ledger(run.folder / "attack-cascade.jsonl", watch, renewed=RENEWED, step=attack_batch(cascade, some))
    problem = replace(problem, engine="cascade attack(20 steps)")
    lines = ledger.fill(CascadeAttackLine, problem, find, some, "attacking the cascade")
    wrong, with_certificate = columns(lines, "found", "certified_wrong")
    same = certified.take(len(some))
    check_together(run.folder, same, wrong, with_certificate, watch.say)
    arrays |= {"attacked": wrong.numpy(), "attacked_certified_wrong": with_certificate.numpy()}
    return AttackFigures(
        attacked_examples=len(some), attacked_error=wrong.double().mean().item(),
        attacked_certified_error=with_certificate.double().mean().item(), broken_claims=int((same.claimed & wrong).sum()),
        on_attacked=parse(CascadeErrors, same.summary()),
    )  # fmt: skip


def _best_sound(
    config: TrainConfig, run: Run, stages: list[nn.Module], parts: Parts, watch: Watch, arrays: Arrays
) -> BestSound:
    """The first stage alone, the routed cascade or the sum of scores: whichever leaves the fewest images of `fitting` uncertified."""
    ball = make_ball(config)
    fitting = parts.fitting(config)
    file = run.folder / "best-combination.json"
    if not file.exists():
        routed = RoutedCascade.fit(stages, fitting.scaled(), fitting.labels, ball).thresholds if len(stages) > 1 else ()
        tried: dict[str, float] = {}
        for kind, combine in _combinations(stages, routed, ball).items():
            try:
                proved = certify_all(combine(), fitting, watch)
            except MemoryBudgetError as error:
                watch.say(f"{kind}: not tried: {error}")
                continue
            tried[kind] = proved.sound_certified_error
        chosen = min(tried, key=lambda kind: tried[kind])
        write_json(file, plain(Choice(chosen, tuple(None if t == float("inf") else t for t in routed), tried)))
    choice = read(Choice, file)
    thresholds = tuple(float("inf") if t is None else t for t in choice.thresholds)
    ledger = Ledger(run.folder / "best-certificates.jsonl", watch, renewed=RENEWED, step=at_once(stages[0], parts.test))
    proved = cascade_to_file(ledger, _combinations(stages, thresholds, ball)[choice.chosen](), parts.test)
    arrays |= {"best_sound": proved.sound.numpy(), "best_sound_as_run": proved.sound_as_run.numpy()}
    return BestSound(
        choice.chosen, choice.thresholds, choice.error_on_fitting, proved.error, proved.sound_certified_error,
        proved.sound_certified_error_as_run, f"{len(fitting)} {'held-out' if parts.held_out is not None else 'training'} images",
    )  # fmt: skip


def _combinations(
    stages: list[nn.Module], thresholds: tuple[float, ...], ball: Perturbation
) -> dict[str, Callable[[], Combination]]:
    return {
        "first stage alone": partial(SumEnsemble, stages[:1], ball),
        "routed": partial(RoutedCascade, stages, thresholds, ball),
        "sum": partial(SumEnsemble, stages, ball),
    }
