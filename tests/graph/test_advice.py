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


def _cell() -> nn.Module:
    layer = nn.LSTMCell(4, 3)
    return Net(lambda x: layer(x)[0], layer)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "asin": (lambda: Net(lambda x: torch.asin(x / 2)), "smooth function of one variable.*Softplus"),
    "sin": (lambda: Net(torch.sin), "neither convex nor concave"),
    "argmax": (lambda: Net(lambda x: x.argmax(1)), "Return the scores"),
    "topk": (lambda: Net(lambda x: x.topk(2).values), "picks depends on the input.*amax"),
    "sort": (lambda: Net(lambda x: x.sort()[0]), "picks depends on the input.*amax"),
    "integers": (lambda: Net(lambda x: x.long()), "makes integers"),
    "FFT": (lambda: Net(lambda x: torch.fft.rfft(x).abs()), "Fourier transform is linear"),
    "complex": (lambda: Net(lambda x: torch.complex(x, x).real), "Complex values"),
    "Bilinear": (lambda: Net(lambda x: F.bilinear(x, x, torch.ones(2, 4, 4).double())), "torch.einsum"),
    "LSTMCell": (lambda: _cell(), "written out step by step"),
    "cosine": (lambda: Net(lambda x: F.cosine_similarity(x, x.flip(1))), "F.normalize"),
    "where": (lambda: Net(lambda x: torch.where(x > 0, x, -x)), "where.x > 0, x, 0. is relu"),
    "round": (lambda: Net(torch.round), "It jumps"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_told_what_to_do(case: str) -> None:
    make, advice = REFUSED[case]
    with pytest.raises(
        ad.UnsupportedOperationError, match=rf"has no dual layer\. .*{advice}.*autodual\.register"
    ) as error:
        _capture(make())
    assert "earest" not in str(error.value)


LAST: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)),
    "log_softmax": lambda: Net(lambda x: F.log_softmax(x, 1)),
}


@pytest.mark.parametrize("name", LAST)
def test_a_softmax_at_the_end_is_refused_with_advice(name: str) -> None:
    with pytest.raises(ad.UnsupportedOperationError, match=f"ends in '{name}'.*Leave it out .*the labels are the same"):
        _capture(LAST[name]())


def test_a_call_of_a_known_operation_with_other_arguments_is_told_so() -> None:
    with pytest.raises(ad.UnsupportedOperationError, match=r"'layer_norm'.*supported with other arguments.*name a dim"):
        _capture(Net(lambda x: F.layer_norm(x, (4,), eps=0.0)))


INSTEAD: dict[str, tuple[Forward, Forward]] = {
    "gather": (lambda x: x.gather(1, WHERE.expand(len(x), 2)), lambda x: x[:, [0, 2]]),
    "gt": (lambda x: torch.where(x > 0, x, 0), F.relu),
    "cosine_similarity": (
        lambda x: F.cosine_similarity(x, x.flip(1), 1),
        lambda x: (F.normalize(x, dim=1) * F.normalize(x.flip(1), dim=1)).sum(1),
    ),
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
