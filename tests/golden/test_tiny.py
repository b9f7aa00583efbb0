"""Both exact engines give the numbers of the authors' own code on two small synthetic networks, one of them residual."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodual as ad

from .reference import DATA, assert_agrees, load

RESNET_KEYS = {
    "0": "0",
    "2.first": "2.Ws.0",
    "2.skip": "4.Ws.0",
    "2.second": "4.Ws.2",
    "3.first": "6.Ws.0",
    "3.skip": "8.Ws.0",
    "3.second": "8.Ws.2",
    "5": "11",
    "7": "13",
}
"""Where the layers of our residual network lie in the authors', in which a join of two branches is one layer."""


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 25), nn.ReLU(), nn.Linear(25, 5))


def resnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=1, padding=1),
        nn.ReLU(),
        ad.models.ResidualBlock(4, 4),
        ad.models.ResidualBlock(4, 6, down=True),
        nn.Flatten(),
        nn.Linear(96, 12),
        nn.ReLU(),
        nn.Linear(12, 5),
    )


NETS = {"mlp": mlp, "resnet": resnet}
BALLS: dict[str, Callable[[dict[str, Tensor]], ad.Perturbation]] = {
    "l1_u_0.05": lambda golden: ad.LinfBall(0.05),
    "l1_b_0.05": lambda golden: ad.LinfBall(0.05, clip=(0.0, 1.0)),
    "l2_u_0.2": lambda golden: ad.L2Ball(0.2),
    "perdim": lambda golden: ad.LinfBall(golden["perdim_eps"]),
}
"""By tag in the files, which name a set by its dual norm; `perdim` has an eps for every feature of every example."""


def golden_key(net: str, parameter: str) -> str:
    if net == "mlp":
        return parameter
    layer, kind = parameter.rsplit(".", 1)
    return f"{RESNET_KEYS[layer]}.{kind}"


def build(net: str, golden: dict[str, Tensor]) -> nn.Sequential:
    model = NETS[net]().double()
    model.load_state_dict({name: golden[f"w.{golden_key(net, name)}"] for name in model.state_dict()})
    return model.eval()


pytestmark = [
    pytest.mark.parametrize("engine", [ad.Dual(), ad.ForwardDual()], ids=["Dual", "ForwardDual"]),
    pytest.mark.parametrize("net", NETS),
]


@pytest.mark.parametrize("tag", BALLS)
def test_bounds_and_margins(net: str, engine: ad.BoundEngine, tag: str) -> None:
    golden = load(DATA, f"golden_tiny_{net}")
    model, x, labels, ball = build(net, golden), golden["X"], golden["y"], BALLS[tag](golden)
    assert_agrees(model(x).detach(), golden["logits"], "logits")

    with torch.no_grad():
        found = ad.bounds(model, ball.around(x), engine)
    for number, interval in enumerate(found.layers.values(), start=1):
        if tag == "perdim":  # only the margins were recorded
            break
        assert_agrees(interval.lower, golden[f"{tag}.relu{number}.zl"], f"relu{number}.zl")
        assert_agrees(interval.upper, golden[f"{tag}.relu{number}.zu"], f"relu{number}.zu")
    assert f"{tag}.relu{len(found.layers) + 1}.zl" not in golden

    scores = ad.RobustCrossEntropy(model, ball, engine).worst_scores(x, labels)
    assert_agrees(scores.detach(), golden[f"{tag}.f_y"], "f_y")


def test_gradient_of_the_robust_loss(net: str, engine: ad.BoundEngine) -> None:
    golden = load(DATA, f"golden_tiny_{net}")
    model = build(net, golden)
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.05), engine)(golden["X"], golden["y"])
    loss.backward()
    assert_agrees(loss.detach(), golden["l1_u_0.05.robust_ce"], "robust cross-entropy")
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert_agrees(parameter.grad, golden[f"l1_u_0.05.grad.{golden_key(net, name)}"], f"gradient of {name}")
