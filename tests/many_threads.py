"""Many threads that certify, attack, train and run models at once, each compared with what one thread alone computes."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import autodual as ad

BALL = ad.LinfBall(0.02, clip=(0.0, 1.0))
LABELS = torch.tensor([0, 1, 2])
SEEDS = 3
PYTORCHS = nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__


class Remembers(nn.Module):
    """Stores what it saw, has hooks and older weight normalisation: all that a capture might disturb."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch deprecates it, and people still use it
            self.first = nn.utils.weight_norm(nn.Linear(16, 12))
        self.norm, self.last = nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.calls, self.seen = 0, dict[str, Tensor]()
        self.norm.register_forward_hook(lambda module, args, result: result * 0.5 + 0.1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = torch.relu(self.norm(self.first(x.flatten(1))))
        self.seen["hidden"] = hidden
        return self.last(hidden)


def network(seed: int = 0) -> nn.Module:
    """For inputs [1, 4, 4]; three classes."""
    torch.manual_seed(seed)
    if seed % 3 == 0:
        return Remembers().eval()
    if seed % 3 == 1:
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
        ).eval()
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).eval()


@dataclass(frozen=True)
class Subject:
    """A model with what people keep beside it."""

    model: nn.Module
    captured: ad.Network
    loss: ad.RobustCrossEntropy


def subject(seed: int, x: Tensor) -> Subject:
    model = network(seed)
    return Subject(model, ad.capture(model, x), ad.RobustCrossEntropy(model, BALL))


def _certificate(model: nn.Module | ad.Network, x: Tensor) -> list[Tensor]:
    found = ad.certify(model, x, LABELS, BALL)
    return [found.margins, found.slack, found.predicted]


def _gradients(s: Subject, x: Tensor) -> list[Tensor]:
    loss = s.loss(x, LABELS)
    return [loss.detach(), *torch.autograd.grad(loss, list(s.model.parameters()))]


def _backward(s: Subject, x: Tensor) -> list[Tensor]:
    s.model.zero_grad()
    s.loss(x, LABELS).backward()
    return [p.grad.clone() for p in s.model.parameters() if p.grad is not None]


WORK: dict[str, Callable[[Subject, Tensor], list[Tensor]]] = {
    "certify": lambda s, x: _certificate(s.model, x),
    "certify a captured network": lambda s, x: _certificate(s.captured, x),
    "certified_radius": lambda s, x: [ad.certified_radius(s.model, x, LABELS, BALL, tol=0.005)],
    "attack": lambda s, x: [ad.attack(s.model, x, LABELS, BALL, steps=3).margins],
    "robust loss and its gradients": _gradients,
    "plain inference": lambda s, x: [s.model(x).detach()],
}
ALONE = {"loss.backward": _backward}
"""Work that writes to the model (its gradients), and so needs one that no other thread trains."""


@dataclass
class Tally:
    """What the threads did."""

    done: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    looks: int = 0
    patched: int = 0
    """How often a thread that only watches saw other methods of nn.Module than PyTorch's own."""

    @property
    def clean(self) -> bool:
        return not (self.different or self.failures or self.patched)


def hammer(seconds: float, threads: int = 8) -> Tally:
    """So many threads work for so long, half of the time on models that all of them share."""
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    expected = {
        (name, seed): work(subject(seed, x), x) for name, work in (WORK | ALONE).items() for seed in range(SEEDS)
    }
    shared = [subject(seed, x) for seed in range(SEEDS)]
    owned = [[subject(seed, x) for seed in range(SEEDS)] for _ in range(threads)]
    tally, lock, stop = Tally(), threading.Lock(), threading.Event()

    def work_on(number: int) -> None:
        for turn in itertools.count(number):
            if stop.is_set():
                return
            seed, everyone = turn % SEEDS, turn // SEEDS % 2 == 0
            jobs = WORK if everyone else WORK | ALONE
            name = [*jobs][(turn // (2 * SEEDS) + number) % len(jobs)]
            try:
                found = jobs[name]((shared if everyone else owned[number])[seed], x)
            except Exception as error:  # whatever it is, it is reported
                with lock:
                    tally.failures.append(f"{name}: {type(error).__name__}: {error}")
                continue
            same = all(torch.equal(a, b) for a, b in zip(found, expected[name, seed], strict=True))
            with lock:
                tally.done[name] += 1
                if not same:
                    tally.different[name] += 1

    def watch() -> None:
        while not stop.is_set():
            tally.looks += 1
            tally.patched += (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__) != PYTORCHS
            time.sleep(1e-4)

    workers = [threading.Thread(target=work_on, args=(i,)) for i in range(threads)]
    workers.append(threading.Thread(target=watch))
    with _switching_often():
        for thread in workers:
            thread.start()
        time.sleep(seconds)
        stop.set()
        for thread in workers:
            thread.join()
    return tally


@contextmanager
def _switching_often() -> Iterator[None]:
    """Python goes from thread to thread fifty times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
