"""A run folder: the config that made it, what was measured, checkpoints, and one process at a time.

This file does not import PyTorch, nor what imports it, before it is needed: a command that refuses a config does so at once."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, get_args

from autodual._errors import ArgumentError, AutodualError
from autodual._files import (
    RECORD_LIMIT,
    append_lines,
    claim,
    in_one_line,
    parse_json,
    read_content,
    write_bytes,
    write_json,
    write_text,
)
from autodual.runs.config import TrainConfig, dump_yaml, read_yaml
from autodual.runs.records import DataUsed, Environment, Failure, MetricsLine, parse, plain, read
from autodual.runs.schedule import by_epochs

NAMED = ("model", "dataset", "test_dataset", "feature_eps")
"""Options that may name a file: file.py:factory, and of data a folder, a file.npz or a table, too."""


def to_folder(option: str, text: str | None, folder: Path) -> str | None:
    """An option's value for a kept file in `folder`: a path is rewritten relative to `folder`, anything else stays."""
    if text is None:
        return None
    file, rest = _parts(option, text)
    return text if file is None else f"{relative(file, folder)}{rest}"


def from_folder(option: str, text: str, folder: Path) -> str:
    """The value that `to_folder` wrote, with a path that holds from anywhere. A path that does not exist stays as it is."""
    file, rest = _parts(option, text, folder)
    place = None if file is None else folder.resolve() / file
    return f"{os.path.normpath(place)}{rest}" if place is not None and place.exists() else text


def resolved(option: str, text: str | None) -> str | None:
    """The value with the whole path of the file that it names, if it names one."""
    if text is None:
        return None
    file, rest = _parts(option, text)
    return text if file is None else f"{file.resolve()}{rest}"


def relative(path: Path, folder: Path) -> str:
    """The path as seen from `folder`, with slashes; the whole path where none leads there, as between drives of Windows."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:
        return str(path)


def _parts(option: str, text: str, folder: Path = Path()) -> tuple[Path | None, str]:
    """The file that is named, if one is, and what follows it."""
    from autodual.data import is_factory
    from autodual.data.known import KNOWN

    try:
        if is_factory(text):
            file, _, name = text.rpartition(":")
            return Path(file).expanduser(), f":{name}"
        if option != "model" and text not in KNOWN and (folder / Path(text).expanduser()).exists():
            return Path(text).expanduser(), ""
    except (OSError, RuntimeError, ValueError):
        pass  # no such home, or no name that a file could have; whoever opens it says so
    return None, ""


def recorded_command(arguments: Sequence[str]) -> str:
    """The command without places of this machine: paths below the working folder are relative to it, those below the user's folder
    begin with ~, and of any other only the last part is kept, as in .../NAME."""
    program = Path(arguments[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return " ".join([shlex.quote(name or "python"), *map(without_place, arguments[1:])])


def without_place(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    if flag.startswith("-") and equals:
        return f"{shlex.quote(flag)}={without_place(value)}"
    path = Path(argument)
    if not path.is_absolute():
        return shlex.quote(argument)
    for place, short in ((Path(os.path.curdir).absolute(), ""), (Path(os.path.expanduser("~")), "~/")):
        if place != Path(place.anchor) and path.is_relative_to(place):
            return f"{short}{shlex.quote(str(path.relative_to(place)))}"
    return f".../{shlex.quote(path.name)}"


METRICS_LIMIT = 2**30

LATER = (
    "tensorboard", "eps_part", "lr_part", "lr_halve_part", "half_weights", "label_column", "test_dataset", "split_seed",
    "feature_eps", "skip_curve",
    "per_channel", "initialisation", "eps_schedule", "warm_up", "train_eps_factor", "lr_milestones", "lr_factor",
    "robust_weight_start", "mix", "mix_with", "box_part", "crown_weight", "crown_weight_start", "attack_steps", "attack_step_size",
    "attack_restarts", "attack_eps_factor", "attack_half", "batch_statistics", "regularise", "l1", "average", "average_decay",
    "average_epochs", "precise_statistics", "crop_fill", "evaluate_engine",
)  # fmt: skip
"""Fields of `TrainConfig` that came after the first runs were written, oldest first; a new field goes to the end."""

FREE = ("device", "data_folder", "tensorboard", "skip_curve")
"""Options that may change when a run goes on: what is trained does not depend on them."""

AT_THE_START = (".lock", "config.yaml", "environment.json")
"""Files with which a folder still counts as empty: a run that was killed before its first step leaves them."""


class _Inside:
    """A file or folder of a run, by its name in the run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: Run, kind: type[Run]) -> Path:
        return run.folder / self.name


@dataclass(frozen=True)
class Run:
    """A run folder: where it keeps its files, and what may be done to them."""

    folder: Path

    config_file = _Inside("config.yaml")
    environment_file = _Inside("environment.json")
    metrics_file = _Inside("metrics.jsonl")
    checkpoints = _Inside("checkpoints")
    stages = _Inside("stages")
    model_file = _Inside("model.safetensors")
    evaluation_file = _Inside("evaluation.json")
    certificates_file = _Inside("certificates.jsonl")
    """Lines about the test images, which the evaluation sums up."""
    cascade_folder = _Inside("cascade")
    """All stages of a cascade together."""
    cascade_file = _Inside("cascade.json")
    """What the cascade is worth."""
    events = _Inside("tensorboard")
    """Event files for TensorBoard."""
    failure_file = _Inside("failure.json")
    """Why the run ended before it was finished; it goes as soon as the run goes on."""

    def stage_file(self, stage: int) -> Path:
        return self.stages / f"{stage}.safetensors"

    def config(self) -> TrainConfig:
        """The run's config. Every field that existed when it was written must be there: no default replaces one that got lost."""
        values = read_yaml(self.config_file)
        if isinstance(values, dict):
            files = [name for name in NAMED if isinstance(values.get(name), str)]
            values = values | {name: from_folder(name, values[name], self.folder) for name in files}
        config = TrainConfig.from_mapping(values, str(self.config_file))
        missing = [name for name in config.to_mapping() if name not in values]
        known = max((number for number, name in enumerate(LATER, 1) if name in values), default=0)
        if not set(LATER[known:]).issuperset(missing):
            raise ArgumentError(
                f"{self.config_file}: a run's config has every field, but this one lacks {', '.join(missing)}; put back what the "
                f"run was begun with"
            )
        return config

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second process on the same folder."""
        with in_one_line(self.folder, "cannot write there"):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = _appended(self.folder / ".lock")
        with handle:
            claim(handle, self.folder, f"{self.folder}: another process is working on this run")
            yield

    @contextlib.contextmanager
    def attempted(self) -> Iterator[None]:
        """Locks the folder. If what follows fails before a step was trained, the folder becomes what it was before."""
        made = [place for place in (self.folder, *self.folder.parents) if not place.exists()]  # inner first
        fresh = not self.begun()
        before = {name: _bytes_of(self.folder / name) for name in AT_THE_START} if fresh else {}
        try:
            with self.locked():
                try:
                    yield
                except BaseException:
                    if fresh and not self._trained():
                        self._undo(before)
                    raise
        except BaseException:
            with contextlib.suppress(OSError):  # a folder that holds something stays
                for place in made:
                    place.rmdir()
            raise

    def _trained(self) -> bool:
        """Whether anything was done: a step of a stage, or a whole one."""
        from autodual.runs.checkpoint import listed

        kept = any(place.exists() for place in (self.stages, self.model_file, self.evaluation_file))
        return kept or any(not path.name.endswith("-step-000000000") for path in listed(self.checkpoints))

    def _undo(self, before: Mapping[str, bytes | None]) -> None:
        """Takes away what a run writes before its first step, and nothing else."""
        for place in (self.checkpoints, self.events, *self.folder.glob(".writing-*")):
            shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError, AutodualError):  # what went wrong before is what matters
            for file in (self.metrics_file, self.failure_file):
                file.unlink(missing_ok=True)
            for name, content in before.items():
                if content is None:
                    (self.folder / name).unlink(missing_ok=True)
                elif content != _bytes_of(self.folder / name):
                    write_bytes(self.folder / name, content)

    def note_failure(self, error: Exception) -> None:
        """Keep why the run ended, for whoever looks at the folder later."""
        words = str(error) if isinstance(error, AutodualError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError, AutodualError):  # what went wrong before is what matters
            write_json(self.failure_file, plain(Failure(words, _now())))

    def begin(self, config: TrainConfig, resume: bool) -> None:
        """Claim the folder, which is locked, for this config: fresh, or to go on with the same."""
        self.check(config, resume)
        for place in (self.folder, self.checkpoints, self.stages, self.cascade_folder):
            for left in place.glob(".writing-*"):
                shutil.rmtree(left, ignore_errors=True)  # by a process of this run that was killed
        self.failure_file.unlink(missing_ok=True)
        if not self.begun():
            self.environment_file.unlink(missing_ok=True)
            values = config.to_mapping()
            write_text(self.config_file, dump_yaml(values | {k: to_folder(k, values[k], self.folder) for k in NAMED}))

    def check(self, config: TrainConfig, resume: bool) -> None:
        """Refuse a folder that is not for this config. Changes nothing."""
        if not self.begun():
            if self.folder.is_dir() and not all(map(_left_at_the_start, self.folder.iterdir())):
                raise ArgumentError(f"{self.folder}: is not empty and holds no run; choose another folder")
            return
        if not resume:
            raise ArgumentError(
                f"{self.folder}: holds a run already; go on with --resume (resume=True in Python), or choose another folder"
            )
        before, now = by_epochs(self.config()), by_epochs(config)
        for name in (name for name in now if name not in FREE):
            was, is_now = before[name], now[name]
            if was != is_now and not (name in NAMED and resolved(name, was) == resolved(name, is_now)):
                raise ArgumentError(
                    f"{self.folder}: is a run of another config: {name} was {was!r}, now {is_now!r}; go on with its own, or choose "
                    f"another folder"
                )

    def begun(self) -> bool:
        """Whether there is something to go on with; a run that could not even start has left its config alone."""
        kept = (self.checkpoints, self.stages, self.model_file)
        return self.config_file.exists() and any(place.exists() for place in kept)

    def note_environment(self, data: DataUsed, device: str, processes: int) -> None:
        """Notes versions, machine and command each time that the run goes on; refuses to go on with other data."""
        data = replace(data, name=to_folder("dataset", data.name, self.folder) or data.name)
        now = Environment(
            **versions(), machine=f"{platform.system()} {platform.machine()}", command=recorded_command(sys.argv),
            started=_now(), device=device, processes=processes, data=data,
        )  # fmt: skip
        before = read(Environment, self.environment_file) if self.environment_file.exists() else None
        if before is not None and not before.data.is_like(data):
            raise ArgumentError(
                f"{self.folder}: its data have changed since it was begun ({plain(before.data)}, now {plain(data)}); choose another "
                f"folder"
            )
        record = now if before is None else replace(before, resumed=(*(before.resumed or ()), now))
        write_json(self.environment_file, plain(record))

    def record(self, line: MetricsLine) -> None:
        """Adds a line of metrics, whole or not at all."""
        with in_one_line(self.metrics_file), _appended(self.metrics_file) as stream:
            append_lines(stream, [plain(line)])

    def metrics(self) -> list[MetricsLine | None]:
        """All lines of metrics, in order; None for one that is damaged."""
        if not self.metrics_file.exists():
            return []
        return [_metrics_line(line) for line in read_content(self.metrics_file, METRICS_LIMIT).splitlines()]

    def metrics_size(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def cut_metrics(self, size: int) -> None:
        """Forget lines that are newer than the checkpoint that the run goes on from."""
        if self.metrics_file.exists():
            with in_one_line(self.metrics_file, "cannot be shortened"):
                os.truncate(self.metrics_file, min(size, self.metrics_size()))

    def forget_stage(self, stage: int) -> None:
        """Forget the metrics of a stage that begins again, those of later stages, and a last line that is not whole."""
        if self.metrics_file.exists():
            content = read_content(self.metrics_file, METRICS_LIMIT)
            found = [(line + b"\n", _metrics_line(line)) for line in content.split(b"\n")[:-1]]
            # A damaged line is left to those who look at it.
            kept = b"".join(line for line, record in found if record is None or record.stage < stage)
            if kept != content:
                write_bytes(self.metrics_file, kept)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _bytes_of(path: Path) -> bytes | None:
    return read_content(path, RECORD_LIMIT) if path.is_file() else None


def _appended(path: Path) -> IO[bytes]:
    """The file, opened to add to it. A pipe in its place is refused, since it might never open."""
    if path.is_fifo():
        raise ArgumentError(f"{path}: is a pipe, not a file")
    return path.open("ab")


def _metrics_line(line: bytes) -> MetricsLine | None:
    for kind in get_args(MetricsLine):
        with contextlib.suppress(ValueError):
            found: MetricsLine = parse(kind, parse_json(line))
            return found
    return None


def versions() -> dict[str, Any]:
    """The versions that compute here."""
    import torch

    from autodual._version import __version__

    return {"autodual": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _left_at_the_start(path: Path) -> bool:
    """Whether a run that could not even start may have left this file, perhaps half written."""
    if path.name.startswith(".writing-"):
        return path.is_dir() and all(map(_left_at_the_start, path.iterdir()))
    return path.name in AT_THE_START
