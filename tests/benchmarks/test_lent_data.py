"""Data that travel in parts arrive byte for byte, whatever the order of the parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    folder = tmp_path / "data"
    for name, records in (("data_batch_1.bin", 800), ("test_batch.bin", 100)):
        smooth = random.integers(0, 40, (records, 1 + 3 * 32 * 32), dtype=np.uint8)
        (folder / "cifar").mkdir(parents=True, exist_ok=True)
        (folder / "cifar" / name).write_bytes(smooth.tobytes())
    (folder / "mnist").mkdir()
    (folder / "mnist" / "labels").write_bytes(bytes(range(100)))
    (folder / "mnist" / "empty").write_bytes(b"")
    return folder


@pytest.fixture
def lent_data(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("lent_data")


def test_parts_arrive_as_they_were(
    lent_data: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent_data, "MOST", 100)
    first, *others = lent_data.pack(data, tmp_path / "parts", 400_000)
    assert len(others) > 2
    there = tmp_path / "there"
    assert "mnist/labels" in lent_data.unpack(there, others[::-1])
    assert lent_data.unpack(there, [first]) == []
    for file in data.rglob("*"):
        if file.is_file():
            assert (there / file.relative_to(data)).read_bytes() == file.read_bytes()


def test_a_damaged_part_is_refused(lent_data: ModuleType, data: Path, tmp_path: Path) -> None:
    (part,) = lent_data.pack(data, tmp_path / "parts", 1 << 30)
    labels = next(f for f in part.iterdir() if f.read_bytes()[:1] == b"w")
    content = bytearray(labels.read_bytes())
    content[5] ^= 1
    labels.write_bytes(bytes(content))
    with pytest.raises(SystemExit, match="SHA-256 differs"):
        lent_data.unpack(tmp_path / "there", [part])
