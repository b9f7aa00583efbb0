"""One function reads every data set, and one place runs code that the user names."""

from __future__ import annotations

import importlib.util
import math
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.data.formats import load_cifar, load_folders, load_idx, load_npz, numbered, other_part
from autodual.data.images import ImageData, as_images, as_labels, from_pillow, pillow, stack
from autodual.data.known import KNOWN, KnownData, expanded, is_file, is_folder, known
from autodual.digits import load_digits

# `file.py:factory`: the one place where code that the user names is run.


def is_factory(text: str) -> bool:
    """Whether this is file.py:factory."""
    return text.rpartition(":")[0].endswith(".py")


def load_factory(text: str, split: str) -> ImageData:
    """What factory("train") or factory("test") returns: a torch Dataset of (image, label), maybe with `classes`.

    An image is a tensor, a numpy array or a Pillow image: [H, W], [C, H, W] or [H, W, C].
    """
    factory = named_function(text)
    dataset = _call(text, factory, split)
    images, labels = _items(text, dataset, split)
    names = getattr(dataset, "classes", None)
    if names is None:  # the other part may have a class that this one lacks
        other = other_part(split)
        parts = {split: labels, other: _items(text, _call(text, factory, other), other)[1]}
        names = numbered(parts, text, "the data set's attribute")
    if not isinstance(names, list | tuple):
        raise ArgumentError(
            f"{text} ({split}): the data set's `classes` is a {type(names).__name__}; make it a list of names"
        )
    return ImageData(images, labels, tuple(map(str, names)), text)


def named_function(text: str) -> Callable[..., Any]:
    """The function of file.py:function; the file is run."""
    file, colon, name = text.rpartition(":")
    if not colon or not name:
        raise ArgumentError(f"{text}: names no function; write it after a colon, as in {text.rstrip(':')}:factory")
    path = expanded(file)
    if not is_file(path):
        raise ArgumentError(f"{text}: there is no file {path}; check the path before the colon")
    module_name = f"autodual_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{text}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses in it look themselves up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ArgumentError(f"{text}: running {path} raised {in_words(error)}; correct the file") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ArgumentError(f"{text}: {path} has no function {name!r}; define it, or correct the name after the colon")
    return function


def in_words(error: BaseException) -> str:
    """Kind and message of an error of the user's code, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _call(text: str, factory: Callable[..., Any], split: str) -> Any:
    try:
        dataset = factory(split)
        len(dataset)
    except (Exception, SystemExit) as error:
        raise ArgumentError(
            f"{text}: calling it with {split!r} raised {in_words(error)}; it must return a torch Dataset with a length"
        ) from error
    return dataset


def _items(text: str, dataset: Any, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    arrays, labels, where = [], [], f"{text} ({split})"
    if len(dataset) == 0:
        raise ArgumentError(f"{where}: the data set is empty")
    for index in range(len(dataset)):
        try:
            image, label = dataset[index]
            arrays.append(_array(image, f"{where}, item {index}"))
            labels.append(_label(label, f"{where}, item {index}"))
        except ArgumentError:
            raise
        except Exception as error:
            raise ArgumentError(f"{where}, item {index}: {in_words(error)}; items must be (image, label)") from error
    images = stack(arrays, [f"{where}, item {index}" for index in range(len(arrays))])
    return as_images(images, where), as_labels(np.array(labels), len(images), where)


def _label(label: Any, where: str) -> int:
    try:
        return operator.index(label)
    except TypeError as error:
        raise ArgumentError(
            f"{where}: the label is {label!r}, but labels must be integers, 0 for the first class"
        ) from error


def _array(image: Any, where: str) -> np.ndarray:
    if isinstance(image, torch.Tensor):
        return image.detach().cpu().numpy()
    if isinstance(image, np.ndarray):
        return image
    if isinstance(image, pillow().Image):
        return from_pillow(image, where)
    raise ArgumentError(
        f"{where}: the image is a {type(image).__name__}; return a tensor, a numpy array or a Pillow image"
    )


# One function reads every data set.


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


# What images are normalised by.

Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...] | float]
"""Mean of each channel, and deviation of each channel or of all together."""

PUBLISHED: dict[str, Statistics] = {name: data.mean_std for name, data in KNOWN.items() if data.mean_std is not None}
CONSTANT = 1e-6  # a channel that varies less than this is only shifted
PIECE = 1000  # images


def mean_std(name: str, data: ImageData) -> Statistics:
    """Mean and standard deviation per channel of these images; for cifar10 the constants of the papers, whatever the images.

    Weights hold them, so that whoever loads weights needs values of the right shape only: those of any images will do.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    of_channel = _of_bytes if data.images.dtype == torch.uint8 else _of_floats
    moments = [of_channel(data.images[:, channel].cpu(), data.scale) for channel in range(data.shape[0])]
    return tuple(mean for mean, _ in moments), tuple(std if std > CONSTANT else 1.0 for _, std in moments)


def any_mean_std(name: str, channels: int) -> Statistics:
    """Values of the right shape, for a network whose weights are loaded: without images."""
    return PUBLISHED.get(name, ((0.0,) * channels, (1.0,) * channels))


def _of_bytes(images: Tensor, scale: int) -> tuple[float, float]:
    """Mean and deviation from how often each byte occurs, which is exact."""
    counts, values = images.flatten().bincount(minlength=256).numpy(), np.arange(256) / scale
    mean = math.fsum(counts * values) / images.numel()
    return mean, math.sqrt(math.fsum(counts * np.square(values - mean)) / images.numel())


def _of_floats(images: Tensor, scale: int) -> tuple[float, float]:
    """Mean and deviation by numpy, whose sums do not depend on the number of threads."""
    pieces = [piece.numpy() for piece in images.split(PIECE)]
    mean = math.fsum(float(piece.sum(dtype=np.float64)) for piece in pieces) / images.numel()
    squares = math.fsum(float(np.square(piece.astype(np.float64) - mean).sum()) for piece in pieces)
    return mean, math.sqrt(squares / images.numel())
