"""Augmentation: every output is a legal crop, all of them are equally likely, and the device is never waited for."""

import pytest
import torch
import torch.nn.functional as F

from autodual import ArgumentError
from autodual.data import augment


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(
    count: int, channels: int = 3, height: int = 5, width: int = 4, dtype: torch.dtype = torch.uint8
) -> torch.Tensor:
    """No pixel is black, so that padding can be told from the image."""
    values = torch.randint(1, 256, (count, channels, height, width), dtype=torch.uint8)
    return values if dtype == torch.uint8 else values.to(dtype) / 255


def legal(image: torch.Tensor, crop: int, flip: bool) -> dict[tuple[int, int, bool], torch.Tensor]:
    """Every crop of the padded image, and its mirror image: by slicing, not by index arithmetic."""
    height, width = image.shape[1:]
    padded = F.pad(image, (crop, crop, crop, crop))
    return {
        (y, x, mirrored): cut.flip(-1) if mirrored else cut
        for y in range(2 * crop + 1)
        for x in range(2 * crop + 1)
        for cut in [padded[:, y : y + height, x : x + width]]
        for mirrored in ((False, True) if flip else (False,))
    }


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize(("crop", "flip"), [(0, True), (1, False), (2, True), (7, True)])
def test_each_output_is_a_legal_crop(dtype: torch.dtype, crop: int, flip: bool) -> None:
    images = pictures(40, dtype=dtype)
    out = augment(images, generator(), crop, flip)
    assert (out.dtype, out.shape) == (images.dtype, images.shape)
    for image, changed in zip(images, out, strict=True):
        assert any(torch.equal(changed, candidate) for candidate in legal(image, crop, flip).values())


def test_all_crops_are_equally_likely() -> None:
    image, count = pictures(1)[0], 9000
    out = augment(image.expand(count, -1, -1, -1), generator(3), crop=1, flip=True)
    counts = torch.tensor(
        [int((out == candidate).flatten(1).all(1).sum()) for candidate in legal(image, 1, True).values()]
    )
    assert counts.sum() == count
    expected = count / 18
    assert float(((counts - expected) ** 2 / expected).sum()) < 40.8  # chi-square, 17 degrees of freedom, p = 0.001


def test_given_noise_decides() -> None:
    images = pictures(4)
    noise = torch.tensor([[0.0, 0.0, 0.0], [0.999999, 0.0, 0.0], [0.5, 0.999999, 0.999999], [0.5, 0.5, 0.0]])
    out = augment(images, crop=2, flip=True, noise=noise)
    for n, choice in enumerate([(0, 0, False), (4, 0, False), (2, 4, True), (2, 2, False)]):
        assert torch.equal(out[n], legal(images[n], 2, True)[choice])
    assert torch.equal(out[3], images[3])


def test_the_largest_noise_does_not_round_up() -> None:
    images = pictures(1)
    noise = torch.full((1, 3), 1 - 2**-24)
    for crop in range(1, 40):
        out = augment(images, crop=crop, noise=noise)
        assert torch.equal(out[0], legal(images[0], crop, False)[2 * crop, 2 * crop, False])


def test_generator_decides() -> None:
    images = pictures(50)
    first, again, other = (augment(images, generator(seed), 2, True) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    stream = generator(1)
    augment(images, stream, 2, True)
    assert not torch.equal(first, augment(images, stream, 2, True))


def test_bytes_and_floats_agree() -> None:
    images = pictures(20)
    assert torch.equal(
        augment(images, generator(), 2, True).float() / 255, augment(images.float() / 255, generator(), 2, True)
    )


def test_nothing_to_do_returns_the_images_and_draws_nothing() -> None:
    images, stream = pictures(3), generator()
    before = stream.get_state()
    assert augment(images, stream) is images
    assert torch.equal(stream.get_state(), before)


def test_images_are_not_changed_and_layout_does_not_matter() -> None:
    images = pictures(6)
    copy = images.clone()
    out = augment(images, generator(), 2, True)
    assert torch.equal(images, copy)
    assert torch.equal(out, augment(images.to(memory_format=torch.channels_last), generator(), 2, True))


def test_bad_calls() -> None:
    with pytest.raises(ArgumentError, match="crop is -1"):
        augment(pictures(2), crop=-1)
    with pytest.raises(ArgumentError, match=r"images must be \[N, C, H, W\]"):
        augment(torch.zeros(3, 4), crop=1)
    with pytest.raises(ArgumentError, match=r"noise must be \[2, 3\]"):
        augment(pictures(2), crop=1, noise=torch.rand(3, 3))


def test_traced_without_a_look_at_values() -> None:
    """A fake tensor has no values: whoever looks at one, as a wait for the device would, raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        out = augment(torch.empty(8, 3, 32, 32, dtype=torch.uint8), crop=4, flip=True, noise=torch.empty(8, 3))
    assert (tuple(out.shape), out.dtype) == ((8, 3, 32, 32), torch.uint8)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_on_the_gpu_nothing_waits() -> None:
    images = pictures(64, height=32, width=32).cuda()
    stream = torch.Generator("cuda").manual_seed(0)
    try:
        torch.cuda.set_sync_debug_mode("error")
        augment(images, stream, 4, True)
        out = augment(images, crop=4, flip=True, noise=torch.zeros(64, 3, device="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out.cpu(), augment(images.cpu(), crop=4, flip=True, noise=torch.zeros(64, 3)))
    assert torch.equal(augment(images, generator(5), 4, True).cpu(), augment(images.cpu(), generator(5), 4, True))


def test_edges_are_repeated_where_that_is_asked_for() -> None:
    """The same window of an image that PyTorch has padded."""
    images = torch.randint(0, 256, (8, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(8, 3, generator=torch.Generator().manual_seed(1))
    noise[:, 2] = 0.0
    found = augment(images, crop=2, flip=True, noise=noise, edge=True)
    padded = F.pad(images.float(), (2, 2, 2, 2), mode="replicate").byte()
    for image, whole, (down, right, _) in zip(found, padded, (noise * 5).long().tolist(), strict=True):
        assert torch.equal(image, whole[:, down : down + 5, right : right + 6])
    assert not torch.equal(found, augment(images, crop=2, flip=True, noise=noise))
