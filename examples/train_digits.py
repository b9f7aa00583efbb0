"""Train the small certified network that the package ships, on the embedded digits (about a minute on two cores).

python examples/train_digits.py            -> src/autodual/assets/digits_robust.npz
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

import autodual as ad
from autodual.digits import digits_network

EPS, EPOCHS, BATCH = 0.1, 60, 50
TARGET = Path(__file__).parents[1] / "src" / "autodual" / "assets" / "digits_robust.npz"


def main() -> None:
    torch.manual_seed(0)
    images, labels = ad.load_digits("train")
    model = digits_network()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [40, 50], gamma=0.3)
    started = time.time()
    for epoch in range(EPOCHS):
        eps = EPS * min(1.0, (epoch + 1) / 25)
        loss = ad.RobustCrossEntropy(model, ad.LinfBall(eps, clip=(0.0, 1.0)), engine=ad.Dual())
        total = 0.0
        for index in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad()
            value = loss(images[index], labels[index])
            value.backward()
            optimiser.step()
            total += value.item() * len(index)
        schedule.step()
        print(
            f"epoch {epoch + 1:2d}  eps {eps:.3f}  robust loss {total / len(images):.4f}  {time.time() - started:4.0f} s",
            flush=True,
        )
    test, truth = ad.load_digits("test")
    for size in (0.0, EPS / 2, EPS):
        certificate = ad.certify(model.eval(), test, truth, ad.LinfBall(size, clip=(0.0, 1.0)))
        print(f"eps {size:.3f}: error {certificate.error:.2%}, robust error {certificate.robust_error:.2%}")
    np.savez_compressed(TARGET, **{name: value.numpy() for name, value in model.state_dict().items()})
    print("wrote", TARGET)


if __name__ == "__main__":
    main()
