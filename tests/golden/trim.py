"""Cut the golden values down to what a clone carries: python tests/golden/trim.py [GOLDEN_FOLDER] [MNIST_FOLDER]

GOLDEN_FOLDER holds the full files (default: ../shared/golden beside the checkout); MNIST_FOLDER the raw idx files of MNIST
(t10k-images-idx3-ubyte ...), from which the first 300 test images are taken. Without it mnist300.npz is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parents[3] / "shared" / "golden"

WHOLE = ("golden_tiny_mlp", "golden_tiny_resnet", "golden_tiny_proj", "weights_mnist", "weights_cifar_small_8px")
EXAMPLES = {"golden_mnist": 8, "golden_mnist_bounded": 8, "golden_mnist_l2": 8, "golden_cifar_small_8px": 2}
"""Of how many of the 32 examples the results stay."""
INPUTS = 10
"""Inputs and labels of so many stay: four for the gradients, which belong to the first four examples, and ten for benchmarks."""
GRADIENT_STEP = 10
"""Of the gradient of the widest layer (5.weight), every tenth row stays."""
IMAGES = 300


def trim(examples: int) -> Callable[[str, Array], Array | None]:
    """What becomes of one array of a golden file; None drops it."""

    def cut(key: str, array: Array) -> Array | None:
        if key.endswith(".summary"):
            return None  # sums over all 32 examples
        if key.endswith("grad4.5.weight"):
            return array[::GRADIENT_STEP]
        if ".grad4." in key or array.ndim == 0:
            return array
        return array[: INPUTS if key in ("X", "y") else examples]

    return cut


def rewrite(name: str, source: Path, cut: Callable[[str, Array], Array | None]) -> None:
    with np.load(source / f"{name}.npz") as full:
        kept = {key: cut(key, full[key]) for key in full.files}
    _save(name, {key: array for key, array in kept.items() if array is not None})


def first_images(source: Path) -> None:
    pixels = np.frombuffer((source / "t10k-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
    labels = np.frombuffer((source / "t10k-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    _save("mnist300", {"images": pixels.reshape(-1, 28, 28)[:IMAGES], "labels": labels[:IMAGES]})


def _save(name: str, arrays: dict[str, Array]) -> None:
    path = DATA / f"{name}.npz"
    np.savez_compressed(path, allow_pickle=False, **arrays)
    print(f"{path.stat().st_size:>9,} bytes  {path.name}")


def main(golden: Path, mnist: Path | None) -> None:
    DATA.mkdir(exist_ok=True)
    for name in WHOLE:
        rewrite(name, golden, lambda _key, array: array)
    for name, examples in EXAMPLES.items():
        rewrite(name, golden, trim(examples))
    if mnist is not None:
        first_images(mnist)


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:3]]
    main(folders[0] if folders else GOLDEN, folders[1] if len(folders) > 1 else None)
