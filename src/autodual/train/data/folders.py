"""A folder of class folders of images."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual.train.data.images import ImageData
from autodual.train.data.pixels import FORMATS, as_images, from_pillow, pillow, stack
from autodual.train.data.places import is_file, is_folder, reading

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
    reader = pillow()
    try:
        with reader.open(path, formats=FORMATS) as image:
            image.load()
            return from_pillow(image, str(path))
    except ArgumentError:
        raise
    except Exception as error:  # a damaged file makes Pillow raise errors of many kinds
        raise ArgumentError(f"{path}: cannot be read as an image ({error}); replace or remove it") from error
