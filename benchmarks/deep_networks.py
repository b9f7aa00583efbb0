"""One image of a ResNet-18 by columns (`ForwardDual`) or by rows (`Dual`): seconds, memory, margin.

    python benchmarks/deep_networks.py [--width 64] [--eps 0.0003] [--engine forward | dual] [--timeout 600] [--threads 2]

The network is untrained, with a fixed seed, and has its 32x32 stem; its usual width is 64. Prints a line. `Dual` needs a quiet
machine and patience; at its time limit nothing is decided.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import torch
from machine import ROOT, describe, in_words

import autodual as ad

sys.path.insert(0, str(ROOT / "tests"))
ENGINES = {"forward": ad.ForwardDual(max_bytes=10 << 30), "dual": ad.Dual()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--eps", type=float, default=0.0003)
    parser.add_argument("--engine", choices=ENGINES, default="forward")
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    from zoo import ResNet18, _kaiming

    torch.manual_seed(0)
    model = _kaiming(ResNet18(width=options.width)).eval()
    torch.manual_seed(1)
    x = torch.rand(1, 3, 32, 32)
    began, busy = time.monotonic(), time.process_time()
    engine = ENGINES[options.engine]
    found = ad.certify(model, x, model(x).argmax(1), ad.LinfBall(options.eps), engine, timeout=options.timeout)
    seconds, busy = time.monotonic() - began, time.process_time() - busy
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{engine!r}, width {options.width}, eps {options.eps:g}: {found}; smallest margin {found.margins.min():.4f}")
    print(f"{seconds:.0f} s, {busy:.0f} s of CPU time, {memory:.1f} GiB at most. {in_words(describe())}")


if __name__ == "__main__":
    main()
