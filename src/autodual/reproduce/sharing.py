"""One GPU for several processes at once, by NVIDIA's Multi-Process Service (MPS).

Without it a GPU serves processes in turns, and small networks, which leave most of it idle, are no faster side by side than one after
the other. Measured on an H200 with `configs/mnist-small-0.1.yaml`: 1.42 s an epoch alone; 5.86 s in each of four processes in turns,
2.93 s with MPS; 4.78 s in each of eight.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
USUAL = Path("/tmp/nvidia-mps")
"""Where a daemon of the whole machine listens."""
SECONDS = 20
"""For the daemon to start, and to end."""


@contextmanager
def shared_gpu(device: str, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Environment variables for processes that are to use the GPU at the same time. Empty where MPS is not there or runs already."""
    control = shutil.which(CONTROL)
    if control is None or device == "cpu" or PIPES in os.environ or USUAL.exists() or not torch.cuda.is_available():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="autodual-mps-", ignore_cleanup_errors=True) as folder:
        variables = {PIPES: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if not _told([control, "-d"], variables):
            say("the GPU is used in turns: MPS could not be started")
            yield {}
            return
        try:
            yield variables
        finally:
            _told([control], variables, b"quit\n")


def _told(command: list[str], variables: dict[str, str], text: bytes = b"") -> bool:
    """Whether the command succeeded. Its output goes nowhere: the daemon would keep a pipe open."""
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            input=text,
            stdout=quiet,
            stderr=quiet,
            env={**os.environ, **variables},
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
