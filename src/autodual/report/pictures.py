"""Images that are certified, broken, or neither, each with the attack on it and the difference made visible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autodual.report.absence import absence
from autodual.report.blocks import Block, Card, Cards, Section, Text, Tone
from autodual.report.classes import class_name
from autodual.report.files import GALLERY, Run
from autodual.report.gallery_file import Picture
from autodual.report.png import data_uri

MOST = 24
"""Images of a kind on the page; more would make it large, not clearer."""

KINDS: tuple[tuple[int, str, str, Tone], ...] = (
    (
        0,
        "Certified",
        "Proved: no perturbation of the set changes these labels. The attack is shown, and fails.",
        "proved",
    ),
    (1, "Broken by the attack", "A perturbation inside the set gives these another label.", "attack"),
    (2, "Neither", "The attack fails, and there is no proof either.", "unknown"),
)


def pictures(run: Run) -> Section:
    if not run.gallery:
        return Section("gallery", "Gallery", [absence(run, GALLERY, "No images to show.")])
    gain = _gain(run.gallery)
    blocks: list[Block] = [
        Text(
            f"Each image, the image that the attack made of it, and the difference {gain} times as strong (grey: no change)."
        )
    ]
    for kind, title, words, tone in KINDS:
        members = [picture for picture in run.gallery if picture.kind == kind]
        if len(members) > MOST:
            words += f" The first {MOST} of {len(members)}."
        if members:
            blocks.append(Cards(title, words, tone, [_card(run, picture, gain) for picture in members[:MOST]]))
        else:
            blocks.append(Text(f"{title}: none."))
    return Section("gallery", "Gallery", blocks)


def _gain(gallery: Sequence[Picture]) -> int:
    """The largest whole factor, the same for all images, at which no difference is cut off."""
    largest = max(int(np.abs(_change(picture)).max()) for picture in gallery)
    return max(1, 127 // max(largest, 1))


def _change(picture: Picture) -> NDArray[np.int16]:
    return picture.attacked.astype(np.int16) - picture.image.astype(np.int16)


def _card(run: Run, picture: Picture, gain: int) -> Card:
    difference = (128 + gain * _change(picture)).clip(0, 255).astype(np.uint8)
    label, predicted, attacked = (
        class_name(run, number) for number in (picture.label, picture.predicted, picture.attacked_label)
    )
    name = f"example {picture.index}" if picture.index is not None else "example"
    already = picture.label is not None and picture.predicted is not None and picture.label != picture.predicted
    detail = f"read as {predicted}, under attack as {attacked}" + (" (wrong already without it)" if already else "")
    images = [
        (f"{name}: image of {label}", data_uri(picture.image)),
        (f"{name} under attack, read as {attacked}", data_uri(picture.attacked)),
        (f"difference, {gain} times as strong", data_uri(difference)),
    ]
    return Card(images, label, detail)
