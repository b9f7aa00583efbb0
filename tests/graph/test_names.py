"""Layers are named by the path of their module, once each, in the order of evaluation."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, Net, batch, bounds_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.act(self.fc(x)) + x)


def _layers(model: nn.Module) -> list[str]:
    return list(ad.bounds(model.to(DOUBLE).eval(), ad.LinfBall(0.1).around(batch(2, 4))).layers)


def test_modules_are_named_by_their_path() -> None:
    assert _layers(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh())) == ["1", "3"]
    assert _layers(nn.Sequential(Block(), Block())) == ["0.act", "0.relu", "1.act", "1.relu"]


def test_functions_are_named_by_the_module_that_calls_them() -> None:
    model = Net(lambda m, x: F.relu(m.inner(x)).tanh(), inner=Block())
    assert _layers(model) == ["inner.act", "inner.relu", "relu", "tanh"]


def test_a_model_whose_child_is_called_model_keeps_its_paths() -> None:
    assert _layers(Net(lambda m, x: m.model(x), model=Net(lambda m, x: m.model(x), model=nn.ReLU()))) == ["model.model"]


def test_a_model_that_is_one_layer_has_a_name() -> None:
    assert _layers(nn.ReLU()) == ["model"]


def test_a_module_used_twice_has_two_names() -> None:
    block = Block()
    model = Net(lambda m, x: m.block(m.block(x)) + m.same(x), block=block, same=block)
    assert _layers(model) == ["block.act", "block.relu", "block.act#2", "block.relu#2", "block.act#3", "block.relu#3"]


def test_a_module_used_twice_is_bounded_at_each_use() -> None:
    shared = nn.Linear(4, 4)
    twice = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU()).to(DOUBLE)
    copies = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()).to(DOUBLE)
    for i in (0, 2):
        copies[i].load_state_dict(shared.state_dict())
    region = ad.LinfBall(0.1).around(batch(2, 4))
    for a, b in zip(bounds_of(twice, region), bounds_of(copies, region), strict=True):
        assert (a == b).all()


def test_names_are_unique_and_in_the_order_of_evaluation() -> None:
    model = Net(
        lambda m, x: m.last(m.pool(m.first(x).unsqueeze(1))).flatten(1),
        last=nn.Sequential(nn.ReLU(), nn.Sigmoid()),
        pool=nn.MaxPool1d(2),
        first=Block(),
    )
    names = _layers(model)
    assert names[:2] == ["first.act", "first.relu"]
    assert names[-2:] == ["last.0", "last.1"]
    assert all(name.startswith("pool") for name in names[2:-2])
    assert len(set(names)) == len(names)


def test_nodes_of_a_network_have_unique_names() -> None:
    network = ad.capture(nn.Sequential(Block(), Block()).to(DOUBLE), batch(1, 4))
    names = [node.name for node in network.nodes]
    assert len(set(names)) == len(names)
    assert names[0] == "input"


def test_every_layer_has_the_shape_of_what_enters_it() -> None:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3), nn.ReLU()
    )
    found = ad.bounds(model.to(DOUBLE), ad.LinfBall(0.1).around(batch(2, 4)))
    assert {name: tuple(i.lower.shape) for name, i in found.layers.items()} == {"2": (2, 2, 2), "5": (2, 3)}
    assert found.output.lower.shape == (2, 3)


@pytest.mark.parametrize("name", ["x", "input", "model", "output"])
def test_a_parameter_of_the_model_itself_may_have_any_name(name: str) -> None:
    model = Net(lambda m, x: F.relu(x * getattr(m, name)), **{name: nn.Parameter(batch(1, 4)[0])})
    x = batch(2, 4)
    assert [node.depends for node in ad.capture(model, x).nodes].count(False) == 1
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))
