"""A branch on shapes is resolved at capture; a branch on values is refused, with the path of the module that does it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, Net, batch, mlp


def _while(m: Any, x: Tensor) -> Tensor:
    while x.norm() > 1:
        x = x / 2
    return x


def _loop(m: Any, x: Tensor) -> Tensor:
    total = 0
    for row in x:
        total = total + row
    return total


DEPENDS_ON_VALUES: dict[str, Callable[[Any, Tensor], Any]] = {
    "if": lambda m, x: x if x.sum() > 0 else -x,
    "if with and": lambda m, x: x if x.min() >= 0 and x.max() <= 1 else x.clamp(0, 1),
    "while": _while,
    "loop over examples": _loop,
    "any": lambda m, x: x * 2 if (x > 0.5).any() else x,
    "bool()": lambda m, x: x * bool(x.sum()),
    "not": lambda m, x: x if not x.sum() else x + 1,
}


@pytest.mark.parametrize("compute", DEPENDS_ON_VALUES.values(), ids=DEPENDS_ON_VALUES.keys())
def test_branches_on_values_are_refused_with_the_path(compute: Callable[[Any, Tensor], Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 4, dtype=DOUBLE), nn.Sequential(Net(compute)))
    with pytest.raises(ad.CaptureError, match=r"^1\.0: control flow that depends on the input's values"):
        ad.capture(model, batch(2, 4))


@pytest.mark.parametrize("compute", DEPENDS_ON_VALUES.values(), ids=DEPENDS_ON_VALUES.keys())
def test_in_the_model_itself_the_path_is_model(compute: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(ad.CaptureError, match=r"^model: control flow"):
        ad.capture(Net(compute), batch(2, 4))


NUMBERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "float()": lambda m, x: x * float(x[0, 0]),
    "int()": lambda m, x: x[:, : int(x.sum())],
    "item()": lambda m, x: x * x.sum().item(),
    "tolist()": lambda m, x: x + torch.tensor(x.tolist()),
    "numpy()": lambda m, x: x + torch.from_numpy(x.numpy()),
    "boolean mask": lambda m, x: x[x > 0],
    "where": lambda m, x: torch.where(x > 0, x, -x),
    "gather": lambda m, x: x.gather(1, x.argmax(1, keepdim=True)),
}


@pytest.mark.parametrize("compute", NUMBERS.values(), ids=NUMBERS.keys())
def test_values_that_leave_the_graph_are_refused(compute: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(ad.CaptureError):
        ad.bounds(Net(compute), ad.LinfBall(0.1).around(batch(1, 4)))


SHAPES: dict[str, Callable[[Any, Tensor], Any]] = {
    "nonzero": lambda m, x: x * 2 if len(torch.nonzero(x > 6)) else x,
    "nonzero as a method": lambda m, x: x * 2 if (x > 6).nonzero().shape[0] else x,
    "where of one argument": lambda m, x: x * 2 if torch.where(x > 6)[0].numel() else x,
    "mask": lambda m, x: x * 2 if x[x > 6].numel() else x,
    "mask among indices": lambda m, x: x * 2 if x[x[:, 0] > 6, 1].shape[0] else x,
    "masked_select": lambda m, x: x * 2 if x.masked_select(x > 6).numel() else x,
    "unique": lambda m, x: x * 2 if (x > 6).unique().numel() > 1 else x,
    "argwhere": lambda m, x: x * 2 if torch.argwhere(x > 6).size(0) else x,
    "bincount": lambda m, x: x * 2 if (x > 6).long().flatten().bincount().numel() > 1 else x,
    "with tensors only": lambda m, x: x * 2 if isinstance(x, Tensor) and len(torch.nonzero(x > 6)) else x,
    "tensor_split": lambda m, x: x * 2 if torch.tensor_split(torch.ones(9), x[:, 0].long())[0].numel() > 6 else x,
    "one_hot": lambda m, x: x * 2 if nn.functional.one_hot((x > 6).long()).shape[-1] > 1 else x,
    "size of a repetition": lambda m, x: x * 2 if torch.ones(1).repeat((x > 6).sum()).numel() else x,
    "end of a slice": lambda m, x: x * 2 if torch.ones(9)[: (x > 6).sum()].numel() else x,
    "sparse": lambda m, x: x * 2 if (x > 6).to_sparse().indices().shape[1] else x,
    "sparse rows": lambda m, x: x * 2 if torch.relu(x - 6).to_sparse_csr().values().numel() else x,
    "sparse, with tensors only": lambda m, x: (
        x * 2 if isinstance(x, Tensor) and len(torch.relu(x - 6).to_sparse()._values()) else x
    ),
    "size of ones": lambda m, x: x * 2 if len(torch.ones((x > 6).sum())) else x,
    "size of an empty tensor": lambda m, x: x * 2 if torch.empty((x > 6).sum()).shape[0] else x,
    "size in a vector of one number": lambda m, x: x * 2 if len(torch.zeros((x > 6).sum().reshape(1))) else x,
    "repetition by a vector": lambda m, x: x * 2 if len(torch.ones(1).repeat((x > 6).sum().reshape(1))) else x,
    "dimension of a concatenation": lambda m, x: (
        x * 2 if len(torch.cat([torch.ones(1, 1)] * 2, (x < 6).all().long())) > 1 else x
    ),
    "dimension of a stack": lambda m, x: (
        x * 2 if len(torch.stack([torch.ones(1)] * 2, dim=(x < 6).all().long())) > 1 else x
    ),
    "nonzero of aten": lambda m, x: x * 2 if len(torch.ops.aten.nonzero.default(x > 6)) else x,
    "index of aten": lambda m, x: x * 2 if len(torch.ops.aten.index(x, [x > 6])) else x,
    "size of a window": lambda m, x: x * 2 if torch.hann_window((x > 6).sum()).numel() else x,
    "end of a range": lambda m, x: x * 2 if torch.arange((x > 6).sum()).numel() else x,
}


@pytest.mark.parametrize("compute", SHAPES.values(), ids=SHAPES.keys())
def test_shapes_that_tell_values_are_refused(compute: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(ad.CaptureError):
        ad.capture(Net(compute), batch(2, 4))


def test_shapes_that_tell_values_of_parameters_are_fine() -> None:
    model, x = (
        Net(lambda m, x: x[:, : len(torch.nonzero(m.w))] + m.w[m.w > 0], w=nn.Parameter(torch.ones(3))),
        batch(2, 4),
    )
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def _facts(m: Any, x: Tensor) -> Tensor:
    assert x.dim() == x.ndim == x.ndimension() == 3
    assert x.shape[1:] == (2, 4)
    assert x.size(-1) == 4
    assert x.size()[1] == 2
    assert x.numel() == x.nelement() == len(x) * 8
    assert x.is_floating_point()
    assert x.is_contiguous()
    assert not x.is_cuda
    assert not x.requires_grad
    assert x.stride() == (8, 4, 1)
    assert x.device.type == "cpu"
    assert torch.is_floating_point(x)
    assert hasattr(x, "shape")
    assert not hasattr(x, "no_such_thing")
    n, c, w = x.shape
    y = x.to(x.dtype).reshape(n, c * w)
    return m.fc(y) if x.dtype == DOUBLE else y


def test_shape_type_and_device_are_plain_facts() -> None:
    model, x = Net(_facts, fc=nn.Linear(8, 3)), batch(3, 2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def _unpacked(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return a, b, c


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda m, x: x @ m.w.T, id="w.T"),
        pytest.param(lambda m, x: torch.cat([(x * row).sum(1, keepdim=True) for row in m.w], 1), id="rows"),
        pytest.param(lambda m, x: torch.cat([(x * row).sum(1, True) for row in _unpacked(*m.w)], 1), id="unpacked"),
        pytest.param(lambda m, x: x @ m.w.mT, id="w.mT"),
        pytest.param(lambda m, x: x @ m.w.data.t(), id="w.data"),
        pytest.param(lambda m, x: torch.matmul(x, m.w.transpose(0, 1)), id="transpose"),
    ],
)
def test_tensors_behind_attributes_of_parameters_are_followed(compute: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = Net(compute, w=nn.Parameter(torch.randn(3, 4))), batch(2, 4)
    network = ad.capture(model, x)
    model.w.data.mul_(2)
    torch.testing.assert_close(ad.bounds(network, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def test_a_branch_on_being_a_tensor_is_noticed() -> None:
    """A proxy is no tensor (PyTorch would read it as one, and crash), so such a branch goes the wrong way."""
    model = Net(lambda m, x: x if isinstance(x, Tensor) else -x)
    with pytest.raises(ad.CaptureError, match="on tensors instead of proxies"):
        ad.bounds(model, ad.LinfBall(0.1).around(batch(2, 4)))


@pytest.mark.parametrize(
    "branch",
    [
        pytest.param(lambda m, x: x * 2 if type(x) is Tensor else x, id="another call"),
        pytest.param(lambda m, x: x * (2 if isinstance(x, Tensor) else 3), id="another number"),
        pytest.param(lambda m, x: x * torch.full((4,), 2.0 if isinstance(x, Tensor) else 3.0), id="another constant"),
        pytest.param(lambda m, x: nn.functional.linear(x, m.w if type(x) is Tensor else -m.w), id="another weight"),
    ],
)
def test_a_branch_on_being_a_tensor_is_noticed_behind_saturation(branch: Callable[[Any, Tensor], Tensor]) -> None:
    """Where every activation is saturated, outputs do not tell; what the calls before have made does."""
    saturated = nn.Linear(4, 3)
    with torch.no_grad():
        saturated.bias.fill_(1e4)
    model = (
        nn.Sequential(Net(branch, w=nn.Parameter(torch.ones(4, 4))), saturated, nn.Tanh(), nn.Linear(3, 2))
        .eval()
        .to(DOUBLE)
    )
    with pytest.raises(ad.CaptureError, match="on tensors instead of proxies"):
        ad.certify(model, batch(2, 4), torch.tensor([0, 1]), ad.LinfBall(0.0))


def test_calls_may_be_many_where_proxies_make_one() -> None:
    """What the two runs have made is compared by value where they are not call for call the same."""

    def compute(m: Any, x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=1)
        a, b = torch.stack([low, high], dim=1).unbind(1)
        return m.fc(torch.cat([a, b.relu()], dim=1) + sum([a.mean(1, keepdim=True), x.amax(1, keepdim=True)]))

    model, x = Net(compute, fc=nn.Linear(4, 3)), batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def test_checkpointed_parts_are_followed() -> None:
    def compute(m: Any, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(m.body, x, use_reentrant=False)

    model, x = Net(compute, body=mlp(4, 5, 3)), batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


class _InInferenceMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3, dtype=DOUBLE)

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).relu() + 1


def test_a_forward_in_inference_mode_is_followed() -> None:
    model, x = _InInferenceMode().eval(), batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x).clone())


def test_capture_works_inside_inference_mode() -> None:
    model, x = nn.Linear(4, 3, dtype=DOUBLE), batch(2, 4)
    with torch.inference_mode():
        inside = ad.certify(model, x.clone(), torch.tensor([0, 1]), ad.LinfBall(0.1))
    outside = ad.certify(model, x, torch.tensor([0, 1]), ad.LinfBall(0.1))
    assert torch.equal(inside.margins, outside.margins)
