"""autodual train, autodual report"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodual._errors import ArgumentError
from autodual.cli.options import DEFAULTS, checked, configs, run_folders, with_config_options
from autodual.cli.terminal import answer, speaks, watched
from autodual.runs.config import read_yaml
from autodual.runs.folder import Run
from autodual.runs.recipes import RECIPES
from autodual.runs.recipes import options as recipe_options

if TYPE_CHECKING:
    from autodual.runs.records import Evaluation
    from autodual.training.fitting import Finished


@with_config_options()
def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML file with any of the options below; flags win over it", autocompletion=configs),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="run folder; runs/NAME when not given")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in this folder, or begin one")] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            help=f"a known way of training: {', '.join(RECIPES)}; for its data set and eps, or any; config and flags win"
        ),
    ] = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train a network that can be certified, evaluate it exactly, and keep everything in a run folder."""
    if config is not None and config.is_dir():
        raise ArgumentError(f"{config}: is a folder, not a config file; name a run folder with --out {config}")
    folder = out or Path("runs") / (config.stem if config is not None else "run")
    given, place = ({}, DEFAULTS) if config is None else (read_yaml(config), str(config))
    if resume and config is None and Run(folder).config_file.exists():
        given, place = Run(folder).config().to_mapping(), str(folder)
    given = {} if given is None else given
    if recipe is not None and isinstance(given, Mapping):
        asked = {**given, **(changes or {})}
        given, place = (
            {**recipe_options(recipe, asked.get("dataset"), asked.get("eps")), **given},
            f"{place}, recipe {recipe}",
        )
    options = checked(given, changes or {}, place)
    from autodual.certificates.certificate import fraction
    from autodual.cli.certify import tell_cascade
    from autodual.training.fitting import train_run
    from autodual.training.stages import ADVICE

    with watched() as watch:
        record = train_run(options, folder, resume, watch)
    if not speaks():
        return
    found, kind = record.evaluation, "examples" if options.tabular else "images"
    answer(run=str(folder), **_fields(record))
    print(
        f"{folder}: error {found.error:.2%}, PGD error {found.pgd_error:.2%}, robust error {found.robust_error:.2%}{_as_run(found)} "
        f"at {found.norm} {fraction(found.eps)} ({found.examples} test {kind}){_trained(found, options.epochs)}"
    )
    if found.collapsed:
        print(f"warning: the network has {found.collapsed}. {ADVICE}", file=sys.stderr)
    if record.cascade is not None:
        print("(first stage alone).", end=" ")
        tell_cascade(f"The {record.cascade.kind} cascade", record.cascade)


PER_EXAMPLE = (
    "margins",
    "radii",
    "labels",
    "predicted",
    "certified",
    "certified_as_run",
    "attacked",
    "attacked_as_run",
)
"""Entries of an evaluation with a value for every example; evaluation.json has them."""


def _fields(record: Finished) -> dict[str, Any]:
    values = {name: value for name, value in record.to_mapping().items() if name not in PER_EXAMPLE}
    return values | {"certified_accuracy": 1 - record.evaluation.robust_error}


def _as_run(found: Evaluation) -> str:
    """The second statement, about the network as it runs; the first published runs do not make it."""
    rate = found.robust_error_as_run
    return "" if rate is None else f" (as run in {found.dtype}: {rate:.2%})"


def _trained(found: Evaluation, epochs: int) -> str:
    """What the weights that count were trained against; the first published runs do not say."""
    at = found.trained
    if at is None:
        return ""
    from autodual.certificates.certificate import fraction

    size = "without perturbations" if at.eps is None else f"against eps {fraction(at.eps)}"
    return f"; weights of epoch {at.epoch + 1} of {epochs}, trained {size}"


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="one run folder, or several to compare", autocompletion=run_folders)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="where to write; when not given, report.html in the run's folder, or, of several, comparison.html beside the first"
        ),
    ] = None,
) -> None:
    """One self-contained HTML page: what was reached, how it got there, and what the attack still breaks."""
    if not speaks():
        return
    from autodual.report import write_report

    beside = runs[0].resolve().parent / "comparison.html"
    written = write_report(runs, out or (runs[0] / "report.html" if len(runs) == 1 else beside))
    answer(file=str(written))
    print(written)
