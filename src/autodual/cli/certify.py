"""autodual certify, with what it opens and where it writes; certify --check; and autodual attack."""

from __future__ import annotations

import math
import random
import re
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from autodual._errors import ArgumentError
from autodual._files import write_json
from autodual.cli.options import TARGET, checked, targets, with_config_options
from autodual.cli.terminal import TIME_IS_UP, answer, speaks, watched
from autodual.runs.config import Proving, option
from autodual.runs.folder import NAMED, Run, from_folder, relative, resolved, to_folder
from autodual.runs.lines import Asked, check_way, record_about
from autodual.runs.records import CascadeErrors, CascadeSummary, Summary, parse, plain

if TYPE_CHECKING:
    from autodual.cascades import Combination
    from autodual.data import Examples
    from autodual.evaluation.processes import Watch
    from autodual.training.trained import Target

Engine = Literal[Proving, "high-probability"]
TARGET_HELP = (
    "run folder; ONNX file with --dataset; weights (safetensors or .pt) with --model and --dataset; or file.py:factory with --weights "
    "and --dataset"
)
WeightsOption = Annotated[
    Path | None,
    typer.Option(help="a state dictionary for the network that TARGET names: safetensors, or .pt without code in it"),
]
Limit = Annotated[int | None, typer.Option(help="only the first so many test images; all when not given", min=1)]


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
        Path, typer.Argument(help=f"{TARGET_HELP}; with --check, a file of certificates", autocompletion=targets)
    ],
    weights: WeightsOption = None,
    engine: Annotated[
        Engine | None,
        typer.Option(help="how to bound [default: what the run was evaluated with, or dual]", show_default=False),
    ] = None,
    limit: Limit = None,
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
    timeout: Annotated[
        float | None,
        typer.Option(
            help="seconds for the certificates; what is not reached stays out of the file, and --resume goes on with it"
        ),
    ] = None,
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
        given: dict[str, Any] = {"weights": weights, "engine": engine, "limit": limit, "out": out, "timeout": timeout}
        given |= {"resume": resume or None, "overwrite": overwrite or None}
        _check(target, sample, sample_seed, given | (probability or {}), changes or {})
    if sample is not None or sample_seed is not None:
        raise ArgumentError("--sample and --sample-seed are for --check")
    if timeout is not None and not 0 < timeout < math.inf:
        raise ArgumentError(f"--timeout must be more than 0 seconds, got {timeout:g}; leave it out for no limit")
    for name in probability or {} if engine != "high-probability" else {}:
        raise ArgumentError(f"--{name} is for --engine high-probability; no other is random")
    from autodual.certificates.certificate import in_words
    from autodual.engines import HighProbability
    from autodual.evaluation.judge import (
        ENGINES,
        Ledger,
        at_once,
        basis,
        cascade_file,
        cascade_to_file,
        judge_to_file,
        judged_summary,
    )
    from autodual.evaluation.processes import joined

    asked = Probability(**probability or {})
    by_chance = engine == "high-probability"
    opened = open_named(target, changes or {}, limit, weights)
    engine = engine or opened.own.evaluate_engine
    chosen = HighProbability(asked.delta, asked.k, seed=asked.seed) if engine == "high-probability" else ENGINES[engine]
    file = out or _default_file(opened, engine, limit)
    if opened.combination is not None and by_chance:
        raise ArgumentError(
            f"{target}: is a cascade, which --engine high-probability cannot certify: every stage needs bounds of its own, and the "
            f"chances that one of them fails add up; use dual, crown or ibp"
        )
    cascade = None if opened.combination is None else opened.combination.with_engine(chosen)
    files = [file] if cascade is None else [file, cascade_file(file)]
    together: CascadeSummary | None = None
    with watched() as seen, joined(opened.data.device) as group:
        group.by_first(lambda: check_way(files, resume, overwrite))
        watch, how = seen.within(group), _asked_about(opened, file)
        step = None if by_chance else at_once(opened.model, opened.data)
        until = None if timeout is None else time.monotonic() + timeout
        ledgers = [Ledger(path, watch, overwrite, step=step, asked=how, until=until) for path in files]
        found, wanted = judge_to_file(ledgers[0], opened.model, opened.data, opened.ball, chosen), len(opened.data)
        whole = len(found.labels) == wanted
        if whole:
            group.by_first(lambda: opened.check_certificates(chosen, found, watch.say))
        if cascade is not None and whole:
            all_stages = cascade_to_file(ledgers[1], cascade, opened.data)
            whole = len(all_stages.labels) == wanted
            together = parse(CascadeSummary, all_stages.summary()) if whole else None
    if not group.first:
        return
    if not whole:
        record_about(file, "summary").unlink(missing_ok=True)  # of a file that was complete
    if len(found.labels) == 0:
        answer(file=str(file), examples=0, of=wanted)
        print(f"time is up before the first images are done (of {wanted}); go on with --resume, and more time; {file}")
        raise typer.Exit(TIME_IS_UP)
    rests_on = basis(opened.model, opened.data, opened.ball, chosen)
    summary = judged_summary(found, opened.ball, chosen, rests_on, opened.data.classes)
    summary = replace(summary, cascade=together)
    if whole:
        write_json(record_about(file, "summary"), plain(summary))
    if together is not None:
        tell_cascade(f"{files[1]}: {cascade!r}", together)
    first = "" if together is None else "first stage alone, "
    answer(
        **_fields(summary), of=wanted, file=str(file), **({} if cascade is None else {"cascade_file": str(files[1])})
    )
    print(
        f"{first}{in_words(opened.ball)} by {chosen!r}: error {found.error:.2%}, {_told(summary)} "
        f"({summary.examples} {opened.data.KIND}s); {file}"
    )
    if not whole:
        print(f"time is up after {len(found.labels)} of {wanted} images{_left(cascade)}; go on with --resume")
    if summary.collapsed is not None:
        print(f"warning: {first}the network has {summary.collapsed}", file=sys.stderr)
    if not whole:
        raise typer.Exit(TIME_IS_UP)


def _left(cascade: Combination | None) -> str:
    return "" if cascade is None else ", and all stages together are not done"


def _fields(found: Summary) -> dict[str, Any]:
    values = plain(found)
    return values if found.robust_error is None else values | {"certified_accuracy": 1 - found.robust_error}


def _told(found: Summary) -> str:
    """Words for both statements: in real numbers, and as the network runs."""
    if found.basis is None:
        return f"robust error {found.robust_error:.2%} (as run in float32: {found.robust_error_as_run:.2%})"
    rates = f"{found.not_certified:.2%} (as run in float32: {found.not_certified_as_run:.2%})"
    if found.basis.estimates == 0:
        return f"not certified: {rates}; nothing was estimated, the bounds are exact"
    return f"not certified with probability {1 - found.basis.delta:.10g} each: {rates}"


def open_named(place: Path, given: dict[str, Any], limit: int | None, weights: Path | None = None) -> Target:
    """Opens what an argument names. given: options of `TrainConfig`; a run folder supplies the others, except the device. weights: of
    a network that is named in the place of a file of its own."""
    from autodual.training.trained import open_target, own_config

    if weights is not None:
        if "model" in given:
            raise ArgumentError("--weights is for a network that TARGET names; leave --model out, or give TARGET alone")
        if place.exists() and place.suffix != ".py":
            raise ArgumentError(f"{place}: exists, and --weights is for a network's name: file.py:factory, small, ...")
        place, given = weights, given | {"model": str(place)}
    own = own_config(place)
    config = checked(own.to_mapping() | {"device": "auto"}, given, str(place))
    opened = open_target(place, own, config, given, limit)
    if not place.is_dir() and speaks() and not given.keys() & {"eps", "feature_eps"}:
        print(f"note: --eps was not given, so that it is {own.eps:g}", file=sys.stderr)
    return opened


# Where lines of certificates are written, so that nothing is lost unasked.

WORDS: dict[str, Callable[[Any], str]] = {
    "dataset": lambda name: re.sub(r"[^\w.]+", "-", Path(name).name),
    "norm": str,
    "eps": lambda eps: f"eps-{eps:g}",
    "feature_eps": lambda text: f"feature-eps-{sha256(str(text).encode()).hexdigest()[:8]}",
    "clip": lambda clip: "no-clip" if clip is None else f"clip-{clip[0]:g}-{clip[1]:g}",
}
"""How a name says what was asked."""


def _default_file(opened: Target, engine: str, limit: int | None) -> Path:
    """certificates-ENGINE.jsonl in the run folder; the name encodes every setting that differs from the run's own."""
    place = opened.place
    words = ["certificates"] if place.is_dir() else [place.stem, "certificates"]
    words.append(engine)
    for name, word in WORDS.items():
        asked = getattr(opened.config, name)
        own = getattr(opened.own, name)
        same = resolved(name, asked) == resolved(name, own) if name in NAMED else asked == own
        if not same and not (name == "clip" and opened.config.norm != "linf"):
            words.append(word(asked))
    if limit is not None:
        words.append(f"first-{limit}")
    return (place if place.is_dir() else Path()) / f"{'-'.join(words)}.jsonl"


def _asked_about(opened: Target, file: Path) -> Asked:
    """How to open the target again, with paths as seen from the file of lines."""
    config, folder = opened.config, file.parent
    model, dataset, test, feature_eps = (to_folder(name, getattr(config, name), folder) for name in NAMED)
    options = (config.normalise, config.norm, config.eps, config.clip)
    table = (config.label_column, test, config.split_seed if config.tabular else None, feature_eps)
    place = relative(opened.place, folder)
    return Asked(place, model, dataset, *options, *table, per_channel=config.per_channel or None)


# certify --check

SHOWN = 20
"""Differences that a check tells one by one."""


def _check(
    target: Path, sample: int | None, seed: int | None, asked: dict[str, Any], changes: dict[str, Any]
) -> NoReturn:
    for name, value in asked.items():
        if value is not None:
            raise ArgumentError(f"--check takes --{name} from the file; leave it out")
    if not speaks():
        raise typer.Exit
    from autodual.evaluation.judge import made_with, noted_problem, recheck

    file = Run(target).certificates_file if target.is_dir() else target
    problem = noted_problem(file)
    opened = _open_again(file, problem.asked, changes, problem.examples)
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
    answer(
        file=str(file), perturbation=problem.perturbation, engine=problem.engine, examples=there, of=len(opened.data),
        checked=len(chosen), seed=seed, differences=told,
    )  # fmt: skip
    wanted = len(opened.data)
    unfinished = f"; the file ends after {there} of {wanted} examples" if there < wanted else ""
    compared = ", ".join(name for name in again.entries if name != "index")
    print(
        f"{file}: {len(chosen)} of {there} examples computed again ({problem.perturbation}, {problem.engine}, seed {seed}; "
        f"{compared}): {result}{unfinished}{made_with(problem, opened.data)}"
    )
    raise typer.Exit(1 if told else 0)


def _open_again(file: Path, asked: Asked | None, changes: dict[str, Any], examples: int) -> Target:
    """Opens again what a file of lines is about; `changes` win over what is noted, for whoever has moved something."""
    given: dict[str, Any] = {}
    if asked is not None:
        given = {name: value for name, value in plain(asked).items() if name != "target"}
        given |= {name: from_folder(name, given[name], file.parent) for name in NAMED if name in given}
    place = file.parent / (asked.target if asked is not None and asked.target is not None else ".")
    try:
        return open_named(place, given | changes, examples)
    except ArgumentError as error:
        if asked is None and not (place / "config.yaml").exists():
            raise ArgumentError(
                f"{file}: does not say where its model and data are, as certify_data leaves it; certify again there, with another "
                f"out, and compare"
            ) from None
        raise ArgumentError(f"{file}: what it is about cannot be opened: {error}") from None


# attack

STOPPED = "stopped as asked; an attack keeps nothing: start again, with --limit for fewer images"


@with_config_options(*TARGET)
def attack(
    target: Annotated[Path, typer.Argument(help=TARGET_HELP, autocompletion=targets)],
    weights: WeightsOption = None,
    limit: Limit = None,
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
    from autodual.certificates.certificate import in_words
    from autodual.evaluation.evaluate import attacked
    from autodual.evaluation.processes import joined

    opened = open_named(target, changes or {}, limit, weights)
    with watched(STOPPED) as seen, joined(opened.data.device) as group:
        watch = seen.within(group)
        broken = attacked(opened.model, opened.data, opened.ball, watch=watch, steps=steps, restarts=restarts)
        group.by_first(lambda: opened.check_attack(broken, watch.say))
        found = None if opened.combination is None else _on_cascade(opened.combination, opened.data, watch)
    if not group.first:
        return
    first = "" if found is None else "first stage alone, "
    answer(
        perturbation=repr(opened.ball), examples=len(opened.data), pgd_error=broken.error_as_run, pgd_error_exact=broken.error,
        **({} if found is None else {"cascade": plain(found)}),
    )  # fmt: skip
    print(
        f"{first}{in_words(opened.ball)}: PGD error {broken.error_as_run:.2%} as run in float32 (in real numbers: {broken.error:.2%}; "
        f"{len(opened.data)} {opened.data.KIND}s, {steps} steps from {restarts} {'start' if restarts == 1 else 'starts'})"
    )
    if found is not None:
        tell_cascade(repr(opened.combination), found)


def _on_cascade(combination: Combination, data: Examples, watch: Watch) -> CascadeSummary:
    """The cascade attack: points that make it answer wrongly, if possible with a certificate."""
    from autodual.evaluation.evaluate import check_together
    from autodual.training.stages import attack_all, certify_all

    certified = certify_all(combination, data, watch)
    attacked = attack_all(combination, data, watch)
    check_together(repr(combination), certified, attacked.found, attacked.certified_wrong, watch.say)
    return parse(CascadeSummary, certified.summary(attacked))


# The figures of a cascade in a line or two: those that stand together are about the same images.

CONTRADICTION = (
    "{} images are soundly certified and yet broken by the attack, which cannot be: do not trust these certificates"
)


def tell_cascade(name: str, found: CascadeSummary) -> None:
    """Prints what a cascade reaches; an attack on the first images only has a line of its own."""
    attack = found.attack
    if attack is None or attack.attacked_examples < found.examples:
        print(f"{name}: {_errors(found.errors)} ({found.examples} images)")
    if attack is not None:
        which, images = name, f"{found.examples} images"
        if attack.attacked_examples < found.examples:
            which, images = "Attacked", f"the first {attack.attacked_examples} of them"
        attacked = f"attacked error {attack.attacked_error:.2%} ({attack.broken_claims} claims broken), "
        print(f"{which}: {_errors(attack.on_attacked, attacked)} ({images})")
    if found.collapsed:
        print(f"warning: the cascade has {found.collapsed}", file=sys.stderr)
    if attack is not None and attack.broken_proofs:
        print(CONTRADICTION.format(attack.broken_proofs), file=sys.stderr)


def _errors(rates: CascadeErrors, attacked: str = "") -> str:
    return (
        f"error {rates.error:.2%}, stage-certified error {rates.stage_certified_error:.2%}, {attacked}soundly certified error "
        f"{rates.sound_certified_error:.2%} (as run: {rates.sound_certified_error_as_run:.2%})"
    )
