"""One function reads every data set: a known one by name, and the user's own by path, as arrays, folders, tables or code."""

from __future__ import annotations

import hashlib
import itertools
import operator
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.data.examples import ArrayData, Examples, as_labels, as_values
from autodual.data.images import FORMATS, ImageData, as_images, from_pillow, pillow, stack
from autodual.data.known import KNOWN, expanded, is_file, is_folder, known, load_known, reading, visible
from autodual.data.tables import TABLE_SUFFIXES, TableOptions, fifth_of_each, load_csv
from autodual.data.user_code import error_in_words, is_factory, named_function

# The user's own arrays in an .npz file.

_KEYS = "x_train, y_train, x_test and y_test, or images and labels, or values and labels"


def load_npz(path: Path, split: str, seed: int = 0) -> Examples:
    """Keys x_train, y_train, x_test, y_test; or images and labels, of which a fifth is kept for testing.

    A key `classes` may hold the names of the classes; without it the labels to train on must be all of 0, 1, 2 ... Arrays
    [N, F] are tables, and so is any array with the key `values` in the place of `images`; `features` may name the columns.
    """
    where = str(path)
    array, labels, others, names, features = _arrays(path, split)
    table = features is not None or array.ndim == 2
    inputs, kind = (as_values(array, where), "example") if table else (as_images(array, where), "image")
    numbers, index = as_labels(labels, len(inputs), where, kind), dict[str, torch.Tensor]()
    parts = {"train": numbers, "test": numbers}
    if others is not None:
        parts[other_part(split)] = as_labels(others, np.size(others), where, kind)
    elif not table:
        index = {part: fifth(len(inputs), part, where) for part in parts}
        parts = {part: numbers[chosen] for part, chosen in index.items()}
    classes = numbered(parts, where, "the key") if names is None else tuple(map(str, names))
    if not table:
        images = ImageData(inputs, numbers, classes, where)
        return images.select(index[split]) if index else images
    data = ArrayData(inputs, numbers, classes, where, features or ())
    return data if others is not None else data.select(fifth_of_each(numbers, split, seed, where, classes))


Arrays = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None, tuple[str, ...] | None]


def _arrays(path: Path, split: str) -> Arrays:
    """Images and labels of this part, and labels of the other; or of all, and None. Names of the classes, if there are any; names of
    the features, or none, if these are values and no images."""
    with reading(path), path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise ArgumentError(f"{path}: is not an .npz file; save it with numpy.savez(path, images=..., labels=...)")
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = set(file.files)
            names = file["classes"].reshape(-1) if "classes" in keys else None
            features = tuple(map(str, file["features"].reshape(-1))) if "features" in keys else None
            if {"x_train", "y_train", "x_test", "y_test"} <= keys:
                return file[f"x_{split}"], file[f"y_{split}"], file[f"y_{other_part(split)}"], names, features
            if {"images", "labels"} <= keys:
                return file["images"], file["labels"], None, names, features
            if {"values", "labels"} <= keys:
                return file["values"], file["labels"], None, names, features or ()
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


# A folder of class folders of images.

IMAGE_SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"])


def load_folders(folder: Path, split: str) -> ImageData:
    """`folder`/train/CLASS/* and `folder`/test/CLASS/*; or `folder`/CLASS/*, of which a fifth is kept for testing.

    Classes are numbered in the order of their names. Files that are not named like images are passed over.
    """
    parts = {name: folder / name for name in ("train", "test")}
    if all(is_folder(part) for part in parts.values()):
        classes = _class_folders(parts["train"])
        others = [path.name for path in _class_folders(parts["test"])]
        if [path.name for path in classes] != others:
            differ = sorted({path.name for path in classes} ^ set(others))
            raise ArgumentError(
                f"{folder}: train and test must have the same classes; only one has {', '.join(differ)}"
            )
        files = [_images_in(parts[split] / path.name) for path in classes]
    else:
        classes = _class_folders(folder)
        files = [_part(_images_in(path), path)[split] for path in classes]
    paths = [path for group in files for path in group]
    images = stack([_read(path) for path in paths], [str(path) for path in paths])
    labels = torch.from_numpy(np.repeat(np.arange(len(files)), [len(group) for group in files]))
    return ImageData(as_images(images, str(folder)), labels, tuple(path.name for path in classes), str(folder))


def _class_folders(folder: Path) -> list[Path]:
    classes = sorted(path for path in visible(folder) if is_folder(path))
    if len(classes) < 2:
        raise ArgumentError(
            f"{folder}: has {len(classes)} class folders; make one for each class, or train/ and test/ with class folders inside"
        )
    return classes


def _images_in(folder: Path) -> list[Path]:
    paths = sorted(path for path in visible(folder) if path.suffix.lower() in IMAGE_SUFFIXES and is_file(path))
    if not paths:
        raise ArgumentError(
            f"{folder}: the class folder has no images ({', '.join(sorted(IMAGE_SUFFIXES))}); add some or remove it"
        )
    return paths


def _part(paths: list[Path], folder: Path) -> dict[str, list[Path]]:
    """A fifth of a class for testing, drawn by the names of the files: the same on every machine."""
    if len(paths) < 2:
        raise ArgumentError(f"{folder}: has 1 image, but one to train and one to test on are needed; add some")
    drawn = sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest())
    count = max(1, len(paths) // 5)
    return {"test": sorted(drawn[:count]), "train": sorted(drawn[count:])}


def _read(path: Path) -> np.ndarray:
    try:
        with pillow().open(path, formats=FORMATS) as image:
            image.load()
            return from_pillow(image, str(path))
    except ArgumentError:
        raise
    except Exception as error:  # a damaged file makes Pillow raise errors of many kinds
        raise ArgumentError(f"{path}: cannot be read as an image ({error}); replace or remove it") from error


# `file.py:factory`: a data set that the user's code makes.


def load_factory(text: str, split: str) -> Examples:
    """What factory("train") or factory("test") returns: a torch Dataset of (image, label), maybe with `classes`.

    An image is a tensor, a numpy array or a Pillow image: [H, W], [C, H, W] or [H, W, C]. A tensor or array [F] is a row of a table,
    whose columns the data set's `features` may name.
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
    if images.dim() == 2:
        return ArrayData(images, labels, tuple(map(str, names)), text, tuple(getattr(dataset, "features", ())))
    return ImageData(images, labels, tuple(map(str, names)), text)


def _call(text: str, factory: Callable[..., Any], split: str) -> Any:
    try:
        dataset = factory(split)
        len(dataset)
    except (Exception, SystemExit) as error:
        raise ArgumentError(
            f"{text}: calling it with {split!r} raised {error_in_words(error)}; it must return a torch Dataset with a length"
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
        except ArgumentError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"{where}, item {index}: {error_in_words(error)}; items must be (image, label)"
            ) from error
        try:
            labels.append(operator.index(label))
        except TypeError as error:
            raise ArgumentError(
                f"{where}, item {index}: the label is {label!r}, but labels must be integers, 0 for the first class"
            ) from error
    images = stack(arrays, [f"{where}, item {index}" for index in range(len(arrays))])
    inputs = as_values(images, where) if images.ndim == 2 else as_images(images, where)
    return inputs, as_labels(np.array(labels), len(images), where)


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


def load(
    name: str | Path,
    split: Literal["train", "test"],
    folder: Path | str | None = None,
    table: TableOptions | None = None,
) -> Examples:
    """A data set by name (digits, mnist, fashion-mnist, cifar10), or the user's own by path.

    Named files are looked for in `folder`, else in $AUTODUAL_DATA, else in ~/.cache/autodual. A path is a folder of
    class folders of images, a file.npz, a table.csv, or file.py:factory. table: what a table needs beside its path.
    """
    name, table = str(name), table or TableOptions()
    if Path(name).suffix.lower() in TABLE_SUFFIXES:
        return load_csv(Path(name), split, table)
    for option, value in (("label_column", table.label_column), ("test_dataset", table.test)):
        if value is not None:
            raise ArgumentError(
                f"data {name!r}: {option} is for tables, files that end in {' or '.join(TABLE_SUFFIXES)}"
            )
    if split not in ("train", "test"):
        raise ArgumentError(f"data {name!r}: split is {split!r}, but the parts are train and test; pass one of these")
    if name in KNOWN:
        return load_known(KNOWN[name], split, folder)
    if is_factory(name):
        return load_factory(name, split)
    path = expanded(name)
    if is_folder(path):
        return load_folders(path, split)
    if is_file(path) and path.suffix == ".npz":
        return load_npz(path, split, table.seed)
    if is_file(path):
        raise ArgumentError(
            f"{path}: is not a kind of data that can be read; pass a folder, a file.npz, a table.csv or file.py:factory"
        )
    if path.suffix == ".npz" or os.sep in name:
        raise ArgumentError(f"{path}: there is no such file or folder; check the path")
    return load_known(known(name), split, folder)


def form_of(name: str, folder: Path | str | None = None, table: TableOptions | None = None) -> tuple[Shape, int]:
    """Shape of an example and number of classes; a data set that is known by name need not be there."""
    if name in KNOWN:
        return KNOWN[name].shape, len(KNOWN[name].classes)
    data = load(name, "test", folder, table)
    return data.shape, len(data.classes)
