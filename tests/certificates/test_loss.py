"""The robust loss bounds the cross-entropy of every allowed input, equals the plain one without room, and trains."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autodual as ad
from small import DOUBLE, ENGINES, batch, convnet, mlp

every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
X, LABELS = batch(6, 6), torch.tensor([0, 1, 2, 0, 1, 2])


def _normalised() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU(),
        nn.Linear(8, 3),
    ).to(DOUBLE)  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": lambda: mlp(6, 10, 8, 3), "batch-norm": _normalised}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@every_engine
@every_model
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_without_perturbation_it_is_the_cross_entropy(
    make: Callable[[], nn.Module], training: bool, engine: ad.BoundEngine
) -> None:
    model = make().train(training)
    twin = copy.deepcopy(model)
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.0), engine)(X, LABELS)
    plain = F.cross_entropy(twin(X), LABELS)
    torch.testing.assert_close(loss, plain)
    for (name, ours), (_, expected) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(ours, expected, msg=lambda text, name=name: f"{name}, moved once: {text}")
    ours = torch.autograd.grad(loss, list(model.parameters()))
    for a, b in zip(ours, torch.autograd.grad(plain, list(twin.parameters())), strict=True):
        torch.testing.assert_close(a, b)


def test_running_statistics_move_once_per_call() -> None:
    model = _normalised().train()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1), ad.Dual(max_bytes=20_000))
    for step in (1, 2, 3):
        loss(X, LABELS)
        assert model[1].num_batches_tracked == step


def test_running_statistics_stand_still_in_evaluation() -> None:
    model = _normalised().eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    ad.RobustCrossEntropy(model, ad.LinfBall(0.1))(X, LABELS)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@every_engine
@every_model
@pytest.mark.parametrize(
    "ball", [ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.L2Ball(0.2), ad.L1Ball(0.4)], ids=lambda b: type(b).__name__
)
def test_no_attack_has_a_larger_loss(
    make: Callable[[], nn.Module], ball: ad.Perturbation, engine: ad.BoundEngine
) -> None:
    model = make().eval()
    loss = ad.RobustCrossEntropy(model, ball, engine)(X, LABELS)
    found = ad.attack(model, X, LABELS, ball, restarts=3)
    assert loss >= F.cross_entropy(model(found.examples), LABELS)
    for _ in range(10):
        assert loss >= F.cross_entropy(model(ball.around(X).sample()), LABELS)


@every_engine
def test_worst_scores_are_the_negative_margins(engine: ad.BoundEngine) -> None:
    model = mlp(6, 10, 8, 3)
    ball = ad.LinfBall(0.1)
    scores = ad.RobustCrossEntropy(model, ball, engine).worst_scores(X, LABELS)
    margins = ad.certify(model, X, LABELS, ball, engine).margins
    others = margins.isfinite()
    torch.testing.assert_close(scores[others], -margins[others])
    torch.testing.assert_close(scores[~others], torch.zeros(6, dtype=DOUBLE))


@every_engine
@every_model
def test_gradients_are_right(make: Callable[[], nn.Module], engine: ad.BoundEngine) -> None:
    """Against central differences along a random direction."""
    model = make().train()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.05), engine)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss(X, LABELS), parameters)
    direction = [torch.randn_like(p) for p in parameters]
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    values, step = [], 1e-6
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.add_(d, alpha=sign * step)
            values.append(loss(X, LABELS))
            for p, d in zip(parameters, direction, strict=True):
                p.sub_(d, alpha=sign * step)
    torch.testing.assert_close((values[0] - values[1]) / (2 * step), slope, rtol=1e-4, atol=1e-6)


@every_engine
@every_model
def test_twenty_steps_of_adam_lower_it(make: Callable[[], nn.Module], engine: ad.BoundEngine) -> None:
    model = make().train()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.05), engine)
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.03)
    history = []
    for _ in range(20):
        optimiser.zero_grad()
        value = loss(X, LABELS)
        value.backward()
        optimiser.step()
        history.append(value.item())
    assert history[-1] < 0.8 * history[0]


def test_it_owns_nothing_but_the_model() -> None:
    model = _normalised()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1))
    loss(X, LABELS)
    assert [id(p) for p in loss.parameters()] == [id(p) for p in model.parameters()]
    assert [id(b) for b in loss.buffers()] == [id(b) for b in model.buffers()]
    assert list(loss.state_dict()) == [f"model.{name}" for name in model.state_dict()]


def test_a_copy_trains_alone() -> None:
    loss = ad.RobustCrossEntropy(mlp(6, 8, 3), ad.LinfBall(0.1))
    before = loss(X, LABELS)
    twin = copy.deepcopy(loss)
    with torch.no_grad():
        for p in twin.model.parameters():
            p.zero_()
    assert torch.equal(loss(X, LABELS), before)
    torch.testing.assert_close(twin(X, LABELS), torch.tensor(3.0, dtype=DOUBLE).log())


def test_changes_of_mode_shape_and_modules_are_followed() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(2, 3)).to(DOUBLE).train()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.0))
    for training, size in ((True, 6), (False, 6), (False, 8), (True, 8)):
        model.train(training)
        x = batch(6, 1, size, size)
        torch.testing.assert_close(loss(x, LABELS), F.cross_entropy(copy.deepcopy(model)(x), LABELS))
    model.train()
    model[0][1].eval()  # frozen statistics in a model that trains
    x = batch(6, 1, 6, 6)
    torch.testing.assert_close(loss(x, LABELS), F.cross_entropy(copy.deepcopy(model)(x), LABELS))
    model[1] = nn.Linear(2, 3, dtype=DOUBLE)
    torch.testing.assert_close(loss(x, LABELS), F.cross_entropy(copy.deepcopy(model)(x), LABELS))


def test_single_precision_and_images() -> None:
    model = convnet(torch.float32)
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.01))(batch(6, 1, 6, 6, dtype=torch.float32), LABELS)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_may_be_any_integers(dtype: torch.dtype) -> None:
    loss = ad.RobustCrossEntropy(mlp(6, 8, 3), ad.LinfBall(0.1))
    assert torch.equal(loss(X, LABELS.to(dtype)), loss(X, LABELS))


def test_active_dropout_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).to(DOUBLE).train()
    with pytest.raises(ad.ArgumentError, match="1: dropout is active"):
        ad.RobustCrossEntropy(model, ad.LinfBall(0.1))(X, LABELS)


COPIES: dict[str, Callable[[ad.RobustCrossEntropy], ad.RobustCrossEntropy]] = {
    "pickle": lambda loss: pickle.loads(pickle.dumps(loss)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "torch.save": lambda loss: _saved_and_loaded(loss),
}


def _saved_and_loaded(loss: ad.RobustCrossEntropy) -> ad.RobustCrossEntropy:
    stream = io.BytesIO()
    torch.save(loss, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("engine", [ad.Dual(), ad.IBP(), ad.Projected(8)], ids=repr)
def test_a_loss_that_was_used_can_be_copied(how: str, engine: ad.BoundEngine) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1), engine)
    x, labels = torch.rand(5, 4).double(), torch.tensor([0, 1, 2, 0, 1])
    loss(x, labels)
    again = COPIES[how](loss)
    torch.manual_seed(0)
    before = loss(x, labels)
    torch.manual_seed(0)
    assert torch.equal(again(x, labels), before)
    if how != "copy":  # which shares the model
        with torch.no_grad():
            again.model[0].weight.mul_(2)  # type: ignore[index, union-attr]
        torch.manual_seed(0)
        assert not torch.equal(again(x, labels), before)
        torch.manual_seed(0)
        assert torch.equal(loss(x, labels), before)


class Attention(nn.Module):
    """Scores that a large ball makes so large that exponentials overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class TestBoundsThatOverflow:
    X, LABELS = batch(4, 5, 4).float(), torch.tensor([0, 1, 2, 0])

    @pytest.mark.parametrize("engine", [ad.IBP(), ad.Dual(), ad.Crown(), ad.Projected(k=3)], ids=repr)
    def test_the_loss_is_infinite_and_a_warning_says_what_overflows(self, engine: ad.BoundEngine) -> None:
        torch.manual_seed(0)
        loss = ad.RobustCrossEntropy(Attention(), ad.LinfBall(30.0), engine)
        told = r"the robust loss is infinite: what enters attention.* has no finite bounds; before it, what enters attention\.exp lies"
        with pytest.warns(UserWarning, match=told) as warned:
            assert loss(self.X, self.LABELS).item() == torch.inf
        assert ("such as Dual()" in str(warned[0].message)) == isinstance(engine, ad.IBP)
        assert warned[0].filename == __file__
        assert loss(self.X, self.LABELS).item() == torch.inf  # said once
        assert "softmax" in str(loss.why_not_finite(self.X, self.LABELS))

    def test_finite_bounds_have_nothing_to_say(self) -> None:
        loss = ad.RobustCrossEntropy(Attention(), ad.LinfBall(0.01), ad.IBP())
        assert loss(self.X, self.LABELS).isfinite()
        assert loss.why_not_finite(self.X, self.LABELS) is None

    def test_a_parameter_that_is_spoilt_is_named(self) -> None:
        model = mlp(6, 10, 3)
        with torch.no_grad():
            model[2].bias[0] = torch.nan
        loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.01))
        with pytest.warns(UserWarning, match=r"infinite: the parameter 2\.bias is not finite"):
            assert loss(X, LABELS).item() == torch.inf

    def test_to_ask_leaves_statistics_alone(self) -> None:
        model = _normalised().train()
        before = copy.deepcopy(model.state_dict())
        ad.RobustCrossEntropy(model, ad.LinfBall(1e30)).why_not_finite(X, LABELS)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
