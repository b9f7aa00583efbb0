"""MNIST and Fashion-MNIST: idx files, plain or .gz."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual.train.data.archives import LIMIT
from autodual.train.data.images import ImageData
from autodual.train.data.known import KNOWN, KnownData
from autodual.train.data.places import find_files
from autodual.train.data.values import check_labels

AGAIN = "the file is damaged: remove it and run `autodual data fetch {}`"


def load_idx(data: KnownData, split: str, folder: Path | str | None = None) -> ImageData:
    part = {"train": "train", "test": "t10k"}[split]
    names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    image_file, label_file = find_files(data, names, folder)
    _refuse_another(data, label_file)
    images = torch.from_numpy(read_idx(image_file, 3, data.name)).unsqueeze(1)
    labels = torch.from_numpy(read_idx(label_file, 1, data.name)).long()
    if len(images) != len(labels):
        raise ArgumentError(
            f"{data.name}: {image_file} holds {len(images)} images, {label_file} {len(labels)} labels; "
            f"fetch both with `autodual data fetch {data.name}`"
        )
    if tuple(images.shape[1:]) != data.shape:
        raise ArgumentError(
            f"{image_file}: images are {tuple(images.shape[1:])}, those of {data.name} are {data.shape}; use another folder"
        )
    check_labels(labels, len(data.classes), str(label_file), AGAIN.format(data.name))
    return ImageData(images, labels, data.classes, data.name)


def read_idx(path: Path, dimensions: int, name: str) -> np.ndarray:
    """The array of bytes in an idx file: two zeros, 8 for bytes, the number of dimensions, their sizes, the contents."""
    contents, magic = read_bytes(path, name), bytes([0, 0, 8, dimensions])
    again, start = AGAIN.format(name), 4 + 4 * dimensions
    if contents[:4] != magic:
        raise ArgumentError(
            f"{path}: begins with {contents[:4].hex() or 'nothing'}, idx files of {dimensions} dimensions with {magic.hex()}; {again}"
        )
    if len(contents) < start:
        raise ArgumentError(f"{path}: ends inside its header; {again}")
    shape = tuple(int(size) for size in np.frombuffer(contents, ">u4", dimensions, offset=4))
    promised, found = int(np.prod(shape, dtype=object)), len(contents) - start
    if found != promised:
        raise ArgumentError(f"{path}: its header promises {promised} bytes, {found} follow; {again}")
    return (
        np.frombuffer(contents, np.uint8, offset=start).reshape(shape).copy()
    )  # a copy, since bytes cannot be written


def read_bytes(path: Path, name: str) -> bytes:
    """The contents, unpacked; a few bytes may claim to be gigabytes, of which no more than LIMIT are read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            contents = bytes(file.read(LIMIT + 1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArgumentError(f"{path}: cannot be unpacked ({error}); {AGAIN.format(name)}") from error
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    if len(contents) > LIMIT:
        raise ArgumentError(f"{path}: has more than {LIMIT:,} bytes, which no file of {name} has; {AGAIN.format(name)}")
    return contents


def _refuse_another(data: KnownData, label_file: Path) -> None:
    # Fashion-MNIST has MNIST's file names, so a folder that holds one can be taken for the other. Label files are small.
    digest = hashlib.sha256(read_bytes(label_file, data.name)).hexdigest()
    for other in KNOWN.values():
        if other.name != data.name and any(file.sha256 == digest for file in other.files):
            raise ArgumentError(
                f"{label_file}: these are the labels of {other.name}, not of {data.name}; use another folder"
            )
