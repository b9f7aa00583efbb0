"""MNIST and CIFAR-10 in few, small parts, for a lent machine that is sent little at a time; and back again, byte for byte.

    python benchmarks/lent_data.py pack DATA OUT [--part-mib 30]      here: OUT/a, OUT/b, ... to be carried in one call each
    python benchmarks/lent_data.py unpack DATA PART [PART ...]        there, in every call: adds to DATA what has arrived by then

CIFAR-10's batches travel as sheets of lossless WebP (half of their size, 99 MiB in all), everything else as it is, deflated. `unpack`
keeps parts that have arrived in DATA/parts, and writes a file once all of it is there and its SHA-256 is right.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import zlib
from pathlib import Path

import numpy as np

IMAGE = 3 * 32 * 32
ACROSS = 50
"""Images in a line of a sheet."""
MOST = 2500
"""Images on a sheet."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("data", type=Path)
    packing.add_argument("out", type=Path)
    packing.add_argument("--part-mib", type=float, default=30.0)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("data", type=Path)
    unpacking.add_argument("parts", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "pack":
        for part in pack(given.data, given.out, int(given.part_mib * 2**20)):
            print(f"{part}: {sum(f.stat().st_size for f in part.iterdir()) / 2**20:.1f} MiB")
    else:
        missing = unpack(given.data, given.parts)
        print("all files are there" if not missing else f"still to come: {', '.join(missing)}")


def pack(data: Path, out: Path, most_bytes: int) -> list[Path]:
    """Writes the parts, each in a folder of its own with the list of all files; returns the folders.

    MNIST and all test images come first, so that work can begin before the training images of CIFAR-10 have arrived.
    """
    files = sorted((f for f in data.rglob("*") if f.is_file()), key=lambda f: ("data_batch" in f.name, f))
    pieces, listed = list[tuple[str, bytes]](), dict[str, dict[str, object]]()
    for file in files:
        content, name = file.read_bytes(), file.relative_to(data).as_posix()
        own = [(f"{len(listed):03}-{n:02}", piece) for n, piece in enumerate(_pieces(content))]
        listed[name] = {"sha256": hashlib.sha256(content).hexdigest(), "pieces": [piece for piece, _ in own]}
        pieces += own
    folders, free = list[Path](), 0
    for name, piece in pieces:
        if len(piece) > most_bytes:
            raise SystemExit(f"one piece has {len(piece):,} bytes, more than a part may have; raise --part-mib")
        if len(piece) > free:
            folders.append(out / chr(ord("a") + len(folders)))
            shutil.rmtree(folders[-1], ignore_errors=True)
            folders[-1].mkdir(parents=True)
            (folders[-1] / "files.json").write_text(json.dumps(listed))
            free = most_bytes
        (folders[-1] / name).write_bytes(piece)
        free -= len(piece)
    return folders


def unpack(data: Path, parts: list[Path]) -> list[str]:
    """Takes parts in, and writes every file whose pieces are there. Returns the names of the others."""
    kept = data / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for file in part.iterdir():
            shutil.copy2(file, kept / file.name)
    missing = []
    for name, about in json.loads((kept / "files.json").read_text()).items():
        pieces = [kept / piece for piece in about["pieces"]]
        if (data / name).exists():
            continue
        if not all(piece.exists() for piece in pieces):
            missing.append(name)
            continue
        content = b"".join(_content(piece.read_bytes()) for piece in pieces)
        if hashlib.sha256(content).hexdigest() != about["sha256"]:
            raise SystemExit(f"{name} is not what was packed: its SHA-256 differs")
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
        for piece in pieces:
            piece.unlink()
    return missing


def _pieces(content: bytes) -> list[bytes]:
    """A file's content, in pieces: records of CIFAR-10 as labels and a sheet of their images, all else deflated."""
    if len(content) == 0 or len(content) % (IMAGE + 1) or len(content) // (IMAGE + 1) % ACROSS:
        return [b"z" + zlib.compress(content, 9)]
    records = np.frombuffer(content, np.uint8).reshape(-1, IMAGE + 1)
    return [_sheet(records[start : start + MOST]) for start in range(0, len(records), MOST)]


def _sheet(records: np.ndarray) -> bytes:
    from PIL import Image

    images = records[:, 1:].reshape(-1, ACROSS, 3, 32, 32)
    sheet, file = images.transpose(0, 3, 1, 4, 2).reshape(-1, ACROSS * 32, 3), io.BytesIO()
    Image.fromarray(sheet).save(file, "WEBP", lossless=True, quality=50, method=4, exact=True)
    return b"w" + len(records).to_bytes(4, "little") + records[:, 0].tobytes() + file.getvalue()


def _content(piece: bytes) -> bytes:
    """What a piece was made of."""
    if piece[:1] == b"z":
        return zlib.decompress(piece[1:])
    from PIL import Image

    count = int.from_bytes(piece[1:5], "little")
    labels = np.frombuffer(piece[5 : 5 + count], np.uint8)
    sheet = np.asarray(Image.open(io.BytesIO(piece[5 + count :])).convert("RGB"))
    images = sheet.reshape(-1, 32, ACROSS, 32, 3).transpose(0, 2, 4, 1, 3).reshape(count, IMAGE)
    return np.concatenate([labels[:, None], images], 1).tobytes()


if __name__ == "__main__":
    main()
