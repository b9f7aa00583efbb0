"""CIFAR-10, binary version: records of one label and 3072 bytes of red, green and blue planes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual.train.data.idx import AGAIN, read_bytes
from autodual.train.data.images import ImageData
from autodual.train.data.known import KnownData
from autodual.train.data.places import find_files, is_file
from autodual.train.data.values import check_labels

RECORD = 1 + 3 * 32 * 32
NAMES_FILE = "batches.meta.txt"


def load_cifar(data: KnownData, split: str, folder: Path | str | None = None) -> ImageData:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    paths = find_files(data, names, folder)
    classes = _class_names(paths[0].parent / NAMES_FILE, data)
    records = np.concatenate([_read_batch(path, data) for path in paths])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    return ImageData(images, labels, classes, data.name)


def _read_batch(path: Path, data: KnownData) -> np.ndarray:
    contents = read_bytes(path, data.name)
    if not contents or len(contents) % RECORD:
        raise ArgumentError(
            f"{path}: has {len(contents)} bytes, not a multiple of {RECORD}, one label and one image; "
            f"{AGAIN.format(data.name)}"
        )
    records = np.frombuffer(contents, np.uint8).reshape(-1, RECORD)
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    check_labels(labels, len(data.classes), str(path), AGAIN.format(data.name))
    return records


def _class_names(path: Path, data: KnownData) -> tuple[str, ...]:
    """Those in the file that comes with the data; it is small, and not every source has it."""
    if not is_file(path):
        return data.classes
    names = tuple(read_bytes(path, data.name).decode(errors="replace").split())
    if len(names) != len(data.classes):
        raise ArgumentError(f"{path}: names {len(names)} classes, not {len(data.classes)}; remove it, it is not needed")
    return names
