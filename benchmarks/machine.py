"""What every benchmark records beside its figures: the machine, the versions, and the state of the code."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def describe(*packages: str) -> dict[str, str | int | float]:
    """Machine and versions as a flat record. `packages` are other distributions whose versions matter."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "autodual", *packages)},
        "commit": _git("rev-parse", "--short", "HEAD"),
        "source": _source(),
    }


def in_words(machine: dict[str, str | int | float]) -> str:
    """The record as a sentence, for the foot of a table."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load {machine['load_average']} at the time; "
        f"Python {machine['python']}, torch {machine['torch']}; commit {machine['commit']}, source {machine['source']}."
    )


def cpu_seconds_of_others() -> float:
    """CPU seconds that everything but this process has used since the machine started; two readings tell who was in the way."""
    numbers = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = (int(n) / os.sysconf("SC_CLK_TCK") for n in numbers)
    return user + nice + system + irq + softirq + steal - time.process_time()


def source_digest(folder: Path) -> str:
    """A digest of the library's code in a copy of the project."""
    digest = hashlib.sha256()
    for path in sorted((folder / "src" / "autodual").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _source() -> str:
    """A digest of the library's code, with a mark when it is not what the commit holds."""
    changed = _git("status", "--porcelain", "--", "src/autodual")
    return source_digest(ROOT) + (" (changed since the commit)" if changed not in ("", "unknown") else "")
