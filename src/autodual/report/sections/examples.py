"""Class by class, and image by image: what is certified, broken, or neither."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autodual.report.blocks import Block, Card, Cards, Section, Table, Text, Tone
from autodual.report.files import EVALUATION, GALLERY, Picture, Run
from autodual.report.sections.headline import absence, as_run_of
from autodual.report.values import DASH, Record, count, flags, integers, percent

_GREY, _RGB = 0, 2


# The smallest PNG writer that shows an image: eight bits, grey or RGB.


def png(image: NDArray[np.uint8]) -> bytes:
    """[C, H, W] bytes as a PNG file; other than three channels are shown as their mean, grey."""
    channels, height, width = image.shape
    if channels not in (1, 3):
        image = image.mean(axis=0, keepdims=True).round().astype(np.uint8)
    pixels = np.ascontiguousarray(image.transpose(1, 2, 0)).reshape(height, -1)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)  # each row begins with "no filter"
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB if channels == 3 else _GREY, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def data_uri(image: NDArray[np.uint8]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


# Class by class: how many, how often wrong, how often without a proof, and what it is taken for.

AS_RUN = "Robust error as run"
TAKEN_FOR = "Most often taken for"


def classes(run: Run) -> Section:
    labels, predicted = integers(run.evaluation, "labels"), integers(run.evaluation, "predicted")
    if not labels or not predicted or len(labels) != len(predicted):
        return Section("classes", "Classes", [absence(run, EVALUATION, "No table of classes to show.")])
    wrong = [label != answer for label, answer in zip(labels, predicted, strict=True)]
    columns = {"Error": wrong, "PGD error": _broken(run.evaluation, len(labels))}
    columns["Robust error"] = _column(run.evaluation, "certified", True, len(labels))
    as_run = _column(run.evaluation, "certified_as_run", True, len(labels))
    if as_run is not None:  # an older record does not say
        columns[AS_RUN] = as_run
    rows = []
    for label in sorted(set(labels)):
        members = [index for index, other in enumerate(labels) if other == label]
        mistaken = Counter(predicted[index] for index in members if wrong[index])
        rates = [_rate(column, members) for column in columns.values()]
        rows.append([class_name(run, label), count(len(members)), *rates, _confusion(run, mistaken)])
    everything = range(len(labels))
    total = ["All", count(len(labels)), *(_rate(column, everything) for column in columns.values()), ""]
    caption = "Taken for: the most frequent wrong answer without any attack, and how often."
    if as_run is not None:
        caption = f"Robust error: in real numbers; as run: {as_run_of(run.evaluation)}. {caption}"
    header = ("Class", "Examples", *columns, TAKEN_FOR)
    return Section("classes", "Classes", [Table(header, rows, frozenset({"Class", TAKEN_FOR}), total, caption)])


def _broken(record: Record, length: int) -> list[bool] | None:
    """What the attack breaks as the network runs, like the PGD error; an older record has one list only."""
    found = _column(record, "attacked_as_run", False, length)
    return _column(record, "attacked", False, length) if found is None else found


def class_name(run: Run, label: int | None) -> str:
    """The class's name, or its number where there is no name."""
    if label is None:
        return DASH
    names = run.evaluation.get("classes")
    return str(names[label]) if isinstance(names, list) and 0 <= label < len(names) else str(label)


def _column(record: Record, key: str, inverted: bool, length: int) -> list[bool] | None:
    column = flags(record, key)
    return [flag != inverted for flag in column] if column is not None and len(column) == length else None


def _rate(column: list[bool] | None, members: Sequence[int]) -> str:
    return percent(None if column is None else sum(column[index] for index in members) / len(members))


def _confusion(run: Run, mistaken: Counter[int]) -> str:
    if not mistaken:
        return DASH
    answer, times = min(mistaken.items(), key=lambda item: (-item[1], item[0]))
    return f"{class_name(run, answer)} ({times}\N{MULTIPLICATION SIGN})"


# Images that are certified, broken, or neither, each with the attack on it and the difference made visible.

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
