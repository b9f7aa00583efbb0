"""What the shell completes beside commands and options: names that are known without PyTorch, and files of ours in the working folder.

A function returns all that could stand there; typer keeps what begins as the word does. With nothing to offer, shells complete files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")
"""Names of `autodual.data.known.KNOWN`, known here without PyTorch; a test compares the two."""
MODELS = ("small", "large", "resnet", "wide:1", "deep:1", "cnn5", "cnn7", "digits")
DEVICES = ("auto", "cpu", "cuda")


def dataset_names() -> list[str]:
    return list(DATASETS)


def model_names() -> list[str]:
    return list(MODELS)


def device_names() -> list[str]:
    return list(DEVICES)


def run_folders(incomplete: str) -> list[str]:
    """Folders with a config, up to two levels below what is typed."""
    return [str(file.parent) for file in _below(incomplete, "config.yaml") if str(file.parent) != "."]


def targets(incomplete: str) -> list[str]:
    """Run folders, and weights."""
    return run_folders(incomplete) + [str(file) for file in _below(incomplete, "*.safetensors")]


def configs(incomplete: str) -> list[str]:
    """YAML files up to two levels below what is typed, but for those that runs keep."""
    return [str(file) for file in _below(incomplete, "*.yaml") if file.name != "config.yaml"]


def row_names() -> list[str]:
    """Rows of the paper's tables, and names for several of them."""
    from autodual.reproduce.campaign import BY_NAME

    return [*BY_NAME, "table1", "table2", "table3", "table4", "all"]


def _below(incomplete: str, pattern: str) -> Iterator[Path]:
    """Files that match, in the folder that the word names so far and in those up to two levels below it."""
    place = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    for depth in ("", "*/", "*/*/"):
        yield from sorted(path for path in place.glob(depth + pattern) if path.is_file())


OPTIONS = {"dataset": dataset_names, "model": model_names, "device": device_names}
"""By the name of an option."""
