"""Reading the named data sets from files: formats, places, and damaged files."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autodual import ArgumentError
from autodual.data import data_folder, load
from autodual.data.known import KNOWN, DataFile
from autodual.digits import load_digits
from data.samples import cifar_batch, cifar_files, idx, idx_files, write


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTODUAL_DATA", str(tmp_path / "nothing"))


def test_digits_are_the_shipped_ones() -> None:
    for split, count in (("train", 1437), ("test", 360)):
        data = load("digits", split)
        images, labels = load_digits(split)
        assert (len(data), data.shape, data.scale, data.images.dtype) == (count, (1, 8, 8), 16, torch.uint8)
        assert torch.equal(data.scaled(), images)
        assert torch.equal(data.labels, labels)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("inside", [False, True])
def test_idx_files(tmp_path: Path, name: str, compress: bool, inside: bool) -> None:
    files = idx_files()
    folder = write(tmp_path / name if inside else tmp_path, files, compress)
    for split, part, count in (("train", "train", 12), ("test", "t10k", 5)):
        data = load(name, split, tmp_path if inside else folder)
        assert (len(data), data.shape, len(data.classes), data.name) == (count, (1, 28, 28), 10, name)
        assert data.images.numpy().tobytes() == files[f"{part}-images-idx3-ubyte"][16:]
        assert data.labels.tolist() == list(files[f"{part}-labels-idx1-ubyte"][8:])


def test_cifar_files(tmp_path: Path) -> None:
    files = cifar_files()
    write(tmp_path / "cifar-10-batches-bin", files)
    train, test = load("cifar10", "train", tmp_path), load("cifar10", "test", tmp_path)
    assert (len(train), len(test), train.shape) == (15, 3, (3, 32, 32))
    records = np.frombuffer(files["data_batch_2.bin"], np.uint8).reshape(3, 3073)
    assert train.labels[3:6].tolist() == records[:, 0].tolist()
    assert torch.equal(train.images[4], torch.tensor(records[1, 1:]).view(3, 32, 32))
    assert train.classes[:2] == ("airplane", "automobile")
    (tmp_path / "cifar-10-batches-bin" / "batches.meta.txt").write_text("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n")
    assert load("cifar10", "test", tmp_path).classes == tuple("abcdefghij")


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "given" / "mnist", idx_files(test=2))
    write(tmp_path / "named" / "mnist", idx_files(test=3))
    monkeypatch.setenv("AUTODUAL_DATA", str(tmp_path / "named"))
    assert len(load("mnist", "test", tmp_path / "given")) == 2
    assert len(load("mnist", "test")) == 3
    monkeypatch.delenv("AUTODUAL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "autodual"


@pytest.mark.parametrize(
    ("name", "near"), [("cifar-10", "cifar10"), ("MNIST", "mnist"), ("fashion", "fashion-mnist"), ("digit", "digits")]
)
def test_unknown_names_get_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name!r} is not known; did you mean '{near}'"):
        load(name, "train")


def test_unknown_split_and_names_far_from_all() -> None:
    with pytest.raises(ArgumentError, match="split is 'validation'"):
        load("digits", "validation")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'xyz' is not known; known are digits, mnist"):
        load("xyz", "train")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_missing_files_say_how_to_get_them(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"is neither in .* run `autodual data fetch {name}`"):
        load(name, "train", tmp_path)


def _files(**changed: bytes) -> dict[str, bytes]:
    return idx_files() | {name.replace("_", "-"): contents for name, contents in changed.items()}


IMAGES = idx_files()["t10k-images-idx3-ubyte"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (_files(t10k_images_idx3_ubyte=IMAGES[:-1]), "promises 3920 bytes, 3919 follow; the file is damaged"),
        (_files(t10k_images_idx3_ubyte=IMAGES + b"x"), "promises 3920 bytes, 3921 follow"),
        (_files(t10k_images_idx3_ubyte=IMAGES[:9]), "ends inside its header"),
        (_files(t10k_images_idx3_ubyte=b""), "begins with nothing"),
        (_files(t10k_images_idx3_ubyte=b"<html>"), "begins with 3c68746d, .* 3 dimensions with 00000803"),
        (
            _files(t10k_images_idx3_ubyte=bytes([0, 0, 8, 3]) + b"\xff" * 12),
            "promises 79228162458924105385300197375 bytes, 0",
        ),
        (_files(t10k_images_idx3_ubyte=idx(np.zeros((5, 9, 9)))), r"images are \(1, 9, 9\), those of mnist"),
        (_files(t10k_images_idx3_ubyte=idx(np.zeros((4, 28, 28)))), "4 images, .* 5 labels"),
        (_files(t10k_labels_idx1_ubyte=IMAGES), "begins with 00000803"),
        (
            _files(t10k_labels_idx1_ubyte=idx(np.array([0, 1, 10, 3, 4]))),
            "label 10 of image 2 is outside 0..9.*; the file is damaged: remove it and run `autodual data fetch mnist`$",
        ),
    ],
)
def test_damaged_idx_files(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write(tmp_path / "mnist", files)
    with pytest.raises(ArgumentError, match=message) as raised:
        load("mnist", "test", tmp_path)
    assert "\n" not in str(raised.value)
    assert "t10k" in str(raised.value)


@pytest.mark.parametrize(
    "spoil", [lambda packed: packed[:-20], lambda packed: b"no gzip", lambda packed: packed[:40] + b"?" * 99]
)
def test_damaged_gz_files(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    write(tmp_path, idx_files(), compress=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(
        ArgumentError, match=r"t10k-images-idx3-ubyte.gz: cannot be unpacked .*`autodual data fetch mnist`"
    ):
        load("mnist", "test", tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (cifar_batch(np.array([1, 2]))[:-1], "has 6145 bytes, not a multiple of 3073"),
        (b"", "has 0 bytes"),
        (cifar_batch(np.array([1, 10])), "label 10 of image 1 is outside 0..9.* run `autodual data fetch cifar10`$"),
    ],
)
def test_damaged_cifar_files(tmp_path: Path, contents: bytes, message: str) -> None:
    write(tmp_path / "cifar-10-batches-bin", cifar_files() | {"data_batch_3.bin": contents})
    with pytest.raises(ArgumentError, match=f"data_batch_3.bin: {message}"):
        load("cifar10", "train", tmp_path)


def test_class_names_must_be_ten(tmp_path: Path) -> None:
    write(tmp_path, cifar_files() | {"batches.meta.txt": b"one\ntwo\n"})
    with pytest.raises(ArgumentError, match="names 2 classes, not 10"):
        load("cifar10", "test", tmp_path)


def test_one_data_set_is_not_taken_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = idx_files()
    write(tmp_path, files)
    digest = hashlib.sha256(files["t10k-labels-idx1-ubyte"]).hexdigest()
    small = replace(KNOWN["mnist"], files=(DataFile("t10k-labels-idx1-ubyte", 13, digest),))
    monkeypatch.setitem(KNOWN, "mnist", small)
    assert len(load("mnist", "test", tmp_path)) == 5
    with pytest.raises(ArgumentError, match="these are the labels of mnist, not of fashion-mnist"):
        load("fashion-mnist", "test", tmp_path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, idx_files())

    def refuse(self: Path, *_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ArgumentError, match=r"cannot be read .Permission denied.; check its permissions"):
        load("mnist", "test", tmp_path)


def test_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ArgumentError, match=r"t10k-images-idx3-ubyte: cannot be read .Permission denied."):
        load("mnist", "test", tmp_path)


def test_home_of_nobody() -> None:
    with pytest.raises(ArgumentError, match="no such home folder"):
        load("mnist", "test", "~nobody-has-this-name")
