"""The user's own arrays in an .npz file."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual.train.data.images import ImageData
from autodual.train.data.pixels import as_images, as_labels
from autodual.train.data.places import reading

_KEYS = "x_train, y_train, x_test and y_test, or images and labels"


def load_npz(path: Path, split: str) -> ImageData:
    """Keys x_train, y_train, x_test, y_test; or images and labels, of which a fifth is kept for testing.

    A key `classes` may hold the names of the classes; without it the labels to train on must be all of 0, 1, 2 ...
    """
    where, rest = str(path), other_part(split)
    images, labels, others, names = _arrays(path, split)
    pixels = as_images(images, where)
    numbers = as_labels(labels, len(pixels), where)
    if others is None:
        index = {part: fifth(len(pixels), part, where) for part in ("train", "test")}
        parts = {part: numbers[chosen] for part, chosen in index.items()}
    else:
        index, parts = {}, {split: numbers, rest: as_labels(others, np.size(others), where)}
    classes = numbered(parts, where, "the key") if names is None else tuple(map(str, names))
    data = ImageData(pixels, numbers, classes, where)
    return data.select(index[split]) if index else data


def _arrays(path: Path, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Images and labels of this part, and labels of the other; or of all, and None. Names of the classes, if there are any."""
    with reading(path), path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise ArgumentError(f"{path}: is not an .npz file; save it with numpy.savez(path, images=..., labels=...)")
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = set(file.files)
            names = file["classes"].reshape(-1) if "classes" in keys else None
            if {"x_train", "y_train", "x_test", "y_test"} <= keys:
                return file[f"x_{split}"], file[f"y_{split}"], file[f"y_{other_part(split)}"], names
            if {"images", "labels"} <= keys:
                return file["images"], file["labels"], None, names
    except Exception as error:  # a damaged file makes numpy and zipfile raise errors of many kinds
        raise ArgumentError(f"{path}: cannot be read ({error}); save plain arrays with numpy.savez") from error
    raise ArgumentError(f"{path}: has the keys {', '.join(sorted(keys)) or '(none)'}; save {_KEYS}")


def other_part(split: str) -> str:
    return "test" if split == "train" else "train"


def numbered(parts: Mapping[str, torch.Tensor], where: str, place: str) -> tuple[str, ...]:
    """Names for classes that have none: 0, 1, ... up to the largest label. Each must occur in the training data.

    A stray label, 255 for "unknown" or the number of a customer, would otherwise make a network of many idle outputs.
    `parts` are the labels of train and test, `place` is what could hold names.
    """
    present, largest = set(parts["train"].unique().tolist()), max(int(labels.max()) for labels in parts.values())
    missing = largest + 1 - len(present)
    if missing:
        first = itertools.islice((str(n) for n in range(largest + 1) if n not in present), 5)
        more = f" and {missing - 5} more" if missing > 5 else ""
        raise ArgumentError(
            f"{where}: labels go up to {largest}, but no image to train on has the label {', '.join(first)}{more}; number "
            f"the classes 0, 1, 2 ... without gaps, or name all of them in {place} `classes`"
        )
    return tuple(map(str, range(largest + 1)))


def fifth(count: int, split: str, where: str) -> torch.Tensor:
    """Which of the images are for testing, a fifth, or for training: the same on every machine."""
    if count < 2:
        raise ArgumentError(f"{where}: has {count} images, but one to train and one to test on are needed")
    shuffled = np.random.RandomState(0).permutation(count)
    test = max(1, count // 5)
    return torch.from_numpy(np.sort(shuffled[:test] if split == "test" else shuffled[test:]))
