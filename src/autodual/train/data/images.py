"""Images and their labels as one record, which can live on a device as bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import values_at_hand
from autodual._types import Shape
from autodual.train.data.pixels import as_images, as_labels
from autodual.train.data.values import check_labels, check_range


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images with labels.

    Images are bytes, of which `scale` means 1.0, or floats in [0, 1] if their source was not bytes. Values are checked
    on the CPU, where all data is read; a copy on another device is not looked at again. NumPy arrays become tensors: images
    may then be [N, H, W] or [N, H, W, C], too, and labels of any integer type.
    """

    images: Tensor
    """[N, C, H, W], uint8 or floating-point."""
    labels: Tensor
    """[N], int64: positions in `classes`."""
    classes: tuple[str, ...]
    name: str
    scale: int = 255

    def __post_init__(self) -> None:
        where = f"data {self.name!r}"
        self._take_arrays(where)
        images = self.images
        if images.dim() != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise ArgumentError(
                f"{where}: images must be [N, C, H, W], bytes or floats; got {tuple(images.shape)} of {images.dtype}"
            )
        if len(images) == 0:
            raise ArgumentError(f"{where}: there are no images")
        if self.labels.shape != (len(images),) or self.labels.dtype != torch.int64:
            raise ArgumentError(
                f"{where}: labels must be int64, one for each of the {len(images)} images; got {self.labels.dtype} of shape "
                f"{tuple(self.labels.shape)}"
            )
        if self.labels.device != images.device:
            raise ArgumentError(f"{where}: images are on {images.device}, labels on {self.labels.device}")
        if values_at_hand(images):
            check_labels(self.labels, len(self.classes), where)
            check_range(images, self.scale, where)

    def _take_arrays(self, where: str) -> None:
        """Tensors in the place of NumPy arrays; anything else is refused."""
        if isinstance(self.images, np.ndarray):
            object.__setattr__(self, "images", as_images(self.images, where))
        if isinstance(self.labels, np.ndarray):
            object.__setattr__(self, "labels", as_labels(self.labels, len(self.images), where))
        for name, value in (("images", self.images), ("labels", self.labels)):
            if not isinstance(value, Tensor):
                raise ArgumentError(f"{where}: {name} must be a tensor or a NumPy array, got {type(value).__name__}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> Shape:
        """Of one image: (C, H, W)."""
        return tuple(self.images.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.images.device

    def scaled(self, index: Tensor | slice | None = None) -> Tensor:
        """The chosen images, or all, as float32 in [0, 1]; on the device, without waiting for it."""
        chosen = (self.images if index is None else self.images[index]).to(torch.float32)
        return chosen if self.images.is_floating_point() else chosen / self.scale

    def to(self, device: torch.device | str) -> ImageData:
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def select(self, index: Tensor | slice) -> ImageData:
        """The images at these positions, or where this mask is true, in that order."""
        return replace(self, images=self.images[index], labels=self.labels[index])

    def take(self, n: int) -> ImageData:
        """The first n images; all of them if there are fewer."""
        if n < 1:
            raise ArgumentError(f"data {self.name!r}: {n} images were asked for; ask for at least 1")
        return self.select(slice(n))

    def split(self, fraction: float, seed: int) -> tuple[ImageData, ImageData]:
        """Most images, and the `fraction` that is held out: drawn by seed, the same on every machine, in their old order."""
        held_out = round(fraction * len(self)) if 0 < fraction < 1 else 0
        if not 0 < held_out < len(self):
            raise ArgumentError(
                f"data {self.name!r}: a fraction of {fraction} of {len(self)} images leaves one part empty; "
                "pass a fraction between 0 and 1 that leaves images on both sides"
            )
        # RandomState, because numpy promises never to change its stream; that of a Generator may change.
        shuffled = torch.from_numpy(np.random.RandomState(seed).permutation(len(self)))
        rest, out = shuffled[held_out:].sort().values, shuffled[:held_out].sort().values
        return self.select(rest.to(self.device)), self.select(out.to(self.device))

    def digest(self) -> str:
        """SHA-256 of everything but the name: two records with the same digest hold the same data."""
        kind = f"{self.images.dtype} {tuple(self.images.shape)} {self.scale} {self.classes!r}"
        digest = hashlib.sha256(kind.encode())
        digest.update(self.images.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def check_parts(train: ImageData, test: ImageData) -> None:
    """Refuses to train on one kind of data and test on another."""
    where = f"data {train.name!r}" if train.name == test.name else f"data {train.name!r} and {test.name!r}"
    if train.shape != test.shape:
        raise ArgumentError(
            f"{where}: images to train on are {list(train.shape)}, those to test on {list(test.shape)}; bring all to one "
            "shape [channels, height, width]"
        )
    if train.classes != test.classes:
        raise ArgumentError(
            f"{where}: there are {len(train.classes)} classes to train on and {len(test.classes)} to test on, or their names "
            "differ; give both parts the same classes, in the same order"
        )
    if len(train.classes) < 2:
        raise ArgumentError(
            f"{where}: has {len(train.classes)} class, but a network chooses between at least two; add images of another"
        )
