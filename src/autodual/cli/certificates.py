"""Where `certify` writes: a name that says what was asked, and nothing that is there already is lost unasked."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autodual._errors import ArgumentError
from autodual._files import read_content, read_json
from autodual.cli.target import Target
from autodual.runs.folder import NAMED, relative, resolved, to_folder
from autodual.runs.lines import LINES_LIMIT, Line, read_note, record_about

WORDS: dict[str, Callable[[Any], str]] = {
    "dataset": lambda name: re.sub(r"[^\w.]+", "-", Path(name).name),
    "norm": str,
    "eps": lambda eps: f"eps-{eps:g}",
    "clip": lambda clip: "no-clip" if clip is None else f"clip-{clip[0]:g}-{clip[1]:g}",
}
"""How a name says what was asked."""


def default_file(place: Path, opened: Target, engine: str, limit: int | None) -> Path:
    """certificates-ENGINE.jsonl in the run folder; the name goes on with what differs from the run's own question."""
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


def check_cascade_engine(place: Path, engine: str) -> None:
    """Before anything is certified: the first stage alone could be, but not all of them together."""
    if engine == "high-probability":
        raise ArgumentError(
            f"{place}: is a cascade, which --engine high-probability cannot certify: every stage needs bounds of its own, and the "
            f"chances that one of them fails add up; use dual, crown or ibp"
        )


def asked_about(place: Path, opened: Target, file: Path) -> Line:
    """How to open the target again, with paths as seen from the file of lines."""
    config, folder = opened.config, file.parent
    named = {name: to_folder(name, getattr(config, name), folder) for name in NAMED}
    more = {name: getattr(config, name) for name in ("normalise", "norm", "eps", "clip")}
    return (
        {"target": relative(place, folder)}
        | named
        | more
        | {"clip": None if config.clip is None else list(config.clip)}
    )


def check_way(files: Sequence[Path], resume: bool, overwrite: bool) -> None:
    """Refuse files that hold something already, unless the user has said what shall become of them; files of others always.

    files: those of lines. A problem lies beside each of them, and a summary beside the first.
    """
    if resume and overwrite:
        raise ArgumentError("--resume and --overwrite exclude each other: go on with the file, or start anew")
    for file in files:
        _check_file(file, resume, overwrite)
    records = {record_about(file, "problem"): PROBLEM for file in files} | {record_about(files[0], "summary"): SUMMARY}
    for record, names in records.items():
        _check_record(record, names, resume or overwrite)


PROBLEM = ("perturbation", "engine", "examples", "data")
SUMMARY = ("perturbation", "engine", "examples", "error", "confidence")
"""What a record has that `certify` wrote, in whatever version."""


def _check_record(path: Path, names: Sequence[str], may_replace: bool) -> None:
    """Refuse to write over a record beside the lines that is not one of ours, or that nobody has given up."""
    if not path.exists() and not path.is_symlink():
        return
    try:
        found = read_json(path)
    except ArgumentError:
        found = None
    if not isinstance(found, dict) or not all(name in found for name in names):
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
    try:
        about = read_note(record_about(file, "problem"))
        done = read_content(file, LINES_LIMIT).count(b"\n")
    except ArgumentError:
        about = {}
    if not all(name in about for name in PROBLEM):
        return "exists already, and holds no certificates that one could go on with; "
    what = f"{done} of {about['examples']} certificates of {about['perturbation']} by {about['engine']}"
    if "network" not in about:
        return f"holds {what} already, from an earlier version, which one cannot go on with; "
    return f"holds {what} already; go on with --resume, "


# The figures of a cascade in a line or two: those that stand together are about the same images.

CONTRADICTION = (
    "{} images are soundly certified and yet broken by the attack, which cannot be: do not trust these certificates"
)

AS_RUN = "sound_certified_error_as_run"
"""A record of an earlier version lacks it."""


def tell_cascade(name: str, found: dict[str, Any]) -> None:
    """found: as in cascade.json, with or without an attack; one on the first images only has a line of its own."""
    examples, attacked = found["examples"], found.get("attacked_examples")
    if attacked != examples:
        print(f"{name}: {_errors(found)} ({examples} images)")
    if attacked is not None:
        which = name if attacked == examples else "Attacked"
        images = f"{attacked} images" if attacked == examples else f"the first {attacked} of them"
        print(f"{which}: {_errors(_on_attacked(found), found)} ({images})")
    if found.get("collapsed"):
        print(f"warning: the cascade has {found['collapsed']}", file=sys.stderr)
    if "broken_proofs" in found and _number(found, "broken_proofs") > 0:
        print(CONTRADICTION.format(found["broken_proofs"]), file=sys.stderr)


def _on_attacked(found: dict[str, Any]) -> dict[str, Any]:
    """A record of an earlier version has figures of all images only: those of others do not stand beside an attack."""
    rates = found.get("on_attacked", found if found["attacked_examples"] == found["examples"] else {})
    if not isinstance(rates, dict):
        raise _damaged("on_attacked", rates)
    return rates


def _errors(rates: dict[str, Any], attack: dict[str, Any] | None = None) -> str:
    parts = [_error("error", rates), _error("stage-certified error", rates)]
    if attack is not None:
        claims = f"({_number(attack, 'broken_claims')} claims broken)"
        parts.append(f"attacked error {_number(attack, 'attacked_error'):.2%} {claims}")
    as_run = f" (as run: {_number(rates, AS_RUN):.2%})" if AS_RUN in rates else ""
    parts.append(f"{_error('soundly certified error', rates)}{as_run}")
    return ", ".join(part for part in parts if part)


def _error(name: str, rates: dict[str, Any]) -> str:
    key = name.replace("soundly", "sound").replace("-", "_").replace(" ", "_")
    return f"{name} {_number(rates, key):.2%}" if key in rates else ""


def _number(record: dict[str, Any], key: str) -> float:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _damaged(key, value)
    return value


def _damaged(key: str, value: Any) -> ArgumentError:
    return ArgumentError(f"cascade.json has {value!r} as {key}: it is damaged; remove it, and it will be made anew")
