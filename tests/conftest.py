"""What all tests share: the modules in tests/ can be imported, and tests that need a GPU say so when there is none."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves sys.path alone; `import zoo` needs this

NO_GPU = "needs a CUDA device, and there is none"


def pytest_report_header() -> str:
    return (
        f"cuda: {torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'none, tests marked gpu are skipped'}"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What tests write need not outlive a power cut. A handle that is closed is an error as before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    """Without a GPU only the CPU's: `torch.manual_seed` keeps a traceback for every GPU that may still turn up."""
    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(0)
