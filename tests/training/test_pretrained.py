"""Networks of reproduced rows are found by name, or the message says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import autodual as ad
from autodual.runs.checkpoint import encode_half, round_to_half_
from autodual.runs.config import dump_yaml
from autodual.training import trained


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A row in both recipes, one without weights."""
    config = ad.TrainConfig(dataset="cifar10", model="small", normalise=True, eps=2 / 255, half_weights=True)
    for number, place in enumerate(("paper/row", "best/row", "paper/other", "paper/large")):
        folder = tmp_path / "results" / place
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(dump_yaml(config.with_changes(seed=number).to_mapping()))
        (folder / "evaluation.json").write_text("{}")
        torch.manual_seed(number)
        model = ad.models.small(3, 32, mean=(0.485, 0.456, 0.406), std=0.225)
        round_to_half_(model)
        if not place.endswith("large"):
            (folder / "model.safetensors").write_bytes(encode_half(model))
    return tmp_path / "results"


def test_ours_comes_first_and_the_papers_on_demand(results: Path) -> None:
    assert ad.load_pretrained("row", folder=results).config.seed == 1
    assert ad.load_pretrained("row", recipe="paper", folder=results).config.seed == 0
    assert ad.load_pretrained("other", folder=results).config.seed == 2


def test_it_is_ready_to_be_certified(results: Path) -> None:
    found = ad.load_pretrained("row", folder=results)
    assert not found.model.training
    assert found.ball == ad.LinfBall(2 / 255)
    assert {parameter.dtype for parameter in found.model.parameters()} == {torch.float32}
    assert found.model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_the_folder_is_named_by_argument_variable_or_source_tree(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTODUAL_RESULTS", str(results))
    assert ad.load_pretrained("row").config.seed == 1
    with pytest.raises(ad.ArgumentError, match="no such folder"):
        ad.load_pretrained("row", folder=tmp_path / "nowhere")
    monkeypatch.delenv("AUTODUAL_RESULTS")
    assert ad.load_pretrained("mnist-small-0.1").config.eps == 0.1  # of this source tree
    monkeypatch.setattr(trained, "__file__", str(tmp_path / "a/b/c/d/trained.py"))
    with pytest.raises(
        ad.ArgumentError, match=r"do not come with the installed package; .* AUTODUAL_RESULTS, or as folder="
    ):
        ad.load_pretrained("row")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "nothing: .* has no weights of such a row; it has those of other, row"),
        (("large",), "large: was reproduced, but its weights are too large .* `autodual reproduce large`"),
        (("other", "best"), "other: .* has no weights of such a row"),
        (("row", "worst"), "recipe must be one of best, modern, paper"),
        (("paper/row",), "name must be that of a row, .* use ad.load_run"),
    ],
)
def test_what_is_not_there_is_said(results: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        ad.load_pretrained(*arguments, folder=results)
