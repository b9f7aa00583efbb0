"""Networks that multiply, divide and normalise what depends on their input: bounds of every engine hold, and are not loose."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import BilinearDual
from autodual.engines.ibp import evaluate_with_error
from autodual.engines.prepare import dual_network
from autodual.engines.projected import Relaxed
from small import DOUBLE, ENGINES, Net, batch, corners


class Attention(nn.Module):
    """Attention as most people write it."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, size = x.shape
        parts = self.qkv(x).reshape(n, tokens, 3, self.heads, size // self.heads).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        weights = (q @ k.transpose(-2, -1) * (size // self.heads) ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, tokens, size))


class Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, heads)
        self.feed = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 pixels of an 8 x 8 image, a token for the class, two blocks."""

    def __init__(self, size: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, size, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, size)), nn.Parameter(torch.randn(1, 5, size))
        self.blocks = nn.Sequential(*(Block(size, 2) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class GatedConvolutions(nn.Module):
    """A gated convolution, one that is scaled by what all of it says (squeeze and excitation), and group normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.squeeze, self.norm, self.head = nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.second(F.glu(self.first(x), 1)))
        x = x * torch.sigmoid(self.squeeze(x.mean((2, 3)))).unsqueeze(-1).unsqueeze(-1)
        return self.head(self.norm(x).flatten(1))


def _made(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return make().to(DOUBLE).eval()

    return build


def _linear(compute: Callable[[Any, Tensor], Tensor], last: int = 4) -> Callable[[], nn.Module]:
    return _made(lambda: Net(compute, a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(last, 3)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "product": (_linear(lambda m, x: m.c(torch.relu(m.a(x) * m.b(x)))), (3,), 0.1),
    "gate": (_linear(lambda m, x: m.c(m.a(x) * torch.sigmoid(m.b(x)))), (3,), 0.1),
    "product of products": (_linear(lambda m, x: m.c(m.a(x) * m.b(x) * torch.tanh(m.a(x)))), (3,), 0.1),
    "quotient": (_linear(lambda m, x: m.c(m.a(x) / (1 + m.b(x).exp()))), (3,), 0.1),
    "softmax inside": (_linear(lambda m, x: m.c(m.a(x).softmax(1) * m.b(x))), (3,), 0.1),
    "matrices": (_linear(lambda m, x: m.c((m.a(x) @ m.b(x).mT @ m.a(x)).sum(1))), (2, 3), 0.05),
    "layer norm": (_linear(lambda m, x: m.c(torch.relu(F.layer_norm(m.a(x), (4,))))), (3,), 0.02),
    "gated convolutions": (_made(GatedConvolutions), (1, 8, 8), 0.003),
    "vision transformer": (_made(VisionTransformer), (1, 8, 8), 0.002),
}
SMALL = [name for name in NETWORKS if name not in ("gated convolutions", "vision transformer")]


def sampled(model: nn.Module, x: Tensor, eps: float) -> Tensor:
    """[P, N, ...]: outputs at corners and random points of the ball."""
    generator = torch.Generator().manual_seed(1)
    steps = 2 * torch.rand(400, *x.shape, dtype=x.dtype, generator=generator) - 1
    steps[:200] = steps[:200].sign()
    points = x + eps * steps
    if x[0].numel() <= 6:
        points = torch.cat([points, corners(x - eps, x + eps)])
    with torch.no_grad():
        return model(points.flatten(0, 1)).unflatten(0, points.shape[:2])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_hold(name: str, engine: str) -> None:
    make, shape, eps = NETWORKS[name]
    if name not in SMALL and engine not in ("dual", "crown", "ibp", "forward"):
        pytest.skip("the smaller ones have the same layers")
    eps = 1e-6 if engine == "ibp" and name == "vision transformer" else eps  # it is far too loose for more
    model, x = make(), batch(2, *shape)
    with torch.no_grad():
        found = ad.bounds(model, ad.LinfBall(eps).around(x), ENGINES[engine])
    assert found.output.finite().all()
    assert found.output.contains(sampled(model, x, eps), 1e-9).all()


LOOSE = {
    "product of products": 1.6,
    "matrices": 2.5,
    "layer norm": 2.0,
    "vision transformer": 4.0,
    "gated convolutions": 2.5,
}
"""How much wider than what was sampled bounds may be; samples miss the extremes of wide inputs."""


@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_are_not_loose(name: str) -> None:
    make, shape, eps = NETWORKS[name]
    model, x = make(), batch(2, *shape)
    with torch.no_grad():
        width = ad.bounds(model, ad.LinfBall(eps).around(x)).output.width
    values = sampled(model, x, eps)
    assert width.mean() <= LOOSE.get(name, 1.35) * (values.amax(0) - values.amin(0)).mean()


@pytest.mark.parametrize("name", SMALL)
def test_streams_and_chunks_find_the_same(name: str) -> None:
    make, shape, eps = NETWORKS[name]
    model, x = make(), batch(2, *shape)
    network, region = dual_network(model, x), ad.LinfBall(eps).around(x)
    with torch.no_grad():
        whole, pieces = (ad.Dual(max_bytes=b).bounds(network, region).output for b in (1 << 32, 7_000))
        forward = ad.ForwardDual().bounds(network, region).output
        exact = Relaxed.exactly(network, region).intervals
        intermediate = ad.Dual().preactivations(network, region).intervals
    for other in (pieces, forward):
        torch.testing.assert_close(whole.lower, other.lower)
        torch.testing.assert_close(whole.upper, other.upper)
    for index, interval in exact.items():
        torch.testing.assert_close(interval.lower, intermediate[index].lower)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_model_as_it_runs_is_within_its_error(name: str) -> None:
    """In float32 against float64, at single points and in a certificate's rows."""
    make, shape, eps = NETWORKS[name]
    model = make().float()
    x = torch.cat([batch(20, *shape).float(), 30 * batch(4, *shape).float(), 1e-3 * batch(4, *shape).float()])
    with torch.no_grad():
        _, error = evaluate_with_error(dual_network(model, x[:2]), x)
        run, exact = model(x).double(), make()(x.double())
    assert ((run - exact).abs() <= error.double()).all()
    labels = run.argmax(1)
    for engine in (ad.Dual(), ad.Crown()):
        certificate = ad.certify(model, x[:3], labels[:3], ad.LinfBall(eps / 10), engine)
        margins = [v[:3].gather(1, labels[:3, None]) - v[:3] for v in (run, exact)]
        assert ((margins[0] - margins[1]).abs() <= certificate.run_error.double()).all()
        others = certificate.margins.isfinite()
        assert (margins[1] >= certificate.margins - certificate.slack)[others].all()


def test_a_variance_from_sums_of_squares_is_within_its_error() -> None:
    """PyTorch finds mean x^2 - (mean x)^2 where channels come last; of pixels far from zero, most digits cancel."""
    model = nn.GroupNorm(1, 2).eval()
    noise = torch.randn(200, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    x = (200 + noise).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        _, error = evaluate_with_error(dual_network(model, noise[:2]), x)
        run, exact = model(x).double(), nn.GroupNorm(1, 2).double()(x.double())
    assert ((run - exact).abs() <= error.double()).all()
    assert (run - exact).abs().max() > 0.01, "x is chosen to hurt"


@pytest.mark.parametrize("name", ["gated convolutions", "vision transformer"])
def test_certified_at_a_small_radius_and_never_where_an_attack_succeeds(name: str) -> None:
    make, shape, _ = NETWORKS[name]
    model, x = make().float(), batch(4, *shape).float()
    labels = model(x).argmax(1)
    proved = []
    for engine, eps in ((ad.Dual(), 2e-4), (ad.Crown(), 2e-4), (ad.IBP(), 1e-7)):
        certificate = ad.certify(model, x, labels, ad.LinfBall(eps), engine)
        assert not (certificate.certified & ad.attack(model, x, labels, ad.LinfBall(eps)).success).any()
        proved.append(certificate.certified.any().item())
    wide = ad.LinfBall(0.3)
    certificate, found = ad.certify(model, x, labels, wide), ad.attack(model, x, labels, wide, steps=30, restarts=2)
    assert not (certificate.certified & found.success).any()
    assert all(proved), proved


@pytest.mark.parametrize("name", ["gate", "matrices", "layer norm", "softmax inside"])
@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.Projected(k=5)], ids=repr)
def test_losses_have_gradients(name: str, engine: ad.BoundEngine) -> None:
    """Of the robust loss in every parameter; for exact engines, against finite differences."""
    make, shape, eps = NETWORKS[name]
    model, x = make(), batch(2, *shape)
    whole = nn.Sequential(model, nn.Linear(3, 3).to(DOUBLE)).eval()
    loss = ad.RobustCrossEntropy(whole, ad.LinfBall(eps), engine)

    def value() -> Tensor:
        torch.manual_seed(0)
        return loss(x, torch.tensor([0, 2]))

    parameter = model.a.weight
    (gradient,) = torch.autograd.grad(value(), parameter)
    assert gradient.isfinite().all()
    if isinstance(engine, ad.Projected):
        return
    direction, step = torch.randn(parameter.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(3)), 1e-6
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * step * direction
            ends.append(value())
            parameter -= sign * step * direction
    torch.testing.assert_close((gradient * direction).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-3, atol=1e-6)


POLES: dict[str, Callable[[Tensor], Tensor]] = {
    "reciprocal": lambda x: (1 / (x + 0.01)).tanh(),
    "log": lambda x: torch.log(x * x.flip(1) + x.square() + x.flip(1).square() + 0.1).tanh(),
    "rsqrt": lambda x: torch.rsqrt(x * x.flip(1) + x.square() + x.flip(1).square() + 0.1),
    "overflow": lambda x: torch.exp(1000 * (x * x.flip(1) - x.square() - x.flip(1).square())),
}


@pytest.mark.parametrize("engine", [ad.IBP(), ad.Dual(), ad.Crown(), ad.Crown(intersect=True)], ids=repr)
@pytest.mark.parametrize("name", POLES)
def test_at_a_pole_nothing_is_proved_and_nothing_is_nan(name: str, engine: ad.BoundEngine) -> None:
    model = Net(lambda m, x: torch.cat([POLES[name](x), 10 + 0 * x[:, :1]], 1)).float()
    x = torch.zeros(1, 2)
    found = ad.bounds(model, ad.LinfBall(1.0).around(x), engine).output
    assert not (found.lower.isnan() | found.upper.isnan()).any()
    assert found.lower[:, 0].item() == -math.inf or name == "overflow"
    certificate = ad.certify(model, x, torch.tensor([2]), ad.LinfBall(1.0), engine)
    assert not certificate.margins.isnan().logical_and(certificate.certified[:, None]).any()
    if name == "reciprocal":
        assert not certificate.certified.any()


def test_a_matrix_product_is_one_node() -> None:
    """Not one product per pair of entries."""
    model = Net(lambda m, x: x @ x.flip(1).mT)
    network = dual_network(model, batch(1, 30, 40))
    products = [node for node in network.nodes if isinstance(node.layer, BilinearDual)]
    assert [node.shape for node in products] == [(30, 30)]
    assert max(math.prod(node.shape) for node in network.nodes) == 2 * 30 * 40


# What an adversary found.


class _Scores(nn.Module):
    """Scores that fall below the finite number that stands for a mask."""

    def forward(self, x: Tensor) -> Tensor:
        scores = 1e5 * (x[:, :1] + x[:, 1:2]) + x
        masked = scores.masked_fill(torch.tensor([[False, False, True]]), -2e4)
        return masked.softmax(1) @ torch.eye(3)


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP()], ids=repr)
def test_a_finite_score_is_no_mask(engine: ad.Dual) -> None:
    x = torch.zeros(1, 3)
    assert _Scores()(x - 0.2)[0, 2] == 1
    assert not ad.certify(_Scores(), x, ad.Between(upper=0.5, output=2), ad.LinfBall(0.2), engine).certified.any()


def test_einsum_with_repeated_entries_is_refused() -> None:
    class Repeated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bi,bi->b", x[:, :3], x[:, 3:4])

    with pytest.raises(ad.ArgumentError, match="a letter for dimensions of different sizes"):
        ad.certify(Repeated(), torch.rand(1, 4), ad.Between(upper=5.0), ad.LinfBall(1.0))


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual()], ids=repr)
def test_coefficients_that_cancel_are_no_error_of_large_scores(engine: ad.Dual) -> None:
    class Logarithms(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.log_softmax(x, 1) * 1.0

    torch.manual_seed(0)
    rows = torch.cat([torch.eye(6), -torch.eye(6)])
    x = 5.5 * torch.randn(64, 6) + 380
    found = ad.certify(Logarithms(), x, ad.Positive(rows), ad.LinfBall(0.0), engine)
    exact = Logarithms()(x.double()) @ rows.T.double()
    assert (found.margins.double() - found.slack.double() <= exact).all()


def _attends_to_all(causal: bool, mask: Tensor) -> nn.Module:
    """The mean of what is left in of the sums of the positions, for the first position."""
    attention = nn.MultiheadAttention(4, 1, bias=False, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.zero_()[8:] = 1.0
        attention.out_proj.weight.copy_(torch.eye(4))
    return Net(
        lambda m, x: m.a(x, x, x, attn_mask=mask, is_causal=causal, need_weights=False)[0][:, 0], a=attention
    ).eval()


def test_a_mask_that_is_said_to_be_causal_must_be() -> None:
    """PyTorch passes the mask over. Where only the first position moves, that triples what it does, but not at x or two corners."""
    x, scale, none = (
        torch.full(shape, v, dtype=DOUBLE) for shape, v in (((1, 3, 4), 1.0), ((3, 4), 0.0), ((3, 3), 0.0))
    )
    scale[0] = 1.0
    region = ad.LinfBall(0.1, scale=scale).around(x)
    far = x + 0.0999 * scale
    with pytest.raises(ad.ArgumentError, match="is_causal=True promises"):
        ad.bounds(_attends_to_all(True, none), region)
    causal = torch.ones(3, 3, dtype=torch.bool).triu(1)
    cases = (False, none), (True, causal), (True, none.masked_fill(causal, -torch.inf))
    for model in (_attends_to_all(*case) for case in cases):
        assert ad.bounds(model, region).output.contains(model(far)).all()


def test_a_recurrent_layer_runs_by_its_mode() -> None:
    x, model = torch.randn(2, 3, 4, dtype=DOUBLE), Net(lambda m, x: m.r(x)[0], r=nn.RNN(4, 3, batch_first=True))
    model.r.nonlinearity = "relu"
    torch.testing.assert_close(dual_network(model, x).forward(x), model(x))


@pytest.mark.parametrize("live", [False, True], ids=["bool", "numbers"])
def test_the_mask_of_attention_may_be_a_buffer(live: bool) -> None:
    """Numbers stay live; what a mask leaves out is part of the graph, which is then out of date."""
    mask = batch(3, 3) if live else torch.ones(3, 3, dtype=torch.bool).triu(1)
    model = Net(lambda m, x: m.a(x, x, x, attn_mask=m.mask)[0], a=nn.MultiheadAttention(4, 2, batch_first=True))
    model.register_buffer("mask", mask)
    x = batch(2, 3, 4)
    region, network = ad.LinfBall(0.001).around(x), ad.capture(model, x)
    assert ad.bounds(network, region).output.contains(model(x)).all()
    model.mask = 3 * mask if live else mask.mT
    if live:
        assert ad.bounds(network, region).output.contains(model(x)).all()
    else:
        with pytest.raises(ad.CaptureError, match="computes something else than when it was captured"):
            ad.bounds(network, region)


def test_an_encoder_layer_does_not_add_its_mask_when_it_runs() -> None:
    """PyTorch's fast path leaves out what has another number than zero. Where only the first position moves, that counts."""
    mask = torch.zeros(3, 3, dtype=DOUBLE)
    mask[0, 1:] = 0.5
    model = Net(lambda m, x: m.e(x, m.mask)[:, 0], e=nn.TransformerEncoderLayer(4, 2, 6, batch_first=True))
    with torch.no_grad():
        model.e.self_attn.in_proj_weight.zero_()[8:] = 1.0
        model.e.self_attn.out_proj.weight.zero_()[0] = 1.0
    model.register_buffer("mask", mask)
    x, scale = torch.ones(1, 3, 4, dtype=DOUBLE), torch.zeros(3, 4, dtype=DOUBLE)
    scale[0] = 1.0
    with pytest.raises(ad.ArgumentError, match="neither 0 nor -inf"):
        ad.bounds(model, ad.LinfBall(0.1, scale=scale).around(x))
    model.e.activation_relu_or_gelu = 0  # no fast path
    assert ad.bounds(model, ad.LinfBall(0.1, scale=scale).around(x)).output.contains(model(x + 0.0999 * scale)).all()
