"""Commands in two processes that torchrun starts, and signals to one of them or all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

ALONE = [sys.executable, "-m", "autodual"]
TOGETHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "autodual"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def signal_when(job: subprocess.Popen[str], ready: Callable[[], bool], number: int, worker: int | None = None) -> str:
    """Send it to torchrun, or to one of its workers, once `ready`; what the job has said when it has ended."""
    while not ready() and job.poll() is None:
        time.sleep(0.02)
    assert job.poll() is None, job.communicate()
    workers = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=False).stdout.split()
    os.kill(job.pid if worker is None else int(sorted(workers, key=int)[worker]), number)
    return "".join(job.communicate(timeout=120))
