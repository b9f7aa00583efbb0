"""Training one network on some data: a whole run, or the stages of a cascade one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._files import write_json
from autodual._tensor import full_precision
from autodual.cascades import Cascade, Combination, RoutedCascade, SumEnsemble, SummedScores
from autodual.cascades.records import CascadeAttack, CascadeCertificate
from autodual.certificates.certificate import collapse
from autodual.data import Examples
from autodual.engines.effort import COPIES
from autodual.engines.prepare import dual_network
from autodual.engines.results import generators
from autodual.evaluation.evaluate import check_together
from autodual.evaluation.judge import ENGINES, RENEWED, Ledger, at_once, cascade_problem, judge
from autodual.evaluation.processes import ALONE, UNWATCHED, Group, Watch, batch_size, in_turns, on_all
from autodual.models import initialise_for_intervals
from autodual.runs.checkpoint import load_model, round_to_half_, save_model
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.lines import SortingLine, lines_of
from autodual.runs.records import (
    CascadeSummary,
    StillOpen,
    TrainedAt,
    TrainedLine,
    ValidationLine,
    damaged,
    parse,
    plain,
    read,
)  # fmt: skip
from autodual.runs.schedule import trained_eps
from autodual.training.loop import Loop
from autodual.training.setup import make_ball

ATTACKED = 100
"""Examples that the cascade attack is tried on, on a CPU; ten times as many on a GPU."""
ATTACK_BYTES = 1 << 30
"""What gradients of bounds may take on a CPU, about; ten times as much on a GPU."""
LOOKED_AT = 2000
"""Examples that tell whether a network has collapsed, at most."""
ADVICE = "Try more epochs, a larger eps_part, a smaller eps or lr, or a smaller robust_weight"


@dataclass(frozen=True)
class Parts:
    """The data of a run on its device, and how a fresh network for the part that is trained on is made."""

    train: Examples
    held_out: Examples | None
    test: Examples
    build: Callable[[Examples], nn.Module] = field(repr=False)

    def fitting(self, config: TrainConfig) -> Examples:
        """Images on which combinations of stages are fitted: held-out ones, where there are some."""
        return (self.train if self.held_out is None else self.held_out).take(config.evaluate_examples)


def fresh_model(config: TrainConfig, parts: Parts, stage: int) -> nn.Module:
    """Untrained weights that depend on nothing but the seed and the stage."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1_000_003 * stage)
        model = parts.build(parts.train)
        if config.initialisation == "intervals":
            initialise_for_intervals(model)
        return model.to(parts.train.device)


def train_stage(
    config: TrainConfig, run: Run, stage: int, model: nn.Module, data: Examples, held_out: Examples | None, watch: Watch
) -> None:  # fmt: skip
    """Trains one network; with held-out data, its best checkpoint counts."""
    judge_on = (data if held_out is None else held_out).take(config.evaluate_examples)
    best, group, engine = run.stages / f"best-{stage}.safetensors", watch.group, ENGINES[config.evaluate_engine]

    def validate(network: nn.Module, epoch: int) -> dict[str, float]:
        found = judge(network, judge_on, make_ball(config), engine, "validating", watch)
        figures = {name: getattr(found, name) for name in ("error", "robust_error", "robust_error_as_run")}
        split: Literal["validation", "train"] = "train" if held_out is None else "validation"
        line = ValidationLine(
            "validation", stage, epoch, split, repr(engine), len(judge_on), config.eps, **figures,
            collapsed=found.collapse(judge_on.classes),
        )  # fmt: skip

        def keep() -> None:
            before = [(one.robust_error, one.error) for one in _validations(run, stage)]
            run.record(line)
            if held_out is not None and all((line.robust_error, line.error) <= one for one in before):
                save_model(best, network)  # of equals, the later one

        group.by_first(keep)
        return figures

    Loop(config, run, stage, model, data, validate, watch).fit()
    if held_out is not None and group.by_first(best.exists):
        load_model(best, model)
    if config.half_weights:
        round_to_half_(model)

    def note() -> str | None:
        collapsed, at = collapse_of(model, data), trained_at(config, run, stage)
        run.record(TrainedLine("trained", stage, at.epoch, at.eps, collapsed))
        return collapsed

    collapsed = group.by_first(note)
    if collapsed is not None:
        watch.say(f"stage {stage} has {collapsed}. {ADVICE}")


def collapse_of(model: nn.Module, data: Examples) -> str | None:
    """A sentence about a network that gives one answer for everything; None for any other. Looks at a random part of the images."""
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    some = data.select(drawn.to(data.device))
    parts = [slice(first, first + batch_size(some)) for first in range(0, len(some), batch_size(some))]
    with torch.no_grad():
        predicted = torch.cat([model(some.scaled(part)).argmax(1) for part in parts])
    return collapse(predicted.tolist(), some.labels.tolist(), classes=some.classes)


def trained_at(config: TrainConfig, run: Run, stage: int) -> TrainedAt:
    """The epoch whose weights count, which is the last or the best one."""
    validations = _validations(run, stage) if config.validation > 0 else []
    best = min(validations, key=lambda one: (one.robust_error, one.error, -one.epoch), default=None)
    epoch = config.epochs - 1 if best is None else best.epoch
    return TrainedAt(epoch, trained_eps(config, epoch))


def _validations(run: Run, stage: int) -> list[ValidationLine]:
    """Every validation of this stage on held-out data."""
    lines = run.metrics()
    if None in lines:
        raise ArgumentError(
            f"{run.metrics_file}: line {lines.index(None) + 1} is damaged, so the best checkpoint is not known; put the line right, "
            f"or train anew in another folder"
        )
    found = (line for line in lines if isinstance(line, ValidationLine) and line.stage == stage)
    return [line for line in found if line.split == "validation"]


# Cascade training: stage after stage, each on what the stages before leave open. [SPAD Alg. 2, with the signs of J set right]
#
# paper, routed: stage i is trained from scratch on the training examples that no stage before certifies (its own predicted label, on
# unaugmented images, by the exact bound). It chooses its checkpoint on those held-out ones that are still open, too; where none is,
# its last epoch counts. sum: stage i is trained on all examples, with the scores of the frozen stages before added to its own.
# Training ends early when nothing is left to train on, when a stage does not improve the certified error on held-out data, or, paper
# and routed, when a stage has collapsed: it gives one answer for everything, certifies that, and would leave nothing open, however
# wrong it is.


def train_cascade(config: TrainConfig, run: Run, parts: Parts, watch: Watch) -> list[nn.Module]:
    """Trains and returns the stages; each is kept as soon as it is done, so that a resumed run goes on inside any of them."""
    stages, group = list[nn.Module](), watch.group
    open_ = torch.arange(len(parts.train), device=parts.train.labels.device)
    held_out = parts.held_out
    held_open = torch.arange(0 if held_out is None else len(held_out), device=open_.device)
    best = float("inf")
    for stage in range(config.cascade):
        if len(open_) == 0:
            watch.say(
                f"all training examples are certified: {'one stage is' if stage == 1 else f'{stage} stages are'} enough"
            )
            break
        model = fresh_model(config, parts, stage)
        if group.by_first(run.stage_file(stage).exists):
            load_model(run.stage_file(stage), model)
        else:
            watch.say(f"stage {stage}: training on {len(open_)} of {len(parts.train)} examples")
            trained = model
            if config.cascade_kind == "sum" and stages:
                for frozen in stages:
                    frozen.requires_grad_(False)
                trained = SummedScores((*stages, model))
            train_stage(config, run, stage, trained, parts.train.select(open_), held_out, watch)
            group.by_first(partial(save_model, run.stage_file(stage), model))
        stages.append(model.eval())
        if parts.held_out is not None:
            error = _held_out_error(config, stages, parts.held_out, watch)
            if error >= best:
                watch.say(
                    f"stage {stage} does not improve the certified error on held-out data ({error:.2%}): it is left out"
                )
                stages.pop()
                break
            best = error
        if config.cascade_kind != "sum" and stage + 1 < config.cascade:
            collapsed = group.by_first(partial(collapse_of, model, parts.train.select(open_)))
            if collapsed is not None:
                watch.say(f"no stage is trained after stage {stage}, which has {collapsed}")
                break
            open_ = _still_open(config, run, f"open-{stage + 1}", stage, model, parts.train, open_, watch)
            if parts.held_out is not None:
                name = f"held-out-open-{stage + 1}"
                held_open = _still_open(config, run, name, stage, model, parts.held_out, held_open, watch)
                held_out = parts.held_out.select(held_open) if len(held_open) > 0 else None
    return stages


def _still_open(
    config: TrainConfig, run: Run, name: str, stage: int, model: nn.Module, data: Examples, open_: Tensor, watch: Watch
) -> Tensor:
    """Positions of the open examples that this stage does not certify either. The file `name` keeps them."""
    path, group = run.stages / f"{name}.json", watch.group
    if len(open_) == 0:
        return open_
    if not group.by_first(path.exists):
        alone, some = Cascade([model], make_ball(config)), data.select(open_)
        ledger = Ledger(path.with_suffix(".jsonl"), watch, renewed=RENEWED, step=at_once(model, some))
        lines = ledger.fill(SortingLine, cascade_problem(alone, some), partial(_sort, alone, some), some, "sorting")
        left = open_[torch.tensor([not line.certified for line in lines], device=open_.device)]
        record, right = StillOpen(repr(alone.engine), True, tuple(left.tolist())), sum(line.right for line in lines)
        of = f"{len(open_)} {'held-out ' if name.startswith('held-out') else ''}examples"
        watch.say(f"stage {stage} certifies {len(open_) - len(left)} of {of}, {right} of them with their right label")

        def keep() -> None:
            write_json(path, plain(record))
            ledger.remove()

        group.by_first(keep)
    found = group.by_first(partial(_read_open, path, len(data)))
    return torch.tensor(found, dtype=torch.int64, device=open_.device)


def _sort(alone: Cascade, data: Examples, part: slice) -> list[SortingLine]:
    """Whether the stage certifies its own label of each example, and whether that is the right one."""
    found = alone.predict(data.scaled(part))
    return lines_of(SortingLine, part.start, found.certified, found.certified & (found.label == data.labels[part]))


def _read_open(path: Path, examples: int) -> list[int]:
    """Positions among so many examples, in order."""
    found = list(read(StillOpen, path).open)
    if found != sorted({*found} & {*range(examples)}):
        raise damaged(path)
    return found


def combine(config: TrainConfig, stages: list[nn.Module], fitting: Examples, group: Group = ALONE) -> Combination:
    """The combination that the config names; thresholds of a routed cascade are fitted on `fitting`, by the first process."""
    ball = make_ball(config)
    if config.cascade_kind == "paper":
        return Cascade(stages, ball)
    if config.cascade_kind == "sum":
        return SumEnsemble(stages, ball)

    def fit() -> tuple[float, ...]:
        return RoutedCascade.fit(stages, fitting.scaled(), fitting.labels, ball).thresholds

    return RoutedCascade(stages, group.by_first(fit), ball)


def _held_out_error(config: TrainConfig, stages: list[nn.Module], data: Examples, watch: Watch) -> float:
    some = data.take(config.evaluate_examples)
    return certify_all(combine(config, stages, some, watch.group), some, watch).stage_certified_error


def certify_all(combination: Combination, data: Examples, watch: Watch = UNWATCHED) -> CascadeCertificate:
    return CascadeCertificate.join(on_all(combination.certify, data, "certifying the cascade", watch))


def attack_all(combination: Combination, data: Examples, watch: Watch = UNWATCHED, steps: int = 20) -> CascadeAttack:
    """Attacks all examples in batches that fit into memory. A process alone can be stopped after any step, several after a batch."""
    what = "attacking the cascade"

    def one(part: slice) -> CascadeAttack:
        def tell_step(done: float) -> None:
            if watch.group.alone:  # the others take another number of steps
                watch.tell(what, part.start + int(done * (part.stop - part.start)), len(data))

        with full_precision():  # as certificates are made
            return combination.attack(data.scaled(part), data.labels[part], steps=steps, tell=tell_step)

    turns = in_turns(one, data, what, watch, step=attack_batch(combination, data))
    return CascadeAttack.join([found for turn in turns for found in turn])


def attacked_part(data: Examples) -> Examples:
    """The examples that a cascade is attacked on: the attack follows gradients of bounds, which are dear."""
    return data.take(ATTACKED * (10 if data.device.type == "cuda" else 1))


def attack_batch(combination: Combination, data: Examples) -> int:
    """Examples of a batch of an attack. It depends on the networks, not on free memory, so all processes make the same batches."""
    if not combination.attack_follows_bounds:
        return batch_size(data)
    units = max(generators(dual_network(model, data.scaled(slice(0, 1)))) for model in combination.models)
    room = ATTACK_BYTES * (10 if data.device.type == "cuda" else 1)
    return max(1, min(batch_size(data), room // (4 * COPIES * units**2)))


def finish_cascade(
    config: TrainConfig, run: Run, stages: list[nn.Module], parts: Parts, watch: Watch
) -> CascadeSummary:
    """Saves the combination, certifies and attacks it on test data, and writes cascade.json; reads it where it is there."""
    done, group = run.cascade_file, watch.group
    if group.by_first(done.exists):
        return group.by_first(partial(read, CascadeSummary, done))
    combination = combine(config, stages, parts.fitting(config), group)
    group.by_first(partial(combination.save, run.cascade_folder))
    certified, some = certify_all(combination, parts.test, watch), attacked_part(parts.test)
    attacked, same = attack_all(combination, some, watch), certified.take(len(some))
    check_together(run.cascade_folder, same, attacked.found, attacked.certified_wrong, watch.say)
    found = parse(CascadeSummary, certified.summary() | same.beside(attacked))

    def trained_on(stage: int) -> int:
        if config.cascade_kind == "sum" or stage == 0:
            return len(parts.train)
        return len(_read_open(run.stages / f"open-{stage}.json", len(parts.train)))

    fitted_on = "training data" if parts.held_out is None else "held-out data"
    found = replace(
        found, stages=tuple(replace(row, trained_on=trained_on(row.stage)) for row in found.stages),
        models=len(combination.models), thresholds_fitted_on=fitted_on if config.cascade_kind == "routed" else None,
    )  # fmt: skip
    group.by_first(lambda: write_json(done, plain(found)))
    return found
