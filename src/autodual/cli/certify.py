"""autodual certify"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from autodual._errors import ArgumentError
from autodual.cli.options import TARGET, with_config_options
from autodual.cli.terminal import Display, InterruptedRunError, Signals, speaks
from autodual.runs.config import option

if TYPE_CHECKING:
    from autodual.engines import BoundEngine
    from autodual.evaluation.judge import Judged

Engine = Literal["dual", "crown", "ibp", "high-probability"]


@dataclass(frozen=True)
class Probability:
    """Options of the engine high-probability."""

    delta: float = option(0.01, "high-probability: the probability, per image, that its bounds fail")
    k: int = option(2000, "high-probability: random projections per estimate; more are tighter and slower")
    seed: int = option(0, "high-probability: of the random numbers; to choose it by its result voids the probability")


@with_config_options(*TARGET)
@with_config_options(record=Probability, into="probability")
def certify(
    target: Annotated[
        Path,
        typer.Argument(
            help="run folder, or a safetensors file with --model and --dataset; with --check, a file of certificates"
        ),
    ],
    engine: Annotated[Engine | None, typer.Option(help="how to bound [default: dual]", show_default=False)] = None,
    limit: Annotated[
        int | None, typer.Option(help="only the first so many test images; all when not given", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="one line of JSON per image; certificates-ENGINE[-WHAT-DIFFERS-FROM-THE-RUN].jsonl when not given. "
            "Of a cascade, these are of its first stage, and OUT.cascade.jsonl beside it has all stages together"
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="go on with a file of the same question; one that is complete is only summed up"),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="start anew; without this and --resume, a file that exists is refused")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="compute some of the certificates in TARGET again, and compare; exit code 1 if one differs"
        ),
    ] = False,
    sample: Annotated[
        int | None, typer.Option(help="with --check: how many images, drawn at random [default: 20]", min=1)
    ] = None,
    sample_seed: Annotated[
        int | None, typer.Option(help="with --check: draws the same images again; told by every check", min=0)
    ] = None,
    probability: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Prove, image by image, that no perturbation changes the label."""
    if check:
        asked_too = {
            "engine": engine, "limit": limit, "out": out, "resume": resume or None, "overwrite": overwrite or None
        } | (probability or {})  # fmt: skip
        _check(target, sample, sample_seed, asked_too, changes or {})
    if sample is not None or sample_seed is not None:
        raise ArgumentError("--sample and --sample-seed are for --check")
    engine = engine or "dual"
    for name in probability or {} if engine != "high-probability" else {}:
        raise ArgumentError(f"--{name} is for --engine high-probability; {engine} is not random")
    _certify(target, engine, limit, out, resume, overwrite, probability or {}, changes or {})


def _check(
    target: Path, sample: int | None, seed: int | None, asked: dict[str, Any], changes: dict[str, Any]
) -> NoReturn:
    for name, value in asked.items():
        if value is not None:
            raise ArgumentError(f"--check takes --{name} from the file; leave it out")
    if not speaks():
        raise typer.Exit
    from autodual.cli.check import check_file
    from autodual.training.loop import StoppedError

    with Signals() as signals:
        try:
            code = check_file(target, 20 if sample is None else sample, seed, changes, Display(signals.stop))
        except StoppedError:
            raise InterruptedRunError("stopped as asked; a check keeps nothing", signals.received or 2) from None
    raise typer.Exit(code)


def _certify(
    target: Path,
    engine: Engine,
    limit: int | None,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    probability: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    from autodual._files import write_json
    from autodual.cli.certificates import asked_about, check_cascade_engine, check_way, default_file, tell_cascade
    from autodual.cli.target import check_by_evaluation, open_target
    from autodual.evaluation.cascade_lines import cascade_file, certify_to_file
    from autodual.evaluation.judge import basis, judge_to_file, proved
    from autodual.evaluation.processes import joined
    from autodual.runs.lines import record_about
    from autodual.training.loop import StoppedError

    chosen = _chosen(engine, probability)
    opened = open_target(target, limit, changes)
    file = out or default_file(target, opened, engine, limit)
    if opened.combination is not None:
        check_cascade_engine(target, engine)
    cascade = None if opened.combination is None else opened.combination.with_engine(chosen)
    files = [file] if cascade is None else [file, cascade_file(file)]
    asked = asked_about(target, opened, file)
    with Signals() as signals:
        display = Display(signals.stop)
        try:
            with display.bars, joined(opened.data.images.device) as group:
                group.by_first(lambda: check_way(files, resume, overwrite))
                watch = display.watch().within(group)
                found = judge_to_file(
                    file, opened.model, opened.data, opened.ball, chosen, watch.tell, group, overwrite, watch.say, asked
                )
                group.by_first(lambda: check_by_evaluation(target, opened, chosen, found, watch.say))
                together = None
                if cascade is not None:
                    together = certify_to_file(
                        files[1], cascade, opened.data, watch.tell, group, overwrite, watch.say, asked
                    ).summary()
        except StoppedError as stopped:
            raise InterruptedRunError(str(stopped), signals.received or 2) from None
    if not group.first:
        return
    collapsed = found.collapse(opened.data.classes)
    rests_on = basis(opened.model, opened.data, opened.ball, chosen)
    record = {
        "perturbation": repr(opened.ball), "engine": repr(chosen), "examples": len(opened.data), "error": found.error,
    } | proved(found, chosen) | {"collapsed": collapsed} | rests_on  # fmt: skip
    write_json(record_about(file, "summary"), record if together is None else record | {"cascade": together})
    if together is not None:
        tell_cascade(f"{files[1]}: {cascade!r}", together)
    first = "" if together is None else "first stage alone, "
    print(
        f"{first}{opened.ball!r}, {chosen!r}: error {found.error:.2%}, {_told(found, rests_on)} ({len(opened.data)} images); {file}"
    )
    if collapsed is not None:
        print(f"warning: {first}the network has {collapsed}", file=sys.stderr)


def _told(found: Judged, rests_on: dict[str, Any]) -> str:
    """Both statements: in real numbers, and as the network runs; rests_on: nothing for a proof."""
    rates = f"{found.robust_error:.2%} (as run in float32: {found.robust_error_as_run:.2%})"
    if not rests_on:
        return f"robust error {rates}"
    if rests_on["estimates"] == 0:
        return f"not certified: {rates}; nothing was estimated, the bounds are exact"
    return f"not certified with probability {1 - rests_on['delta']:.10g} each: {rates}"


def _chosen(engine: Engine, given: dict[str, Any]) -> BoundEngine:
    from autodual.engines import IBP, Crown, Dual, HighProbability

    if engine == "high-probability":
        asked = Probability(**given)
        return HighProbability(asked.delta, asked.k, seed=asked.seed)
    return {"dual": Dual, "crown": Crown, "ibp": IBP}[engine]()
