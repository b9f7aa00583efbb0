"""autodual train"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from autodual.cli.options import DEFAULTS, checked, with_config_options
from autodual.cli.terminal import Display, InterruptedRunError, Signals, speaks
from autodual.runs.folder import Run, read_yaml


@with_config_options()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file with any of the options below; flags win over it")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="run folder; runs/NAME when not given")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in this folder, or begin one")] = False,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train a network that can be certified, evaluate it exactly, and keep everything in a run folder."""
    folder = out or Path("runs") / (config.stem if config is not None else "run")
    given, place = ({}, DEFAULTS) if config is None else (read_yaml(config), str(config))
    if resume and config is None and Run(folder).config_file.exists():
        given, place = Run(folder).config().to_mapping(), str(folder)
    options = checked({} if given is None else given, changes or {}, place)
    from autodual.cli.certificates import tell_cascade
    from autodual.training.fitting import train as run_training
    from autodual.training.loop import StoppedError
    from autodual.training.stage import ADVICE

    with Signals() as signals:
        display = Display(signals.stop)
        try:
            with display.bars:
                record = run_training(options, folder, resume, display.watch())
        except StoppedError as stopped:
            raise InterruptedRunError(str(stopped), signals.received or 2) from None
    if not speaks():
        return
    print(
        f"{folder}: error {record['error']:.2%}, PGD error {record['pgd_error']:.2%}, robust error {record['robust_error']:.2%}"
        f"{_as_run(record)} at {record['norm']} {record['eps']:g} ({record['examples']} test images)"
        f"{_trained(record.get('trained'), options.epochs)}"
    )
    if record.get("collapsed"):
        print(f"warning: the network has {record['collapsed']}. {ADVICE}", file=sys.stderr)
    if "cascade" in record:
        found = record["cascade"]
        print("(first stage alone).", end=" ")
        tell_cascade(f"The {found['kind']} cascade", found)


def _as_run(record: dict[str, Any]) -> str:
    """The second statement, about the network as it runs; a run of an earlier version does not make it."""
    rate = record.get("robust_error_as_run")
    return f" (as run in {record.get('dtype')}: {rate:.2%})" if isinstance(rate, float) else ""


def _trained(at: dict[str, Any] | None, epochs: int) -> str:
    """What the weights that count were trained against; a run of an earlier version does not say."""
    if not at:
        return ""
    size = "without perturbations" if at["eps"] is None else f"against eps {at['eps']:g}"
    return f"; weights of epoch {at['epoch'] + 1} of {epochs}, trained {size}"
