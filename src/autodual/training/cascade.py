"""Cascade training: stage after stage, each on what the stages before leave open. [SPAD Alg. 2, with the signs of J set right]

paper, routed: stage i is trained from scratch on the training examples that no stage before certifies (its own predicted label, on
unaugmented images, by the exact bound). It chooses its checkpoint on those held-out ones that are still open, too; where none is,
its last epoch counts. sum: stage i is trained on all examples, with the scores of the frozen stages before added to its own.
Training ends early when nothing is left to train on, when a stage does not improve the certified error on held-out data, or, paper
and routed, when a stage has collapsed: it gives one answer for everything, certifies that, and would leave nothing open, however
wrong it is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from autodual._files import write_json
from autodual._tensor import full_precision
from autodual.cascades import Cascade, Combination, RoutedCascade, SumEnsemble, SummedScores
from autodual.cascades.records import CascadeAttack, CascadeCertificate
from autodual.data import ImageData
from autodual.engines.memory import COPIES
from autodual.engines.prepare import dual_network
from autodual.engines.results import generators
from autodual.evaluation.claims import check_together
from autodual.evaluation.judge import at_once
from autodual.evaluation.ledger import RENEWED, cascade_problem
from autodual.evaluation.processes import ALONE, Group, Tell, batch_size, in_turns, on_all
from autodual.runs.checkpoint import load_model, save_model
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.records import CascadeSummary, SortingLine, StillOpen
from autodual.runs.schema import damaged, parse, plain, read
from autodual.training.setup import make_ball
from autodual.training.stage import Parts, Watch, collapse_of, fresh_model, train_stage

ATTACKED = 100
"""Examples that the cascade attack is tried on, on a CPU; ten times as many on a GPU."""
ATTACK_BYTES = 1 << 30
"""What gradients of bounds may take on a CPU, about; ten times as much on a GPU."""


def train_cascade(config: TrainConfig, run: Run, parts: Parts, watch: Watch) -> list[nn.Module]:
    """Trains and returns the stages; each is kept as soon as it is done, so that a resumed run goes on inside any of them."""
    stages: list[nn.Module] = []
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
        if watch.group.by_first(run.stage_file(stage).exists):
            load_model(run.stage_file(stage), model)
        else:
            watch.say(f"stage {stage}: training on {len(open_)} of {len(parts.train)} examples")
            train_one(config, run, stage, stages, model, parts.train.select(open_), held_out, watch)
            watch.group.by_first(partial(save_model, run.stage_file(stage), model))
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
            collapsed = watch.group.by_first(partial(collapse_of, model, parts.train.select(open_)))
            if collapsed is not None:
                watch.say(f"no stage is trained after stage {stage}, which has {collapsed}")
                break
            open_ = _still_open(config, run, f"open-{stage + 1}", stage, model, parts.train, open_, watch)
            if parts.held_out is not None:
                name = f"held-out-open-{stage + 1}"
                held_open = _still_open(config, run, name, stage, model, parts.held_out, held_open, watch)
                held_out = parts.held_out.select(held_open) if len(held_open) > 0 else None
    return stages


def train_one(
    config: TrainConfig,
    run: Run,
    stage: int,
    before: list[nn.Module],
    model: nn.Module,
    data: ImageData,
    held_out: ImageData | None,
    watch: Watch,
) -> None:
    """Trains one stage; in a sum, on top of the frozen ones."""
    if config.cascade_kind != "sum" or not before:
        train_stage(config, run, stage, model, data, held_out, watch)
        return
    for frozen in before:
        frozen.requires_grad_(False)
    train_stage(config, run, stage, SummedScores((*before, model)), data, held_out, watch)


def _still_open(
    config: TrainConfig, run: Run, name: str, stage: int, model: nn.Module, data: ImageData, open_: Tensor, watch: Watch
) -> Tensor:
    """Positions of the examples that this stage does not certify either; kept in a file of this name."""
    path = run.folder / "stages" / f"{name}.json"
    if len(open_) == 0:
        return open_
    if not watch.group.by_first(path.exists):
        alone, some = Cascade([model], make_ball(config)), data.select(open_)
        ledger = watch.ledger(path.with_suffix(".jsonl"), RENEWED, at_once(model, some))
        lines = ledger.fill(SortingLine, cascade_problem(alone, some), partial(_sort, alone, some), some, "sorting")
        left = open_[torch.tensor([not line.certified for line in lines], device=open_.device)]
        record = StillOpen(repr(alone.engine), True, tuple(left.tolist()))
        right, of = (
            sum(line.right for line in lines),
            f"{len(open_)} {'held-out ' if name.startswith('held-out') else ''}examples",
        )
        watch.say(f"stage {stage} certifies {len(open_) - len(left)} of {of}, {right} of them with their right label")

        def keep() -> None:
            write_json(path, plain(record))
            ledger.remove()

        watch.group.by_first(keep)
    found = watch.group.by_first(partial(_read_open, path, len(data)))
    return torch.tensor(found, dtype=torch.int64, device=open_.device)


def _sort(alone: Cascade, data: ImageData, part: slice) -> list[SortingLine]:
    """Whether the stage certifies its own label of each example, and whether that is the right one."""
    found = alone.predict(data.scaled(part))
    right = found.certified & (found.label == data.labels[part])
    pairs = zip(found.certified.tolist(), right.tolist(), strict=True)
    return [SortingLine(index, *pair) for index, pair in enumerate(pairs, part.start)]


def _read_open(path: Path, examples: int) -> list[int]:
    """Positions among so many examples, in order."""
    found = list(read(StillOpen, path).open)
    if found != sorted({*found} & {*range(examples)}):
        raise damaged(path)
    return found


def combine(config: TrainConfig, stages: list[nn.Module], fitting: ImageData, group: Group = ALONE) -> Combination:
    """The combination that the config names; thresholds of a routed cascade are fitted on `fitting`, by the first process."""
    ball = make_ball(config)
    if config.cascade_kind == "paper":
        return Cascade(stages, ball)
    if config.cascade_kind == "sum":
        return SumEnsemble(stages, ball)

    def fit() -> tuple[float, ...]:
        return RoutedCascade.fit(stages, fitting.scaled(), fitting.labels, ball).thresholds

    return RoutedCascade(stages, group.by_first(fit), ball)


def _held_out_error(config: TrainConfig, stages: list[nn.Module], data: ImageData, watch: Watch) -> float:
    some = data.take(config.evaluate_examples)
    found = certify_all(combine(config, stages, some, watch.group), some, watch.tell, watch.group)
    return found.stage_certified_error


def certify_all(combination: Combination, data: ImageData, tell: Tell, group: Group = ALONE) -> CascadeCertificate:
    return CascadeCertificate.join(on_all(combination.certify, data, "certifying the cascade", tell, group))


def attack_all(
    combination: Combination, data: ImageData, tell: Tell, steps: int = 20, group: Group = ALONE
) -> CascadeAttack:
    """Attacks all examples in batches that fit into memory. A process alone can be stopped after any step, several after a batch."""
    what = "attacking the cascade"

    def one(part: slice) -> CascadeAttack:
        def tell_step(done: float) -> None:
            if group.alone:  # the others take another number of steps
                tell(what, part.start + int(done * (part.stop - part.start)), len(data))

        with full_precision():  # as certificates are made
            return combination.attack(data.scaled(part), data.labels[part], steps=steps, tell=tell_step)

    turns = in_turns(one, data, what, tell, group, step=attack_batch(combination, data))
    return CascadeAttack.join([found for turn in turns for found in turn])


def attacked_part(data: ImageData) -> ImageData:
    """The examples that a cascade is attacked on: the attack follows gradients of bounds, which are dear."""
    return data.take(ATTACKED * (10 if data.images.is_cuda else 1))


def attack_batch(combination: Combination, data: ImageData) -> int:
    """Examples of a batch of an attack. It depends on the networks, not on free memory, so all processes make the same batches."""
    if not combination.attack_follows_bounds:
        return batch_size(data)
    units = max(generators(dual_network(model, data.scaled(slice(0, 1)))) for model in combination.models)
    room = ATTACK_BYTES * (10 if data.images.is_cuda else 1)
    return max(1, min(batch_size(data), room // (4 * COPIES * units**2)))


def finish_cascade(
    config: TrainConfig, run: Run, stages: list[nn.Module], parts: Parts, watch: Watch
) -> CascadeSummary:
    """Save the combination, certify and attack it on test data; writes cascade.json."""
    done, group = run.folder / "cascade.json", watch.group
    if group.by_first(done.exists):
        return group.by_first(partial(read, CascadeSummary, done))
    combination = combine(config, stages, parts.fitting(config), group)
    group.by_first(partial(combination.save, run.cascade_folder))
    certified = certify_all(combination, parts.test, watch.tell, group)
    some = attacked_part(parts.test)
    attacked = attack_all(combination, some, watch.tell, group=group)
    check_together(run.cascade_folder, certified.take(len(some)), attacked.found, attacked.certified_wrong, watch.say)
    found = parse(CascadeSummary, certified.summary() | certified.take(len(some)).beside(attacked))
    counts = tuple(replace(row, trained_on=_trained_on(config, run, row.stage, parts)) for row in found.stages)
    fitted_on = "training data" if parts.held_out is None else "held-out data"
    found = replace(
        found, stages=counts, models=len(combination.models),
        thresholds_fitted_on=fitted_on if config.cascade_kind == "routed" else None,
    )  # fmt: skip
    group.by_first(lambda: write_json(done, plain(found)))
    return found


def _trained_on(config: TrainConfig, run: Run, stage: int, parts: Parts) -> int:
    if config.cascade_kind == "sum" or stage == 0:
        return len(parts.train)
    return len(_read_open(run.folder / "stages" / f"open-{stage}.json", len(parts.train)))
