"""What a trained row is worth, measured once on the test images: by every engine, by attack, in pieces that survive interruption.

Lines of certificates lie in the run folder, one file for each engine, until the row is done. Then `results/` gets one record,
`evaluation.json`, and one compressed file with what was found about every image, `certificates.npz`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import MemoryBudgetError
from autodual._files import read_json, replacing, write_json
from autodual._tensor import full_precision
from autodual.cascades.load import Cascade, Combination, RoutedCascade, SumEnsemble
from autodual.cascades.records import CascadeCertificate
from autodual.certificates.attacks import attack
from autodual.data import ImageData
from autodual.engines import IBP, BoundEngine, Crown, Dual
from autodual.engines.prepare import dual_network
from autodual.engines.results import generators
from autodual.evaluation.cascade_lines import certify_to_file
from autodual.evaluation.claims import ATTACK_STEPS, Broken, check_claims
from autodual.evaluation.judge import RENEWED, Judged, at_once, judge_to_file, question
from autodual.evaluation.processes import ALONE, batch_size, in_turns
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.lines import Line, LineFile
from autodual.sets import Perturbation
from autodual.training.cascade import ATTACKED, attack_batch, certify_all, check_together
from autodual.training.setup import make_ball
from autodual.training.stage import Parts, Watch

ENGINES: dict[str, BoundEngine] = {"dual": Dual(), "ibp": IBP(), "crown": Crown()}
"""The paper's exact bound first: it is the figure that rows are compared by. The dearest comes last."""
WHOLE_UNITS = 12_000
"""`Crown()` certifies all images of networks up to so many units. Of larger ones, where an image may take seconds, it gets those that
are still open: the attack does not break them, and no engine before has certified them. What is best is the same."""
NEEDED = "dual"
"""An engine without which there is no evaluation; the others may be too large for this machine."""


@dataclass
class Notes:
    """How long each part took, added up over all calls; and how many rows ran side by side at most. Kept in the run folder."""

    file: Path
    seconds: dict[str, float] = field(default_factory=dict)
    side_by_side: int = 1

    @classmethod
    def of(cls, run: Run, side_by_side: int) -> Notes:
        file = run.folder / "campaign.json"
        before = read_json(file) if file.exists() else {}
        notes = cls(file, dict(before.get("seconds", {})), max(side_by_side, before.get("side_by_side", 1)))
        notes.write()
        return notes

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[what] = round(self.seconds.get(what, 0.0) + time.monotonic() - started, 3)
            self.write()

    def write(self) -> None:
        write_json(self.file, {"seconds": self.seconds, "side_by_side": self.side_by_side})


Found = dict[str, Any]
Arrays = dict[str, np.ndarray]
Report = Callable[[Found, Arrays, bool], None]
"""Told after each part what is known so far: figures, what was found about every image, and whether that is all."""


@dataclass(frozen=True)
class Before:
    """What earlier calls have found out about the same weights: finished parts are taken from here, on whatever machine."""

    found: Found = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def engine(self, name: str) -> Found | None:
        figures = self.found.get("engines", {}).get(name)
        return figures if isinstance(figures, dict) and f"{name}_certified" in self.arrays else None


def evaluate_network(
    config: TrainConfig,
    run: Run,
    model: nn.Module,
    data: ImageData,
    notes: Notes,
    watch: Watch,
    report: Report,
    engines: Collection[str] = tuple(ENGINES),
    before: Before | None = None,
) -> None:
    """Certifies every image by these engines, and attacks it. Fails if the attack breaks what an engine has certified.

    The report is complete when all of `ENGINES` have run, now or before.
    """
    ball, before = make_ball(config), before or Before()
    broken = _attacked_before(before)
    if broken is None:
        with notes.timed("attack"):
            broken = _attack_network(run, model, data, ball, watch)
    found: Found = {"pgd_error": broken.error_as_run, "pgd_error_exact": broken.error, "pgd_steps": ATTACK_STEPS}
    found |= {name: before.found[name] for name in OF_ALL_ENGINES if name in before.found} | {"engines": {}}
    arrays: Arrays = before.arrays | {"attacked": broken.exact.numpy(), "attacked_as_run": broken.as_run.numpy()}
    for name, engine in ENGINES.items():
        figures = before.engine(name)
        if figures is not None:
            found["engines"][name] = figures
        elif name in engines:
            file = run.folder / f"certificates-{name}.jsonl"
            whole = name != "crown" or _units(model, data) <= WHOLE_UNITS
            index = torch.arange(len(data)) if whole else _open(found["engines"], arrays)
            try:
                with notes.timed(name):
                    judged = _judge(file, model, data, None if whole else index, ball, engine, watch)
            except MemoryBudgetError as error:
                if name == NEEDED:
                    raise
                watch.say(f"{name}: not run: {error}")
                found["engines"][name] = {"engine": repr(engine), "not_run": str(error)}
                continue
            columns = _columns(name, judged, index, len(data))
            certified, as_run = (
                torch.from_numpy(columns[f"{name}_{claim}"]) for claim in ("certified", "certified_as_run")
            )
            note = check_claims(file, certified, as_run, broken)
            if note is not None:
                watch.say(note)
            found["engines"][name] = _figures(judged, len(data)) | _circumstances(engine, data, notes.seconds[name])
            arrays |= columns
            if name == NEEDED:
                found |= {"error": judged.error, "collapsed": judged.collapse(data.classes)}
                found |= {key: found["engines"][name][key] for key in ("robust_error", "robust_error_as_run")}
                arrays |= {"labels": _small(judged.labels), "predicted": _small(judged.predicted)}
            report(found, arrays, False)
    if set(found["engines"]) == set(ENGINES):
        report(found | _best(found["engines"], arrays), arrays, True)


OF_ALL_ENGINES = ("error", "collapsed", "robust_error", "robust_error_as_run")
"""Figures that the exact bound's run brings, beside those of the engine itself."""


def _attacked_before(before: Before) -> Broken | None:
    if "attacked" not in before.arrays:
        return None
    return Broken(*(torch.from_numpy(before.arrays[name]) for name in ("attacked", "attacked_as_run")))


def _circumstances(engine: BoundEngine, data: ImageData, seconds: float) -> Found:
    device = data.images.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"engine": repr(engine), "seconds": seconds, "device": name}


def _judge(
    file: Path,
    model: nn.Module,
    data: ImageData,
    index: Tensor | None,
    ball: Perturbation,
    engine: BoundEngine,
    watch: Watch,
) -> Judged:
    """All images, or those at `index`, in batches that can be stopped in between: fewer images of a larger network, and for the
    dearest engine."""
    if index is not None and len(index) == 0:
        nothing = torch.zeros(0, dtype=torch.int64)
        return Judged(nothing, nothing, nothing.bool(), nothing.bool(), nothing.float(), nothing.float())
    if index is not None:
        data = data.select(index.to(data.labels.device))
    step = at_once(model, data)
    step = max(1, step // 10) if isinstance(engine, Crown) else step
    renewed = RENEWED if index is None else (*RENEWED, "data", "examples")  # other images may be open now
    return judge_to_file(file, model, data, ball, engine, watch.tell, say=watch.say, renewed=renewed, step=step)


def _units(model: nn.Module, data: ImageData) -> int:
    """Features of the input, and units of all activations."""
    return generators(dual_network(model, data.scaled(slice(0, 1))))


def _open(engines: Found, arrays: Arrays) -> Tensor:
    """Positions of the images that nobody has broken in real numbers, and no engine so far has certified as run."""
    decided = arrays["attacked"].copy()
    for name, figures in engines.items():
        if "not_run" not in figures:
            decided |= arrays[f"{name}_certified_as_run"]
    return torch.from_numpy((~decided).nonzero()[0])


def _figures(judged: Judged, images: int) -> Found:
    """Counts; and errors, where all images were tried."""
    tried = len(judged.labels)
    counts = {
        "images": tried,
        "certified": int(judged.certified.sum()),
        "certified_as_run": int(judged.certified_as_run.sum()),
    }
    if tried < images:
        return counts
    return counts | {"robust_error": judged.robust_error, "robust_error_as_run": judged.robust_error_as_run}


def _best(engines: Found, arrays: Arrays) -> Found:
    """An image counts as certified if one of the engines certifies it."""
    ran = [name for name, figures in engines.items() if "not_run" not in figures]
    certified = np.any([arrays[f"{name}_certified"] for name in ran], axis=0)
    as_run = np.any([arrays[f"{name}_certified_as_run"] for name in ran], axis=0)
    return {
        "certified_best": int(certified.sum()), "certified_best_as_run": int(as_run.sum()),
        "robust_error_best": 1 - float(certified.mean()), "robust_error_best_as_run": 1 - float(as_run.mean()),
    }  # fmt: skip


def _columns(name: str, judged: Judged, index: Tensor, images: int) -> Arrays:
    """About all images: those that were not tried have no margin. Margins of the exact bound are kept as they are, of the others in
    half the space, since their verdicts are kept beside them."""
    certified, as_run = torch.zeros(images, dtype=torch.bool), torch.zeros(images, dtype=torch.bool)
    margins = torch.full((images,), torch.nan)
    certified[index], as_run[index], margins[index] = judged.certified, judged.certified_as_run, judged.margins.float()
    kept = margins if name == NEEDED else margins.clamp(-6e4, 6e4).half()
    return {
        f"{name}_certified": certified.numpy(),
        f"{name}_certified_as_run": as_run.numpy(),
        f"{name}_margin": kept.numpy(),
    }


def _small(labels: Tensor) -> np.ndarray:
    return labels.to(torch.uint8 if int(labels.max()) < 256 else torch.int64).numpy()


def _attack_network(run: Run, model: nn.Module, data: ImageData, ball: Perturbation, watch: Watch) -> Broken:
    def lines(part: slice) -> list[Line]:
        with full_precision():
            found = attack(model, data.scaled(part), data.labels[part], ball, steps=ATTACK_STEPS)
        pairs = zip(found.success.tolist(), found.success_as_run.tolist(), strict=True)
        return [
            {"index": part.start + i, "broken": one, "broken_as_run": other} for i, (one, other) in enumerate(pairs)
        ]

    problem = question([model], data, ball, Dual()) | {"engine": f"attack({ATTACK_STEPS} steps)"}
    names = ("broken", "broken_as_run")
    found = _lines(run.folder / "attack.jsonl", problem, names, lines, data, batch_size(data), "attacking", watch)
    return Broken(*(torch.tensor([line[name] for line in found], dtype=torch.bool) for name in names))


def _lines(
    path: Path,
    problem: Line,
    names: tuple[str, ...],
    one: Callable[[slice], list[Line]],
    data: ImageData,
    step: int,
    what: str,
    watch: Watch,
) -> list[Line]:
    """A line with these truth values for each example, `step` of them at a time; goes on where an interrupted call stopped."""

    def fault(line: Line) -> str | None:
        fine = line.keys() == {"index", *names} and all(type(line[name]) is bool for name in names)
        return None if fine else f"does not hold {', '.join(names)}, each true or false"

    file = LineFile(path, fault, watch.say)
    try:
        found = file.begin(problem, step, renewed=RENEWED)
        for turn in in_turns(one, data, what, watch.tell, ALONE, start=len(found), step=step):
            new = [line for lines in turn for line in lines]
            found += new
            file.append(new)
    finally:
        file.close()
    return found


def evaluate_cascade(
    config: TrainConfig, run: Run, stages: list[nn.Module], parts: Parts, notes: Notes, watch: Watch, report: Report
) -> None:
    """Four figures: what stages certify (the paper's metric), what an attack leaves of it, what is sound of it, and the best sound
    combination of the same stages, which is chosen on other images than those it is tested on."""
    data, cascade = parts.test, Cascade(stages, make_ball(config))
    file = run.folder / "cascade-certificates.jsonl"
    with notes.timed("cascade"):
        step = at_once(stages[0], data)
        certified = certify_to_file(file, cascade, data, watch.tell, say=watch.say, renewed=RENEWED, step=step)
    found: Found = certified.summary()
    found["cascade_engine"] = found.pop("engine")
    arrays: Arrays = {
        "labels": _small(certified.labels), "answer": _small(certified.answers.label), "stage": _small(certified.answers.stage),
        "certified": certified.answers.certified.numpy(), "sound": certified.sound.numpy(),
        "sound_as_run": certified.sound_as_run.numpy(), "no_wrong_certificate": certified.no_wrong_certificate.numpy(),
    }  # fmt: skip
    report(found, arrays, False)
    with notes.timed("best combination"):
        found["best_sound"] = _best_sound(config, run, stages, parts, watch, arrays)
    report(found, arrays, False)
    with notes.timed("cascade attack"):
        found |= _attack_cascade(run, cascade, certified, data, watch, arrays)
    report(found, arrays, True)


BESIDE_AN_ATTACK = ("error", "stage_certified_error", "sound_certified_error", "sound_certified_error_as_run")
"""Figures of the attacked images, which stand beside what the attack found on them."""


def _attack_cascade(
    run: Run, cascade: Cascade, certified: CascadeCertificate, data: ImageData, watch: Watch, arrays: Arrays
) -> Found:
    """The first images only: the attack follows gradients of bounds, which are dear."""
    some = data.take(ATTACKED * (10 if data.images.is_cuda else 1))
    step = attack_batch(cascade, some)

    def lines(part: slice) -> list[Line]:
        with full_precision():
            broken = cascade.attack(some.scaled(part), some.labels[part], steps=20)
        pairs = zip(broken.found.tolist(), broken.certified_wrong.tolist(), strict=True)
        return [
            {"index": part.start + i, "found": one, "certified_wrong": other} for i, (one, other) in enumerate(pairs)
        ]

    problem = question(cascade.models, some, cascade.ball, cascade.engine) | {"engine": "cascade attack(20 steps)"}
    names = ("found", "certified_wrong")
    written = _lines(
        run.folder / "attack-cascade.jsonl", problem, names, lines, some, step, "attacking the cascade", watch
    )
    broken = _CascadeBroken(*(torch.tensor([line[name] for line in written], dtype=torch.bool) for name in names))
    same = certified.take(len(some))
    note = check_together(run.folder, same, broken)
    if note is not None:
        watch.say(note)
    arrays |= {"attacked": broken.found.numpy(), "attacked_certified_wrong": broken.certified_wrong.numpy()}
    return {
        "attacked_examples": len(some), "attacked_error": broken.found.double().mean().item(),
        "attacked_certified_error": broken.certified_wrong.double().mean().item(),
        "broken_claims": int((same.claimed & broken.found).sum()),
        "on_attacked": {name: getattr(same, name) for name in BESIDE_AN_ATTACK},
    }  # fmt: skip


@dataclass(frozen=True)
class _CascadeBroken:
    """What `check_together` needs of an attack, as it is read back from lines."""

    found: Tensor
    certified_wrong: Tensor


def _best_sound(
    config: TrainConfig, run: Run, stages: list[nn.Module], parts: Parts, watch: Watch, arrays: Arrays
) -> Found:
    """The first stage alone, the routed cascade or the sum of scores: whichever leaves the fewest images of `fitting` uncertified."""
    ball = make_ball(config)
    fitting = (parts.held_out if parts.held_out is not None else parts.train).take(config.evaluate_examples)
    file = run.folder / "best-combination.json"
    if not file.exists():
        routed = RoutedCascade.fit(stages, fitting.scaled(), fitting.labels, ball).thresholds if len(stages) > 1 else ()
        tried: dict[str, float] = {}
        for kind in COMBINATIONS:
            try:
                proved = certify_all(_combination(kind, stages, routed, ball), fitting, watch.tell)
            except MemoryBudgetError as error:
                watch.say(f"{kind}: not tried: {error}")
                continue
            tried[kind] = proved.sound_certified_error
        chosen = min(tried, key=lambda kind: tried[kind])
        thresholds = [None if t == float("inf") else t for t in routed]
        write_json(file, {"chosen": chosen, "thresholds": thresholds, "error_on_fitting": tried})
    choice = read_json(file)
    fitted = tuple(float("inf") if t is None else float(t) for t in choice["thresholds"])
    combination = _combination(choice["chosen"], stages, fitted, ball)
    lines = run.folder / "best-certificates.jsonl"
    step = at_once(stages[0], parts.test)
    proved = certify_to_file(lines, combination, parts.test, watch.tell, say=watch.say, renewed=RENEWED, step=step)
    arrays |= {"best_sound": proved.sound.numpy(), "best_sound_as_run": proved.sound_as_run.numpy()}
    return choice | {
        "error": proved.error, "sound_certified_error": proved.sound_certified_error,
        "sound_certified_error_as_run": proved.sound_certified_error_as_run,
        "chosen_on": f"{len(fitting)} {'held-out' if parts.held_out is not None else 'training'} images",
    }  # fmt: skip


COMBINATIONS = ("first stage alone", "routed", "sum")


def _combination(kind: str, stages: list[nn.Module], thresholds: tuple[float, ...], ball: Perturbation) -> Combination:
    makers: dict[str, Callable[[], Combination]] = {
        "first stage alone": partial(SumEnsemble, stages[:1], ball),
        "routed": partial(RoutedCascade, stages, thresholds, ball),
        "sum": partial(SumEnsemble, stages, ball),
    }
    return makers[kind]()


def write_arrays(path: Path, arrays: Arrays) -> None:
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **cast(dict[str, Any], arrays))
