"""Capturing, bounding and certifying leave the user's model exactly as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import autodual as ad
from small import DOUBLE, Net, batch, mlp


def _normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(5, 3))


def _that_remembers() -> nn.Module:
    def compute(m: Any, x: Tensor) -> Tensor:
        m.calls = m.calls + 1
        m.features = m.body(x)
        return m.head(m.features)

    return Net(compute, body=mlp(4, 5, 5), head=nn.Linear(5, 3), calls=0)


def _pruned() -> nn.Module:
    model = mlp(4, 5, 3)
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    return model


def _frozen() -> nn.Module:
    model = mlp(4, 5, 3)
    model[0].requires_grad_(False)
    model[2].weight.grad = torch.ones(3, 5, dtype=DOUBLE)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: mlp(4, 5, 3),
    "batch-norm and dropout": _normalised,
    "stores what it saw": _that_remembers,
    "pruned": _pruned,
    "partly frozen, with gradients": _frozen,
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3))),
}

CALLS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "capture": lambda m, x, y: ad.capture(m, x),
    "bounds": lambda m, x, y: ad.bounds(m, ad.LinfBall(0.1).around(x)),
    "certify": lambda m, x, y: ad.certify(m, x, y, ad.LinfBall(0.1)),
    "certified_radius": lambda m, x, y: ad.certified_radius(m, x, y, ad.L2Ball(0.1), tol=0.05),
    "attack": lambda m, x, y: ad.attack(m, x, y, ad.L2Ball(0.1), steps=3),
    "robust loss": lambda m, x, y: ad.RobustCrossEntropy(m, ad.LinfBall(0.1))(x, y),
}


def _state(model: nn.Module) -> dict[str, Any]:
    """Everything that can be seen of a model, tensors copied, objects by identity."""
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        state[path] = (id(module), type(module), module.training, sorted(vars(module)))
        for name, value in vars(module).items():
            if not name.startswith("_"):
                state[f"{path}.{name} as an object"] = id(value) if isinstance(value, Tensor) else repr(value)
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        gradient = None if tensor.grad is None else tensor.grad.tolist()
        state[f"{path} as a tensor"] = (id(tensor), tensor.requires_grad, gradient, tensor.tolist(), tensor._version)
    return state


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_nothing_about_the_model_changes(make: Callable[[], nn.Module], call: Callable[..., Any]) -> None:
    model = make().to(DOUBLE).eval()
    x, labels = batch(3, 4), torch.tensor([0, 1, 2])
    model(x)  # what a first forward pass leaves behind is the model's own doing
    remembers, pruned = "features" in vars(model), "weight_mask" in dict(model.named_buffers()) or hasattr(model, "0")
    before = _state(model)
    call(model, x, labels)
    after = _state(model)
    if remembers or pruned:  # and so is what any later one replaces, as long as it is a tensor or a number
        before, after = ({k: v for k, v in s.items() if not k.endswith("as an object")} for s in (before, after))
        assert all(type(v) in (Tensor, int) for k, v in vars(model).items() if k in ("features", "calls"))
    assert before == after


def test_capture_alone_leaves_no_proxy_behind() -> None:
    model = _that_remembers()
    ad.capture(model, batch(1, 4))
    assert "features" not in vars(model)
    assert model.calls == 0
    pruned = _pruned()
    weight = pruned[0].weight
    ad.capture(pruned, batch(1, 4))
    assert pruned[0].weight is weight


def test_buffers_that_forward_assigns_are_left_as_they_were() -> None:
    def compute(m: Any, x: Tensor) -> Tensor:
        m.calls += 1
        m.average = 0.9 * m.average + 0.1 * x.mean()
        return m.fc(x)

    model = Net(compute, fc=nn.Linear(4, 3))
    model.register_buffer("calls", torch.tensor(0))
    model.register_buffer("average", torch.tensor(0.0, dtype=DOUBLE))
    before = _state(model)
    ad.capture(model, batch(2, 4))
    assert _state(model) == before
    x = batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))
    assert model.calls == 3, "twice to compare, at x and at a corner, once just now"


def test_a_refused_model_is_left_as_it_was() -> None:
    def compute(m: Any, x: Tensor) -> Tensor:
        m.seen = m.fc(x)
        return torch.sin(m.seen)

    model = Net(compute, fc=nn.Linear(4, 3))
    before = _state(model)
    with pytest.raises(ad.UnsupportedOperationError):
        ad.capture(model, batch(1, 4))
    assert _state(model) == before


def test_capture_in_training_mode_moves_no_statistics() -> None:
    model = _normalised().to(DOUBLE).train()
    before = _state(model)
    ad.capture(model, batch(4, 4))
    assert _state(model) == before


def test_the_model_still_trains_and_saves_afterwards() -> None:
    model = _normalised().to(DOUBLE).eval()
    names = list(model.state_dict())
    ad.certify(model, batch(2, 4), torch.tensor([0, 1]), ad.LinfBall(0.1))
    model.train()
    model(batch(4, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert list(model.state_dict()) == names
