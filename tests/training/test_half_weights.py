"""Weights that are rounded to float16 at the end of training: the rounded network is the one that is kept and certified."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from autodual import ArgumentError, AutodualError
from autodual import models as networks
from autodual._files import decode_tensors, load_tensors
from autodual.runs.checkpoint import encode_half, load_model, round_to_half_
from autodual.runs.config import TrainConfig
from autodual.training.fitting import train

CONFIG = TrainConfig(
    dataset="digits", model="digits", eps=0.03, k=4, epochs=1, limit_train=50, limit_test=4, evaluate_every=0, batch=25, device="cpu",
    half_weights=True, skip_curve=True,
)  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"cascade": 2}, {"validation": 0.2, "evaluate_every": 1}], ids=str)
def test_every_network_that_is_kept_is_rounded(tmp_path: Path, changes: dict[str, object]) -> None:
    train(CONFIG.with_changes(**changes), tmp_path / "run")
    kept = [tmp_path / "run" / "model.safetensors", *(tmp_path / "run" / "stages").glob("[0-9]*.safetensors")]
    for file in kept:
        assert all(torch.equal(tensor, tensor.half().float()) for tensor in load_tensors(file).values())


def test_without_it_nothing_is_rounded(tmp_path: Path) -> None:
    train(CONFIG.with_changes(half_weights=False), tmp_path / "run")
    tensors = load_tensors(tmp_path / "run" / "model.safetensors")
    assert not all(torch.equal(tensor, tensor.half().float()) for tensor in tensors.values())


def test_statistics_of_images_are_no_weights() -> None:
    model = networks.small(3, 8, 10, mean=(0.485, 0.456, 0.406), std=0.225)
    round_to_half_(model)
    assert model[0].std.item() == torch.tensor(0.225).item()
    content = encode_half(model)
    types = {name: tensor.dtype for name, tensor in decode_tensors(content, Path("x")).items()}
    assert {types.pop("0.mean"), types.pop("0.std")} == {torch.float32}
    assert set(types.values()) == {torch.float16}


def test_what_is_written_is_read_back_to_the_last_bit(tmp_path: Path) -> None:
    model, other = networks.small(1, 8), networks.small(1, 8)
    with pytest.raises(ArgumentError, match="values that float16 does not hold; round the weights first"):
        encode_half(model)
    round_to_half_(model)
    (tmp_path / "half").write_bytes(encode_half(model))
    load_model(tmp_path / "half", other, expect_half=True)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_weights_beyond_float16_are_refused() -> None:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1e5)
    with pytest.raises(AutodualError, match="weight: has values up to 100000, which float16 does not hold"):
        round_to_half_(model)
