"""One function reads every data set, and one place runs code that the user names."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import itertools
import operator
import os
import sys
import sysconfig
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.data.examples import ArrayData, Examples, as_labels, as_values, check_labels
from autodual.data.images import FORMATS, ImageData, as_images, from_pillow, pillow, stack
from autodual.data.known import (
    KNOWN,
    LIMIT,
    NAMES_FILE,
    KnownData,
    expanded,
    find_files,
    is_file,
    is_folder,
    known,
    reading,
)
from autodual.data.tables import SUFFIXES as TABLES
from autodual.data.tables import TableOptions, fifth_of_each, load_csv
from autodual.digits import load_digits

# MNIST and Fashion-MNIST: idx files, plain or .gz.

AGAIN = "the file is damaged: remove it and run `autodual data fetch {}`"


def load_idx(data: KnownData, split: str, folder: Path | str | None = None) -> ImageData:
    part = {"train": "train", "test": "t10k"}[split]
    names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    image_file, label_file = find_files(data, names, folder)
    # Fashion-MNIST has MNIST's file names, so a folder that holds one can be taken for the other. Label files are small.
    digest = hashlib.sha256(read_bytes(label_file, data.name)).hexdigest()
    for other in KNOWN.values():
        if other.name != data.name and any(file.sha256 == digest for file in other.files):
            raise ArgumentError(
                f"{label_file}: these are the labels of {other.name}, not of {data.name}; use another folder"
            )
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
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape).copy()  # since bytes cannot be written


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


# CIFAR-10, binary version: records of one label and 3072 bytes of red, green and blue planes.

RECORD = 1 + 3 * 32 * 32


def load_cifar(data: KnownData, split: str, folder: Path | str | None = None) -> ImageData:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    paths = find_files(data, names, folder)
    named, classes = paths[0].parent / NAMES_FILE, data.classes
    if is_file(named):  # not every source has it
        classes = tuple(read_bytes(named, data.name).decode(errors="replace").split())
        if len(classes) != len(data.classes):
            raise ArgumentError(
                f"{named}: names {len(classes)} classes, not {len(data.classes)}; remove it, it is not needed"
            )
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


# The user's own arrays in an .npz file.

_KEYS = "x_train, y_train, x_test and y_test, or images and labels, or values and labels"


def load_npz(path: Path, split: str, seed: int = 0) -> Examples:
    """Keys x_train, y_train, x_test, y_test; or images and labels, of which a fifth is kept for testing.

    A key `classes` may hold the names of the classes; without it the labels to train on must be all of 0, 1, 2 ... Arrays
    [N, F] are tables, and so is any array with the key `values` in the place of `images`; `features` may name the columns.
    """
    where, rest = str(path), other_part(split)
    images, labels, others, names, features = _arrays(path, split)
    if features is not None or images.ndim == 2:
        return _load_values(where, split, images, labels, others, names, features, seed)
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


def _load_values(
    where: str, split: str, array: np.ndarray, labels: np.ndarray, others: np.ndarray | None, names: np.ndarray | None,
    features: tuple[str, ...] | None, seed: int,
) -> ArrayData:  # fmt: skip
    values = as_values(array, where)
    numbers = as_labels(labels, len(values), where, "example")
    parts = {"train": numbers, "test": numbers}
    if others is not None:
        parts = {split: numbers, other_part(split): as_labels(others, np.size(others), where, "example")}
    classes = numbered(parts, where, "the key") if names is None else tuple(map(str, names))
    data = ArrayData(values, numbers, classes, where, features or ())
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

SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"])


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
    classes = sorted(path for path in _listed(folder) if is_folder(path))
    if len(classes) < 2:
        raise ArgumentError(
            f"{folder}: has {len(classes)} class folders; make one for each class, or train/ and test/ with class folders inside"
        )
    return classes


def _images_in(folder: Path) -> list[Path]:
    paths = sorted(path for path in _listed(folder) if path.suffix.lower() in SUFFIXES and is_file(path))
    if not paths:
        raise ArgumentError(
            f"{folder}: the class folder has no images ({', '.join(sorted(SUFFIXES))}); add some or remove it"
        )
    return paths


def _listed(folder: Path) -> list[Path]:
    with reading(folder):
        return [path for path in folder.iterdir() if not path.name.startswith(".")]


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


# `file.py:factory`: the one place where code that the user names is run.


def is_factory(text: str) -> bool:
    """Whether this is file.py:factory."""
    return text.rpartition(":")[0].endswith(".py")


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


def named_function(text: str) -> Callable[..., Any]:
    """The function of file.py:function; the file is run. It can import its neighbours, as can the function when it is called."""
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
    folder = path.resolve().parent
    try:
        with _neighbours(folder):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ArgumentError(f"{text}: running {path} raised {in_words(error)}; correct the file") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ArgumentError(f"{text}: {path} has no function {name!r}; define it, or correct the name after the colon")

    @functools.wraps(function, updated=())
    def beside(*arguments: Any) -> Any:
        with _neighbours(folder):
            return function(*arguments)

    return beside


OURS = __name__.partition(".")[0]
_LOADING = threading.RLock()
_LOADED: dict[Path, dict[str, ModuleType]] = {}
"""What the user's files have imported from their own folders, by folder: two folders may have modules of one name."""
_STAMPS: dict[Path, dict[Path, tuple[int, int]]] = {}
"""Time and size of those files when they were imported."""


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Inside, the files of this folder can be imported; outside, neither the folder is on the path nor its modules are known.

    A module that was imported from this folder before is found again, unless one of these files has changed since. Modules of these
    names from other places of the user's are put aside for as long; those of Python and of installed packages are not touched.
    """
    with _LOADING:
        if any(_stamp(file) != stamp for file, stamp in _STAMPS.get(folder, {}).items()):
            _LOADED.pop(folder, None)
            importlib.invalidate_caches()
        there = {path.stem if path.suffix == ".py" else path.name for path in _importable(folder)}
        aside = {
            name: module
            for name, module in sys.modules.items()
            if name.partition(".")[0] in there - {OURS} and not _is_installed(module)
        }
        for name in aside:
            del sys.modules[name]
        sys.modules.update(_LOADED.get(folder, {}))
        sys.path.insert(0, str(folder))
        try:
            yield
        finally:
            with suppress(ValueError):  # the user's code may have removed it
                sys.path.remove(str(folder))
            own = {
                name: module
                for name, module in sys.modules.items()
                if name.partition(".")[0] in there - {OURS} and folder in _places(module)
            }
            for name in own:
                del sys.modules[name]
            _LOADED[folder] = own
            files = {Path(module.__file__) for module in own.values() if module.__file__ is not None}
            _STAMPS[folder] = {file: _stamp(file) for file in files}
            sys.modules.update(aside)


def _importable(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if path.suffix == ".py" or (path.name.isidentifier() and is_folder(path))]


def _places(module: ModuleType) -> list[Path]:
    """The folders above a module's file, or those of a package without one."""
    files = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", ()))
    return [parent for file in files if file is not None for parent in (Path(file), *Path(file).parents)]


def _is_installed(module: ModuleType) -> bool:
    """Whether a module belongs to Python or to an installed package, or has no file."""
    above = _places(module)
    system = {Path(place) for place in sysconfig.get_paths().values()}
    return not above or any(place in system or place.name in ("site-packages", "dist-packages") for place in above)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


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
        except ArgumentError:
            raise
        except Exception as error:
            raise ArgumentError(f"{where}, item {index}: {in_words(error)}; items must be (image, label)") from error
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
    if Path(name).suffix.lower() in TABLES:
        return load_csv(Path(name), split, table)
    for option, value in (("label_column", table.label_column), ("test_dataset", table.test)):
        if value is not None:
            raise ArgumentError(f"data {name!r}: {option} is for tables, files that end in {' or '.join(TABLES)}")
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
        return load_npz(path, split, table.seed)
    if is_file(path):
        raise ArgumentError(
            f"{path}: is not a kind of data that can be read; pass a folder, a file.npz, a table.csv or file.py:factory"
        )
    if path.suffix == ".npz" or os.sep in name:
        raise ArgumentError(f"{path}: there is no such file or folder; check the path")
    return _load_known(known(name), split, folder)


def form_of(name: str, folder: Path | str | None = None, table: TableOptions | None = None) -> tuple[Shape, int]:
    """Shape of an example and number of classes; a data set that is known by name need not be there."""
    if name in KNOWN:
        return KNOWN[name].shape, len(KNOWN[name].classes)
    data = load(name, "test", folder, table)
    return data.shape, len(data.classes)


def _load_known(data: KnownData, split: Literal["train", "test"], folder: Path | str | None) -> ImageData:
    if data.name == "digits":
        images, labels = load_digits(split)
        return ImageData((images * 16).to(torch.uint8), labels, data.classes, data.name, scale=16)
    return (load_cifar if data.name == "cifar10" else load_idx)(data, split, folder)
