"""The record of images and labels: scaling, choosing, splitting, digest, and what it refuses."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from torch import Tensor

from autodual import ArgumentError
from autodual.data import ImageData, check_parts


def record(
    images: Tensor | None = None, labels: Tensor | None = None, classes: str = "abc", scale: int = 255
) -> ImageData:
    images = torch.arange(10 * 2 * 3 * 4).view(10, 2, 3, 4).to(torch.uint8) if images is None else images
    labels = torch.arange(len(images)) % 3 if labels is None else labels
    return ImageData(images, labels, tuple(classes), "mine", scale)


def test_bytes_are_scaled_on_demand() -> None:
    data = record()
    index = torch.tensor([3, 0, 3])
    assert data.scaled(index).dtype == torch.float32
    assert torch.equal(data.scaled(index), data.images[index].float() / 255)
    assert torch.equal(data.scaled(slice(2, 4)), data.scaled()[2:4])
    assert data.images.dtype == torch.uint8


def test_scale_is_the_byte_that_means_one() -> None:
    data = record(torch.full((1, 1, 2, 2), 16, dtype=torch.uint8), scale=16)
    assert torch.equal(data.scaled(), torch.ones(1, 1, 2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_floats_stay_as_they_are(dtype: torch.dtype) -> None:
    images = torch.rand(4, 1, 2, 2).to(dtype)
    data = record(images)
    assert data.scaled().dtype == torch.float32
    assert torch.equal(data.scaled(), images.float())


def test_length_shape_and_device() -> None:
    data = record()
    assert (len(data), data.shape, data.device) == (10, (2, 3, 4), torch.device("cpu"))
    assert data.to("meta").device.type == "meta"
    assert data.to("meta").scaled(slice(3)).shape == (3, 2, 3, 4)
    with pytest.raises(FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]


def test_take_and_select() -> None:
    data = record()
    assert torch.equal(data.take(4).images, data.images[:4])
    assert len(data.take(99)) == 10
    mask = data.labels == 1
    assert torch.equal(data.select(mask).images, data.images[mask])
    with pytest.raises(ArgumentError, match="at least 1"):
        data.take(0)


def test_split_has_every_image_once_in_order() -> None:
    data = record()
    rest, out = data.split(0.3, seed=5)
    assert (len(rest), len(out)) == (7, 3)
    first = [part.images[:, 0, 0, 0].tolist() for part in (rest, out)]
    assert all(values == sorted(values) for values in first)
    assert sorted(first[0] + first[1]) == data.images[:, 0, 0, 0].tolist()
    assert data.split(0.3, seed=5)[1].digest() == out.digest()
    assert len({data.split(0.3, seed)[1].digest() for seed in range(5)}) > 1
    assert [value // 24 for value in first[1]] == [2, 5, 9]  # written down once: the same on every machine


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 2.0, 0.01, float("nan")])
def test_split_leaves_no_part_empty(fraction: float) -> None:
    with pytest.raises(ArgumentError, match="leaves one part empty"):
        record().split(fraction, seed=0)


def test_digest_sees_everything_but_the_name() -> None:
    data = record()
    same = ImageData(data.images.clone(), data.labels.clone(), data.classes, "another name")
    assert data.digest() == same.digest()
    images, labels = data.images.clone(), data.labels.clone()
    images[9, 1, 2, 3] ^= 1
    labels[0] = 2
    changed = [
        record(images),
        record(labels=labels),
        record(classes="abd"),
        record(data.images.transpose(2, 3)),
        record(scale=254),
    ]
    assert len({data.digest(), *(other.digest() for other in changed)}) == 6


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"images": torch.zeros(3, 4, dtype=torch.uint8)}, r"must be \[N, C, H, W\]"),
        ({"images": torch.zeros(3, 1, 2, 2, dtype=torch.int64)}, "bytes or floats"),
        ({"images": torch.zeros(0, 1, 2, 2)}, "no images"),
        ({"labels": torch.zeros(9, dtype=torch.int64)}, "one for each of the 10 images"),
        ({"labels": torch.zeros(10)}, "must be integers"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 0, 0, 0, 0, 7])}, r"label 3 of image 3 is outside 0..2.*2 of 10"),
        ({"labels": torch.full((10,), -1)}, "label -1 of image 0"),
        ({"labels": torch.zeros(10, dtype=torch.int64, device="meta")}, "images are on cpu, labels on meta"),
        ({"images": torch.full((1, 1, 2, 2), 1.5)}, r"from 1.5 to 1.5, but must be in \[0, 1\]"),
        ({"images": torch.full((1, 1, 2, 2), float("nan"))}, "from nan to nan"),
        ({"scale": 16}, "bytes up to 239, but scale is 16"),
        ({"scale": 0}, "scale is 0"),
    ],
)
def test_bad_records_are_refused(spoilt: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        record(**spoilt)


def test_labels_of_any_integer_type() -> None:
    labels = record().labels
    assert torch.equal(record(labels=labels.to(torch.int32)).labels, labels)
    assert record(labels=labels.to(torch.uint8)).digest() == record().digest()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_on_the_gpu_nothing_waits() -> None:
    data = record().to("cuda")
    index = torch.tensor([3, 0, 3], device="cuda")
    try:
        torch.cuda.set_sync_debug_mode("error")
        scaled = data.scaled(index)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(scaled.cpu(), record().scaled(index.cpu()))  # a GPU divides by multiplying


def _part(shape: tuple[int, ...] = (1, 2, 2), classes: tuple[str, ...] = ("a", "b"), name: str = "mine") -> ImageData:
    return ImageData(torch.zeros(3, *shape, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), classes, name)


def test_parts_that_fit() -> None:
    check_parts(_part(), _part(name="other"))


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (_part(), _part((1, 2, 3)), r"data 'mine': images to train on are \[1, 2, 2\], those to test on \[1, 2, 3\]"),
        (_part(), _part((3, 2, 2), name="x"), "data 'mine' and 'x': images to train on"),
        (_part(), _part(classes=("a", "b", "c")), "2 classes to train on and 3 to test on"),
        (_part(), _part(classes=("b", "a")), "or their names differ"),
        (_part(classes=("a",)), _part(classes=("a",)), "has 1 class, but a network chooses between at least two"),
    ],
)
def test_parts_that_do_not_fit(train: ImageData, test: ImageData, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        check_parts(train, test)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6, 4, 5), (6, 3, 4, 5), (6, 4, 5, 3)])
def test_numpy_arrays_become_tensors(kind: type, shape: tuple[int, ...]) -> None:
    images, labels = np.ones(shape, kind), np.arange(6, dtype=np.int32) % 3
    data = ImageData(images, labels, tuple("abc"), "mine")  # type: ignore[arg-type]
    assert data.shape == ((1, 4, 5) if len(shape) == 3 else (3, 4, 5))
    assert (data.images.dtype, data.labels.dtype) == (torch.uint8 if kind is np.uint8 else torch.float32, torch.int64)
    assert data.labels.tolist() == labels.tolist()
    assert data.digest() == ImageData(data.images.clone(), data.labels.clone(), tuple("abc"), "mine").digest()
    images[:] = 0
    assert bool((data.images == 1).all()), "a copy, so that it stays what was checked"


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"images": np.zeros((10, 2, 3, 4), np.int64)}, "data 'mine': images are int64; pass bytes"),
        ({"images": np.full((10, 2, 3, 4), 2.0)}, r"must be in \[0, 1\]"),
        ({"images": [[1]]}, "data 'mine': images must be a tensor or a NumPy array, got list"),
        ({"labels": np.zeros(10)}, "labels are float64, but must be integers"),
        ({"labels": np.zeros(9, np.int64)}, "there are 10 images; pass one for each"),
        ({"labels": np.full(10, 7)}, "label 7 of image 0 is outside"),
        ({"labels": [0] * 10}, "labels must be a tensor or a NumPy array, got list"),
    ],
)
def test_bad_arrays_are_refused(spoilt: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        record(**spoilt)
