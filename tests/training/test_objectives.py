"""Every loss and every term of it is its formula, written down plainly, in float64; with all options off it is what it was before."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.certificates.attacks import worst_inputs
from autodual.engines.ibp import IntervalBounds
from autodual.engines.prepare import dual_network
from autodual.models import Normalize, cnn5
from autodual.runs.config import TrainConfig
from autodual.runs.recipes import options
from autodual.sets import Perturbation
from autodual.training.objectives import (
    PGD,
    Descent,
    Objective,
    TrainingAttack,
    absolute_weights,
    evaluating,
    interval_regularisers,
    mixed,
)
from autodual.training.setup import Pace, make_objective
from small import DOUBLE, batch, mlp

X, LABELS, EPS = batch(6, 4).sigmoid(), torch.arange(6) % 3, 0.1
BALL = ad.LinfBall(EPS, clip=(0.0, 1.0))
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@dataclass(frozen=True)
class Given(TrainingAttack):
    """Finds what it is given, and notes in which modes the model was."""

    points: Tensor
    modes: list[bool] = field(default_factory=list)
    capturable = True

    def search(
        self, model: nn.Module, x: Tensor, labels: Tensor, ball: Perturbation, generator: torch.Generator | None
    ) -> Tensor:
        self.modes.append(any(m.training for m in model.modules()))
        return self.points


FOUND = (X + 0.08 * batch(6, 4, seed=5).sign()).clamp(0, 1)


def _normed() -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)
    ).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    return model.train()


def _plain(
    model: nn.Sequential, at: Tensor, low: Tensor, high: Tensor, points: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Worst scores over boxes by interval arithmetic, scores at points, and [l, u] at ReLUs; batch norm by the statistics of `at`."""
    entering = []
    for layer in model[:-1]:
        if isinstance(layer, nn.Linear):
            positive, negative = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
            low, high = (low @ positive.T + high @ negative.T, high @ positive.T + low @ negative.T)
            low, high = low + layer.bias, high + layer.bias
            at, points = layer(at), layer(points)
        elif isinstance(layer, nn.BatchNorm1d):
            mean, deviation = at.mean(0), (at.var(0, correction=0) + layer.eps).sqrt()
            ends = [(v - mean) / deviation * layer.weight + layer.bias for v in (low, high)]
            low, high = torch.minimum(*ends), torch.maximum(*ends)
            at, points = ((v - mean) / deviation * layer.weight + layer.bias for v in (at, points))
        else:
            entering.append(torch.stack([low, high]))
            low, high, at, points = (v.clamp(min=0) for v in (low, high, at, points))
    last = model[-1]
    assert isinstance(last, nn.Linear)
    rows = last.weight[None] - last.weight[LABELS][:, None]  # z_j - z_label
    offsets = last.bias[None] - last.bias[LABELS][:, None]
    worst = (rows.clamp(min=0) * high[:, None] + rows.clamp(max=0) * low[:, None]).sum(2) + offsets
    return worst, last(points), entering


def _box(centre: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    return (centre - radius).clamp(0, 1), (centre + radius).clamp(0, 1)


def _gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def _check(found: Objective, expected: Tensor, model: nn.Module) -> None:
    """Value and gradient."""
    loss = found(X, LABELS)[0]
    torch.testing.assert_close(loss, expected, **EXACT)
    for one, other in zip(_gradients(loss, model), _gradients(expected, model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


MODELS = {"plain": lambda: mlp(4, 8, 6, 3), "batch norm": _normed}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("weight", [0.3, 1.0, torch.tensor(0.3, dtype=DOUBLE)], ids=["0.3", "1", "tensor"])
@pytest.mark.parametrize("mix", ["losses", "scores", "geometric"])
@pytest.mark.parametrize("mix_with", ["natural", "adversarial"])
def test_mixed_losses_are_their_formulas(kind: str, weight: float | Tensor, mix: str, mix_with: str) -> None:
    model = MODELS[kind]()
    attack = Given(FOUND) if mix_with == "adversarial" else None
    worst, other, _ = _plain(model, X, *_box(X, EPS), FOUND if attack else X)
    robust, usual = (F.cross_entropy(scores, LABELS) for scores in (worst, other))
    expected = {
        "losses": weight * robust + (1 - weight) * usual,
        "scores": F.cross_entropy(
            weight * worst + (1 - weight) * (other - other[torch.arange(6), LABELS][:, None]), LABELS
        ),
        "geometric": robust**weight * usual ** (1 - weight),
    }[mix]
    _check(Objective(model, BALL, ad.IBP(), weight=weight, mix=mix, mix_with=mix_with, attack=attack), expected, model)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", MODELS)
def test_a_small_box_lies_in_the_ball_around_the_adversarial_point(kind: str) -> None:
    model, part = MODELS[kind](), 0.25
    far = X + 5 * (FOUND - X)  # found in a larger ball, and perhaps outside of the data range
    far = far.clamp(0, 1)
    centre = torch.maximum(torch.minimum(far, X + (1 - part) * EPS), X - (1 - part) * EPS)
    low, high = _box(centre, part * EPS)
    assert ((low >= X - EPS - 1e-12) & (high <= X + EPS + 1e-12)).all()
    worst, _, _ = _plain(model, X, low, high, X)
    small = ad.LinfBall(part * EPS, clip=(0.0, 1.0))
    found = Objective(model, BALL, ad.IBP(), attack=Given(far), small_ball=small)
    _check(found, F.cross_entropy(worst, LABELS), model)


def test_bounds_of_crown_and_of_intervals_blend() -> None:
    model, beta = mlp(4, 8, 6, 3), torch.tensor(0.4, dtype=DOUBLE)
    engine = ad.Crown(intermediate=ad.IBP())
    crown, plain = (ad.RobustCrossEntropy(model, BALL, one).worst_scores(X, LABELS) for one in (engine, ad.IBP()))
    assert not torch.allclose(crown, plain)
    expected = F.cross_entropy(beta * crown + (1 - beta) * plain, LABELS)
    _check(Objective(model, BALL, engine, crown_weight=beta), expected, model)


@pytest.mark.parametrize("mix_with", ["natural", "adversarial"])
def test_statistics_may_be_those_of_the_adversarial_batch(mix_with: str) -> None:
    model = _normed()
    attack = Given(FOUND)
    worst, other, _ = _plain(model, FOUND, *_box(X, EPS), X if mix_with == "natural" else FOUND)
    expected = 0.3 * F.cross_entropy(worst, LABELS) + 0.7 * F.cross_entropy(other, LABELS)
    before = copy.deepcopy(model[1])
    before(model[0](FOUND))
    found = Objective(
        model, BALL, ad.IBP(), weight=0.3, mix_with=mix_with, attack=attack, batch_statistics="adversarial"  # type: ignore[arg-type]
    )  # fmt: skip
    _check(found, expected, model)
    assert attack.modes == [False]
    assert all(m.training for m in model.modules())
    assert model[1].num_batches_tracked == 1
    torch.testing.assert_close(model[1].running_mean, before.running_mean)


def _ratio(a: float, b: float) -> float:
    return max(0.0, 0.5 - min(a / b, b / a)) if a > 0 and b > 0 else 0.0


def _regularisers(width: float, entering: list[Tensor]) -> float:
    """By its definition, unit by unit."""
    total = 0.0
    for low, high in entering:
        pairs = list(zip(low.flatten().tolist(), high.flatten().tolist(), strict=True))
        centres = [(a + b) / 2 for a, b in pairs]
        mean, count = sum(centres) / len(pairs), len(pairs)
        total += max(0.0, 0.5 - width / (sum((b - a) / 2 for a, b in pairs) / count))
        active = [c for c, (a, _) in zip(centres, pairs, strict=True) if a > 0]
        inactive = [c for c, (_, b) in zip(centres, pairs, strict=True) if b < 0]
        total += _ratio(sum(active) / count, -sum(inactive) / count)
        total += _ratio(sum((c - mean) ** 2 for c in active), sum((c - mean) ** 2 for c in inactive))
    return total / len(entering) / 0.5


@pytest.mark.parametrize(
    "shift", [0.0, 2.0, -2.0, 50.0, -50.0], ids=["", "active", "inactive", "all active", "all inactive"]
)
@pytest.mark.parametrize("kind", MODELS)
def test_regularisers_are_their_formulas(kind: str, shift: float) -> None:
    model = MODELS[kind]()
    with torch.no_grad():
        model[-3].bias += shift
    low, high = _box(X, EPS)
    worst, _, entering = _plain(model, X, low, high, X)
    expected = _regularisers(((high - low) / 2).mean().item(), entering)
    assert expected > 0 or shift != 0
    objective = Objective(model, BALL, ad.IBP(), regularise=0.7)
    loss = objective(X, LABELS)[0]
    assert loss.item() == pytest.approx(F.cross_entropy(worst, LABELS).item() + 0.7 * expected, rel=1e-10)
    assert all(g.isfinite().all() for g in _gradients(loss, model))
    objective.regularising = False
    assert objective(X, LABELS)[0].item() == pytest.approx(F.cross_entropy(worst, LABELS).item(), rel=1e-10)


def test_the_gradient_of_the_regularisers() -> None:
    model = mlp(4, 8, 6, 3)
    points = list(model.parameters())

    def of(*_: Tensor) -> Tensor:
        network = dual_network_with_gradient(model)
        return interval_regularisers(network, IntervalBounds(network, BALL.around(X)))

    assert torch.autograd.gradcheck(of, points, atol=1e-5)


def dual_network_with_gradient(model: nn.Module):  # type: ignore[no-untyped-def]
    loss = ad.RobustCrossEntropy(model, BALL, ad.IBP())
    return loss.dual_and_scores(loss.checked_network(X, LABELS)[0], X)[0]


def test_the_width_of_the_input_is_that_of_normalised_images() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))
    x = batch(5, 3, 2, 2).sigmoid()
    scaled = nn.Sequential(Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.25]), *body).double().eval()
    network = dual_network(scaled, x)
    intervals = IntervalBounds(network, ad.LinfBall(0.05).around(x))
    std = torch.tensor([0.2, 0.3, 0.25], dtype=DOUBLE)
    width = (0.05 / std).mean().item()
    entering = intervals.at(network.source(network.activations[0]))
    whole = _regularisers(width, [torch.stack([entering.lower, entering.upper])])
    assert interval_regularisers(network, intervals).item() == pytest.approx(whole)
    assert whole != _regularisers(0.05, [torch.stack([entering.lower, entering.upper])])


def test_the_l1_penalty_counts_weights_of_convolutions_and_linear_layers_only() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    expected = model[0].weight.abs().sum() + model[4].weight.abs().sum()
    torch.testing.assert_close(absolute_weights(model), expected, **EXACT)
    model[4].weight.requires_grad_(False)
    torch.testing.assert_close(absolute_weights(model), model[0].weight.abs().sum(), **EXACT)
    small = mlp(4, 8, 3)
    with_penalty = Objective(small, BALL, ad.IBP(), l1=0.01)(X, LABELS)
    without = Objective(small, BALL, ad.IBP())(X, LABELS)
    torch.testing.assert_close(with_penalty[0], without[0] + 0.01 * absolute_weights(small), **EXACT)
    assert torch.equal(with_penalty[1:], without[1:])


# The attack.


@pytest.mark.parametrize("size", [0.25, 1.5])
def test_pgd_takes_sign_steps_on_the_cross_entropy_from_a_random_point_of_the_box(size: float) -> None:
    model = mlp(4, 8, 3).eval()
    low, high = _box(X, EPS)
    noise = torch.rand(X.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(7))
    x = (low + high) / 2 + (2 * noise - 1) * (high - low) / 2
    for _ in range(3):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(x), LABELS), x)
        x = (x.detach() + size * (high - low) / 2 * slope.sign()).clamp(0, 1)
        x = torch.maximum(torch.minimum(x, high), low)
    found = PGD(3, size)(model, X, LABELS, BALL, torch.Generator().manual_seed(7))
    torch.testing.assert_close(found, x, **EXACT)
    assert not found.requires_grad


def test_restarts_run_side_by_side_and_the_worst_one_counts() -> None:
    model, ball = mlp(4, 8, 3).eval(), ad.LinfBall(0.3)
    sizes: list[int] = []
    handle = model.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    found = PGD(2, 0.5, restarts=5)(model, X, LABELS, ball, torch.Generator().manual_seed(1))
    handle.remove()
    assert sizes == [30, 30, 30]
    whole = PGD(2, 0.5)(model, X.repeat(5, 1), LABELS.repeat(5), ball, torch.Generator().manual_seed(1))
    losses = F.cross_entropy(model(whole), LABELS.repeat(5), reduction="none").reshape(5, 6)
    torch.testing.assert_close(F.cross_entropy(model(found), LABELS, reduction="none"), losses.max(0).values, **EXACT)
    assert ((found - X).abs() <= 0.3 + 1e-12).all()


def test_an_attack_leaves_statistics_and_modes_alone_and_makes_the_loss_worse() -> None:
    model = _normed()
    model[4].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = PGD(8, 0.5)(model, X, LABELS, BALL, torch.Generator().manual_seed(0))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [m.training for m in model] == [True, True, True, True, False, True, True]
    with evaluating(model):
        assert F.cross_entropy(model(found), LABELS) > F.cross_entropy(model(X), LABELS)
    assert all(p.grad is None for p in model.parameters())


def test_an_attack_in_bfloat16_finds_nearly_the_same() -> None:
    model, x = mlp(4, 16, 3).float().eval(), X.float()
    ball = ad.LinfBall(0.3)
    losses = [
        F.cross_entropy(model(PGD(5, 0.5, half=half)(model, x, LABELS, ball, torch.Generator().manual_seed(0))), LABELS)
        for half in (False, True)
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=0.05)
    assert min(losses) > F.cross_entropy(model(x), LABELS)


# With everything off.


@pytest.mark.parametrize("engine", [ad.IBP(), ad.Dual(), ad.Projected(3), ad.Crown(intermediate=ad.IBP())], ids=repr)
@pytest.mark.parametrize("weight", [1.0, 0.6])
@pytest.mark.parametrize("kind", MODELS)
def test_without_options_the_objective_is_the_robust_cross_entropy_to_the_last_bit(
    engine: ad.BoundEngine, weight: float, kind: str
) -> None:
    model = MODELS[kind]().float()
    x, twin = X.float(), copy.deepcopy(model)
    torch.manual_seed(0)
    summary = Objective.robust(model, BALL, engine, weight)(x, LABELS)
    summary[0].backward()
    torch.manual_seed(0)
    clean, worst = ad.RobustCrossEntropy(twin, BALL, engine).both_scores(x, LABELS)
    robust = loss = F.cross_entropy(worst, LABELS)
    if weight < 1:
        loss = weight * robust + (1 - weight) * F.cross_entropy(clean, LABELS)
    loss.backward()
    wrong = [(scores.argmax(1) != LABELS).sum().float() for scores in (worst, clean)]
    assert torch.equal(summary, torch.stack([loss, *wrong, robust, F.cross_entropy(clean, LABELS)]))
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


@pytest.mark.parametrize("adversarial", [False, True])
def test_standard_and_adversarial_training_are_what_they_were(adversarial: bool) -> None:
    model = _normed().float()
    x, twin = X.float(), copy.deepcopy(model)
    summary = Objective.standard(model, BALL if adversarial else None)(x, LABELS)
    summary[0].backward()
    clean = worst = twin(x)
    if adversarial:
        twin.eval()
        points = worst_inputs(twin, x, LABELS, BALL, 10)
        worst = twin.train()(points)
    F.cross_entropy(worst, LABELS).backward()
    assert summary[0] == F.cross_entropy(worst, LABELS)
    assert summary[4] == F.cross_entropy(clean, LABELS)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


def test_only_fixed_work_is_captured() -> None:
    model = mlp(4, 8, 3)
    fixed = ad.Crown(intermediate=ad.IBP(), max_bytes=1 << 40)
    assert Objective(model, BALL, ad.IBP(), attack=PGD(2), mix_with="adversarial").capturable
    assert Objective(model, BALL, ad.Projected(3)).capturable
    assert Objective(model, BALL, fixed).capturable
    assert not Objective(model, BALL, ad.Crown(intermediate=ad.IBP())).capturable
    assert not Objective(model, BALL, ad.Dual()).capturable
    assert not Objective(model, BALL, ad.IBP(), attack=Descent(), mix_with="adversarial").capturable
    assert not Objective.standard(model).capturable


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ad.ArgumentError, match="give it an attack"):
        Objective(mlp(4, 8, 3), BALL, ad.IBP(), mix_with="adversarial")
    with pytest.raises(ad.ArgumentError, match="need a ball"):
        Objective(mlp(4, 8, 3), None, ad.IBP())


def test_losses_that_vanish_have_finite_powers() -> None:
    scores = torch.tensor([[0.0, -1e4]], dtype=DOUBLE, requires_grad=True)
    loss = mixed("geometric", scores, scores, torch.tensor([0]), 0.5)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert math.isfinite(loss.item())
    assert gradient.isfinite().all()


def test_a_network_with_batch_norm_has_the_worst_scores_of_its_own_bounds() -> None:
    """Convolutions too: the objective's bounds, with statistics of the batch, are those of an equal network in evaluation mode."""
    torch.manual_seed(0)
    model = cnn5(1, 8, filters=2).double()
    x = batch(12, 1, 8, 8).sigmoid()
    labels = torch.arange(12) % 10
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = (
                1.0  # running statistics become those of the batch, but for the correction of the variance
            )
    loss = Objective(model, BALL, ad.IBP(), attack=Given(x), mix_with="adversarial", weight=0.5)(x, labels)
    evaluated = copy.deepcopy(model)
    sizes = iter([12 * 64, 12 * 16, 12 * 4, 12])
    for module in evaluated.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            n = next(sizes)
            module.running_var.mul_((n - 1) / n)
    evaluated.eval()
    worst = ad.RobustCrossEntropy(evaluated, BALL, ad.IBP()).worst_scores(x, labels)
    expected = 0.5 * F.cross_entropy(worst, labels) + 0.5 * F.cross_entropy(evaluated(x), labels)
    torch.testing.assert_close(loss[0], expected, rtol=1e-9, atol=1e-9)


# From the options of a recipe to its formula, in the middle of its schedule.

RECIPES: dict[str, dict[str, object]] = {
    "ibp": {"robust_weight_start": 0.4, "robust_weight": 0.9, "train_eps_factor": 1.5},
    "crown-ibp": {"crown_weight_start": 1.0, "crown_weight": 0.2},
    "sabr": {"attack_eps_factor": 2.0},
    "mtl-ibp": {"attack_eps_factor": 2.0, "train_eps_factor": 1.25, "l1": 1e-3},
    "cc-ibp": {},
    "exp-ibp": {},
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_minimises_its_formula(name: str) -> None:
    """Everything by the papers' formulas: eps and weights of the step, the attack, the bound, the mixture, and the terms that fade."""
    changes = {"eps": EPS, "epochs": 10, "warm_up": 1, "eps_part": 0.5, **RECIPES[name]}
    config, model = TrainConfig.from_mapping({**options(name), **changes}), _normed()
    pace = Pace(config, torch.device("cpu"))
    pace.at(4, 0.5)

    def single(value: float) -> float:  # as a step keeps its numbers
        return torch.tensor(value).item()

    start, end, here, most = 1.0, 6.0, 4.5, EPS * config.train_eps_factor
    mid = start + 0.25 * (end - start)
    a = most / ((end - mid) * 4 * (mid - start) ** 3 + (mid - start) ** 4)
    eps = a * (mid - start) ** 4 + a * 4 * (mid - start) ** 3 * (here - mid)
    part = eps / most
    faded = single(0.5 * (1 - part))
    low, high = _box(X, single(eps))
    found = X
    if name in ("sabr", "mtl-ibp", "cc-ibp", "exp-ibp"):
        found = _attacked_plainly(model, config, *_box(X, single(eps * config.attack_eps_factor)))
    if name == "sabr":
        room = single(eps) - single(0.4 * eps)
        low, high = _box(torch.maximum(torch.minimum(found, X + room), X - room), single(0.4 * eps))
    mixed_in = name in ("mtl-ibp", "cc-ibp", "exp-ibp")
    worst, other, entering = _plain(model, found if mixed_in else X, low, high, found if mixed_in else X)
    if name == "crown-ibp":
        ball, engine = ad.LinfBall(single(eps), clip=(0.0, 1.0)), ad.Crown(intermediate=ad.IBP())
        crown, beta = ad.RobustCrossEntropy(model, ball, engine).worst_scores(X, LABELS), single(1 - 0.8 * part)
        worst = beta * crown + (1 - beta) * worst
    robust, usual = (F.cross_entropy(scores, LABELS) for scores in (worst, other))
    kappa = {"ibp": max(0.1, 0.6 * (1 - part * 0.9)), "crown-ibp": max(0.5, 1 - part * 0.5)}
    expected = {
        "ibp": lambda k: k * usual + (1 - k) * robust,
        "crown-ibp": lambda k: k * usual + (1 - k) * robust,
        "sabr": lambda _: robust,
        "mtl-ibp": lambda _: 0.1 * robust + 0.9 * usual,
        "cc-ibp": lambda _: F.cross_entropy(
            0.3 * worst + 0.7 * (other - other[torch.arange(6), LABELS][:, None]), LABELS
        ),
        "exp-ibp": lambda _: robust**0.5 * usual**0.5,
    }[name](kappa.get(name, 0.0))
    weights = sum(layer.weight.abs().sum().item() for layer in model if isinstance(layer, nn.Linear))
    terms = faded * _regularisers(((high - low) / 2).mean().item(), entering) + config.l1 * weights
    objective = make_objective(config, model, pace)
    loss = objective(X, LABELS, None, torch.Generator().manual_seed(7))[0]
    assert loss.item() == pytest.approx(
        expected.item() + terms, rel=1e-6
    )  # weights that follow eps are kept in float32
    assert model[1].num_batches_tracked == (2 if name == "crown-ibp" else 1)  # once by this test


def _attacked_plainly(model: nn.Module, config: TrainConfig, low: Tensor, high: Tensor) -> Tensor:
    """Sign steps from a random point of the box; batch norm in evaluation mode."""
    model.eval()
    noise = torch.rand(X.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(7))
    x = (low + high) / 2 + (2 * noise - 1) * (high - low) / 2
    for _ in range(config.attack_steps or 0):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(x), LABELS), x)
        x = x.detach() + config.attack_step_size * (high - low) / 2 * slope.sign()
        x = torch.maximum(torch.minimum(x, high), low)
    model.train()
    return x


def test_a_small_box_is_never_too_small_for_float32() -> None:
    """Its width in the warm-up is what the regularisers compare widths with; at a part of 1e-6 there would be none in float32."""
    config = TrainConfig.from_mapping({**options("sabr"), "eps": "2/255", "box_part": 0.0117, "warm_up": 1})
    pace = Pace(config, torch.device("cpu"))
    pace.at(0, 0.5)
    assert (pace.eps.item(), pace.box_eps.item()) == pytest.approx((1e-6, 1e-6))
    pace.at(config.epochs - 1, 1.0)
    assert pace.box_eps.item() == pytest.approx(0.0117 * 2 / 255)
