"""An operation that cannot be bounded is refused with advice written for it; nothing is suggested because it is spelt alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import REGISTRY
from autodual.graph.registry import _BY_KEY, ADVICE, _key, advice_about

Forward = Callable[[Tensor], Tensor]
MATRIX = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
WHERE = torch.tensor([0, 2])


class Net(nn.Module):
    def __init__(self, forward: Forward, *inside: nn.Module) -> None:
        super().__init__()
        self.function, self.inside = forward, nn.ModuleList(inside)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _capture(model: nn.Module) -> ad.Network:
    return ad.capture(model.double().eval(), torch.rand(3, 4, dtype=torch.float64) + 0.1)


def _through(layer: nn.Module) -> nn.Module:
    """The first output for sequences of one element."""

    def first(x: Tensor) -> Tensor:
        found: tuple[Tensor, ...] = layer(x.unsqueeze(1))
        return found[0][:, 0]

    return Net(first, layer)


def _attention() -> nn.Module:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    return Net(lambda x: layer(*[x.unsqueeze(1)] * 3)[0][:, 0], layer)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "exp": (lambda: Net(torch.exp), "smooth function of one variable.*Softplus"),
    "x.log_()": (lambda: Net(lambda x: x.clone().log_()), "smooth function of one variable"),
    "sqrt": (lambda: Net(torch.sqrt), "smooth function of one variable"),
    "x**2": (lambda: Net(lambda x: x**2), "smooth function of one variable"),
    "sin": (lambda: Net(torch.sin), "neither convex nor concave"),
    "final softmax": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), "Leave it out .*the labels are the same"),
    "final log-softmax": (lambda: Net(lambda x: F.log_softmax(x, 1)), "Leave it out .*the labels are the same"),
    "argmax": (lambda: Net(lambda x: x.argmax(1)), "Return the scores"),
    "topk": (lambda: Net(lambda x: x.topk(2).values), "picks depends on the input.*amax"),
    "sort": (lambda: Net(lambda x: x.sort()[0]), "picks depends on the input.*amax"),
    "LSTM": (lambda: _through(nn.LSTM(4, 3, batch_first=True)), "Recurrent layers"),
    "GRU": (lambda: _through(nn.GRU(4, 3, batch_first=True)), "Recurrent layers"),
    "attention": (_attention, "Attention multiplies"),
    "LayerNorm": (lambda: nn.LayerNorm(4), "divides by something that depends on the input.*BatchNorm"),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), "divides by something that depends on the input.*BatchNorm"),
    "F.normalize": (lambda: Net(F.normalize), "divides by something that depends on the input"),
    "integers": (lambda: Net(lambda x: x.long()), "makes integers"),
    "FFT": (lambda: Net(lambda x: torch.fft.rfft(x).abs()), "Fourier transform is linear"),
    "complex": (lambda: Net(lambda x: torch.complex(x, x).real), "Complex values"),
    "Bilinear": (lambda: Net(lambda x: F.bilinear(x, x, torch.ones(2, 4, 4).double())), "multiplies values"),
    "einsum": (lambda: Net(lambda x: torch.einsum("bi,io->bo", x, MATRIX)), "F.linear"),
    "where": (lambda: Net(lambda x: torch.where(x > 0, x, -x)), "where.x > 0, x, 0. is relu"),
    "round": (lambda: Net(torch.round), "It jumps"),
    "cumsum": (lambda: Net(lambda x: x.cumsum(1)), "It is linear"),
    "Tensor.mT": (lambda: Net(lambda x: x.unsqueeze(2).mT.squeeze(1)), "transpose"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_told_what_to_do(case: str) -> None:
    make, advice = REFUSED[case]
    with pytest.raises(
        ad.UnsupportedOperationError, match=rf"has no dual layer\. .*{advice}.*autodual\.register"
    ) as error:
        _capture(make())
    assert "earest" not in str(error.value)


def _repeated(x: Tensor) -> Tensor:
    return x.unsqueeze(1).expand(-1, 2, -1).reshape(len(x), -1)


INSTEAD: dict[str, tuple[Forward, Forward]] = {
    "log_sigmoid": (F.logsigmoid, lambda x: -F.softplus(-x)),
    "repeat": (lambda x: x.repeat(1, 2), lambda x: torch.cat([x, x], 1)),
    "tile": (lambda x: x.tile(1, 2), _repeated),
    "addmm": (lambda x: torch.addmm(MATRIX[0], x, MATRIX), lambda x: x @ MATRIX + MATRIX[0]),
    "einsum": (lambda x: torch.einsum("bi,io->bo", x, MATRIX), lambda x: F.linear(x, MATRIX.T)),
    "index_select": (lambda x: x.index_select(1, WHERE), lambda x: x[:, [0, 2]]),
    "logaddexp": (lambda x: torch.logaddexp(x, 1 - x), lambda x: 1 - x + F.softplus(x - (1 - x))),
    "where": (lambda x: torch.where(x > 0, x, 0), F.relu),
    "cumsum": (lambda x: x.cumsum(1), lambda x: x @ torch.ones(4, 4, dtype=x.dtype).triu()),
    "nan_to_num": (torch.nan_to_num, lambda x: x * 1),
}


@pytest.mark.parametrize("operation", INSTEAD)
def test_what_is_advised_instead_is_the_same_and_supported(operation: str) -> None:
    refused, advised = INSTEAD[operation]
    x = torch.randn(3, 4, dtype=torch.float64)
    assert advice_about(operation) is not None
    torch.testing.assert_close(advised(x), refused(x))
    _capture(Net(advised))
    with pytest.raises(ad.UnsupportedOperationError):
        _capture(Net(refused))


def test_nothing_that_is_supported_is_advised_against() -> None:
    assert not {_key(name) for name in REGISTRY.names()} & set(_BY_KEY)


def test_every_operation_has_one_piece_of_advice() -> None:
    keys = [{_key(name) for name in names.split()} for names in ADVICE]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_an_operation_that_nobody_thought_of_is_told_how_to_add_one() -> None:
    with pytest.raises(ad.UnsupportedOperationError) as error:
        _capture(Net(torch.digamma))
    assert str(error.value).startswith(
        "model: the operation 'digamma' has no dual layer. Add one with autodual.register"
    )


def test_another_spelling_of_a_supported_operation_is_named() -> None:
    with pytest.raises(
        ad.UnsupportedOperationError, match=r"the operation 'celu_' has no dual layer\. Use (CELU|celu) instead\."
    ):
        _capture(Net(lambda x: torch.celu_(x.clone())))
