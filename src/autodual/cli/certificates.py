"""Where `certify` writes: a name that says what was asked, and nothing that is there already is lost unasked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autodual._errors import ArgumentError
from autodual.cli.target import Target
from autodual.train.lines import record_about

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
        if asked != getattr(opened.own, name) and not (name == "clip" and opened.config.norm != "linf"):
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


def check_way(files: Sequence[Path], resume: bool, overwrite: bool) -> None:
    """Refuse files that hold certificates already, unless the user has said what shall become of them."""
    if resume and overwrite:
        raise ArgumentError("--resume and --overwrite exclude each other: go on with the file, or start anew")
    for file in files:
        _check_file(file, resume, overwrite)


def _check_file(file: Path, resume: bool, overwrite: bool) -> None:
    if file.is_dir():
        raise ArgumentError(f"{file}: is a folder; --out names a file")
    if resume or not file.exists() or file.stat().st_size == 0:
        return
    if not overwrite:
        raise ArgumentError(f"{file}: {_held(file)}start anew with --overwrite, or choose another --out")


def _held(file: Path) -> str:
    """What is there, and whether one can go on with it."""
    try:
        about = json.loads(record_about(file, "problem").read_text(encoding="utf-8"))
        done = file.read_bytes().count(b"\n")
        what = f"{done} of {about['examples']} certificates of {about['perturbation']} by {about['engine']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "exists already, and holds no certificates that one could go on with; "
    return f"holds {what} already; go on with --resume, "
