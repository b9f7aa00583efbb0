"""autodual attack"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodual.cli.options import TARGET, with_config_options
from autodual.cli.terminal import watched

if TYPE_CHECKING:
    from autodual.cascades import Combination
    from autodual.data import ImageData
    from autodual.runs.records import CascadeSummary
    from autodual.training.stage import Watch

STOPPED = "stopped as asked; an attack keeps nothing: start again, with --limit for fewer images"


@with_config_options(*TARGET)
def attack(
    target: Annotated[Path, typer.Argument(help="run folder, or a safetensors file with --model and --dataset")],
    limit: Annotated[
        int | None, typer.Option(help="only the first so many test images; all when not given", min=1)
    ] = None,
    steps: Annotated[int, typer.Option(help="gradient steps from each start", min=0)] = 40,
    restarts: Annotated[
        int,
        typer.Option(
            help="starts for each image: the image itself, random corners and random points of its set", min=1
        ),
    ] = 4,
    changes: dict[str, Any] | None = None,
) -> None:
    """Search for perturbations that change the label: the other side of the sandwich."""
    from autodual.cli.certificates import open_named, tell_cascade
    from autodual.evaluation.claims import attacked
    from autodual.evaluation.processes import joined

    opened = open_named(target, changes or {}, limit)
    with watched(STOPPED) as seen, joined(opened.data.device) as group:
        watch = seen.within(group)
        broken = attacked(
            opened.model, opened.data, opened.ball, watch.tell, group=group, steps=steps, restarts=restarts
        )
        group.by_first(lambda: opened.check_attack(broken, watch.say))
        found = None if opened.combination is None else _on_cascade(opened.combination, opened.data, watch)
    if not group.first:
        return
    first = "" if found is None else "first stage alone, "
    print(
        f"{first}{opened.ball!r}: PGD error {broken.error_as_run:.2%} as run in float32 (in real numbers: {broken.error:.2%}; "
        f"{len(opened.data)} images, {steps} steps from {restarts} {'start' if restarts == 1 else 'starts'})"
    )
    if found is not None:
        tell_cascade(repr(opened.combination), found)


def _on_cascade(combination: Combination, data: ImageData, watch: Watch) -> CascadeSummary:
    """The cascade attack: points that make it answer wrongly, if possible with a certificate."""
    from autodual.evaluation.claims import check_together
    from autodual.runs.records import CascadeSummary
    from autodual.runs.schema import parse
    from autodual.training.cascade import attack_all, certify_all

    certified = certify_all(combination, data, watch.tell, watch.group)
    attacked = attack_all(combination, data, watch.tell, group=watch.group)
    check_together(repr(combination), certified, attacked.found, attacked.certified_wrong, watch.say)
    return parse(CascadeSummary, certified.summary(attacked))
