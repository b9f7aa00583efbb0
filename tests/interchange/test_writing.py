"""What is exported computes what the network computes, by onnx's reference; what cannot be written is named, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad

pytest.importorskip("onnx", reason="needs the package onnx: pip install 'autodual[onnx]'")

from autodual.interchange import onnx_writing
from autodual.interchange.onnx_file import read_onnx
from autodual.interchange.onnx_reading import Reference
from interchange.graphs import CASES, Case


class Functions(nn.Module):
    """Operations that are not modules."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(x[:, 1:, ::2]) + F.hardtanh(x[:, :2, ::2], -0.3, 0.4) * 2 - 1 / 3
        z = torch.cat([y, -y.abs()], 1).transpose(2, 3).permute(0, 1, 3, 2)
        z = F.pad(z, (1, 0, 0, 2), value=0.2).clamp(-0.8) / torch.tensor(0.7)
        pooled = torch.cat([z.mean((2, 3)), z.sum(3).mean(2)], 1)
        return (
            torch.maximum(F.silu(pooled), F.gelu(pooled, approximate="tanh"))
            .reshape(len(x), -1)
            .unsqueeze(1)
            .flatten(1)
        )


NETWORKS = {
    "small": (ad.models.small(), (1, 28, 28)),
    "normalised": (ad.models.small(3, 16, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.25]), (3, 16, 16)),
    "resnet": (ad.models.resnet(3, 8), (3, 8, 8)),
    "digits": (ad.load_digits_network(), (1, 8, 8)),
    "layers": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same", dilation=2), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2, padding=1), nn.SiLU(),
            nn.AvgPool2d(2), nn.Hardtanh(), nn.Upsample(scale_factor=2), nn.ReLU6(), nn.Dropout(),
            nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1), nn.PReLU(2), nn.ZeroPad2d(1), nn.AdaptiveAvgPool2d(5),
            nn.LeakyReLU(0.2), nn.ELU(0.6), nn.CELU(0.7), nn.SELU(), nn.Softplus(), nn.Hardsigmoid(), nn.Hardswish(), nn.Flatten(),
            nn.Linear(50, 3), nn.Sigmoid(), nn.Tanh(), nn.Softmax(1),
        ),
        (3, 16, 16),
    ),
    "one dimension": (
        nn.Sequential(nn.Conv1d(2, 3, 3, stride=2, groups=1), nn.ReLU(), nn.MaxPool1d(2), nn.Linear(5, 4), nn.Flatten()), (2, 21),
    ),
    "functions": (Functions(), (3, 6, 5)),
    "weight norm": (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2)), (4,)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_the_file_computes_what_the_network_computes(name: str, tmp_path: Path) -> None:
    model, shape = NETWORKS[name]
    model.eval()
    path = tmp_path / "net.onnx"
    ad.save_onnx(model, path, torch.zeros(1, *shape))
    x = torch.rand(3, *shape)
    with torch.no_grad():
        expected = model(x).flatten(1)
    scale = expected.abs().max().item()
    reference = Reference(read_onnx(path))
    assert (reference(x) - expected).abs().max().item() <= 1e-5 * scale
    assert (reference.as_given(x).flatten(1) - expected).abs().max().item() <= 1e-5 * scale  # a batch of any size
    assert [path.name] == [found.name for found in tmp_path.iterdir()]


NOT_WRITTEN = {
    "Where", "Resize linear", "Resize corners", "Concat constant", "Concat plain",
    "ConvTranspose uneven",  # onnx's reference fails on what is written: a bias with pads that differ
}  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in NOT_WRITTEN], ids=lambda case: case.name)
def test_what_is_loaded_is_written(case: Case, tmp_path: Path) -> None:
    """`save_onnx` itself compares what it writes with the module, by onnx's reference."""
    model = ad.load_onnx(case.save(tmp_path))
    ad.save_onnx(model, tmp_path / "again.onnx", torch.zeros(1, *model.input_shape))


@pytest.mark.parametrize("name", sorted(NOT_WRITTEN))
def test_what_is_loaded_but_not_written_is_refused(name: str, tmp_path: Path) -> None:
    model = ad.load_onnx(next(case for case in CASES if case.name == name).save(tmp_path))
    with pytest.raises(ad.AutodualError):
        ad.save_onnx(model, tmp_path / "again.onnx", torch.zeros(1, *model.input_shape))
    assert not (tmp_path / "again.onnx").exists()


def test_what_is_proved_about_the_file_is_proved_about_the_network(tmp_path: Path) -> None:
    model = ad.load_digits_network()
    images, labels = ad.load_digits("test")
    ad.save_onnx(model, tmp_path / "digits.onnx", images[:1])
    ball = ad.LinfBall(0.05, clip=(0.0, 1.0))
    own, again = (
        ad.certify(m, images[:20], labels[:20], ball) for m in (model, ad.load_onnx(tmp_path / "digits.onnx"))
    )
    assert torch.equal(own.certified, again.certified)
    finite = own.margins.isfinite()
    assert torch.allclose(own.margins[finite], again.margins[finite], atol=1e-5)


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.ndtr(x)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(4, 3), Odd()), "1: the operation 'special_ndtr' cannot be written as ONNX"),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect")), "padding_mode 'reflect'"),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.AdaptiveAvgPool1d(3)), "windows of several sizes"),
        (nn.Sequential(nn.Linear(4, 3), nn.Softplus(2.0)), "for beta = 1 only"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_named(model: nn.Module, said: str, tmp_path: Path) -> None:
    with pytest.raises(ad.UnsupportedOperationError) as caught:
        ad.save_onnx(model.eval(), tmp_path / "net.onnx", torch.zeros(1, 4))
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_does_not_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.onnx"
    path.write_text("before")

    def wrong(at: onnx_writing.Writing) -> str:
        return at.add("LeakyRelu", alpha=0.01)

    monkeypatch.setitem(onnx_writing.WRITERS.builders, nn.ReLU, wrong)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with pytest.raises(ad.ArgumentError, match="not written: the file would differ"):
        ad.save_onnx(model, path, torch.zeros(1, 4))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_network_in_training_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ad.ArgumentError, match="training mode"):
        ad.save_onnx(nn.Sequential(nn.Linear(4, 3), nn.Dropout()), tmp_path / "net.onnx", torch.zeros(1, 4))


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ad.ArgumentError, match="cannot write there"):
        ad.save_onnx(nn.Linear(4, 3).eval(), tmp_path / "file" / "net.onnx", torch.zeros(1, 4))
