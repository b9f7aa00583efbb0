"""Small files in the formats of the published data sets."""

import gzip
import struct
from pathlib import Path

import numpy as np

RANDOM = np.random.RandomState(7)


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def idx_files(train: int = 12, test: int = 5) -> dict[str, bytes]:
    """The four files of a small MNIST."""
    files = {}
    for part, count in (("train", train), ("t10k", test)):
        files[f"{part}-images-idx3-ubyte"] = idx(RANDOM.randint(0, 256, (count, 28, 28)))
        files[f"{part}-labels-idx1-ubyte"] = idx(np.arange(count) % 10)
    return files


def cifar_files(count: int = 3) -> dict[str, bytes]:
    """The six files of a small CIFAR-10."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    return {name: cifar_batch(RANDOM.randint(0, 10, count)) for name in names}


def cifar_batch(labels: np.ndarray) -> bytes:
    pixels = RANDOM.randint(0, 256, (len(labels), 3072))
    return np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8).tobytes()


def write(folder: Path, files: dict[str, bytes], compress: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        (folder / (f"{name}.gz" if compress else name)).write_bytes(
            gzip.compress(contents, 1) if compress else contents
        )
    return folder
