"""Proofs from columns: those of `Dual`, in parts that fit into the memory, with progress and a time limit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.dual.base import Band
from autodual.engines.forward import ForwardPass
from autodual.engines.prepare import dual_network
from zoo import BasicBlock


def deep(blocks: int = 4) -> nn.Module:
    torch.manual_seed(0)
    body = [BasicBlock(4, 4) for _ in range(blocks)]
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), *body, nn.Flatten(), nn.Linear(4 * 64, 3)).eval()


@pytest.fixture
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = deep()
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.01), ad.L2Ball(0.05), ad.LinfBall(0.02, clip=(0.0, 1.0))], ids=repr)
def test_a_deep_network_is_proved_as_by_rows(
    problem: tuple[nn.Module, torch.Tensor, torch.Tensor], ball: ad.Perturbation
) -> None:
    backward, forward = (ad.certify(*problem, ball, engine) for engine in (ad.Dual(), ad.ForwardDual()))
    others = backward.margins.isfinite()
    assert torch.equal(backward.certified, forward.certified)
    assert bool(forward.certified.any())
    assert (backward.margins - forward.margins)[others].abs().max() < 1e-4
    assert forward.slack[others].max() < 1e-9


def test_errors_stay_small_in_a_deep_network(problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
    """Absolute weights from layer to layer would have added up to more than any margin; norms have not."""
    model, x, _ = problem
    model, x = model.double(), x.double()
    region = ad.LinfBall(0.01).around(x)
    rows, columns = (ad.bounds(model, region, engine) for engine in (ad.Dual(), ad.ForwardDual()))
    for name, exact in rows.layers.items():
        found = columns.layers[name]
        assert (found.lower - exact.lower).abs().max() < 1e-8
        assert (found.upper - exact.upper).abs().max() < 1e-8


def test_errors_of_a_layer_go_on_to_later_ones() -> None:
    """A sum of many terms, then a layer that only passes it on: what was wrong before is wrong there, too."""
    model = nn.Sequential(nn.Linear(4096, 1), nn.ReLU(), nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[2].weight.fill_(1.0)
        x = torch.ones(1, 4096)
        network, region, engine = dual_network(model, x), ad.LinfBall(2**-10).around(x), ad.ForwardDual()
        plain, proved = engine.preactivations(network, region), engine.provable(network, region)
    first, second = ((proved.intervals[i].radius - plain.intervals[i].radius).item() for i in plain.intervals)
    assert 0.1 < first < second < 3 * first


def test_errors_whose_squares_underflow() -> None:
    """Found by the hunt: sigmoid(-500) is above zero, by less than float32 can hold."""
    model = nn.Sequential(nn.Linear(1, 3), nn.Sigmoid()).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-10.0], [-50.0], [-60.0]]))
        model[0].bias.zero_()
    found = ad.bounds(model, ad.LinfBall(0.0).around(torch.tensor([[50.0]])), ad.ForwardDual()).output
    assert bool((found.upper > 0).all())


def test_a_batch_is_cut_to_the_memory(problem: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
    whole = ad.certify(*problem, ad.LinfBall(0.01), ad.ForwardDual())
    enough_for_two = 2 * 4 * 64 * 256 * 8 + 1
    parts = ad.certify(*problem, ad.LinfBall(0.01), ad.ForwardDual(max_bytes=enough_for_two))
    assert torch.equal(whole.certified, parts.certified)
    assert torch.allclose(whole.margins, parts.margins, atol=1e-6)


def test_fewer_examples_at_a_time_where_many_units_turn_out_to_be_unstable(
    problem: tuple[nn.Module, torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, _ = problem
    tried = list[int]()
    unstable = ForwardPass._unstable

    def watched(run: ForwardPass, index: int, band: Band, before: int) -> dict[int, torch.Tensor]:
        tried.append(len(run.region))
        return unstable(run, index, band, before)

    region = ad.LinfBall(0.01).around(x)
    whole = ad.bounds(model, region, ad.ForwardDual()).output
    monkeypatch.setattr(ForwardPass, "_unstable", watched)
    monkeypatch.setattr("autodual.engines.forward.COPIES", 1)  # the first guess is too high
    parts = ad.bounds(model, region, ad.ForwardDual(max_bytes=600_000)).output
    assert tried[0] == len(x) > min(tried)
    torch.testing.assert_close(parts.lower, whole.lower)
    torch.testing.assert_close(parts.upper, whole.upper)


def test_fewer_examples_at_a_time_where_the_memory_is_out(
    problem: tuple[nn.Module, torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, labels = problem
    whole = ad.certify(model, x, labels, ad.LinfBall(0.01), ad.ForwardDual())
    unstable = ForwardPass._unstable

    def failing(run: ForwardPass, index: int, band: Band, before: int) -> dict[int, torch.Tensor]:
        if len(run.region) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return unstable(run, index, band, before)

    monkeypatch.setattr(ForwardPass, "_unstable", failing)
    parts = ad.certify(model, x, labels, ad.LinfBall(0.01), ad.ForwardDual())
    assert torch.equal(whole.certified, parts.certified)
    assert torch.allclose(whole.margins, parts.margins, atol=1e-6)


def test_it_says_how_far_it_is_and_ends_in_time(
    problem: tuple[nn.Module, torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATIENCE", "OFTEN"):
        monkeypatch.setattr(f"autodual.engines.effort.{name}", 0.0)
    told = list[float]()
    ad.certify(*problem, ad.LinfBall(0.01), ad.ForwardDual(), progress=lambda progress: told.append(progress.fraction))
    assert len(told) > 10
    assert told == sorted(told)
    assert 0 < told[0] < 0.5 < told[-1] <= 1
    found = ad.certify(*problem, ad.LinfBall(0.01), ad.ForwardDual(), timeout=1e-6)
    assert not bool(found.certified.any())
