"""`file.py:factory`: the one place where code that the user names is run."""

from __future__ import annotations

import importlib.util
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual.train.data.images import ImageData
from autodual.train.data.npz import numbered, other_part
from autodual.train.data.pixels import as_images, as_labels, from_pillow, pillow, stack
from autodual.train.data.places import expanded, is_file


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
