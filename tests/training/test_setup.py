"""From names to networks and optimisers: what is made, and what is refused before anything is trained."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import autodual as ad
from autodual import ArgumentError
from autodual.cli.certify import open_named
from autodual.data import load, mean_std
from autodual.evaluation.processes import StepProgress, StoppedError, Watch
from autodual.models import Normalize
from autodual.runs.checkpoint import load_model, save_model
from autodual.runs.folder import Run
from autodual.training.fitting import train
from autodual.training.setup import make_model, make_optimiser

STATISTICS = ((0.3,), (0.4,))
TINY = ad.TrainConfig(
    epochs=1,
    engine="none",
    limit_train=40,
    limit_test=8,
    evaluate_every=0,
    skip_curve=True,
    device="cpu",
    norm="linf",
    eps=0.01,
)

FACTORIES = """
import torch
from torch import nn

class Body(nn.Module):
    def __init__(self, pixels, classes):
        super().__init__()
        self.drop, self.out = nn.Dropout(0.5).eval(), nn.Linear(pixels, classes)
    def forward(self, x): return self.out(self.drop(x.flatten(1)))

class Pair(nn.Module):
    def forward(self, x): return x, x

def good(shape, classes): return Body(shape[0] * shape[1] * shape[2], classes)
def signature(classes): return nn.Flatten()
def raises(shape, classes): raise RuntimeError("no\\nidea")
def leaves(shape, classes): raise SystemExit(2)
def nothing(shape, classes): return None
def outputs(shape, classes): return Body(64, 7)
def inputs(shape, classes): return Body(5, classes)
def pair(shape, classes): return Pair()
def frozen(shape, classes): return good(shape, classes).requires_grad_(False)
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(FACTORIES)
    return f"{tmp_path / 'nets.py'}:"


def outputs(model: nn.Module, *shape: int) -> tuple[int, ...]:
    return tuple(model(torch.zeros(2, *shape)).shape)


@pytest.mark.parametrize("name", ["small", "wide:1", "deep:2", "digits"])
def test_normalisation_is_the_first_layer(name: str) -> None:
    model = make_model(name, (1, 8, 8), 10, STATISTICS)
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[0], Normalize)
    assert outputs(model, 1, 8, 8) == (2, 10)
    assert not any(isinstance(m, Normalize) for m in make_model(name, (1, 8, 8), 10).modules())


def test_a_factory_is_called_with_shape_and_classes(factory: str) -> None:
    model = make_model(factory + "good", (3, 4, 5), 6)
    assert outputs(model, 3, 4, 5) == (2, 6)
    assert [m.training for m in model.modules()] == [True, False, True]  # as the factory left them
    normalised = make_model(factory + "good", (1, 8, 8), 10, STATISTICS)
    assert isinstance(normalised, nn.Sequential)
    assert isinstance(normalised[0], Normalize)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "signature",
            r"nets.py:signature with \(\(1, 8, 8\), 10\) raised TypeError: .*; it must take \(shape, classes\)",
        ),
        ("raises", "nets.py:raises with .* raised RuntimeError: no idea; it must take"),
        ("leaves", "nets.py:leaves with .* raised SystemExit: 2"),
        ("nothing", "nets.py:nothing returned NoneType, not an nn.Module"),
        ("outputs", r"nets.py:outputs gives \[1, 7\] for one image, not \[1, 10\]"),
        ("inputs", r"nets.py:inputs raised RuntimeError: .* for images \[1, 1, 8, 8\]"),
        ("pair", "nets.py:pair gives tuple for one image"),
        ("missing", "has no function 'missing'"),
        ("", "names no function"),
    ],
)
def test_bad_factories(factory: str, name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        make_model(factory + name, (1, 8, 8), 10)
    assert "\n" not in str(raised.value)


def test_a_file_without_a_function(factory: str) -> None:
    with pytest.raises(ArgumentError, match=r"names no function; write it after a colon, as in .*nets.py:factory"):
        make_model(factory.rstrip(":"), (1, 8, 8), 10)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("small", (1, 8, 8), 1, "small is for 1 class, but chooses between at least two"),
        ("small", (1, 3, 3), 2, "small: width is 3, but"),
        ("small", (1, 8, 9), 2, "takes square images"),
        (
            "digits",
            (1, 28, 28),
            10,
            r"digits takes images \[1, 8, 8\] of 10 classes, but the data is \[1, 28, 28\] of 10",
        ),
        ("digits", (1, 8, 8), 3, r"but the data is \[1, 8, 8\] of 3; use small"),
        ("smal", (1, 8, 8), 10, "did you mean small"),
        ("wide:0", (1, 8, 8), 10, "unknown model 'wide:0'"),
        ("wide:²", (1, 8, 8), 10, "unknown model"),
    ],
)
def test_networks_that_do_not_fit(name: str, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        make_model(name, shape, classes)
    assert "\n" not in str(raised.value)


def test_statistics_of_other_channels() -> None:
    with pytest.raises(ArgumentError, match="mean and std are for 3 channels, but images have 1"):
        make_model("small", (1, 8, 8), 10, ((0.1, 0.2, 0.3), 0.4))


def test_optimisers_have_their_names() -> None:
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "radam": torch.optim.RAdam}
    for name, kind in kinds.items():
        config = ad.TrainConfig.from_mapping({"optimiser": name, "lr": 0.02, "weight_decay": 0.003})
        found = make_optimiser(config, nn.Linear(2, 2))
        assert type(found) is kind
        assert (found.param_groups[0]["lr"], found.param_groups[0]["weight_decay"]) == (0.02, 0.003)


@pytest.mark.parametrize("optimiser", ["adam", "sgd", "adamw", "radam"])
def test_nothing_to_train(optimiser: str, factory: str) -> None:
    config = ad.TrainConfig.from_mapping({"optimiser": optimiser})
    for model in (nn.Flatten(), make_model(factory + "frozen", (1, 8, 8), 10)):
        with pytest.raises(ArgumentError, match="has nothing to train; give it layers with weights"):
            make_optimiser(config, model)


def test_parts_of_different_shapes(tmp_path: Path) -> None:
    images, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    train_data = ad.ImageData(images, labels, ("a", "b"), "mine")
    test_data = ad.ImageData(images[..., :7], labels, ("a", "b"), "mine")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(ArgumentError, match=r"images to train on are \[1, 8, 8\], those to test on \[1, 8, 7\]"):
        ad.fit(model, train_data, test_data, TINY, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Noisy(nn.Module):
    """Draws a random number at every call, and keeps one layer in evaluation mode."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.drop, self.out = nn.Dropout(0.5).eval(), nn.Linear(64, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(x.flatten(1))) + torch.rand(())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Noisy(11), r"the module gives \[1, 11\] for one image, not \[1, 10\]; end it with one score per class"),
        (Noisy(9), r"the module gives \[1, 9\] for one image, not \[1, 10\]"),
        (nn.Linear(8, 10), r"the module gives \[1, 1, 8, 10\] for one image, not \[1, 10\]"),
        (nn.Linear(5, 10), r"the module raised RuntimeError: .* for images \[1, 1, 8, 8\]"),
    ],
)
def test_a_module_of_ones_own_that_does_not_fit_the_classes(tmp_path: Path, model: nn.Module, message: str) -> None:
    data, before = load("digits", "train"), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    with pytest.raises(ArgumentError, match=message) as raised:
        ad.fit(model, data, data, TINY, tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("model", ["small", "digits"])
@pytest.mark.parametrize("validation", [0.0, 0.5])
def test_a_normalised_run_and_its_certification(tmp_path: Path, model: str, validation: float) -> None:
    config = TINY.with_changes(model=model, normalise=True, validation=validation, evaluate_every=1)
    train(config, tmp_path / "run")
    target = open_named(tmp_path / "run", {"device": "cpu"}, 3)
    first = next(m for m in target.model.modules() if isinstance(m, Normalize))
    data = load("digits", "train").take(40)
    trained_on = data.split(validation, config.seed)[0] if validation else data
    mean, std = mean_std("digits", trained_on)
    assert first.mean.flatten().tolist() == pytest.approx(mean)
    assert isinstance(std, tuple)
    assert first.std.flatten().tolist() == pytest.approx(std)
    again = make_model(model, (1, 8, 8), 10, ((0.0,), (1.0,)))
    load_model(tmp_path / "run" / "model.safetensors", again)
    images = load("digits", "test").take(8).scaled()
    assert torch.equal(again.eval()(images), target.model(images))


def test_a_run_that_goes_on_keeps_its_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TINY.with_changes(model="digits", normalise=True, validation=0.5, evaluate_every=1, batch=10)
    steps: list[StepProgress] = []
    with pytest.raises(StoppedError):
        train(config, tmp_path / "run", watch=Watch(step=steps.append, stop=lambda: len(steps) > 0))
    mean, _ = mean_std("digits", load("digits", "train").take(40).split(0.5, config.seed)[0])
    monkeypatch.setattr(import_module("autodual.training.fitting"), "mean_std", lambda *_: ((0.0,), (1.0,)))
    train(config, tmp_path / "run", resume=True)
    target = open_named(tmp_path / "run", {"device": "cpu"}, 3)
    first = next(m for m in target.model.modules() if isinstance(m, Normalize))
    assert first.mean.flatten().tolist() == pytest.approx(mean)


def test_the_papers_constants_meet_other_images(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = TINY.with_changes(dataset="cifar10", normalise=True)
    run.begin(config, resume=False)
    save_model(run.model_file, make_model("small", (3, 32, 32), 10, ((0.485, 0.456, 0.406), 0.225)))
    images = np.random.RandomState(0).randint(0, 256, (20, 3, 32, 32), np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(20) % 10, classes=np.array(list("abcdefghij")))
    target = open_named(tmp_path, {"dataset": str(tmp_path / "mine.npz"), "device": "cpu"}, None)
    first = next(m for m in target.model.modules() if isinstance(m, Normalize))
    assert first.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert first.std.flatten().tolist() == pytest.approx([0.225])
