"""Layers whose transpose comes from autodiff have the same gradients when rows are recomputed chunk by chunk."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import AffineDual
from autodual.dual.arithmetic import DualScale, DualSum
from autodual.engines.prepare import dual_network
from small import DOUBLE, Net, batch

IMAGE = (2, 6, 6)
LAYERS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "transposed convolution": lambda m, x: m.up(x),
    "average pooling": lambda m, x: F.avg_pool2d(x, 3, 1),
    "negative average pooling": lambda m, x: F.avg_pool2d(x, 2, 1, divisor_override=-3),
    "upsampling": lambda m, x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "reflected padding": lambda m, x: F.pad(x, (1, 1, 0, 2), "reflect"),
    "matrix from the left": lambda m, x: m.matrix @ x,
    "broadcast product": lambda m, x: x[:, :1] * m.scale,
    "einsum": lambda m, x: torch.einsum("bchw,kh->bckw", x, m.matrix),
    "constant mask": lambda m, x: torch.where(torch.eye(6, dtype=torch.bool), x, 0.3),
    "broadcast sum": lambda m, x: x + x.mean(1, keepdim=True),
}


def network(layer: str) -> nn.Module:
    torch.manual_seed(0)
    shape = LAYERS[layer](model := _parts(layer), torch.zeros(1, *IMAGE, dtype=DOUBLE)).shape
    model.head = nn.Linear(shape.numel(), 3).to(DOUBLE)
    return model


def _parts(layer: str) -> nn.Module:
    def compute(m: nn.Module, x: Tensor) -> Tensor:
        return m.head(torch.relu(LAYERS[layer](m, torch.relu(m.first(x)))).flatten(1))

    net = Net(compute, first=nn.Conv2d(2, 2, 3, padding=1), up=nn.ConvTranspose2d(2, 2, 2, 2))
    net.matrix, net.scale = (nn.Parameter(torch.randn(*s, dtype=DOUBLE)) for s in ((3, 6), (4, 1, 1)))
    return net


def from_autodiff(kind: type = AffineDual) -> Iterator[type]:
    """Shipped classes that leave their transpose to the base class."""
    for found in kind.__subclasses__():
        shipped = found.__module__.startswith("autodual.") and not inspect.isabstract(found)
        if shipped and found.transpose is AffineDual.transpose:
            yield found
        yield from from_autodiff(found)


def test_every_such_layer_is_tried() -> None:
    tried = set()
    for layer in LAYERS:
        tried |= {type(node.layer) for node in dual_network(network(layer), batch(1, *IMAGE)).nodes}
    assert tried >= {*from_autodiff(), DualScale, DualSum}


@pytest.mark.parametrize("engine", [ad.Dual, ad.Crown])
@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_are_the_same_in_chunks(layer: str, engine: type[ad.Dual]) -> None:
    model, x, labels = network(layer), batch(2, *IMAGE), torch.tensor([0, 2])
    parameters, found = list(model.parameters()), []
    for max_bytes in (1 << 32, 100_000):
        loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1), engine(max_bytes=max_bytes))(x, labels)
        found.append([loss, *torch.autograd.grad(loss, parameters, allow_unused=True)])
    for whole, chunked in zip(*found, strict=True):
        assert (whole is None) == (chunked is None)
        if whole is not None:
            torch.testing.assert_close(whole, chunked)


def test_tensors_may_be_offloaded_meanwhile() -> None:
    """torch.func refuses to work where autograd's saved tensors are handled by somebody else; a training loop may do so."""
    model, x, labels = network("transposed convolution"), batch(2, *IMAGE), torch.tensor([0, 2])
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1), ad.Dual())
    plain = torch.autograd.grad(loss(x, labels), model.up.weight)
    with torch.autograd.graph.save_on_cpu():
        offloaded = torch.autograd.grad(loss(x, labels), model.up.weight)
        with torch.inference_mode():
            ad.certify(model.eval(), x, labels, ad.LinfBall(0.1))
    torch.testing.assert_close(plain, offloaded)


@dataclass(frozen=True)
class _Doubled(AffineDual):
    """Computes 2 x, but autodiff is told that it is 3 x."""

    def linear(self, *operands: Tensor) -> Tensor:
        (x,) = operands
        return 3 * x - x.detach()


@dataclass(frozen=True)
class _Forgetful(AffineDual):
    """Its own transpose forgets one entry of many."""

    def linear(self, *operands: Tensor) -> Tensor:
        return operands[0]

    def transpose(self, coefficients: Tensor, shapes: tuple[tuple[int, ...], ...]) -> tuple[Tensor, ...]:
        return (coefficients * (torch.arange(coefficients.shape[1]) != 7),)


class _Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
@pytest.mark.parametrize("layer", [_Doubled(), _Forgetful()], ids=["autodiff", "own"])
def test_a_transpose_of_something_else_is_refused(layer: AffineDual, dtype: torch.dtype) -> None:
    class Own(_Layer):
        pass

    ad.register(Own)(lambda call: layer)
    model = nn.Sequential(nn.Linear(3, 400), Own(), nn.Linear(400, 2)).to(dtype).eval()
    with pytest.raises(ad.CaptureError, match="the transpose of its dual layer is not that"):
        ad.bounds(model, ad.LinfBall(0.1).around(batch(2, 3).to(dtype)))
