"""Raw pixels with an eps for images in [0, 1] look more robust than they are: a warning says so, and nothing else warns."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, batch, convnet, tilted

IMAGES, LABELS = batch(3, 1, 6, 6), torch.tensor([0, 1, 2])
PIXELS = (IMAGES * 255).round()
WARNS = pytest.warns(
    UserWarning, match=r"x looks like raw pixels, values from \d+ to \d+, and eps = 0\.1 is in the same units"
)

CALLS: dict[str, Callable[[nn.Module, Tensor, Tensor, ad.Perturbation], Any]] = {
    "certify": ad.certify,
    "certified_radius": ad.certified_radius,
    "attack": ad.attack,
    "loss": lambda model, x, labels, ball: ad.RobustCrossEntropy(model, ball)(x, labels),
    "cascade": lambda model, x, labels, ball: ad.Cascade([model], ball).certify(x, labels),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@every_call
@pytest.mark.parametrize(
    "ball",
    [ad.LinfBall(0.1), ad.LinfBall(0.1, clip=(0.0, 255.0)), ad.L2Ball(0.1), ad.L1Ball(0.1)],
    ids=["linf", "clipped", "l2", "l1"],
)
def test_raw_pixels_are_told_of_once_where_it_is_called(call: Callable[..., Any], ball: ad.Perturbation) -> None:
    with WARNS as told:
        call(convnet(), PIXELS, LABELS, ball)
    assert len(told) == 1
    assert told[0].filename == __file__


@every_call
@pytest.mark.parametrize(
    ("x", "ball"),
    [
        pytest.param(IMAGES, ad.LinfBall(0.1), id="images in [0, 1]"),
        pytest.param(IMAGES.round(), ad.LinfBall(0.1), id="black and white"),
        pytest.param(torch.cat([IMAGES[:1] * 0, IMAGES[1:]]), ad.LinfBall(0.1), id="the first one black"),
        pytest.param((IMAGES - 0.13) / 0.31, ad.LinfBall(0.1), id="normalised"),
        pytest.param(PIXELS - 128, ad.LinfBall(0.1), id="centred"),
        pytest.param(PIXELS, ad.LinfBall(1.0), id="eps of one grey level"),
        pytest.param(PIXELS, ad.LinfBall(8.0, clip=(0.0, 255.0)), id="eps of eight"),
        pytest.param(PIXELS, ad.LinfBall(0.0), id="no perturbation"),
        pytest.param((IMAGES * 8).round(), ad.LinfBall(0.1), id="small numbers"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_nothing_else_is_told_of(call: Callable[..., Any], x: Tensor, ball: ad.Perturbation) -> None:
    call(convnet(), x, LABELS, ball)


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(PIXELS.flatten(1), id="flat"),
        pytest.param(PIXELS.flatten(1) * (1 / 255) * 255, id="flat, scaled forth and back"),
        pytest.param(IMAGES * 255, id="resized images"),
        pytest.param(IMAGES.flatten(1).mul(16).round(), id="sixteen levels"),
        pytest.param(torch.cat([PIXELS[:1] * 0, PIXELS[1:]]), id="the first one black"),
    ],
)
def test_raw_pixels_are_known_in_many_shapes(x: Tensor) -> None:
    with pytest.warns(UserWarning, match="x looks like raw pixels"):
        ad.certify(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).to(DOUBLE).eval(), x, LABELS, ad.LinfBall(0.1))


def test_the_largest_eps_of_all_examples_counts() -> None:
    def sizes(*values: float) -> ad.LinfBall:
        return ad.LinfBall(torch.tensor(values, dtype=DOUBLE))

    with WARNS:
        ad.certify(convnet(), PIXELS, LABELS, sizes(0.01, 0.1, 0.02))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ad.certify(convnet(), PIXELS, LABELS, sizes(0.5, 2.0, 0.5))


@pytest.mark.filterwarnings("error")
def test_measurements_that_are_no_images_may_be_large() -> None:
    ad.certify(nn.Linear(4, 3, dtype=DOUBLE).eval(), batch(3, 4) * 255, LABELS, ad.LinfBall(0.1))


@pytest.mark.filterwarnings("error")
def test_the_eps_of_another_set_may_mean_anything() -> None:
    ad.certify(nn.Linear(4, 3, dtype=DOUBLE).eval(), (batch(3, 4) * 255).round(), LABELS, tilted(4, 0.1))


def test_a_loss_says_it_once() -> None:
    loss = ad.RobustCrossEntropy(convnet(), ad.LinfBall(0.1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            loss(PIXELS, LABELS)
    assert len(told) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_compiled_loss_does_not_look_at_values() -> None:
    torch.compiler.reset()
    loss = ad.RobustCrossEntropy(convnet(), ad.LinfBall(0.1), ad.Projected(9))
    draws = loss.draw(PIXELS)
    torch.compile(loss, fullgraph=True, backend="aot_eager")(PIXELS, LABELS, draws)
