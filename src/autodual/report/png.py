"""The smallest PNG writer that shows an image: eight bits, grey or RGB."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_GREY, _RGB = 0, 2


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
