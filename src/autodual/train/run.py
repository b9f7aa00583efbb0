"""A run folder: the config that made it, what was measured, checkpoints, and one process at a time."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from autodual._errors import ArgumentError
from autodual._files import claim, write_json, write_text
from autodual.train.config import TrainConfig


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

    def stage_file(self, stage: int) -> Path:
        return self.folder / "stages" / f"{stage}.safetensors"

    def config(self) -> TrainConfig:
        return TrainConfig.from_mapping(read_yaml(self.config_file), str(self.config_file))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second process on the same folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = (self.folder / ".lock").open("a")
        except OSError as error:
            raise ArgumentError(f"{self.folder}: cannot write there: {error.strerror or error}") from None
        with handle:
            claim(handle, f"{self.folder}: another process is working on this run")
            yield

    def begin(self, config: TrainConfig, resume: bool) -> None:
        """Claim the folder for this config: fresh, or to go on with the same."""
        for left in list(self.folder.rglob(".writing-*")):
            shutil.rmtree(left, ignore_errors=True)  # by a process that was killed
        if not self.config_file.exists():
            if any(not p.name.startswith((".lock", ".writing-")) for p in self.folder.iterdir()):
                raise ArgumentError(f"{self.folder}: is not empty and holds no run; choose another --out")
            write_text(self.config_file, dump_yaml(config.to_mapping()))
            return
        if not resume:
            raise ArgumentError(f"{self.folder}: holds a run already; go on with --resume, or choose another --out")
        before = self.config()
        changed = [
            k
            for k, v in config.to_mapping().items()
            if v != before.to_mapping()[k] and k not in ("device", "data_folder", "tensorboard")
        ]
        if changed:
            name = changed[0]
            raise ArgumentError(
                f"{self.folder}: is a run of another config: {name} was {getattr(before, name)!r}, now {getattr(config, name)!r}"
            )

    def note_environment(self, **more: Any) -> None:
        from autodual import __version__

        write_json(
            self.folder / "environment.json",
            {
                "autodual": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.platform(),
                "command": shlex.join(sys.argv),
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                **more,
            },
        )

    def record(self, **values: Any) -> None:
        """One more line of metrics, whole or not there."""
        line = json.dumps(values, allow_nan=False, default=_plain) + "\n"
        try:
            with self.metrics_file.open("a", encoding="utf-8") as stream:
                stream.write(line)
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


def read_yaml(path: Path) -> Any:
    yaml = _yaml()
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None


def dump_yaml(values: dict[str, Any]) -> str:
    return str(_yaml().safe_dump(values, sort_keys=False))


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ArgumentError("configs are YAML, which needs pyyaml: pip install 'autodual[cli]'") from None
    return yaml


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else str(value)
