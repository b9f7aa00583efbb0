"""A model must return one tensor that depends on its input."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, Net, batch


class Scores(NamedTuple):
    scores: Tensor
    features: Tensor


REFUSED: dict[str, Callable[[Any, Tensor], Any]] = {
    "two outputs": lambda m, x: (m.fc(x), x),
    "list": lambda m, x: [m.fc(x)],
    "named tuple": lambda m, x: Scores(m.fc(x), x),
    "dictionary": lambda m, x: {"logits": m.fc(x)},
    "nothing": lambda m, x: None,
    "a parameter": lambda m, x: m.fc.weight,
    "a constant": lambda m, x: torch.ones(x.shape[0], 3),
    "a number": lambda m, x: x.shape[0],
}


@pytest.mark.parametrize("compute", REFUSED.values(), ids=REFUSED.keys())
def test_other_outputs_are_refused(compute: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(ad.CaptureError, match="must return one tensor that depends on its input"):
        ad.capture(Net(compute, fc=nn.Linear(4, 3)), batch(2, 4))


@pytest.mark.parametrize(("kind", "pick"), [(nn.LSTM, lambda out: out[1][0].mean(0)), (nn.GRU, lambda out: out[1])])
def test_last_states_say_what_to_take(kind: type[nn.Module], pick: Callable[[Any], Tensor]) -> None:
    net = Net(lambda m, x: pick(m.rnn(x)), rnn=kind(2, 3, batch_first=True))
    with pytest.raises(ad.CaptureError, match=r"Of the last states h, take h\[-1\], or h.transpose\(0, 1\)"):
        ad.capture(net.eval(), batch(2, 4, 2))


def test_a_dictionary_is_told_by_its_key() -> None:
    with pytest.raises(ad.CaptureError, match=r"returns the one to be bounded, such as out\['logits'\]"):
        ad.capture(Net(REFUSED["dictionary"], fc=nn.Linear(4, 3)), batch(2, 4))


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"weight": torch.ones(1)}, "dict; make the network, and load these weights"),
        ("net.pt", "str; make the network, and load the file's weights"),
        (lambda x: x, "function; make it the forward of a module"),
        (3, "int$"),
    ],
)
def test_what_is_no_module_says_what_to_give(given: Any, advice: str) -> None:
    ball, x, labels = ad.LinfBall(0.1), batch(2, 4), torch.tensor([0, 1])
    for call in (lambda: ad.capture(given, x), lambda: ad.certify(given, x, labels, ball)):
        with pytest.raises(ad.ArgumentError, match=f"got {advice}"):
            call()


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        pytest.param(lambda m, x: m.fc(x).argmax(1), "'argmax' has no dual layer. Return the scores", id="labels"),
        pytest.param(lambda m, x: m.fc(x) > 0, "'gt' has no dual layer. It jumps", id="comparison"),
        pytest.param(lambda m, x: m.fc(x).max(1), "must return one tensor", id="values and indices"),
        pytest.param(
            lambda m, x: m.fc(x).max(1).indices,
            "'argmax' has no dual layer. Return the scores",
            id="where the maximum is",
        ),
        pytest.param(
            lambda m, x: m.fc(x).max(0).values, "dimension 0 must stay the batch", id="maximum over the batch"
        ),
        pytest.param(
            lambda m, x: torch.stack([m.fc(x), x[:, :3]]).mean(0),
            r"Write torch.stack\(tensors, 1\)",
            id="stack before the batch",
        ),
        pytest.param(lambda m, x: m.fc(x) - m.fc(x).max(), "max: its result has shape", id="maximum of everything"),
        pytest.param(lambda m, x: m.fc(x) - m.fc(x).amax(()), "amax: its result has shape", id="amax of everything"),
        pytest.param(lambda m, x: m.fc(x).sum().item(), "sum: its result has shape", id="number from a tensor"),
        pytest.param(lambda m, x: m.fc(x).half(), "half: computes in torch.float16", id="half precision"),
        pytest.param(lambda m, x: m.fc(x.float().double()), "float: computes in torch.float32", id="rounding inside"),
    ],
)
def test_values_that_cannot_be_bounded_are_refused(compute: Callable[[Any, Tensor], Any], message: str) -> None:
    with pytest.raises(ad.CaptureError, match=message):
        ad.capture(Net(compute, fc=nn.Linear(4, 3)), batch(2, 4))


def test_results_that_are_not_used_may_be_anything() -> None:
    def compute(m: Any, x: Tensor) -> Tensor:
        scores = m.fc(x)
        m.probabilities = scores.softmax(1)
        m.guess, m.spread = scores.argmax(1), scores.std()
        return scores

    model, x = Net(compute, fc=nn.Linear(4, 3)), batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def test_a_model_with_two_inputs_is_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    with pytest.raises(ad.CaptureError, match=r"could not be captured .* missing 1 required positional argument"):
        ad.capture(Two(), batch(2, 4))


def test_a_module_that_is_no_submodule_is_refused() -> None:
    outside = nn.Linear(4, 3, dtype=DOUBLE)
    with pytest.raises(ad.CaptureError, match="calls a Linear that is not one of its submodules"):
        ad.capture(Net(lambda m, x: outside(x)), batch(2, 4))


def test_windows_of_max_pooling_that_hold_padding_alone_are_refused() -> None:
    pool = nn.MaxPool2d(2, 3, padding=1, dilation=2)
    assert bool(pool(torch.zeros(1, 1, 1, 1)).isneginf().all())
    with pytest.raises(ad.ArgumentError, match="holds padding alone on an input of 1"):
        ad.capture(nn.Sequential(nn.Conv2d(1, 2, 1), pool).eval(), torch.zeros(1, 1, 1, 1))
