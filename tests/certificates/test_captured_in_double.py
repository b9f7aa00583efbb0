"""The float64 look certifies the captured graph: what the model's code would compute in float64 does not matter."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines import Minimum, Preactivations, ProbableProof, Proof
from autodual.spec import Spec
from small import Net


def _layer(net: nn.Module, weight: list[float], bias: list[float]) -> nn.Module:
    with torch.no_grad():
        net.l.weight.copy_(torch.tensor(weight).reshape(-1, 1))  # type: ignore[union-attr, operator]
        net.l.bias.copy_(torch.tensor(bias))  # type: ignore[union-attr, operator]
    return net


def _grain(by: Callable[[Tensor], float], scale: float) -> nn.Module:
    """A model that reads the precision of its input. In float32 the margin at x = 1 is 1e-4 * (1 - scale) or so."""
    net = Net(lambda m, x: m.l(x * (1e-4 * scale) * by(x)), l=nn.Linear(1, 2)).float()
    return _layer(net, [-1.0, 0.0], [1e-4, 0.0])


class Doubled(nn.Module):
    """Another function after .double()."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(1, 2)

    def double(self) -> nn.Module:
        with torch.no_grad():
            self.l.weight.zero_()
        return super().double()

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x)


MODELS: dict[str, nn.Module] = {
    "finfo": _grain(lambda x: torch.finfo(x.dtype).eps / 2**-23, 1 - 1e-8),
    "branch on the dtype": _grain(lambda x: 1.0 if x.dtype == torch.float32 else 0.0, 1 - 1e-8),
    "own double()": _layer(Doubled(), [-1e-4, 0.0], [1e-4, 0.0]),
}


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP()], ids=repr)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_a_model_that_is_another_one_in_float64(model: nn.Module, engine: ad.BoundEngine) -> None:
    """Its margin in float32 is about zero at the end of the ball; in float64 its code would leave a large one."""
    model, x, labels = copy.deepcopy(model).eval(), torch.tensor([[1.0]]), torch.tensor([0])
    for eps in (2.0**-26, 2.0**-22, 2.0**-18, 2.0**-12):
        ball = ad.LinfBall(eps)
        found = ad.certify(model, x, labels, ball, engine)
        worst = 1e-4 - 1e-4 * (1 - 1e-8) * (1 + eps)  # what the weights define, up to 1e-11
        assert not (found.certified.item() and worst < -1e-11), eps
        assert not (found.certified.item() and ad.attack(model, x, labels, ball).success.item()), eps


def test_the_models_code_does_not_run_in_float64() -> None:
    seen = set[torch.dtype]()

    def compute(m: nn.Module, x: Tensor) -> Tensor:
        seen.add(x.dtype)
        return m.l(x)  # type: ignore[operator]

    model = _layer(Net(compute, l=nn.Linear(1, 2)).float(), [-1.0, 0.0], [1.0 + 1e-7, 0.0]).eval()
    for engine in (ad.Dual(), ad.Crown()):
        ad.certify(model, torch.tensor([[1.0]]), torch.tensor([0]), ad.LinfBall(2.0**-24), engine)
    assert seen == {torch.float32}


@dataclass(frozen=True)
class Counted(ad.BoundEngine):
    """Notes which dtype every proof is asked for in."""

    inner: ad.BoundEngine
    asked: list[torch.dtype]
    sketched: list[torch.dtype] | None = None
    """Of the engine's cheaper relative; None: it is not asked."""

    @property
    def coarse_in_float32(self) -> bool:
        return self.inner.coarse_in_float32

    @property
    def sketch(self) -> ad.BoundEngine | None:
        cheaper = self.inner.sketch
        return None if cheaper is None or self.sketched is None else Counted(cheaper, self.sketched)

    def preactivations(self, network: DualNetwork, region: ad.InputSet) -> Preactivations:
        return self.inner.preactivations(network, region)

    def bounds(self, network: DualNetwork, region: ad.InputSet) -> ad.Bounds:
        return self.inner.bounds(network, region)

    def minimum(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Minimum:
        return self.inner.minimum(network, region, spec)

    def prove(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Proof | ProbableProof:
        self.asked.append(region.centre.dtype)
        return self.inner.prove(network, region, spec)


def _near_zero(margin: float) -> tuple[nn.Module, Tensor, Tensor]:
    """Scores of size 100 whose margins are about so large over the ball."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 2)).eval()
    x, labels = torch.rand(12, 40), torch.zeros(12, dtype=torch.int64)
    worst = ad.certify(copy.deepcopy(model).double(), x.double(), labels, ad.LinfBall(2.0**-8)).margins[:, 1]
    with torch.no_grad():
        model[2].bias[0] += margin - worst.median().float()
    return model, x, labels


@pytest.mark.parametrize("inner", [ad.Dual(), ad.Dual(intersect=True), ad.Crown(intersect=True)], ids=repr)
def test_margins_near_zero_are_looked_at_in_float64_whatever_runs_beside(inner: ad.BoundEngine) -> None:
    model, x, labels = _near_zero(1e-7)
    asked: list[torch.dtype] = []
    found = ad.certify(model, x, labels, ad.LinfBall(2.0**-8), Counted(inner, asked))
    assert torch.float64 in asked
    exact = copy.deepcopy(model).double()
    truth = ad.certify(exact, x.double(), labels, ad.LinfBall(2.0**-8), inner)
    assert torch.equal(found.certified, truth.certified)


def test_an_engine_that_is_coarse_in_float32_goes_to_float64_at_once() -> None:
    model, x, labels = _near_zero(0.0)
    asked: list[torch.dtype] = []
    ad.certify(model, x[:4], labels[:4], ad.LinfBall(2.0**-8), Counted(ad.Crown(), asked))
    assert asked == [torch.float64], "few examples: nothing in float32"
    asked.clear()
    tiny = ad.LinfBall(2.0**-40)
    with torch.no_grad():
        model[2].weight[0] = model[2].weight[1]
        model[2].bias[0] = model[2].bias[1] + 1e-6
    ad.certify(model, x, labels, tiny, Counted(ad.Crown(), asked))
    assert asked == [torch.float32, torch.float64], "of many, one is tried in float32, then all are bounded in float64"


def test_a_cheaper_engine_tells_that_float32_will_do() -> None:
    model, x, labels = _near_zero(0.0)
    with torch.no_grad():
        model[2].bias[0] += 50.0
    asked, sketched = list[torch.dtype](), list[torch.dtype]()
    ad.certify(model, x, labels, ad.LinfBall(2.0**-8), Counted(ad.Crown(), asked, sketched))
    assert sketched == [torch.float32]
    assert asked == [torch.float32], "all examples at once, and none of them before"


def test_a_cheaper_engine_does_not_tell_that_float32_is_in_vain() -> None:
    model, x, labels = _near_zero(0.0)
    with torch.no_grad():
        model[2].weight[0] = model[2].weight[1]
        model[2].bias[0] = model[2].bias[1] + 1e-6
    asked, sketched = list[torch.dtype](), list[torch.dtype]()
    ad.certify(model, x, labels, ad.LinfBall(2.0**-40), Counted(ad.Crown(), asked, sketched))
    assert sketched == [torch.float32]
    assert asked == [torch.float32, torch.float64], (
        "one example is tried by the engine itself, then all are bounded in float64"
    )


def test_float32_is_enough_where_it_decides() -> None:
    model, x, labels = _near_zero(0.0)
    with torch.no_grad():
        model[2].bias[0] += 50.0
    for engine in (ad.Dual(), ad.Crown()):
        asked: list[torch.dtype] = []
        ad.certify(model, x, labels, ad.LinfBall(2.0**-8), Counted(engine, asked))
        assert torch.float64 not in asked
