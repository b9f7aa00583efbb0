"""The training step with projections: compiled whole, randomness from outside, gradients that are right."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import autodual as ad
from small import batch, mlp


class Mixed(nn.Module):
    """Normalisation, batch norm in training, a skip connection, a smooth activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, 1, 1), nn.Linear(4 * 25, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first((x - 0.4) / 0.3))
        return self.last(torch.relu(self.norm(self.second(x)) + x).flatten(1))


def _plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, 1, 1),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.Linear(100, 5),
    )


BALLS = [ad.LinfBall(0.05, clip=(0.0, 1.0)), ad.L2Ball(0.3), ad.L1Ball(0.3)]
X, LABELS = torch.rand(6, 1, 10, 10, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 5


@pytest.mark.parametrize(("ball", "merged"), list(zip(BALLS, (True, False, True), strict=True)), ids=str)
def test_the_step_compiles_as_one_graph(ball: ad.Perturbation, merged: bool) -> None:
    """Compilers take their time: other norms than l-infinity, and streams per term, on a network of linear layers."""
    torch.manual_seed(0)
    linear = [nn.Flatten(), nn.Linear(100, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5)]
    _check_compiles(Mixed() if ball is BALLS[0] else nn.Sequential(*linear), ball, ad.Projected(9, merged))


@pytest.mark.slow
@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
@pytest.mark.parametrize("ball", BALLS, ids=repr)
@pytest.mark.parametrize("make", [_plain, Mixed])
def test_every_step_compiles_as_one_graph(make: type[nn.Module], ball: ad.Perturbation, merged: bool) -> None:
    torch.manual_seed(0)
    _check_compiles(make(), ball, ad.Projected(9, merged))


@pytest.mark.slow
def test_a_step_with_smooth_activations_and_many_projections_compiles() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 90), nn.Tanh(), nn.Linear(90, 60), nn.ReLU(), nn.Linear(60, 5))
    _check_compiles(model, ad.LinfBall(0.05), ad.Projected(130))


def _check_compiles(model: nn.Module, ball: ad.Perturbation, engine: ad.Projected) -> None:
    torch.compiler.reset()
    loss = ad.RobustCrossEntropy(model, ball, engine)
    draws = loss.draw(X)
    plain = loss(X, LABELS, draws)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(X, LABELS, draws)
    torch.testing.assert_close(compiled, plain)
    parameters = list(model.parameters())
    for a, b in zip(torch.autograd.grad(compiled, parameters), torch.autograd.grad(plain, parameters), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_compiled_step_takes_new_draws_and_new_weights_without_compiling_again() -> None:
    torch.compiler.reset()
    model = _plain()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.05), ad.Projected(9, generator=torch.Generator()))
    draws, compiles = loss.draw(X), list[int]()

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        compiles.append(len(inputs))
        return graph

    step = torch.compile(loss, fullgraph=True, backend=backend)
    losses = []
    for _ in range(3):
        losses.append(step(X, LABELS, draws).item())
        assert losses[-1] == pytest.approx(loss(X, LABELS, draws).item(), rel=1e-5)
        draws.renew_()
    with torch.no_grad():
        model[0].weight.mul_(2.0)  # type: ignore[index, operator, union-attr]
    assert step(X, LABELS, draws).item() == pytest.approx(loss(X, LABELS, draws).item(), rel=1e-5)
    assert len(set(losses)) == 3
    assert len(compiles) == 1


def test_compiling_before_the_model_is_captured_says_what_to_do() -> None:
    torch.compiler.reset()
    loss = ad.RobustCrossEntropy(_plain(), ad.LinfBall(0.05), ad.Projected(9))
    with pytest.raises(Exception, match="once before compiling"):
        torch.compile(loss, fullgraph=True, backend="aot_eager")(X, LABELS)


@pytest.mark.parametrize("estimator", [ad.Median(), ad.GeometricMean(), ad.MaximumLikelihood()], ids=repr)
@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
def test_gradients_are_those_of_finite_differences(merged: bool, estimator: ad.Estimator) -> None:
    torch.manual_seed(0)
    model, x, labels = mlp(6, 20, 20, 3), batch(4, 6), torch.arange(4) % 3
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1), ad.Projected(15, merged, estimator))
    draws, weight = loss.draw(x), next(model.parameters())
    direction = torch.randn_like(weight)
    (gradient,) = torch.autograd.grad(loss(x, labels, draws), weight)
    step = 1e-6
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            weight.add_(direction, alpha=sign * step)
            ends.append(loss(x, labels, draws).item())
            weight.add_(direction, alpha=-sign * step)
    assert (gradient * direction).sum().item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3)


@pytest.mark.parametrize("estimator", [ad.Median(), ad.MaximumLikelihood(30)], ids=repr)
@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
@pytest.mark.parametrize("ball", [ad.LinfBall(0.3), ad.LinfBall(0.3, clip=(0.0, 1.0)), ad.L2Ball(0.5)], ids=repr)
def test_second_derivatives_are_those_of_finite_differences(
    ball: ad.Perturbation, merged: bool, estimator: ad.Estimator
) -> None:
    model, x, labels = mlp(6, 40, 30, 20, 3), batch(4, 6), torch.arange(4) % 3
    loss = ad.RobustCrossEntropy(model, ball, ad.Projected(7, merged, estimator, exact_first=False))
    draws, weight = loss.draw(x), model[2].weight
    wanted = [x.requires_grad_(), weight]
    directions = [torch.randn_like(w) for w in wanted]

    def slopes(create_graph: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(x, labels, draws), wanted, create_graph=create_graph)

    along = sum((g * d).sum() for g, d in zip(slopes(True), directions, strict=True))
    found = torch.autograd.grad(along, wanted)
    step, ends = 1e-6, []
    for sign in (1, -2):
        with torch.no_grad():
            for w, d in zip(wanted, directions, strict=True):
                w.add_(d, alpha=sign * step)
        ends.append(slopes())
    for a, high, low in zip(found, *ends, strict=True):
        torch.testing.assert_close(a, (high - low) / (2 * step), rtol=1e-4, atol=1e-5)


def test_second_derivatives_of_the_default_are_refused() -> None:
    model, x, labels = mlp(6, 40, 30, 3), batch(4, 6), torch.arange(4) % 3
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.3), ad.Projected(7))
    slopes = torch.autograd.grad(loss(x, labels), list(model.parameters()), create_graph=True)
    with pytest.raises(ad.ArgumentError, match="second derivatives"):
        sum(s.square().sum() for s in slopes).backward()


def test_the_same_generator_state_gives_the_same_loss() -> None:
    model = _plain()
    found = [
        ad.RobustCrossEntropy(model, BALLS[0], ad.Projected(9, generator=torch.Generator().manual_seed(seed)))(
            X, LABELS
        )
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("ball", [*BALLS, ad.LinfBall(0.05)], ids=repr)
def test_renewed_draws_go_on_with_the_generator_of_the_engine(ball: ad.Perturbation) -> None:
    model, found = _plain(), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        loss = ad.RobustCrossEntropy(model, ball, ad.Projected(9, generator=torch.Generator().manual_seed(5)))
        draws = loss.draw(X)
        found.append([loss(X, LABELS, draws).item(), *(loss(X, LABELS, draws.renew_()).item() for _ in range(2))])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_draws_of_the_global_numbers_are_renewed_from_these_and_others_when_asked() -> None:
    loss = ad.RobustCrossEntropy(_plain(), BALLS[0], ad.Projected(9))
    draws = loss.draw(X)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(loss(X, LABELS, draws.renew_()).item())
    assert found[0] == found[1] != found[2]
    own = ad.RobustCrossEntropy(_plain(), BALLS[0], ad.Projected(9, generator=torch.Generator())).draw(X)
    before = own.generator.get_state()
    own.renew_(torch.Generator().manual_seed(1))
    assert torch.equal(own.generator.get_state(), before)
    assert "generator" not in repr(own)


def test_at_eps_zero_it_is_the_usual_loss() -> None:
    model = _plain()
    found = ad.RobustCrossEntropy(model, ad.LinfBall(0.0), ad.Projected(9))(X, LABELS)
    torch.testing.assert_close(found, nn.functional.cross_entropy(model(X), LABELS))


class Noise(nn.Module):
    """Weights that are drawn anew whenever they are read in training."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + 0.01 * torch.randn_like(weight) if self.training else weight


def _counting() -> nn.Module:
    model = Mixed()
    parametrizations.spectral_norm(model.first)
    parametrize.register_parametrization(model.last, "weight", Noise())
    return model.train()


def test_draws_leave_the_model_and_the_global_numbers_as_they_were() -> None:
    model = _counting()
    loss = ad.RobustCrossEntropy(model, BALLS[0], ad.Projected(9, generator=torch.Generator().manual_seed(1)))
    before = {name: (id(b), b.clone(), b._version) for name, b in model.named_buffers()}
    state = torch.random.get_rng_state()
    draws = loss.draw(X)
    assert len(before) > 3
    for name, buffer in model.named_buffers():
        assert (id(buffer), buffer._version) == before[name][::2], name
        assert torch.equal(buffer, before[name][1]), name
    assert torch.equal(torch.random.get_rng_state(), state)
    loss(X, LABELS, draws)
    assert all(not torch.equal(buffer, before[name][1]) for name, buffer in model.named_buffers())


def test_draws_of_another_batch_or_ball_are_refused() -> None:
    loss = ad.RobustCrossEntropy(_plain(), ad.LinfBall(0.05), ad.Projected(9))
    draws = loss.draw(X)
    with pytest.raises(ad.ArgumentError, match="another network, batch size or kind of ball"):
        loss(X[:3], LABELS[:3], draws)
    loss.ball = ad.L2Ball(0.1)
    with pytest.raises(ad.ArgumentError, match="another network, batch size or kind of ball"):
        loss(X, LABELS, draws)
    with pytest.raises(ad.ArgumentError, match=r"must come from draw\(\)"):
        loss(X, LABELS, torch.rand(3))  # type: ignore[arg-type]


def test_draws_for_an_engine_without_projections_are_refused() -> None:
    loss = ad.RobustCrossEntropy(_plain(), ad.LinfBall(0.05), ad.Dual())
    with pytest.raises(ad.ArgumentError, match=r"draws are for the engine Projected\(\)"):
        loss.draw(X)


def test_a_generator_that_is_none_is_refused() -> None:
    with pytest.raises(ad.ArgumentError, match=r"generator must be a torch\.Generator"):
        ad.Projected(9, generator=3)  # type: ignore[arg-type]


def test_a_generator_on_another_device_is_refused() -> None:
    class Elsewhere(torch.Generator):
        device = torch.device("cuda")

    loss = ad.RobustCrossEntropy(_plain(), ad.LinfBall(0.05), ad.Projected(9, generator=Elsewhere()))
    with pytest.raises(
        ad.ArgumentError, match=r"generator is on cuda, but the input is on cpu; make it with torch\.Generator"
    ):
        loss(X, LABELS)


@pytest.mark.parametrize("k", [100 + 100 + 100, 10**9])
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_more_projections_than_generators_mean_exact_bounds(ball: ad.Perturbation, k: int) -> None:
    model = _plain()
    loss = ad.RobustCrossEntropy(model, ball, ad.Projected(k))
    with pytest.warns(UserWarning, match="no fewer than the 300 generators that they stand for: using exact bounds"):
        draws = loss.draw(X)
    found = loss(X, LABELS, draws.renew_())
    torch.testing.assert_close(found, ad.RobustCrossEntropy(model, ball)(X, LABELS))
    with pytest.warns(UserWarning, match="using exact bounds"):
        torch.testing.assert_close(loss(X, LABELS), found)


@pytest.mark.slow
def test_exact_bounds_instead_of_projections_compile_with_and_without_gradients() -> None:
    torch.compiler.reset()
    loss = ad.RobustCrossEntropy(_plain(), ad.L2Ball(0.3), ad.Projected(10**9))
    with pytest.warns(UserWarning, match="using exact bounds"):
        draws = loss.draw(X)
    step = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(step(X, LABELS, draws), loss(X, LABELS, draws))
    with torch.no_grad():
        torch.testing.assert_close(step(X, LABELS, draws), loss(X, LABELS, draws))
