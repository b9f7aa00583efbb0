"""A digest is the same for the same network, wherever and whenever it was captured, and another for any other one."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, weight_norm

import autodual as ad
from autodual.dual import REGISTRY
from autodual.graph.digest import LARGE, digest_network, digest_object, digest_tensors, digesting
from autodual.graph.network import Network, Node, Ref
from autodual.sets import Norm
from small import Net
from zoo import WILD


def digest(model: nn.Module, *shape: int) -> str:
    return digest_network(ad.capture(model.double().eval(), torch.full((2, *(shape or (4,))), 0.5).double()))


class Doubled(nn.Module):
    def __init__(self, times: float = 2.0) -> None:
        super().__init__()
        self.times = times

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.times


def linear() -> nn.Linear:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(16.0).reshape(4, 4) / 16)
        assert layer.bias is not None
        layer.bias.copy_(torch.arange(4.0))
    return layer


def sequence(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(linear(), *layers)


def with_weight(index: int, by: float) -> nn.Module:
    model = sequence(nn.ReLU())
    with torch.no_grad():
        model[0].weight.view(-1)[index] += by
    return model


def with_buffer(value: float) -> nn.Module:
    norm = nn.BatchNorm1d(4)
    norm.running_mean = torch.tensor([0.0, 0.0, 0.0, value])
    return sequence(norm)


def with_hook(power: float) -> nn.Module:
    with pytest.warns(FutureWarning):
        layer = weight_norm(linear())
    layer.weight_g.data *= power
    return nn.Sequential(layer)


def parametrized(times: float) -> nn.Module:
    layer = linear()
    parametrize.register_parametrization(layer, "weight", Doubled(times))
    return nn.Sequential(layer)


DIFFERENT: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: sequence(nn.ReLU()),
    "one weight": lambda: with_weight(7, 1e-7),
    "another weight": lambda: with_weight(8, 1e-7),
    "minus zero": lambda: Net(lambda m, x: m.a(x) * -0.0, a=linear()),
    "zero": lambda: Net(lambda m, x: m.a(x) * 0.0, a=linear()),
    "operation": lambda: sequence(nn.Tanh()),
    "no operation": lambda: sequence(),
    "order": lambda: sequence(nn.Tanh(), nn.ReLU()),
    "other order": lambda: sequence(nn.ReLU(), nn.Tanh()),
    "path": lambda: nn.Sequential(nn.Sequential(linear()), nn.ReLU()),
    "setting": lambda: sequence(nn.LeakyReLU(0.1)),
    "other setting": lambda: sequence(nn.LeakyReLU(0.2)),
    "buffer": lambda: with_buffer(0.0),
    "other buffer": lambda: with_buffer(0.1),
    "number": lambda: Net(lambda m, x: m.a(x) + 1.0, a=linear()),
    "other number": lambda: Net(lambda m, x: m.a(x) + 1.5, a=linear()),
    "function": lambda: Net(lambda m, x: m.a(x) - 1.0, a=linear()),
    "method": lambda: Net(lambda m, x: m.a(x).relu(), a=linear()),
    "functional": lambda: Net(lambda m, x: F.relu(m.a(x)), a=linear()),
    "by name": lambda: Net(lambda m, x: F.leaky_relu(m.a(x), negative_slope=0.1), a=linear()),
    "other by name": lambda: Net(lambda m, x: F.leaky_relu(m.a(x), negative_slope=0.3), a=linear()),
    "slice": lambda: Net(lambda m, x: m.a(x)[:, 0:2], a=linear()),
    "other slice": lambda: Net(lambda m, x: m.a(x)[:, 1:3], a=linear()),
    "constant": lambda: Net(lambda m, x: m.a(x) * m.c, a=linear(), c=torch.tensor([1.0, 2.0, 3.0, 4.0]).double()),
    "other constant": lambda: Net(lambda m, x: m.a(x) * m.c, a=linear(), c=torch.tensor([1.0, 2.0, 4.0, 3.0]).double()),
    "shape": lambda: Net(lambda m, x: m.a(x).reshape(-1, 2, 2), a=linear()),
    "other shape": lambda: Net(lambda m, x: m.a(x).reshape(-1, 4, 1), a=linear()),
    "joined": lambda: Net(lambda m, x: torch.cat([m.a(x), x], 1), a=linear()),
    "joined otherwise": lambda: Net(lambda m, x: torch.cat([x, m.a(x)], 1), a=linear()),
    "used twice": lambda: Net(lambda m, x: m.a(m.a(x)), a=linear()),
    "hook": lambda: with_hook(1.0),
    "other hook": lambda: with_hook(2.0),
    "parametrized": lambda: parametrized(2.0),
    "otherwise parametrized": lambda: parametrized(3.0),
    "spectral": lambda: nn.Sequential(parametrizations.spectral_norm(linear())),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_every_other_network_has_another_digest() -> None:
    torch.manual_seed(0)
    found = {name: digest(make()) for name, make in DIFFERENT.items()}
    same = [(a, b) for a, b in itertools.combinations(found, 2) if found[a] == found[b]]
    assert same == []


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_captured_twice_copied_and_used_it_stays_the_same(name: str) -> None:
    model = DIFFERENT[name]()
    first = digest(model)
    model(torch.ones(3, 4).double())
    assert digest(model) == first
    if "hook" not in name:  # PyTorch cannot copy those
        assert digest(copy.deepcopy(model)) == first


OWN = """
import threading
import torch
from torch import nn

OFFSET = 1.0

def helper(x):
    return x * 2

class Scale(nn.Module):
    factor = 2.0

    def __init__(self, by):
        super().__init__()
        self._by, self.lock, self.function = by, threading.Lock(), lambda x, bias=1: x + bias

    def forward(self, x):
        return helper(x) * self.factor * self._by + OFFSET

def scaled(x):
    return helper(x) + OFFSET
"""
CHANGES = {
    "nothing": ("import threading", "import threading"),
    "global number": ("OFFSET = 1.0", "OFFSET = 1.5"),
    "function that is called": ("return x * 2", "return x * 3"),
    "attribute of the class": ("factor = 2.0", "factor = 3.0"),
    "forward": ("* self._by + OFFSET", "* self._by - OFFSET"),
    "default of a function": ("bias=1", "bias=2"),
    "function": ("return helper(x) + OFFSET", "return helper(x) - OFFSET"),
}


def call_of(target: Any) -> Network:
    """A network that makes one call, of an operation that only its author knows."""
    nodes = (Node("input", "", None, (), {}, True, (4,)), Node("own", "", target, (Ref(0),), {}, True, (4,)))
    return Network(nn.Identity(), nodes, 1, (4,), 13, None, torch.float32)  # type: ignore[arg-type]


def of_source(source: str, by: Any = 3.0) -> tuple[str, str]:
    """Digests of the module and of the function in it."""
    space: dict[str, Any] = {"__name__": "somewhere"}
    exec(compile(source, "somewhere.py", "exec"), space)
    return digest_network(call_of(space["Scale"](by))), digest_network(call_of(space["scaled"]))


@pytest.mark.parametrize("change", CHANGES)
def test_operations_of_ones_own_are_known_by_their_code(change: str) -> None:
    before, after = of_source(OWN), of_source(OWN.replace(*CHANGES[change]))
    assert (before == after) == (change == "nothing")


@pytest.mark.parametrize(
    "values",
    [
        (1, 2), (1, True), (1, 1.0), ("1", 1), (None, 0), ((1, 2), [1, 2]), ((1, (2, 3)), ((1, 2), 3)), ("ab", "ba"), ({1: 2}, {2: 1}),
        ({"a", "b"}, {"a", "c"}), (torch.float32, torch.float64), (b"a", b"b"), (slice(1), slice(2)), (complex(1, 2), complex(2, 1)),
        (np.arange(3), np.arange(3)[::-1]), (np.float32(1), np.float32(2)), (F.relu, F.elu), (torch.add, torch.sub), (..., None),
        (torch.Tensor.add, torch.Tensor.sub), (nn.ReLU, nn.Tanh), (F.max_pool2d, F.max_pool1d), (float("nan"), float("inf")),
        ({1: 2}.get, {1: 3}.get), (functools.partial(F.elu, alpha=1.0), functools.partial(F.elu, alpha=2.0)),
        (torch.ops.aten.relu.default, torch.ops.aten.tanh.default), (torch.Size([1]), torch.Size([2])),
    ],
    ids=lambda pair: type(pair[0]).__name__ if isinstance(pair, tuple) else None,
)  # fmt: skip
def test_settings_of_any_kind_are_told_apart(values: tuple[Any, Any]) -> None:
    digests = [of_source(OWN, by=value)[0] for value in (*values, copy.copy(values[0]))]
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


def test_what_contains_itself_is_written() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert of_source(OWN, by=loop) == of_source(OWN, by=loop) != of_source(OWN, by=[1])


@pytest.mark.parametrize("wild", WILD, ids=lambda wild: wild.name)
def test_every_architecture_has_one(wild: Any) -> None:
    model = wild.build().eval()
    example = torch.full((2, *wild.shape), 0.5)
    assert digest_network(ad.capture(model, example)) == digest_network(ad.capture(model, example))


def test_another_process_with_another_hash_seed_finds_the_same() -> None:
    code = "import test_digest as t; print(*(t.digest(t.DIFFERENT[n]()) for n in t.STABLE), t.of_source(t.OWN, {'a', 'b', 'c'}))"
    place = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": place}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    here = [*(digest(DIFFERENT[name]()) for name in STABLE), of_source(OWN, {"a", "b", "c"})]
    assert ran.stdout == " ".join(map(str, here)) + "\n"


STABLE = ("plain", "buffer", "by name", "constant", "parametrized", "slice")


TENSORS: dict[str, Callable[[], Tensor]] = {
    "float32": lambda: torch.arange(6.0),
    "float64": lambda: torch.arange(6.0).double(),
    "bfloat16": lambda: torch.arange(6.0).bfloat16(),
    "float16": lambda: torch.arange(6.0).half(),
    "complex64": lambda: torch.arange(6.0) * 1j,
    "conjugate": lambda: (torch.arange(6.0) * 1j).conj(),
    "int64": lambda: torch.arange(6),
    "bool": lambda: torch.arange(6) > 2,
    "float8": lambda: torch.arange(6.0).to(torch.float8_e4m3fn),
    "shape": lambda: torch.arange(6.0).reshape(2, 3),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "empty": lambda: torch.zeros(0, 3),
    "otherwise empty": lambda: torch.zeros(3, 0),
    "number": lambda: torch.tensor(3.0),
    "one": lambda: torch.tensor([3.0]),
    "expanded": lambda: torch.tensor([3.0]).expand(6),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "parameter": lambda: nn.Parameter(torch.arange(7.0)),
    "quantised": lambda: torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_tensors_of_every_kind_are_told_apart() -> None:
    found = {name: digest_tensors([make()]) for name, make in TENSORS.items()}
    assert len(set(found.values())) == len(found)
    assert found == {name: digest_tensors([make().clone()]) for name, make in TENSORS.items()}
    assert found["transposed"] == digest_tensors([TENSORS["transposed"]().contiguous()])


def test_tensors_without_values_are_refused() -> None:
    with pytest.raises(ad.ArgumentError, match="meta"):
        digest_tensors([torch.zeros(3, device="meta")])


def test_several_tensors_differ_from_one_with_their_values() -> None:
    a, b = torch.arange(3.0), torch.arange(3.0, 6.0)
    assert len({digest_tensors(t) for t in ([a, b], [b, a], [torch.cat([a, b])], [a], [], [a, b, torch.zeros(0)])}) == 6


def test_training_does_not_change_because_of_a_digest() -> None:
    layer = parametrizations.spectral_norm(linear())
    network = ad.capture(nn.Sequential(layer).eval(), torch.zeros(2, 4))
    layer.train()
    before = copy.deepcopy(layer.state_dict())
    assert digest_network(network) == digest_network(network)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


@pytest.mark.parametrize("entries", [10, LARGE])
def test_a_digest_beside_other_work_is_the_same(entries: int) -> None:
    tensors = torch.arange(entries, dtype=torch.float32), torch.tensor([3])
    with digesting(tensors) as digest:
        torch.ones(3).sum()
    assert digest() == digest_tensors(tensors) != digest_tensors(tensors[:1])


X, LABELS = torch.tensor([[0.25, 0.5]]), torch.tensor([1])
OURS: dict[str, Callable[[], Any]] = {
    "Box": lambda: ad.Box(X, X + 1),
    "L2Ball": lambda: ad.L2Ball(0.5),
    "LinfBall": lambda: ad.LinfBall(0.5, clip=(0.0, 1.0)),
    "set of L1Ball": lambda: ad.L1Ball(0.5).around(X),
    "Interval": lambda: ad.Interval(X, X + 1),
    "TopK": lambda: ad.TopK(LABELS, 2),
    "AllOf": lambda: ad.AllOf([ad.Label(LABELS), ad.Between(upper=3.0)]),
    "AnyOf": lambda: ad.AnyOf([ad.Positive([[1.0, 2.0]])]),
    **{
        name: lambda name=name: next(f for f in REGISTRY.builders if getattr(f, "__name__", "") == name)
        for name in ("limited_product", "variance_of", "power_above", "log_above", "differences")
    },
}
NOTED = {
    "Box": "6901e03cbb18a6d1",
    "L2Ball": "d0cfa6791a48fac6",
    "LinfBall": "2f7ce8e9ca266da6",
    "set of L1Ball": "6764dd5301083630",
    "Interval": "b7b4d32acfe8c40e",
    "TopK": "2bc48c4bbf92a452",
    "AllOf": "11a0abaf6cd3ec6e",
    "AnyOf": "b34613b04fb0676e",
    "limited_product": "70d2fd2fa69c00a3",
    "variance_of": "eafde8726bf48f0d",
    "power_above": "927f6d2a15c3822c",
    "log_above": "0115d8cb2805ef59",
    "differences": "7143cd90dc82d06e",
}
"""The first digits of these digests, from the time when digests still named the files that things of ours stand in."""


@pytest.mark.parametrize("name", NOTED)
def test_certificates_from_the_time_of_files_in_digests_stay_valid(name: str) -> None:
    assert digest_object(OURS[name]()).startswith(NOTED[name])


def moved(value: Any) -> Any:
    """A function or class that stands in another file now."""
    value.__module__ = "autodual.elsewhere"
    return value


def test_things_of_ours_may_move_to_another_file() -> None:
    def make() -> list[Any]:
        def function(x: Tensor) -> Tensor:
            return x

        class Set(ad.Box):
            pass

        function.__module__ = Set.__module__ = "autodual.sets.somewhere"
        return [function, Set]

    assert [digest_object(v) for v in make()] == [digest_object(moved(v)) for v in make()]
    assert digest_object(make()[1]) != digest_object(ad.Box)


def test_no_two_things_of_ours_that_digests_name_have_one_name() -> None:
    ours = {name for name in sys.modules if name.startswith("autodual.")}
    found: list[Any] = [t for t in REGISTRY.builders if getattr(t, "__module__", "") in ours]
    waiting: list[Any] = [ad.InputSet, ad.Perturbation, ad.Specification, ad.Interval, Norm]
    while waiting:
        found.append(waiting.pop())
        waiting += [kind for kind in found[-1].__subclasses__() if kind.__module__ in ours]
    names = [value.__qualname__ for value in found]
    assert len(set(names)) == len(names) > 20
