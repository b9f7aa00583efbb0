"""The user's arrays as images: bytes stay bytes, floats in [0, 1] stay floats, all else is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.train.data.values import check_range

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What Pillow may open: not all of its formats, since some of them start other programs."""


def pillow() -> Any:
    """The module PIL.Image, which only images in files need."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ArgumentError("images in files need Pillow, which is not installed; run `pip install pillow`") from error
    return Image


def as_images(array: Any, where: str) -> Tensor:
    """[N, H, W], [N, C, H, W] or [N, H, W, C] as [N, C, H, W], uint8 or float32.

    Channels are looked for in the last place only if there are 1 or 3 there, and not 1 or 3 in the second.
    """
    array = np.asarray(array)
    _check_type(array, where)
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim != 4 or 0 in array.shape:
        raise ArgumentError(f"{where}: images have shape {array.shape}; pass [N, H, W], [N, C, H, W] or [N, H, W, C]")
    if array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = np.moveaxis(array, 3, 1)
    images = torch.from_numpy(np.array(array, np.uint8 if array.dtype == np.uint8 else np.float32, order="C"))
    check_range(images, 255, where)
    return images


def as_labels(array: Any, count: int, where: str) -> Tensor:
    """[N] or [N, 1] of any integer type as int64 [N]."""
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"{where}: labels are {array.dtype}, but must be integers, 0 for the first class")
    if array.shape not in ((count,), (count, 1)):
        raise ArgumentError(
            f"{where}: labels have shape {array.shape}, but there are {count} images; pass one for each"
        )
    if count == 0:
        raise ArgumentError(f"{where}: there are no labels; one part of the data is empty")
    if array.min() < 0:
        raise ArgumentError(f"{where}: label {array.min()} is negative; the first class is 0")
    if array.max() > np.iinfo(np.int64).max:
        raise ArgumentError(f"{where}: label {array.max()} is too large; number the classes 0, 1, 2 ...")
    return torch.from_numpy(array.reshape(count).astype(np.int64))


def from_pillow(image: Any, where: str) -> np.ndarray:
    """Bytes [1, H, W] of a grey image or [3, H, W] of a coloured one."""
    if image.mode == "P":
        image = image.convert("RGBA")
    if image.mode in ("LA", "RGBA"):
        if image.getchannel("A").getextrema()[0] < 255:
            raise ArgumentError(f"{where}: the image is partly transparent; save it without transparency")
        image = image.convert(image.mode[:-1])
    if image.mode == "1":
        image = image.convert("L")
    if image.mode not in ("L", "RGB"):
        raise ArgumentError(f"{where}: pixels are of kind {image.mode!r}; save the image as 8-bit grey or RGB")
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)


def stack(arrays: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """One array of all images; the first that differs from the first of all is named."""
    for array, name in zip(arrays, names, strict=True):
        if array.shape != arrays[0].shape or array.dtype != arrays[0].dtype:
            raise ArgumentError(
                f"{name}: the image is {_described(array)}, but {names[0]} is {_described(arrays[0])}; all must be of one size "
                "and kind: resize, convert or remove it"
            )
    return np.stack(arrays)


def _described(array: np.ndarray) -> str:
    return f"{'x'.join(map(str, array.shape))} of {array.dtype}"


def _check_type(array: np.ndarray, where: str) -> None:
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise ArgumentError(
            f"{where}: images are {array.dtype}; pass bytes (uint8, 0 to 255) or floats in [0, 1], for example "
            "images.astype('uint8')"
        )
