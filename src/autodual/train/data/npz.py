"""The user's own arrays in an .npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual.train.data.images import ImageData
from autodual.train.data.pixels import as_images, as_labels

_KEYS = "x_train, y_train, x_test and y_test, or images and labels"


def load_npz(path: Path, split: str) -> ImageData:
    """Keys x_train, y_train, x_test, y_test; or images and labels, of which a fifth is kept for testing.

    A key `classes` may hold the names of the classes; without it they are numbered up to the largest label.
    """
    if not zipfile.is_zipfile(path):
        raise ArgumentError(f"{path}: is not an .npz file; save it with numpy.savez(path, images=..., labels=...)")
    where = str(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = set(file.files)
            names = file["classes"].reshape(-1) if "classes" in keys else None
            if {"x_train", "y_train", "x_test", "y_test"} <= keys:
                other = file["y_test" if split == "train" else "y_train"]
                images, labels, chosen = file[f"x_{split}"], file[f"y_{split}"], None
            elif {"images", "labels"} <= keys:
                images, labels = file["images"], file["labels"]
                other, chosen = labels, fifth(len(images), split, where)
            else:
                raise ArgumentError(f"{where}: has the keys {', '.join(sorted(keys)) or '(none)'}; save {_KEYS}")
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{where}: cannot be read ({error}); save plain arrays with numpy.savez") from error
    pixels = as_images(images, where)
    numbers = as_labels(labels, len(pixels), where)
    every = torch.cat([numbers, as_labels(other, len(other), where)])
    data = ImageData(pixels, numbers, numbered(every) if names is None else tuple(map(str, names)), where)
    return data if chosen is None else data.select(chosen)


def numbered(labels: torch.Tensor) -> tuple[str, ...]:
    """Names for classes that have none: 0, 1, ... up to the largest label."""
    return tuple(str(number) for number in range(int(labels.max()) + 1))


def fifth(count: int, split: str, where: str) -> torch.Tensor:
    """Which of the images are for testing, a fifth, or for training: the same on every machine."""
    if count < 2:
        raise ArgumentError(f"{where}: has {count} images, but one to train and one to test on are needed")
    shuffled = np.random.RandomState(0).permutation(count)
    test = max(1, count // 5)
    return torch.from_numpy(np.sort(shuffled[:test] if split == "test" else shuffled[test:]))
