"""`Dual()` in float64 gives the numbers of the authors' own code on their published networks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import autodual as ad

from .reference import DATA, FULL, PUBLISHED, Published, assert_agrees

ALL_EXAMPLES = pytest.mark.skipif(
    not FULL.is_dir(),
    reason=f"the full golden files are not there ({FULL}); the cut-down ones in tests/golden/data are",
)
FOLDERS = [pytest.param(DATA, id="clone"), pytest.param(FULL, id="full", marks=ALL_EXAMPLES)]

pytestmark = [pytest.mark.parametrize("folder", FOLDERS), pytest.mark.parametrize("net", PUBLISHED, ids=str)]


@cache
def bounds_of(net: Published, folder: Path) -> ad.Bounds:
    golden = net.golden(folder)
    x = golden["X"][: len(golden[f"stage{net.stage}.f_y"])]
    with torch.no_grad():
        return ad.bounds(net.model(folder), net.ball.around(x), ad.Dual())


def test_recorded_problem_is_the_one_we_pose(net: Published, folder: Path) -> None:
    assert float(net.golden(folder)["eps"]) == net.ball.eps


def test_what_enters_every_relu(net: Published, folder: Path) -> None:
    golden, found = net.golden(folder), list(bounds_of(net, folder).layers.values())
    assert len(found) == 3
    for number, interval in enumerate(found, start=1):
        prefix = f"stage{net.stage}.relu{number}"
        assert_agrees(interval.lower, golden[f"{prefix}.zl"], f"{prefix}.zl")
        assert_agrees(interval.upper, golden[f"{prefix}.zu"], f"{prefix}.zu")


def test_logits(net: Published, folder: Path) -> None:
    golden, found = net.golden(folder), bounds_of(net, folder)
    assert isinstance(found, ad.SoundBounds)
    assert_agrees(found.output.lower, golden[f"stage{net.stage}.logit_lb"], "logit_lb")
    assert_agrees(found.output.upper, golden[f"stage{net.stage}.logit_ub"], "logit_ub")


@pytest.mark.parametrize("against", ["y", "pred"])
def test_margins(net: Published, folder: Path, against: str) -> None:
    """Against the true label and against the predicted one; the authors bound z_j - z_label from above, we the negative from below."""
    golden = net.golden(folder)
    expected = golden[f"stage{net.stage}.f_{against}"]
    labels = golden["y" if against == "y" else f"stage{net.stage}.pred"][: len(expected)]
    certificate = ad.certify(net.model(folder), golden["X"][: len(expected)], labels, net.ball, ad.Dual())
    own = torch.nn.functional.one_hot(labels, expected.shape[1]).bool()
    assert_agrees(certificate.margins.masked_fill(own, 0.0), -expected, f"f_{against}")
    assert torch.equal(certificate.predicted, golden[f"stage{net.stage}.pred"])
    assert torch.equal(
        certificate.certified, (expected.masked_fill(own, -1.0) < 0).all(1) & (certificate.predicted == labels)
    )


def test_gradient_of_the_robust_loss(net: Published, folder: Path) -> None:
    """On the first four examples. Of the widest gradient, the repository keeps every tenth row only."""
    golden, model = net.golden(folder), net.model(folder)
    loss = ad.RobustCrossEntropy(model, net.ball, ad.Dual())(golden["X"][:4], golden["y"][:4])
    loss.backward()
    assert_agrees(loss.detach(), golden[f"stage{net.stage}.robust_ce_first4"], "robust cross-entropy")
    for name, parameter in model.named_parameters():
        expected = golden[f"stage{net.stage}.grad4.{name}"]
        assert_agrees(_thinned(parameter.grad, expected), expected, f"gradient of {name}")


def _thinned(gradient: Tensor | None, like: Tensor) -> Tensor:
    assert gradient is not None
    return gradient[:: len(gradient) // len(like)]
