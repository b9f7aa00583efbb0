"""The measurements of the paper's smaller claims are right where the answer is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import autodual as ad

ROOT = Path(__file__).parents[2]
CIFAR_EPS = 2 / 255

Import = Callable[[str], ModuleType]


@pytest.fixture
def measured(benchmark_module: Import) -> ModuleType:
    return benchmark_module("claims_measured")


def images(n: int, seed: int, classes: int = 3, side: int = 4) -> ad.ImageData:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 1, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, classes, (n,), generator=generator)
    return ad.ImageData(pixels, labels, tuple("abc"), "noise")


def brute_force(first: ad.ImageData, second: ad.ImageData | None, different: bool) -> float:
    other = first if second is None else second
    best = math.inf
    for i in range(len(first)):
        for j in range(len(other)):
            if (second is None and i >= j) or (different and first.labels[i] == other.labels[j]):
                continue
            difference = first.images[i].double() - other.images[j].double()
            best = min(best, float(difference.norm()) / 255)
    return best


@pytest.mark.parametrize("block", [7, 16, 100])
@pytest.mark.parametrize("two_sets", [False, True])
def test_the_nearest_pair_is_that_of_brute_force(measured: ModuleType, block: int, two_sets: bool) -> None:
    first, second = images(40, 0), images(25, 1) if two_sets else None
    found = measured.nearest_pairs(first, second, block=block)
    for kind, pair in found.items():
        assert pair.distance == pytest.approx(brute_force(first, second, kind == "different"), rel=1e-12)
        other = first if second is None else second
        between = first.images[pair.first].double() - other.images[pair.second].double()
        assert pair.distance == pytest.approx(float(between.norm()) / 255, rel=1e-12)
        assert pair.labels == (int(first.labels[pair.first]), int(other.labels[pair.second]))
    assert found["any"].compared == (40 * 25 if two_sets else 40 * 39 // 2)


def test_pairs_that_float32_cannot_tell_apart_are_all_computed_again(measured: ModuleType) -> None:
    """Bright images, whose products exceed 2**24: the nearest differ by one grey level in one pixel of 784."""
    pixels = torch.full((3, 1, 28, 28), 250, dtype=torch.uint8)
    pixels[1, 0, 0, 0], pixels[2, 0, 0, :2] = 252, 251
    data = ad.ImageData(pixels, torch.tensor([0, 1, 1]), tuple("abc"), "bright")
    pair = measured.nearest_pairs(data)["different"]
    assert (pair.first, pair.second, pair.candidates) == (0, 2, 2)
    assert pair.distance == pytest.approx(math.sqrt(2) / 255, rel=1e-12)


def test_one_label_alone_has_no_pair(measured: ModuleType) -> None:
    data = ad.ImageData(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.long), ("a",), "same")
    with pytest.raises(ValueError, match="no two images to compare"):
        measured.nearest_pairs(data)


@pytest.mark.parametrize(("eps", "d", "printed"), [(0.1, 784, 1.58), (CIFAR_EPS, 1024, 36.1 / 255)])
def test_the_formula_gives_what_the_paper_prints(measured: ModuleType, eps: float, d: int, printed: float) -> None:
    assert measured.paper_radius(eps, d) == pytest.approx(printed, rel=2e-3)
    assert measured.dimension_of(measured.paper_radius(eps, d), eps) == pytest.approx(d)


def test_the_formula_with_all_of_cifar_is_far_from_what_the_paper_prints(measured: ModuleType) -> None:
    assert 255 * measured.paper_radius(CIFAR_EPS, 3072) == pytest.approx(62.5, abs=0.05)


@pytest.mark.parametrize(
    ("d", "unit_volume"), [(1, 2.0), (2, math.pi), (3, 4 / 3 * math.pi), (4, math.pi**2 / 2), (6, math.pi**3 / 6)]
)
def test_the_ball_of_equal_volume_has_the_volume_of_the_cube(measured: ModuleType, d: int, unit_volume: float) -> None:
    radius = measured.equal_volume_radius(0.1, d)
    assert unit_volume * radius**d == pytest.approx(0.2**d)


def test_equal_volume_on_mnist(measured: ModuleType) -> None:
    assert measured.equal_volume_radius(0.1, 784) == pytest.approx(1.36, abs=5e-3)


def test_filters_are_counted_layer_by_layer(measured: ModuleType) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model[0].weight[1] = 0.0
        model[0].weight[2] = 0.009
        model[3].weight[0, :8] = 0.001
        model[0].bias[3], model[3].bias[4] = -1e6, -1e6  # silent, with weights of full size
    convolution, linear, last = measured.filter_counts(model)
    assert (convolution["filters"], convolution["zero"], convolution["nearly_zero"]) == (4, 1, 2)
    assert (linear["zero"], linear["nearly_zero"], linear["nearly_zero_weights"]) == (0, 0, 8)
    assert (last["filters"], last["weights"], last["zero"]) == (2, 10, 0)
    assert measured.silent_filters(model, torch.rand(3, 1, 4, 4)) == [1, 1]


def test_the_peak_of_allocations_is_that_of_live_tensors(measured: ModuleType) -> None:
    def work() -> None:
        first = torch.zeros(1 << 18)
        second = torch.zeros(1 << 17)
        del first
        third = torch.zeros(1 << 16)
        assert len(second) > len(third)

    assert measured.peak_of_allocations(work) == pytest.approx(4 * ((1 << 18) + (1 << 17)), rel=0.01)


def test_training_with_few_projections_takes_less_memory_than_with_many(
    measured: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "STEPS", 1)
    pixels = torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8)
    data = ad.ImageData(pixels, torch.arange(4), tuple("0123456789"), "noise")
    few, many = (
        measured.peak_of_training(data, measured.WAYS[f"{k} projections"], "cpu")["peak_bytes"] for k in (10, 50)
    )
    weights = 4 * 166_406
    assert 4 * weights < few < many  # weights, gradients, and two moments of Adam are among it


@pytest.mark.gpu
def test_memory_of_a_gpu_counts_the_captured_step(measured: ModuleType) -> None:
    pixels = torch.randint(0, 256, (50, 1, 28, 28), dtype=torch.uint8)
    data = ad.ImageData(pixels, torch.arange(50) % 10, tuple("0123456789"), "noise")
    found = measured.peak_of_training(data, measured.WAYS["10 projections"], "cuda")
    assert 4 * 4 * 166_406 < found["peak_bytes"] <= found["reserved_bytes"] <= found["whole_device_bytes"]


@pytest.mark.parametrize("normalised", [False, True])
def test_batch_norm_stands_before_every_relu_or_nowhere(measured: ModuleType, normalised: bool) -> None:
    layers = list(measured.narrow_network(normalised))
    before = [type(layers[i - 1]) for i, layer in enumerate(layers) if isinstance(layer, nn.ReLU)]
    assert before == (
        [nn.BatchNorm2d, nn.BatchNorm2d, nn.BatchNorm1d] if normalised else [nn.Conv2d, nn.Conv2d, nn.Linear]
    )


def test_the_texts_are_as_the_record_makes_them(benchmark_module: Import) -> None:
    """If this fails, the record has changed: run `python benchmarks/claims.py --only --page docs/claims.md`."""
    claims = benchmark_module("claims")
    record = json.loads((claims.RESULTS / "claims.json").read_text(encoding="utf-8"))
    assert (claims.RESULTS / "claims.md").read_text(encoding="utf-8") == claims.show(record)
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert claims.with_summary(page, record) == page


def test_what_has_not_run_says_so(benchmark_module: Import) -> None:
    text = " ".join(benchmark_module("claims").show({}).split())  # lines are wrapped
    assert text.count("not run") == 6  # memory has two devices
