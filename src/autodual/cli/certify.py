"""autodual certify"""

from __future__ import annotations

import random
import secrets
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from autodual._errors import ArgumentError
from autodual.cli.options import TARGET, with_config_options
from autodual.cli.terminal import speaks, watched
from autodual.runs.config import option

if TYPE_CHECKING:
    from autodual.engines import BoundEngine
    from autodual.runs.records import Summary

Engine = Literal["dual", "crown", "ibp", "high-probability"]
SHOWN = 20
"""Differences that a check tells one by one."""


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
            help="run folder, an ONNX file with --dataset, or a safetensors file with --model and --dataset; with --check, a file "
            "of certificates"
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
    from autodual.cli.certificates import open_again
    from autodual.evaluation.recheck import made_with, noted_problem, recheck
    from autodual.runs.folder import Run

    file = Run(target).certificates_file if target.is_dir() else target
    problem = noted_problem(file)
    opened = open_again(file, problem.asked, changes, problem.examples)
    again = recheck(file, problem, opened.model, opened.combination, opened.data, opened.ball)
    seed = secrets.randbelow(2**32) if seed is None else seed
    there = len(again.lines)
    chosen = sorted(random.Random(seed).sample(range(there), min(20 if sample is None else sample, there)))
    with watched("stopped as asked; a check keeps nothing") as watch:
        told = again.differences(chosen, lambda done: watch.tell("checking", done, len(chosen)))
    told = told or again.contradictions()
    for sentence in told[:SHOWN]:
        print(f"{file}: {sentence}")
    if len(told) > SHOWN:
        print(f"{file}: {len(told) - SHOWN} more differences")
    result = f"{len(told)} differences" if told else "all as written"
    wanted = len(opened.data)
    unfinished = f"; the file ends after {there} of {wanted} examples" if there < wanted else ""
    compared = ", ".join(name for name in again.entries if name != "index")
    print(
        f"{file}: {len(chosen)} of {there} examples computed again ({problem.perturbation}, {problem.engine}, seed {seed}; "
        f"{compared}): {result}{unfinished}{made_with(problem, opened.data)}"
    )
    raise typer.Exit(1 if told else 0)


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
    from autodual.cli.certificates import asked_about, check_way, default_file, open_named, tell_cascade
    from autodual.evaluation.judge import basis, judged_summary
    from autodual.evaluation.ledger import Ledger, cascade_file, cascade_to_file, judge_to_file
    from autodual.evaluation.processes import joined
    from autodual.runs.lines import record_about
    from autodual.runs.records import CascadeSummary
    from autodual.runs.schema import parse, plain

    chosen = _chosen(engine, probability)
    opened = open_named(target, changes, limit)
    file = out or default_file(opened, engine, limit)
    if opened.combination is not None and engine == "high-probability":
        raise ArgumentError(
            f"{target}: is a cascade, which --engine high-probability cannot certify: every stage needs bounds of its own, and the "
            f"chances that one of them fails add up; use dual, crown or ibp"
        )
    cascade = None if opened.combination is None else opened.combination.with_engine(chosen)
    files = [file] if cascade is None else [file, cascade_file(file)]
    together: CascadeSummary | None = None
    with watched() as seen, joined(opened.data.device) as group:
        group.by_first(lambda: check_way(files, resume, overwrite))
        watch, asked = seen.within(group), asked_about(opened, file)
        ledgers = [Ledger(path, watch.tell, group, watch.say, anew=overwrite, asked=asked) for path in files]
        found = judge_to_file(ledgers[0], opened.model, opened.data, opened.ball, chosen)
        group.by_first(lambda: opened.check_certificates(chosen, found, watch.say))
        if cascade is not None:
            together = parse(CascadeSummary, cascade_to_file(ledgers[1], cascade, opened.data).summary())
    if not group.first:
        return
    rests_on = basis(opened.model, opened.data, opened.ball, chosen)
    summary = judged_summary(found, opened.ball, chosen, rests_on, opened.data.classes)
    write_json(record_about(file, "summary"), plain(replace(summary, cascade=together)))
    if together is not None:
        tell_cascade(f"{files[1]}: {cascade!r}", together)
    first = "" if together is None else "first stage alone, "
    print(
        f"{first}{opened.ball!r}, {chosen!r}: error {found.error:.2%}, {_told(summary)} ({summary.examples} images); {file}"
    )
    if summary.collapsed is not None:
        print(f"warning: {first}the network has {summary.collapsed}", file=sys.stderr)


def _told(found: Summary) -> str:
    """Both statements: in real numbers, and as the network runs."""
    if found.basis is None:
        return f"robust error {found.robust_error:.2%} (as run in float32: {found.robust_error_as_run:.2%})"
    rates = f"{found.not_certified:.2%} (as run in float32: {found.not_certified_as_run:.2%})"
    if found.basis.estimates == 0:
        return f"not certified: {rates}; nothing was estimated, the bounds are exact"
    return f"not certified with probability {1 - found.basis.delta:.10g} each: {rates}"


def _chosen(engine: Engine, given: dict[str, Any]) -> BoundEngine:
    from autodual.engines import HighProbability
    from autodual.evaluation.judge import ENGINES

    if engine == "high-probability":
        asked = Probability(**given)
        return HighProbability(asked.delta, asked.k, seed=asked.seed)
    return ENGINES[engine]
