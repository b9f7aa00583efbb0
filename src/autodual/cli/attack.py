"""autodual attack"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from autodual.cli.progress import Display
from autodual.cli.signals import InterruptedRunError, Signals
from autodual.cli.target import open_target
from autodual.train.evaluate import attacked
from autodual.train.loop import StoppedError


def attack(
    target: Annotated[Path, typer.Argument(help="run folder, or a safetensors file with --model and --dataset")],
    dataset: Annotated[str | None, typer.Option(help="data set, as for train; the run's own when not given")] = None,
    data_folder: Annotated[str | None, typer.Option(help="where data sets lie")] = None,
    model: Annotated[str | None, typer.Option(help="model, as for train; the run's own when not given")] = None,
    normalise: Annotated[bool | None, typer.Option("--normalise/--no-normalise", help="as for train")] = None,
    norm: Annotated[Literal["linf", "l2"] | None, typer.Option(help="norm of the perturbation")] = None,
    eps: Annotated[float | None, typer.Option(help="size of the perturbation")] = None,
    clip: Annotated[tuple[float, float] | None, typer.Option(help="range that perturbed images stay in")] = None,
    limit: Annotated[int | None, typer.Option(help="only the first so many test images", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
) -> None:
    """Search for perturbations that change the label: the other side of the sandwich."""
    opened = open_target(
        target,
        limit,
        device=device,
        dataset=dataset,
        data_folder=data_folder,
        model=model,
        normalise=normalise,
        norm=norm,
        eps=eps,
        clip=clip,
    )
    with Signals() as signals:
        display = Display(signals.stop)
        try:
            with display.bars:
                wrong = attacked(opened.model, opened.data, opened.ball, display.watch().tell)
        except StoppedError as stopped:
            raise InterruptedRunError(str(stopped), signals.received or 2) from None
    print(f"{opened.ball!r}: PGD error {wrong.double().mean().item():.2%} ({len(opened.data)} images)")
