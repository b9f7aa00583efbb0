"""PyTorch's global random numbers, which dropout and its like draw from: a function of the step, and the caller's again afterwards."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def kept_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Whatever is drawn or seeded inside, on the CPU or this device, the numbers that follow are those that would have."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def seed_globally(seed: int, device: torch.device) -> None:
    """On the CPU and this device; other GPUs are none of our business. Never while a CUDA graph is captured."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
