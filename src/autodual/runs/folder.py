"""A run folder: the config that made it, what was measured, checkpoints, and one process at a time.

This file does not import PyTorch, nor what imports it, before it is needed: a command that refuses a config does so at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from autodual._errors import ArgumentError, AutodualError
from autodual._files import RECORD_LIMIT, claim, parse_json, read_content, write_bytes, write_json, write_text
from autodual.runs.config import TrainConfig, by_epochs

# How kept files name other files: relative to themselves, so that they say nothing of a machine and move with their project.

NAMED = ("model", "dataset")
"""Options that may name a file: file.py:factory, and of data a folder or a file.npz, too."""


def to_folder(option: str, text: str, folder: Path) -> str:
    """What names a file from where one stands, as seen from `folder`; what names none as it is."""
    file, rest = _parts(option, text)
    return text if file is None else f"{relative(file, folder)}{rest}"


def from_folder(option: str, text: str, folder: Path) -> str:
    """What `to_folder` has written, as seen from anywhere. Where there is no such file, it was written from where one stood."""
    file, rest = _parts(option, text, folder)
    place = None if file is None else folder.resolve() / file
    return f"{os.path.normpath(place)}{rest}" if place is not None and place.exists() else text


def resolved(option: str, text: str) -> str:
    """With the whole path of the file that is meant from where one stands."""
    file, rest = _parts(option, text)
    return text if file is None else f"{file.resolve()}{rest}"


def relative(path: Path, folder: Path) -> str:
    """With slashes; whole where there is no way from one to the other, as between drives of Windows."""
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
        if option == "dataset" and text not in KNOWN and (folder / Path(text).expanduser()).exists():
            return Path(text).expanduser(), ""
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # no such home, or no name that a file could have; whoever opens it says so
        pass
    return None, ""


CONFIG_LIMIT = 100_000
"""Bytes of a config; those of published runs have about 1,000."""
YAML_DEPTH = 8
"""Levels of a config; a clip is on the second."""
METRICS_LIMIT = 2**30

LATER = ("tensorboard", "eps_part", "lr_part", "lr_halve_part", "half_weights")
"""Fields of `TrainConfig` that came after the first runs were written, oldest first; a new field goes to the end."""

AT_THE_START = (".lock", "config.yaml", "environment.json")
"""What a folder may hold, and a run be begun in it all the same: earlier versions left this behind."""


@dataclass(frozen=True)
class Run:
    """Where a run keeps its files."""

    folder: Path

    @property
    def config_file(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model_file(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def events(self) -> Path:
        """For TensorBoard, if wanted."""
        return self.folder / "tensorboard"

    @property
    def failure_file(self) -> Path:
        """Why the run ended before it was finished, if it did; gone as soon as it goes on."""
        return self.folder / "failure.json"

    def stage_file(self, stage: int) -> Path:
        return self.folder / "stages" / f"{stage}.safetensors"

    def config(self) -> TrainConfig:
        """As it was written: with every field that there was then, so that none that has got lost is replaced by a default."""
        values = read_yaml(self.config_file)
        if isinstance(values, dict):
            values = values | {
                k: from_folder(k, values[k], self.folder) for k in NAMED if isinstance(values.get(k), str)
            }
        config = TrainConfig.from_mapping(values, str(self.config_file))
        missing = [name for name in config.to_mapping() if name not in values]
        if not _newer_than(values).issuperset(missing):
            raise ArgumentError(
                f"{self.config_file}: a run's config has every field, but this one lacks {', '.join(missing)}; put back what the "
                f"run was begun with"
            )
        return config

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second process on the same folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = _appended(self.folder / ".lock")
        except OSError as error:
            raise ArgumentError(f"{self.folder}: cannot write there: {error.strerror or error}") from None
        with handle:
            claim(handle, self.folder, f"{self.folder}: another process is working on this run")
            yield

    @contextlib.contextmanager
    def attempted(self) -> Iterator[None]:
        """Locked; if what follows fails before a step was trained, all is as it was before, and no folder is left behind."""
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

        kept = (self.folder / "stages", self.model_file, self.folder / "evaluation.json")
        return any(place.exists() for place in kept) or any(
            not path.name.endswith("-step-000000000") for path in listed(self.checkpoints)
        )

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
        when = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError, AutodualError):  # what went wrong before is what matters
            write_json(self.failure_file, {"error": words, "when": when})

    def begin(self, config: TrainConfig, resume: bool) -> None:
        """Claim the folder, which is locked, for this config: fresh, or to go on with the same."""
        self.check(config, resume)
        for place in (self.folder, self.checkpoints, self.folder / "stages", self.folder / "cascade"):
            for left in place.glob(".writing-*"):
                shutil.rmtree(left, ignore_errors=True)  # by a process of this run that was killed
        self.failure_file.unlink(missing_ok=True)
        if not self.begun():
            (self.folder / "environment.json").unlink(missing_ok=True)
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
        changed = [
            k
            for k, v in now.items()
            if _compared(k, v) != _compared(k, before[k]) and k not in ("device", "data_folder", "tensorboard")
        ]
        if changed:
            name = changed[0]
            raise ArgumentError(
                f"{self.folder}: is a run of another config: {name} was {before[name]!r}, now {now[name]!r}"
            )

    def begun(self) -> bool:
        """Whether there is something to go on with; a run that could not even start has left its config alone."""
        kept = (self.checkpoints, self.folder / "stages", self.model_file)
        return self.config_file.exists() and any(place.exists() for place in kept)

    def note_environment(self, data: dict[str, Any], **more: Any) -> None:
        """Versions, machine and command, once more for every time that the run goes on; refuses to go on with other data."""
        import torch

        from autodual._version import __version__

        data = data | {"name": to_folder("dataset", str(data["name"]), self.folder)}
        now = {
            "autodual": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "command": recorded_command(sys.argv),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            **more,
            "data": data,
        }
        file = self.folder / "environment.json"
        before = read_json(file, data=dict) if file.exists() else None
        if before is None:
            write_json(file, now)
            return
        resumed = before.get("resumed", [])
        if not isinstance(resumed, list):
            raise damaged(file)
        if {**before["data"], "name": ""} != {**data, "name": ""}:  # a path may be written differently
            raise ArgumentError(
                f"{self.folder}: its data have changed since it was begun ({before['data']}, now {data}); choose another folder"
            )
        write_json(file, before | {"resumed": [*resumed, now]})

    def record(self, **values: Any) -> None:
        """One more line of metrics, whole or not there."""
        line = json.dumps(values, allow_nan=False, default=_plain) + "\n"
        try:
            with _appended(self.metrics_file) as stream:
                stream.write(line.encode())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ArgumentError(f"{self.metrics_file}: not written: {error.strerror or error}") from None

    def metrics_size(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def cut_metrics(self, size: int) -> None:
        """Forget lines that are newer than the checkpoint that the run goes on from."""
        if self.metrics_file.exists():
            try:
                os.truncate(self.metrics_file, min(size, self.metrics_size()))
            except OSError as error:
                raise ArgumentError(f"{self.metrics_file}: cannot be shortened: {error.strerror or error}") from None

    def forget_stage(self, stage: int) -> None:
        """Metrics of a stage that begins again, of later ones, and of a line that is not whole."""
        if self.metrics_file.exists():
            content = read_content(self.metrics_file, METRICS_LIMIT)
            lines = [line + b"\n" for line in content.split(b"\n")]
            kept = [line for line in lines[:-1] if _stage_of(line) < stage]
            if b"".join(kept) != content:
                write_bytes(self.metrics_file, b"".join(kept))


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


def _bytes_of(path: Path) -> bytes | None:
    return read_content(path, RECORD_LIMIT) if path.is_file() else None


def _appended(path: Path) -> IO[bytes]:
    """Opened to add to it; a pipe in its place would never open."""
    if path.is_fifo():
        raise ArgumentError(f"{path}: is a pipe, not a file")
    return path.open("ab")


def _newer_than(values: Mapping[str, Any]) -> set[str]:
    """Fields that came after a run was written: later than every one that its config has."""
    known = max((number for number, name in enumerate(LATER, 1) if name in values), default=0)
    return set(LATER[known:])


def _stage_of(line: bytes) -> int:
    """Of a line of metrics; one that cannot be read is left to those who look at it."""
    try:
        return int(parse_json(line)["stage"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return -1


def _left_at_the_start(path: Path) -> bool:
    """Whether this is all that a run leaves which could not even start, perhaps half written."""
    if path.name.startswith(".writing-"):
        return path.is_dir() and all(map(_left_at_the_start, path.iterdir()))
    return path.name in AT_THE_START


def read_json(path: Path, **kinds: type) -> dict[str, Any]:
    """A record that a run has written, which holds values of these types under these names, and perhaps more."""
    content = read_content(path, RECORD_LIMIT)
    try:
        found = parse_json(content)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(_is_a(kind, found.get(name)) for name, kind in kinds.items()):
        raise damaged(path)
    return found


def damaged(path: Path) -> ArgumentError:
    """What to say of a file that can be made anew."""
    return ArgumentError(f"{path}: is damaged; remove it, and it will be made anew")


def _is_a(kind: type, value: Any) -> bool:
    return isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)


def read_yaml(path: Path) -> Any:
    """What a config file of any origin says; a name that it gives twice is refused, since only one of the two can be meant."""
    yaml, content = _yaml(), read_content(path, CONFIG_LIMIT)
    try:
        text = content.decode("utf-8")
        _check_yaml(yaml, text, path)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        values = None if node is None else loader.construct_document(node)
    except ArgumentError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist
        raise ArgumentError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except (
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
    ):  # a value that its tag does not fit
        raise ArgumentError(f"{path}: is not YAML: a value in it has the wrong type, or is too large") from None
    lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines:
            where = f"line {line}" if lines[name] == line else f"lines {lines[name]} and {line}"
            raise ArgumentError(f"{path}: {name} is given twice, in {where}; keep one")
        lines[name] = line
    return values


def _check_yaml(yaml: Any, text: str, path: Path) -> None:
    """Refuse what takes forever to build: values inside values inside values, names for whole lists, and endless numbers."""
    depth, names = 0, set()
    for event in yaml.parse(text, yaml.SafeLoader):
        where = f"{path}: line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > YAML_DEPTH:
                raise ArgumentError(
                    f"{where} puts values inside one another {depth} levels deep; a config is a list of options"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent):
            names |= {event.anchor} - {None}
            if len(event.value) > (64 if re.fullmatch(r"[-+\da-fA-FxXo_:.]+", event.value) else 4096):
                raise ArgumentError(f"{where} has a value of {len(event.value):,} letters; no option is that long")
        elif isinstance(event, yaml.AliasEvent) and event.anchor not in names:
            raise ArgumentError(f"{where} repeats *{event.anchor}, which is no single value; write it out")


def dump_yaml(values: dict[str, Any]) -> str:
    return str(_yaml().safe_dump(values, sort_keys=False))


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ArgumentError("configs are YAML, which needs pyyaml: pip install 'autodual[cli]'") from None
    return yaml


def _compared(name: str, value: Any) -> Any:
    """Of an option that names a file: the file itself, wherever one stands."""
    return resolved(name, value) if name in NAMED else value


def _plain(value: Any) -> Any:
    import torch

    return value.item() if isinstance(value, torch.Tensor) else str(value)
