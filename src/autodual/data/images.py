"""Images and their labels as one record, which can live on a device as bytes; random crops and mirror images of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import values_at_hand
from autodual.data.examples import ArrayData, Examples, as_labels, check_labels

# Checks on the values of images.


def check_range(images: Tensor, scale: int, where: str) -> None:
    """Refuses images that would not be in [0, 1] once scaled."""
    if images.dtype == torch.uint8:
        if not 1 <= scale <= 255 or (scale < 255 and int(images.max()) > scale):
            raise ArgumentError(f"{where}: images hold bytes up to {int(images.max())}, but scale is {scale}")
        return
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # so that NaN is refused
        raise ArgumentError(
            f"{where}: images hold floats from {low:g} to {high:g}, but must be in [0, 1]; scale them, or keep them as bytes "
            "(uint8). Normalisation belongs in the network: autodual.models.Normalize"
        )


# The user's arrays as images: bytes stay bytes, floats in [0, 1] stay floats, all else is refused.

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
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise ArgumentError(
            f"{where}: images are {array.dtype}; pass bytes (uint8, 0 to 255) or floats in [0, 1], for example "
            "images.astype('uint8')"
        )
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim != 4 or 0 in array.shape:
        raise ArgumentError(f"{where}: images have shape {array.shape}; pass [N, H, W], [N, C, H, W] or [N, H, W, C]")
    if array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = np.moveaxis(array, 3, 1)
    images = torch.from_numpy(np.array(array, np.uint8 if array.dtype == np.uint8 else np.float32, order="C"))
    check_range(images, 255, where)
    return images


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
            this, first = (f"{'x'.join(map(str, a.shape))} of {a.dtype}" for a in (array, arrays[0]))
            raise ArgumentError(
                f"{name}: the image is {this}, but {names[0]} is {first}; all must be of one size and kind: resize, convert or "
                "remove it"
            )
    return np.stack(arrays)


@dataclass(frozen=True, eq=False)
class ImageData(Examples):
    """Images with labels.

    Images are bytes, of which `scale` means 1.0, or floats in [0, 1] if their source was not bytes. Values are checked
    on the CPU, where all data is read; a copy on another device is not looked at again. NumPy arrays become tensors: images
    may then be [N, H, W] or [N, H, W, C], too. Labels may be of any integer type.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> images = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8)
        >>> data = ad.ImageData(images, torch.arange(10) % 2, classes=("cat", "dog"), name="pets")
        >>> train, test = data.split(0.2, seed=0)
        >>> len(train), len(test)
        (8, 2)
    """

    images: Tensor
    """[N, C, H, W], uint8 or floating-point."""
    labels: Tensor
    """[N], int64: positions in `classes`."""
    classes: tuple[str, ...]
    name: str
    scale: int = 255

    STORED = "images"
    KIND = "image"

    def __post_init__(self) -> None:
        where = f"data {self.name!r}"
        if isinstance(self.images, np.ndarray):
            object.__setattr__(self, "images", as_images(self.images, where))
        if isinstance(self.labels, np.ndarray):
            object.__setattr__(self, "labels", as_labels(self.labels, len(self.images), where))
        for name, value in (("images", self.images), ("labels", self.labels)):
            if not isinstance(value, Tensor):
                raise ArgumentError(f"{where}: {name} must be a tensor or a NumPy array, got {type(value).__name__}")
        images = self.images
        if images.dim() != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise ArgumentError(
                f"{where}: images must be [N, C, H, W], bytes or floats; got {tuple(images.shape)} of {images.dtype}"
            )
        if len(images) == 0:
            raise ArgumentError(f"{where}: there are no images")
        object.__setattr__(self, "labels", self._matching(self.labels, images))
        if values_at_hand(images):
            check_labels(self.labels, len(self.classes), where)
            check_range(images, self.scale, where)

    def as_input(self, stored: Tensor) -> Tensor:
        """As float32 in [0, 1]."""
        chosen = stored.to(torch.float32)
        return chosen if stored.is_floating_point() else chosen / self.scale

    def kind(self) -> str:
        return f"{self.images.dtype} {tuple(self.images.shape)} {self.scale} {self.classes!r}"


def check_parts(train: Examples, test: Examples) -> None:
    """Refuses to train on one kind of data and test on another."""
    where = f"data {train.name!r}" if train.name == test.name else f"data {train.name!r} and {test.name!r}"
    if type(train) is not type(test):
        raise ArgumentError(
            f"{where}: one part is {type(train).__name__}, the other {type(test).__name__}; make both alike"
        )
    if train.shape != test.shape:
        form = "[channels, height, width]" if isinstance(train, ImageData) else "of features"
        raise ArgumentError(
            f"{where}: {train.KIND}s to train on are {list(train.shape)}, those to test on {list(test.shape)}; bring all to one "
            f"shape {form}"
        )
    if isinstance(train, ArrayData) and isinstance(test, ArrayData) and train.features != test.features:
        raise ArgumentError(
            f"{where}: columns to train and to test on differ; give both the same ones, in the same order"
        )
    if train.classes != test.classes:
        raise ArgumentError(
            f"{where}: there are {len(train.classes)} classes to train on and {len(test.classes)} to test on, or their names "
            "differ; give both parts the same classes, in the same order"
        )
    if len(train.classes) < 2:
        raise ArgumentError(
            f"{where}: has {len(train.classes)} class, but a network chooses between at least two; add {train.KIND}s of another"
        )


# Random crops and mirror images, drawn for each image, on the device.


def augment(
    images: Tensor, generator: torch.Generator | None = None, crop: int = 0, flip: bool = False, *, noise: Tensor | None = None,
    edge: bool = False,
) -> Tensor:  # fmt: skip
    """Each image [N, C, H, W] padded by `crop` black pixels and cut back to its size anywhere, and mirrored half of the time.

    edge: pad by the nearest pixel of the image instead of black ones.
    Shapes are static and nothing waits for the device, so that it can be part of a compiled or captured step. `noise`
    [N, 3], uniform in [0, 1), takes the place of the generator: for the way down, the way right and the mirror. A
    generator on the CPU gives the same crops on every device.
    """
    if images.dim() != 4:
        raise ArgumentError(f"augment: images must be [N, C, H, W], got {tuple(images.shape)}")
    if crop < 0:
        raise ArgumentError(f"augment: crop is {crop}, but it is a number of pixels; pass 0 or more")
    if crop == 0 and not flip:
        return images
    if noise is None:
        device = images.device if generator is None else generator.device
        noise = torch.rand(len(images), 3, generator=generator, device=device).to(images.device, non_blocking=True)
    if noise.shape != (len(images), 3):
        raise ArgumentError(f"augment: noise must be [{len(images)}, 3], got {tuple(noise.shape)}")
    height, width = images.shape[2:]
    row = torch.arange(height, device=images.device).expand(len(images), -1)
    column = torch.arange(width, device=images.device).expand(len(images), -1)
    if flip:
        column = torch.where(noise[:, 2:] < 0.5, column, width - 1 - column)
    # Uniform over -crop..crop. An odd number times a float below 1 never rounds up to that number, the excluded end.
    down, right = ((noise[:, i : i + 1] * (2 * crop + 1)).long() - crop for i in range(2))
    row, column = row + down, column + right
    inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[:, None, :]
    position = row.clamp(0, height - 1)[:, :, None] * width + column.clamp(0, width - 1)[:, None, :]
    index = position.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    found = images.flatten(2).gather(2, index).view_as(images)
    return found if edge else found.masked_fill(~inside[:, None], 0)
