"""Certify the network that the package ships on the embedded digits, attack it, and draw what was found.

python examples/certify_digits.py [--out demo-output]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import autodual as ad

RADII = (0.0, 0.025, 0.05, 0.075, 0.1, 0.15)


def ball(eps: float) -> ad.LinfBall:
    """Every pixel moves by at most eps and stays in [0, 1]."""
    return ad.LinfBall(eps, clip=(0.0, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    out: Path = parser.parse_args().out
    torch.manual_seed(0)
    model = ad.load_digits_network()
    images, labels = ad.load_digits("test")

    print(f"{len(images)} handwritten digits of 8x8 pixels; a network trained to be certifiable\n")
    print("  eps    error   PGD error   robust error: Dual    Crown     IBP    (per cent; robust error is a proof)")
    rows = []
    started = time.perf_counter()
    for eps in RADII:
        certified = {
            type(engine).__name__: ad.certify(model, images, labels, ball(eps), engine)
            for engine in (ad.Dual(), ad.Crown(), ad.IBP())
        }
        attacked = ad.attack(model, images, labels, ball(eps), steps=40, restarts=2).success.float().mean().item()
        errors = [certified[name].robust_error for name in ("Dual", "Crown", "IBP")]
        rows.append((eps, certified["Dual"].error, attacked, *errors))
        print(
            f"{eps:5.3f}  {100 * rows[-1][1]:6.2f}  {100 * attacked:10.2f}"
            + "".join(f"  {100 * e:16.2f}" if i == 0 else f"{100 * e:9.2f}" for i, e in enumerate(errors))
        )
    radius = ad.certified_radius(model, images, labels, ball(max(RADII)))
    print(f"\ncertified radius: median {radius.median():.3f}, largest {radius.max():.3f} (searched up to {max(RADII)})")
    print(f"everything above took {time.perf_counter() - started:.1f} s")
    print("pictures:", *draw(out, model, images, labels, rows, radius))


def draw(
    out: Path,
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    rows: list[tuple[float, ...]],
    radius: torch.Tensor,
) -> list[Path]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    eps, _, attacked, dual, crown, interval = (list(column) for column in zip(*rows, strict=True))

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for name, values, style in (("IBP", interval, ":"), ("Dual", dual, "-"), ("Crown", crown, "--")):
        left.plot(eps, [100 * v for v in values], style, label=f"cannot be certified ({name})")
    left.plot(eps, [100 * v for v in attacked], "-", color="black", label="broken by PGD")
    left.set(xlabel="eps (l-infinity, pixels in [0, 1])", ylabel="per cent of the test images", ylim=(0, 100))
    left.legend(frameon=False)
    left.set_title("The truth lies between the attack and the proof")
    right.hist(radius.numpy(), bins=30, color="tab:blue")
    right.set(xlabel="certified radius", ylabel="images")
    right.set_title("How far each image is proved to be safe")
    figure.tight_layout()
    curves = out / "certified.png"
    figure.savefig(curves, dpi=120)

    return [curves, _gallery(out / "gallery.png", model, images, labels)]


def _gallery(path: Path, model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Path:
    from matplotlib import pyplot as plt

    certificate = ad.certify(model, images, labels, ball(0.1))
    found = ad.attack(model, images, labels, ball(0.1), steps=40, restarts=2)
    proved = certificate.certified.nonzero().squeeze(1)[:8]
    broken = (found.success & (certificate.predicted == labels)).nonzero().squeeze(1)[:8]
    figure, axes = plt.subplots(3, 8, figsize=(10, 4.4))
    titles = ("certified", "clean", "attacked")
    for row, (name, source, chosen) in enumerate(
        zip(titles, (images, images, found.examples), (proved, broken, broken), strict=True)
    ):
        answers = model(source[chosen]).argmax(1).tolist()
        for column in range(8):
            axis = axes[row][column]
            axis.axis("off")
            if column < len(chosen):
                axis.imshow(source[chosen[column]][0].detach(), cmap="gray_r", vmin=0, vmax=1)
                axis.set_title(f"{name}: {answers[column]}", fontsize=8)
    figure.suptitle(
        "eps = 0.1. First row: no attack can change these. Below: images that PGD breaks, before and after", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
