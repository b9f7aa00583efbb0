"""One function reads every data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from autodual._errors import ArgumentError
from autodual._types import Shape
from autodual.digits import load_digits
from autodual.train.data.cifar import load_cifar
from autodual.train.data.factory import is_factory, load_factory
from autodual.train.data.folders import load_folders
from autodual.train.data.idx import load_idx
from autodual.train.data.images import ImageData
from autodual.train.data.known import KNOWN, KnownData, known
from autodual.train.data.npz import load_npz
from autodual.train.data.places import expanded, is_file, is_folder


def load(name: str | Path, split: Literal["train", "test"], folder: Path | str | None = None) -> ImageData:
    """A data set by name (digits, mnist, fashion-mnist, cifar10), or the user's own by path.

    Named files are looked for in `folder`, else in $AUTODUAL_DATA, else in ~/.cache/autodual. A path is a folder of
    class folders of images, a file.npz, or file.py:factory.
    """
    name = str(name)
    if split not in ("train", "test"):
        raise ArgumentError(f"data {name!r}: split is {split!r}, but the parts are train and test; pass one of these")
    if name in KNOWN:
        return _load_known(KNOWN[name], split, folder)
    if is_factory(name):
        return load_factory(name, split)
    path = expanded(name)
    if is_folder(path):
        return load_folders(path, split)
    if is_file(path) and path.suffix == ".npz":
        return load_npz(path, split)
    if is_file(path):
        raise ArgumentError(
            f"{path}: is not a kind of data that can be read; pass a folder, a file.npz or file.py:factory"
        )
    if path.suffix == ".npz" or os.sep in name:
        raise ArgumentError(f"{path}: there is no such file or folder; check the path")
    return _load_known(known(name), split, folder)


def form_of(name: str, folder: Path | str | None = None) -> tuple[Shape, int]:
    """Shape of an image and number of classes; a data set that is known by name need not be there."""
    if name in KNOWN:
        return KNOWN[name].shape, len(KNOWN[name].classes)
    data = load(name, "test", folder)
    return data.shape, len(data.classes)


def _load_known(data: KnownData, split: Literal["train", "test"], folder: Path | str | None) -> ImageData:
    match data.name:
        case "digits":
            return _digits(data, split)
        case "cifar10":
            return load_cifar(data, split, folder)
    return load_idx(data, split, folder)


def _digits(data: KnownData, split: Literal["train", "test"]) -> ImageData:
    images, labels = load_digits(split)
    return ImageData((images * 16).to(torch.uint8), labels, data.classes, data.name, scale=16)
