"""Networks as strangers write them are captured, bounded and certified without a change to their code."""

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual import models
from autodual.dual import build
from zoo import WILD, Wild

FAMILIES = [
    Wild("small", lambda: models.small().eval(), (1, 28, 28)),
    Wild("large", lambda: models.large(1, 8).eval(), (1, 8, 8)),
    Wild("resnet", lambda: models.resnet(3, 8, mean=0.5, std=0.25).eval(), (3, 8, 8)),
    Wild("wide1", lambda: models.wide(1, 1, 12).eval(), (1, 12, 12)),
    Wild("wide2", lambda: models.wide(2, 1, 12).eval(), (1, 12, 12)),
    Wild("deep1", lambda: models.deep(1, 1, 12).eval(), (1, 12, 12)),
    Wild("deep2", lambda: models.deep(2, 1, 12).eval(), (1, 12, 12)),
]
ALL = [*WILD, *FAMILIES]
DTYPES = [pytest.param(torch.float32, id="float32"), pytest.param(torch.float64, id="float64")]

every_network = pytest.mark.parametrize("wild", ALL, ids=lambda w: w.name)
every_classifier = pytest.mark.parametrize("wild", [w for w in ALL if w.classifier], ids=lambda w: w.name)
every_other = pytest.mark.parametrize("wild", [w for w in ALL if not w.classifier], ids=lambda w: w.name)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES)


def inputs(wild: Wild, count: int, dtype: torch.dtype) -> Tensor:
    return torch.rand(count, *wild.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@every_network
@both_dtypes
def test_capture_reproduces_the_model_on_a_batch_of_another_size(wild: Wild, dtype: torch.dtype) -> None:
    model, x = wild.build().to(dtype), inputs(wild, 4, dtype)
    network = build(ad.capture(model, x[:1]))
    with torch.no_grad():
        torch.testing.assert_close(network.forward(x), model(x))


@every_classifier
@pytest.mark.parametrize(
    ("engine", "eps", "dtype"),
    [
        pytest.param(ad.Dual(), 1e-3, torch.float32, id="dual in float32"),
        pytest.param(ad.IBP(), 2e-2, torch.float64, id="ibp in float64"),
    ],
)
def test_certificates_and_attacks_agree(wild: Wild, dtype: torch.dtype, engine: ad.BoundEngine, eps: float) -> None:
    model, x, ball = wild.build().to(dtype), inputs(wild, 2, dtype), ad.LinfBall(eps, clip=(0.0, 1.0))
    with torch.no_grad():
        labels = model(x).argmax(1)
    certificate = ad.certify(model, x, labels, ball, engine)
    found = ad.attack(model, x, labels, ball, steps=8, restarts=2, generator=torch.Generator().manual_seed(0))

    assert not (certificate.certified & found.success).any()
    assert isinstance(engine, ad.IBP) or certificate.certified.any(), "eps is chosen so that something can be certified"
    assert ball.around(x).box().contains(found.examples, tolerance=1e-6).all()
    region = ball.around(x)
    for point in (x, found.examples, *(region.sample() for _ in range(4))):
        with torch.no_grad():
            scores = model(point)
        margins = scores.gather(1, labels.unsqueeze(1)) - scores
        others = certificate.margins.isfinite()
        assert others.sum() == scores.numel() - len(x)
        assert (certificate.margins <= margins + certificate.slack)[others].all()


@every_other
@both_dtypes
def test_bounds_hold_for_outputs_of_any_shape(wild: Wild, dtype: torch.dtype) -> None:
    model, x = wild.build().to(dtype), inputs(wild, 2, dtype)
    region = ad.LinfBall(1e-2).around(x)
    found = ad.bounds(model, region)
    assert isinstance(found, ad.SoundBounds)
    for point in (x, region.box().lower, region.box().upper, *(region.sample() for _ in range(20))):
        with torch.no_grad():
            assert found.output.contains(model(point), tolerance=1e-6).all()
    with torch.no_grad():
        assert found.output.width.max() < 1, "the bounds say something"
