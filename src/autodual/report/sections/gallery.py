"""Image by image: right and then broken by the attack, proved, unknown, or wrong without any attack."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autodual._errors import AutodualError
from autodual.report.blocks import Block, Card, Cards, Image, Section, Text, Tone
from autodual.report.files import GALLERY, Picture, RunFiles
from autodual.report.sections import absence, section
from autodual.report.sections.classes import class_name

MOST = 24
"""Images of a kind on the page; more would make it large, not clearer."""

KINDS: tuple[tuple[Tone, str, str], ...] = (
    ("broken", "Right, then broken by the attack", "A perturbation inside the set gives these another label."),
    ("proved", "Proved", "No perturbation of the set changes these labels. The attack is shown, and fails."),
    ("unknown", "Unknown", "The attack fails, and there is no proof either."),
    (
        "wrong",
        "Wrong without any attack",
        "The network gives these another label as they are: an attack has nothing to break.",
    ),
)


@section(place=60, first_stage=True)
def gallery(run: RunFiles) -> Section:
    if not run.gallery:
        return Section("gallery", "Gallery", [absence(run, GALLERY, "No images to show.")])
    gain = _gain(run.gallery)
    blocks: list[Block] = [
        Text(f"Each image, what the attack made of it, and the change {gain} times as strong (grey: no change).")
    ]
    for tone, title, words in KINDS:
        members = [picture for picture in run.gallery if _verdict(picture) == tone]
        if len(members) > MOST:
            words += f" The first {MOST} of {len(members)}."
        if members:
            blocks.append(Cards(title, words, tone, [_card(run, picture, gain) for picture in members[:MOST]]))
        else:
            blocks.append(Text(f"{title}: no image in this gallery."))
    return Section("gallery", "Gallery", blocks)


def _verdict(picture: Picture) -> Tone:
    if None not in (picture.label, picture.predicted) and picture.label != picture.predicted:
        return "wrong"
    kinds: dict[int, Tone] = {0: "proved", 1: "broken"}
    return kinds.get(picture.kind, "unknown")


def _gain(pictures: Sequence[Picture]) -> int:
    """The largest whole factor, one for all images, at which no change is cut off."""
    largest = max(int(np.abs(_change(picture)).max()) for picture in pictures)
    return max(1, 127 // max(largest, 1))


def _change(picture: Picture) -> NDArray[np.int16]:
    return picture.attacked.astype(np.int16) - picture.image.astype(np.int16)


def _card(run: RunFiles, picture: Picture, gain: int) -> Card:
    label, predicted, attacked = (
        class_name(run.evaluation, number) for number in (picture.label, picture.predicted, picture.attacked_label)
    )
    name = f"example {picture.index}" if picture.index is not None else "example"
    image = Image(data_uri(picture.image), f"read as {predicted}", f"{name}: image of {label}, read as {predicted}")
    if _verdict(picture) == "wrong":
        return Card(f"{label} ({name})", [image])
    change = (128 + gain * _change(picture)).clip(0, 255).astype(np.uint8)
    kept = f"attacked: {attacked}"
    if _verdict(picture) == "broken" and picture.attacked_label == picture.label is not None:
        kept = "attacked: broken, but not by the image that was kept"
    images = [
        image,
        Image(data_uri(picture.attacked), kept, f"{name} under attack, read as {attacked}"),
        Image(
            data_uri(change),
            f"change, {gain}\N{MULTIPLICATION SIGN}",
            f"what the attack changed, {gain} times as strong",
        ),
    ]
    return Card(f"{label} ({name})", images)


def data_uri(image: NDArray[np.uint8]) -> str:
    """[C, H, W] bytes as a PNG for the page; other than three channels are shown as their mean, grey."""
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise AutodualError("images need Pillow, which is not installed: pip install 'autodual[cli]'") from None
    shown = image.transpose(1, 2, 0) if len(image) == 3 else image.mean(axis=0).round().astype(np.uint8)
    stream = io.BytesIO()
    Pillow.fromarray(np.ascontiguousarray(shown)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
