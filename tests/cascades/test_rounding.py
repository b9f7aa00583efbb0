"""Cascades prove what `certify` proves, also where float32 alone cannot tell."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.cascades import Cascade, RoutedCascade, SumEnsemble
from autodual.cascades.base import Combination
from autodual.cascades.stage import Lower, open_stages

BALL = ad.LinfBall(2**-3)


def images(count: int = 12, features: int = 400) -> Tensor:
    return torch.rand(count, features, generator=torch.Generator().manual_seed(5))


def network(seed: int, features: int = 400) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 40), nn.ReLU(), nn.Linear(40, 2)).eval()


def doubled(models: list[nn.Module]) -> list[nn.Module]:
    return [copy.deepcopy(model).double() for model in models]


def shifted(model: nn.Sequential, example: int, above: float) -> nn.Sequential:
    """So that the proved margin of label 0 of this example is so much above zero, less than float32 can tell."""
    x = images().double()
    labels = torch.zeros(len(x), dtype=torch.int64)
    for _ in range(4):  # the bias is rounded, too
        worst = ad.certify(copy.deepcopy(model).double(), x, labels, BALL).margins[example, 1].item()
        with torch.no_grad():
            model[2].bias[0] += above - worst
    return model


@pytest.mark.parametrize("kind", ["paper", "routed", "sum"])
@pytest.mark.parametrize("example", range(4))
def test_a_cascade_of_one_model_is_that_model(kind: str, example: int) -> None:
    model, x = shifted(network(0), example, 2e-6), images()
    made: dict[str, Combination] = {
        "paper": Cascade([model], BALL),
        "routed": RoutedCascade([model], [], BALL),
        "sum": SumEnsemble([model], BALL),
    }
    labels = torch.zeros(len(x), dtype=torch.int64)
    alone, found = ad.certify(model, x, labels, BALL), made[kind].certify(x, labels)
    assert bool(alone.certified[example])
    assert torch.equal(found.sound, alone.certified)
    assert torch.equal(found.answers.certified & (found.answers.label == labels), alone.certified)
    assert not (found.sound & ~found.no_wrong_certificate).any()


def test_the_papers_cascade_is_brute_force_with_certify() -> None:
    models: list[nn.Module] = [shifted(network(seed), seed, 2e-6) for seed in range(3)]
    x = images()
    answers = Cascade(models, BALL).predict(x)
    for n in range(len(x)):
        for stage, model in enumerate(models):
            label = model(x[n : n + 1]).argmax(1)
            proved = bool(ad.certify(model, x[n : n + 1], label, BALL).certified)
            if proved or stage == 2:
                found = (int(answers.label[n]), bool(answers.certified[n]), int(answers.stage[n]))
                assert found == (int(label), proved, stage)
                break


@pytest.mark.parametrize("example", range(4))
def test_a_sum_looks_at_the_sum_of_margins(example: int) -> None:
    """Neither model is near the border alone; the margins of both together are, since their large parts cancel."""
    first, x = network(0), images()
    second = copy.deepcopy(first)
    with torch.no_grad():
        first[2].bias[0] += 40.0
        second[2].bias[0] -= 40.0
    labels = torch.zeros(len(x), dtype=torch.int64)
    exact = SumEnsemble(doubled([first, second]), BALL)
    for _ in range(4):
        worst = ad.certify(exact.model.eval(), x.double(), labels, BALL).margins[example, 1].item()
        with torch.no_grad():
            second[2].bias[0] += 2e-5 - worst
        exact = SumEnsemble(doubled([first, second]), BALL)
    truth, found = exact.certify(x.double(), labels), SumEnsemble([first, second], BALL).certify(x, labels)
    assert bool(truth.sound[example])
    assert torch.equal(found.sound, truth.sound)


def test_a_routed_cascade_looks_at_thresholds_again() -> None:
    """A threshold that bounds in float32 do not exceed, with their slack, but those in float64 do. The error of the scores, which
    are compared with it in float32, counts in both."""
    model, x = network(0), images()
    last = copy.deepcopy(model)
    with torch.no_grad():
        last[2].bias.copy_(torch.tensor([-100.0, 100.0]))  # proves nothing about label 0
        model[2].bias[0] += 5.0
        stage = open_stages([model], x, BALL, ad.Dual())[0]
        found = stage.differences(x)
        exact = open_stages(doubled([model]), x.double(), BALL, ad.Dual())[0].differences(x.double())
        proved, slack, run_error = (t[:, 0, 1].double() for t in (found.bound, found.slack, found.run_error))
    labels = torch.zeros(len(x), dtype=torch.int64)
    for n in range(len(x)):
        sharp, single = exact.bound[n, 0, 1].item() - run_error[n].item(), (proved - slack - run_error)[n].item()
        threshold = (sharp + single) / 2
        assert single < threshold < sharp
        assert bool(RoutedCascade([model, last], [threshold], BALL).certify(x[n : n + 1], labels[:1]).sound)
        beyond = sharp * (1 + 1e-7)
        assert not bool(RoutedCascade([model, last], [beyond], BALL).certify(x[n : n + 1], labels[:1]).sound)


def test_a_label_that_rounding_decides_promises_nothing() -> None:
    """Of two equal scores the first one is given, but exactly the second one is larger, by less than float32 can tell."""
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 2**-30]]))
    model, x, labels = nn.Sequential(layer).eval(), torch.ones(1, 2), torch.zeros(1, dtype=torch.int64)
    assert int(model(x).argmax(1)) == 0
    none = ad.LinfBall(0.0)
    for cascade in (Cascade([model], none), RoutedCascade([model], [], none), SumEnsemble([model, model], none)):
        found = cascade.certify(x, labels)
        assert not found.sound.any()
        assert not found.no_wrong_certificate.any()


def test_what_cannot_be_looked_at_again_stays_open_and_is_said() -> None:
    """An engine whose memory is enough in float32, and not in float64."""
    model, x = shifted(network(0), 0, 2e-6), images(1)
    enough = 400 * 400 * 4 + 1  # bytes of the input's columns in float32
    with pytest.warns(UserWarning, match="could not be looked at in float64"):
        answers = Cascade([model], BALL, ad.ForwardDual(max_bytes=enough)).predict(x)
    assert not bool(answers.certified[0])


def test_a_sum_of_bounds_that_overflows_proves_nothing() -> None:
    """Only at the label is there nothing to prove."""
    inf, large, none = torch.inf, 3e38, [[0.0, 0.0]]
    part = Lower(torch.tensor([[inf, large]]), torch.tensor([[0.0, large]]), torch.tensor(none))
    total = Lower.total([part, part], torch.tensor(none))
    assert total.bound[0, 0] == inf
    assert not total.certified.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_sum_of_bounds_has_the_slack_of_all_of_them(dtype: torch.dtype) -> None:
    """The sum less its slack is no more than the exact sum of what each model proves."""
    generator = torch.Generator().manual_seed(0)
    bounds, slacks = (torch.rand(4, 50, 3, generator=generator, dtype=dtype) for _ in range(2))
    parts = [Lower(b, s, torch.zeros_like(b)) for b, s in zip(bounds, slacks, strict=True)]
    total = Lower.total(parts, torch.zeros_like(bounds[0]))
    for place in range(bounds[0].numel()):
        proved = sum(
            Fraction(p.bound.flatten()[place].item()) - Fraction(p.slack.flatten()[place].item()) for p in parts
        )
        found = Fraction(total.bound.flatten()[place].item()) - Fraction(total.slack.flatten()[place].item())
        assert found <= proved
