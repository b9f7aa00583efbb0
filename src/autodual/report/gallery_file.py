"""gallery.npz: images, the same images attacked, and what became of them. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodual._errors import AutodualError

Bytes = NDArray[np.uint8]


class GalleryError(AutodualError, ValueError):
    """The file is not a gallery; the message is a clause that says why."""


@dataclass(frozen=True)
class Picture:
    """One image of the gallery; numbers that the file does not hold are None."""

    image: Bytes
    """[C, H, W]"""
    attacked: Bytes
    kind: int
    """0 certified, 1 broken by the attack, 2 neither."""
    label: int | None
    predicted: int | None
    attacked_label: int | None
    index: int | None


Gallery = tuple[Picture, ...]


def read_gallery(path: Path) -> Gallery:
    try:
        with path.open("rb") as stream:  # np.load leaves a damaged file open
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise GalleryError("it is not an npz archive")
            arrays = {key: np.asarray(archive[key]) for key in archive.files}
    except (
        ValueError,
        OSError,
        EOFError,
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        MemoryError,
    ) as error:
        raise (
            error if isinstance(error, GalleryError) else GalleryError("it cannot be read as an npz archive")
        ) from None
    images, attacked = _images(arrays, "images"), _images(arrays, "attacked")
    if images.shape != attacked.shape:
        raise GalleryError("images and attacked differ in shape")
    kinds = _numbers(arrays, "kind", len(images))
    columns = [_numbers(arrays, key, len(images)) for key in ("label", "predicted", "attacked_label", "index")]
    if None in kinds:
        raise GalleryError("kind is missing or has another length than images")
    return tuple(
        Picture(image, attack, kind or 0, *numbers)
        for image, attack, kind, *numbers in zip(images, attacked, kinds, *columns, strict=True)
    )


def _images(arrays: dict[str, NDArray[np.generic]], key: str) -> Bytes:
    array = arrays.get(key)
    if array is None or array.dtype != np.uint8 or array.ndim != 4 or 0 in array.shape[1:]:
        raise GalleryError(f"{key} is not a uint8 array [M, C, H, W]")
    return array.astype(np.uint8)


def _numbers(arrays: dict[str, NDArray[np.generic]], key: str, length: int) -> list[int | None]:
    array = arrays.get(key)
    if array is None or array.shape != (length,) or array.dtype.kind not in "iub":
        return [None] * length
    return [int(value) for value in array.tolist()]
