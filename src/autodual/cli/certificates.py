"""What `certify` and `attack` open, where `certify` writes, so that nothing is lost unasked, and how a cascade's figures are told."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autodual._errors import ArgumentError
from autodual._files import read_content
from autodual.cli.options import checked
from autodual.runs.folder import NAMED, from_folder, relative, resolved, to_folder
from autodual.runs.lines import LINES_LIMIT, Asked, Problem, ProblemOutline, record_about
from autodual.runs.records import CascadeErrors, CascadeSummary, Summary, plain, read_if_sound
from autodual.training.trained import Target, open_target, own_config

WORDS: dict[str, Callable[[Any], str]] = {
    "dataset": lambda name: re.sub(r"[^\w.]+", "-", Path(name).name),
    "norm": str,
    "eps": lambda eps: f"eps-{eps:g}",
    "clip": lambda clip: "no-clip" if clip is None else f"clip-{clip[0]:g}-{clip[1]:g}",
}
"""How a name says what was asked."""


def default_file(opened: Target, engine: str, limit: int | None) -> Path:
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


def asked_about(opened: Target, file: Path) -> Asked:
    """How to open the target again, with paths as seen from the file of lines."""
    config, folder = opened.config, file.parent
    model, dataset = (to_folder(name, getattr(config, name), folder) for name in NAMED)
    options = (config.normalise, config.norm, config.eps, config.clip)
    return Asked(relative(opened.place, folder), model, dataset, *options)


def open_again(file: Path, asked: Asked | None, changes: dict[str, Any], examples: int) -> Target:
    """What a file of lines is about, opened again; `changes` win over what is noted, for whoever has moved something."""
    given: dict[str, Any] = {}
    if asked is not None:
        given = {name: value for name, value in plain(asked).items() if name != "target"}
        given |= {name: from_folder(name, given[name], file.parent) for name in NAMED if name in given}
    place = file.parent / (asked.target if asked is not None and asked.target is not None else ".")
    try:
        return open_named(place, given | changes, examples)
    except ArgumentError as error:
        raise ArgumentError(f"{file}: what it is about cannot be opened: {error}") from None


def open_named(place: Path, given: dict[str, Any], limit: int | None) -> Target:
    """What an argument names. given: options of `TrainConfig`; a run folder supplies the others, but the device is this machine's."""
    own = own_config(place)
    config = checked(own.to_mapping() | {"device": "auto"}, given, str(place))
    return open_target(place, own, config, given, limit)


def check_way(files: Sequence[Path], resume: bool, overwrite: bool) -> None:
    """Refuse files that hold something already, unless the user has said what shall become of them; files of others always.

    files: those of lines. A problem lies beside each of them, and a summary beside the first.
    """
    if resume and overwrite:
        raise ArgumentError("--resume and --overwrite exclude each other: go on with the file, or start anew")
    for file in files:
        _check_file(file, resume, overwrite)
    for file in files:
        _check_record(record_about(file, "problem"), ProblemOutline, resume or overwrite)
    _check_record(record_about(files[0], "summary"), Summary, resume or overwrite)


def _check_record(path: Path, kind: type[ProblemOutline] | type[Summary], may_replace: bool) -> None:
    """Refuse to write over a record beside the lines that is not one of ours, or that nobody has given up."""
    if not path.exists() and not path.is_symlink():
        return
    if read_if_sound(kind, path) is None:
        raise ArgumentError(
            f"{path}: would be written over, but is not from `autodual certify`; move it away, or choose another --out"
        )
    if not may_replace:
        raise ArgumentError(
            f"{path}: is left from certificates that are not there any more; write over it with --overwrite, or choose another --out"
        )


def _check_file(file: Path, resume: bool, overwrite: bool) -> None:
    if file.is_dir():
        raise ArgumentError(f"{file}: is a folder; --out names a file")
    if file.exists() and not file.is_file():
        raise ArgumentError(f"{file}: is no file that one could go on with; choose another --out")
    if resume or not file.exists() or file.stat().st_size == 0:
        return
    if not overwrite:
        raise ArgumentError(f"{file}: {_held(file)}start anew with --overwrite, or choose another --out")


def _held(file: Path) -> str:
    """What is there, and whether one can go on with it."""
    note = record_about(file, "problem")
    about = read_if_sound(ProblemOutline, note)
    if about is None or file.stat().st_size > LINES_LIMIT:
        return "exists already, and holds no certificates that one could go on with; "
    done = read_content(file, LINES_LIMIT).count(b"\n")
    what = f"{done} of {about.examples} certificates of {about.perturbation} by {about.engine}"
    if read_if_sound(Problem, note) is None:
        return f"holds {what} already, from another version, which one cannot go on with; "
    return f"holds {what} already; go on with --resume, "


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
