"""The user's own data: class folders, .npz files and factories; and what is wrong with them."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autodual import ArgumentError
from autodual.data import load


def picture(path: Path, value: int = 0, size: tuple[int, int] = (4, 3), mode: str = "L") -> None:
    """An image of 3 rows and 4 columns, unless told."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(
        mode, size, value if mode in ("L", "P", "1", "I;16") else (value,) * len(Image.new(mode, (1, 1)).getbands())
    ).save(path)


def two_parts(folder: Path, mode: str = "L") -> Path:
    for part, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for i in range(count):
                picture(folder / part / name / f"{i}.png", 10 * label + i, mode=mode)
    return folder


def one_level(folder: Path, count: int = 11) -> Path:
    for label, name in enumerate("abc"):
        for i in range(count):
            picture(folder / name / f"{i}.png", 50 * label + i)
    return folder


def test_train_and_test_folders(tmp_path: Path) -> None:
    data = load(str(two_parts(tmp_path)), "train")
    assert (len(data), data.shape, data.classes, data.images.dtype) == (6, (1, 3, 4), ("cat", "dog"), torch.uint8)
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.images[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert load(tmp_path, "test").labels.tolist() == [0, 0, 1, 1]


def test_colours_come_first(tmp_path: Path) -> None:
    two_parts(tmp_path, "RGB")
    image = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    Image.fromarray(image).save(tmp_path / "train" / "cat" / "0.png")
    data = load(tmp_path, "train")
    assert data.shape == (3, 3, 4)
    assert torch.equal(data.images[0], torch.from_numpy(image).permute(2, 0, 1))


def test_one_level_is_split_the_same_everywhere(tmp_path: Path) -> None:
    train, test = (load(one_level(tmp_path / "x"), part) for part in ("train", "test"))
    assert (train.labels.bincount().tolist(), test.labels.bincount().tolist()) == ([9, 9, 9], [2, 2, 2])
    values = train.images[:, 0, 0, 0].tolist() + test.images[:, 0, 0, 0].tolist()
    assert sorted(values) == [50 * label + i for label in range(3) for i in range(11)]
    assert load(one_level(tmp_path / "y"), "test").digest() == test.digest()
    assert test.images[:2, 0, 0, 0].tolist() == [0, 6]  # written down once


def test_what_is_passed_over(tmp_path: Path) -> None:
    one_level(tmp_path)
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / ".hidden.png").write_text("not an image")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README").write_text("not a class")
    assert len(load(tmp_path, "train")) == 27


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_kinds_of_pixels(tmp_path: Path, mode: str) -> None:
    for name in "ab":
        for i in range(2):
            picture(tmp_path / name / f"{i}.png", 255 if mode != "P" else 3, mode=mode)
    data = load(tmp_path, "train")
    assert (data.shape[0], data.images.dtype) == (3 if mode in ("P", "RGB", "RGBA") else 1, torch.uint8)


def _empty_class(folder: Path) -> None:
    (folder / "train" / "cow").mkdir()
    (folder / "test" / "cow").mkdir()


def _another_class(folder: Path) -> None:
    picture(folder / "test" / "cow" / "0.png")


def _no_classes(folder: Path) -> None:
    for part in ("train", "test"):
        (folder / part).rename(folder / f".{part}")


def _no_image(folder: Path) -> None:
    (folder / "train" / "dog" / "1.png").write_text("<html>")


def _truncated(folder: Path) -> None:
    path = folder / "train" / "dog" / "1.png"
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (30, 40), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-400])


def _a_program(folder: Path) -> None:
    """PostScript, which Pillow would give to Ghostscript."""
    (folder / "train" / "dog" / "1.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 3\n%%EndComments\n"
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_empty_class, "train/cow: the class folder has no images"),
        (_another_class, "must have the same classes; only one has cow"),
        (_no_classes, "has 0 class folders; make one for each class"),
        (_no_image, "dog/1.png: cannot be read as an image"),
        (_truncated, "dog/1.png: cannot be read as an image"),
        (_a_program, r"dog/1.png: cannot be read as an image \(cannot identify"),
        (lambda folder: picture(folder / "train/dog/1.png", size=(5, 3)), r"dog/1.png: the image is 1x3x5 .* 1x3x4"),
        (lambda folder: picture(folder / "train/dog/1.png", mode="RGB"), r"dog/1.png: the image is 3x3x4 .* 1x3x4"),
        (
            lambda folder: picture(folder / "train/dog/1.png", 9, mode="RGBA"),
            "dog/1.png: the image is partly transparent",
        ),
        (lambda folder: picture(folder / "train/dog/1.png", 9, mode="I;16"), "dog/1.png: pixels are of kind 'I;16'"),
    ],
)
def test_bad_folders(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(two_parts(tmp_path))
    with pytest.raises(ArgumentError, match=message) as raised:
        load(tmp_path, "train")
    assert "\n" not in str(raised.value)


def test_a_class_of_one_cannot_be_split(tmp_path: Path) -> None:
    picture(one_level(tmp_path) / "d" / "0.png")
    with pytest.raises(ArgumentError, match="d: has 1 image"):
        load(tmp_path, "train")


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_parts(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ArgumentError, match="need Pillow, which is not installed; run `pip install pillow`"):
        load(tmp_path, "train")


def npz(tmp_path: Path, **arrays: np.ndarray) -> Path:
    np.savez(tmp_path / "mine.npz", **arrays)
    return tmp_path / "mine.npz"


BYTES = np.random.RandomState(0).randint(0, 256, (10, 6, 5), np.uint8)
LABELS = np.arange(10) % 4


def test_npz_with_two_parts(tmp_path: Path) -> None:
    path = npz(tmp_path, x_train=BYTES, y_train=LABELS[:, None], x_test=BYTES[:3], y_test=np.array([0, 1, 2], np.uint8))
    train, test = load(path, "train"), load(str(path), "test")
    assert (train.shape, len(train), len(test)) == ((1, 6, 5), 10, 3)
    assert torch.equal(train.images[:, 0], torch.from_numpy(BYTES))
    assert test.labels.tolist() == [0, 1, 2]
    assert train.classes == test.classes == tuple("0123")


def test_npz_with_one_part_is_split(tmp_path: Path) -> None:
    path = npz(tmp_path, images=BYTES, labels=LABELS, classes=np.array(["a", "b", "c", "d"]))
    train, test = load(path, "train"), load(path, "test")
    assert (len(train), len(test), test.classes) == (8, 2, tuple("abcd"))
    rows = sorted(map(bytes, torch.cat([train.images, test.images]).numpy()))
    assert rows == sorted(map(bytes, BYTES))


@pytest.mark.parametrize(
    "shape", [(10, 7, 6, 3), (10, 3, 7, 6), (10, 7, 6, 1), (10, 1, 7, 6), (10, 4, 7, 6), (10, 3, 6, 3)]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_npz_shapes_and_types(tmp_path: Path, shape: tuple[int, ...], dtype: type) -> None:
    images = np.random.RandomState(0).randint(0, 256, shape) / (1 if dtype is np.uint8 else 255)
    path = npz(tmp_path, x_train=images.astype(dtype), y_train=LABELS, x_test=images.astype(dtype), y_test=LABELS)
    data = load(path, "train")
    assert data.images.dtype == (torch.uint8 if dtype is np.uint8 else torch.float32)
    assert data.shape == ((shape[3], 7, 6) if shape[1] == 7 else shape[1:])
    expected = np.moveaxis(images, 3, 1) if shape[1] == 7 else images
    np.testing.assert_allclose(data.images.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pixels": BYTES}, "has the keys pixels; save x_train"),
        ({"images": BYTES.astype(np.int64), "labels": LABELS}, r"images are int64; pass bytes .*astype"),
        ({"images": BYTES > 9, "labels": LABELS}, "images are bool"),
        ({"images": BYTES.astype(float), "labels": LABELS}, r"floats from 3 to 255, but must be in \[0, 1\]"),
        ({"images": np.full((10, 2, 2), np.nan), "labels": LABELS}, "floats from nan to nan"),
        ({"images": BYTES[0], "labels": LABELS}, r"labels have shape \(10,\), but there are 6 examples"),
        ({"images": BYTES[:0], "labels": LABELS[:0]}, r"images have shape \(0, 1, 6, 5\)"),
        ({"images": BYTES[:1], "labels": LABELS[:1]}, "has 1 images, but one to train and one to test on are needed"),
        ({"images": np.uint8(3), "labels": np.int64(3)}, r"images have shape \(\)"),
        ({"x_train": BYTES, "y_train": LABELS[:0], "x_test": BYTES, "y_test": LABELS}, "there are no labels"),
        (
            {"images": BYTES, "labels": LABELS.astype(np.uint64) + np.uint64(2**63)},
            "label 9223372036854775811 is too large",
        ),
        ({"x_train": BYTES, "y_train": LABELS, "x_test": BYTES[:0], "y_test": LABELS[:0]}, r"shape \(0, 1, 6, 5\)"),
        ({"images": BYTES, "labels": LABELS[:9]}, "there are 10 images; pass one for each"),
        ({"images": BYTES, "labels": LABELS / 2}, "labels are float64, but must be integers"),
        ({"images": BYTES, "labels": LABELS.astype(str)}, "labels are <U"),
        ({"images": BYTES, "labels": LABELS - 1}, "label -1 is negative"),
        ({"images": BYTES, "labels": LABELS, "classes": np.array(["a", "b"])}, r"label 2 of image 2 is outside 0..1"),
        ({"images": np.array([BYTES, None], object), "labels": LABELS}, "cannot be read .*allow_pickle"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(npz(tmp_path, **arrays), "test")


def _labelled(train: list[int], test: list[int]) -> dict[str, np.ndarray]:
    return {
        "x_train": BYTES[: len(train)], "y_train": np.array(train), "x_test": BYTES[: len(test)], "y_test": np.array(test)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            [0, 1, 2 * 10**15],
            [0],
            r"go up to 2000000000000000, .* the label 2, 3, 4, 5, 6 and 1999999999999993 more; number",
        ),
        ([0, 1, 2, 255], [0], "no image to train on has the label 3, 4, 5, 6, 7 and 247 more"),
        ([1, 2, 3], [1], "has the label 0; number the classes 0, 1, 2 ... without gaps, or name all of them"),
        ([0, 1], [0, 2], "go up to 2, but no image to train on has the label 2;"),
        ([0, 1, 3], [2], "no image to train on has the label 2;"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_gaps_in_the_labels(tmp_path: Path, train: list[int], test: list[int], message: str, split: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        load(npz(tmp_path, **_labelled(train, test)), split)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_named_classes_need_no_images(tmp_path: Path) -> None:
    path = npz(tmp_path, **_labelled([0, 2], [3]), classes=np.array(list("abcde")))
    assert load(path, "train").classes == load(path, "test").classes == tuple("abcde")


def _forbid(monkeypatch: pytest.MonkeyPatch, method: str, forbidden: Path) -> None:
    """To everyone, the superuser as well."""
    real = getattr(Path, method)

    def refuse(self: Path, *rest: object, **options: object) -> object:
        if self == forbidden:
            raise PermissionError(13, "Permission denied")
        return real(self, *rest, **options)

    monkeypatch.setattr(Path, method, refuse)


@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("is_dir", "."), ("is_dir", "train"), ("is_dir", "test"), ("iterdir", "train"), ("is_dir", "train/dog"),
        ("iterdir", "train/dog"), ("is_file", "train/dog/1.png"),
    ],
)  # fmt: skip
def test_unreadable_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, place: str) -> None:
    two_parts(tmp_path)
    _forbid(monkeypatch, method, tmp_path / place)
    with pytest.raises(ArgumentError, match=r"cannot be read .Permission denied.; check its name, and the permissions"):
        load(tmp_path, "train")


def test_unreadable_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path, images=BYTES, labels=LABELS)
    _forbid(monkeypatch, "open", path)
    with pytest.raises(ArgumentError, match=r"mine.npz: cannot be read .Permission denied."):
        load(path, "train")


def test_home_of_nobody() -> None:
    with pytest.raises(ArgumentError, match="no such home folder"):
        load("~nobody-has-this-name/data", "train")


class Trap:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    trap = Trap(tmp_path / "sprung")
    np.savez(tmp_path / "array.npz", images=np.array([trap, trap], object), labels=np.arange(2))
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(trap))
    for name in ("array.npz", "plain.npz"):
        with pytest.raises(ArgumentError, match=name):
            load(tmp_path / name, "train")
    assert not (tmp_path / "sprung").exists()


def test_truncated_npz_and_paths_to_nothing(tmp_path: Path) -> None:
    path = npz(tmp_path, images=BYTES, labels=LABELS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(ArgumentError, match=r"is not an .npz file"):
        load(path, "train")
    path.write_bytes(whole[:100] + b"?" * 9 + whole[109:])
    with pytest.raises(ArgumentError, match="cannot be read"):
        load(path, "train")
    for missing in ("none.npz", "no/folder", "./none"):
        with pytest.raises(ArgumentError, match="there is no such file or folder"):
            load(missing, "train")
    (tmp_path / "data.json").write_text("1,2")
    with pytest.raises(ArgumentError, match="not a kind of data"):
        load(tmp_path / "data.json", "train")


FACTORY = """
from dataclasses import dataclass
import numpy as np, torch
from PIL import Image

@dataclass
class Mine(torch.utils.data.Dataset):
    items: list
    def __len__(self): return len(self.items)
    def __getitem__(self, index): return self.items[index]

class Named(Mine):
    classes = ["zero", "one", "two"]

class Misnamed(Mine):
    classes = "abc"

def tensors(split): return Mine([(torch.full((3, 4, 5), i / 9), i % (3 if split == "train" else 2)) for i in range(6)])
def gaps(split): return Mine([(torch.zeros(1, 4, 5), 7 * i) for i in range(2)])
def cut(split): return Mine([(torch.zeros(1, 4, 5), i + 0.7) for i in range(2)])
def float_tensors(split): return Mine([(torch.zeros(1, 4, 5), torch.tensor(1.0))])
def misnamed(split): return Misnamed([(torch.zeros(1, 4, 5), 0)])
def two_lines(split): raise RuntimeError("first\\nsecond")
def leaves(split): raise SystemExit(3)
def arrays(split): return Named([(np.full((4, 5), i, np.uint8), np.int64(i % 2)) for i in range(6)])
def pillows(split): return Named([(Image.new("RGB", (5, 4), (i, 0, 0)), torch.tensor(i % 3)) for i in range(6)])
def sizes(split): return Mine([(torch.zeros(1, 4, 5 + (i == 4)), 0) for i in range(6)])
def outside(split): return Named([(torch.zeros(1, 4, 5), 3)])
def normalised(split): return Mine([(torch.full((1, 4, 5), -1.7), 0)])
def empty(split): return Mine([])
def unlabelled(split): return Mine([torch.zeros(1, 4, 5)])
def words(split): return Mine([(torch.zeros(1, 4, 5), "cat")])
def lists(split): return Mine([([[0.5]], 0)])
def nothing(split): return None
def raises(split): raise RuntimeError("the disk is upside down")
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FACTORY)
    return f"{tmp_path / 'mine.py'}:"


def test_factories(factory: str) -> None:
    data = load(factory + "tensors", "train")
    assert (data.shape, data.images.dtype, data.classes) == ((3, 4, 5), torch.float32, ("0", "1", "2"))
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    test = load(factory + "tensors", "test")
    assert (test.labels.tolist(), test.classes) == ([0, 1, 0, 1, 0, 1], ("0", "1", "2"))
    data = load(factory + "arrays", "train")
    assert (data.shape, data.images.dtype, data.classes) == ((1, 4, 5), torch.uint8, ("zero", "one", "two"))
    data = load(factory + "pillows", "train")
    assert (data.shape, data.images[4, :, 0, 0].tolist()) == ((3, 4, 5), [4, 0, 0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sizes", r"item 4: the image is 1x4x6 .* item 0 is 1x4x5"),
        ("outside", "label 3 of image 0 is outside 0..2"),
        ("normalised", r"floats from -1.7 to -1.7, but must be in \[0, 1\].*autodual.models.Normalize"),
        ("empty", "the data set is empty"),
        ("unlabelled", r"item 0: .*; items must be \(image, label\)"),
        ("words", "item 0: the label is 'cat', but labels must be integers"),
        ("cut", r"item 0: the label is 0.7, but labels must be integers, 0 for the first class"),
        ("float_tensors", r"item 0: the label is tensor\(1.\), but labels must be integers"),
        ("gaps", "has the label 1, 2, 3, 4, 5 and 1 more; .* in the data set's attribute `classes`"),
        ("misnamed", "the data set's `classes` is a str; make it a list of names"),
        ("two_lines", "raised RuntimeError: first second; it must return"),
        ("leaves", "raised SystemExit: 3; it must return"),
        ("lists", "item 0: the image is a list; return a tensor"),
        ("nothing", "must return a torch Dataset"),
        ("raises", "raised RuntimeError: the disk is upside down"),
        ("missing", "has no function 'missing'"),
        ("np", "has no function 'np'"),
    ],
)
def test_bad_factories(factory: str, name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(factory + name, "train")


def test_bad_factory_files(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no file"):
        load(f"{tmp_path}/none.py:factory", "train")
    (tmp_path / "broken.py").write_text("def factory(:\n")
    with pytest.raises(ArgumentError, match="raised SyntaxError"):
        load(f"{tmp_path}/broken.py:factory", "train")
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ArgumentError, match=r"script.py raised SystemExit: 0; correct the file"):
        load(f"{tmp_path}/script.py:factory", "train")
    with pytest.raises(ArgumentError, match=r"names no function; write it after a colon, as in .*script.py:factory"):
        load(f"{tmp_path}/script.py:", "train")
