"""The gallery keeps images of every kind: proved, right and then broken, neither, and wrong without any attack."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from autodual.data import ImageData
from autodual.evaluation.evaluate import GALLERY, Broken, write_gallery
from autodual.evaluation.judge import Judged
from autodual.sets import LinfBall


def test_images_that_are_right_and_then_broken_are_not_crowded_out_by_those_that_were_wrong_before(
    tmp_path: Path,
) -> None:
    """Fifty images: twenty wrong ones come first, then ten each that are broken, proved and neither."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50, 1, 4, 4), generator=generator, dtype=torch.uint8)
    place = torch.arange(50)
    labels = place % 2
    wrong, broken, proved = place < 20, place < 30, (place >= 30) & (place < 40)
    predicted = torch.where(wrong, 1 - labels, labels)
    nothing = torch.zeros(50)
    found = Judged(labels, predicted, proved, proved, nothing, nothing)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    data = ImageData(pixels, labels, ("even", "odd"), "made up")
    write_gallery(tmp_path / "gallery.npz", model, data, LinfBall(0.1, clip=(0.0, 1.0)), found, Broken(broken, broken))
    with np.load(tmp_path / "gallery.npz") as archive:
        kind, index = archive["kind"], archive["index"]
        right = archive["label"] == archive["predicted"]
    assert [((kind == one) & right).sum() for one in (0, 1, 2)] == [GALLERY] * 3
    assert ((kind == 1) & ~right).sum() == GALLERY
    assert index[(kind == 1) & right].tolist() == list(range(20, 20 + GALLERY))
