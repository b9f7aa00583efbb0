"""Recipes are configs with a source: those of the repository are those of the package, and each row has what its source says."""

from __future__ import annotations

from pathlib import Path

import pytest

import autodual as ad
from autodual.runs.config import TrainConfig, read_yaml
from autodual.runs.recipes import COMPARED_ROWS, RECIPES, options, written
from autodual.runs.schedule import check_ramp, eps_at, lr_at

ROOT = Path(__file__).parents[2] / "configs"
FILES = [(name, row) for name, recipe in RECIPES.items() for row in recipe.rows]


def test_every_file_is_that_of_a_row_of_a_recipe() -> None:
    """If this fails, write them anew with `written`."""
    found = {path.name: path.read_text() for path in (ROOT / "modern").glob("*.yaml")}
    assert found == {f"{row}-{name}.yaml": written(name, row) for name, row in FILES if name != "paper"}


@pytest.mark.parametrize(("name", "row"), FILES, ids=lambda v: v)
def test_rows_parse_end_at_eps_and_say_where_they_are_from(name: str, row: str) -> None:
    dataset, eps = COMPARED_ROWS[row]
    config = TrainConfig.from_mapping(options(name, dataset, eps))
    check_ramp(config)
    assert (config.dataset, config.norm) == (dataset, "linf")
    assert eps_at(config, config.epochs - 1) == config.eps * config.train_eps_factor
    assert "Source: " in written(name, row)
    assert "inherited from a paper, tuned on its test data" in written(name, row)
    assert TrainConfig.from_mapping(options(name, dataset, config.eps)) == config


@pytest.mark.parametrize("row", COMPARED_ROWS)
def test_the_papers_recipe_is_the_config_of_its_row(row: str) -> None:
    stem = row.replace("mnist-", "mnist-large-").replace("cifar-", "cifar-large-")
    expected = TrainConfig.from_mapping(read_yaml(ROOT / f"{stem}.yaml"))
    found = TrainConfig.from_mapping(options("paper", *COMPARED_ROWS[row]))
    assert found.with_changes(eps=expected.eps) == expected
    assert found.eps == pytest.approx(expected.eps)


def test_a_published_schedule() -> None:
    """MTL-IBP at 8/255: Adam 5e-4, 260 epochs, 1 of warm-up, a ramp of 80, a fifth of the rate at 180 and at 220."""
    config = TrainConfig.from_mapping(options("mtl-ibp", "cifar10", 8 / 255))
    assert [lr_at(config, e) for e in (0, 179, 180, 219, 220)] == pytest.approx([5e-4, 5e-4, 1e-4, 1e-4, 2e-5])
    assert eps_at(config, 0) == 1e-6
    assert eps_at(config, 79) < config.eps == eps_at(config, 80)
    assert (config.batch, config.l1, config.attack_steps, config.attack_step_size) == (128, 1e-7, 1, 10.0)


def test_schedules_shrink_with_the_epochs() -> None:
    for name, row in FILES:
        check_ramp(TrainConfig.from_mapping({**options(name, *COMPARED_ROWS[row]), "epochs": 8}))


def test_other_data_takes_what_is_for_any() -> None:
    assert options("mtl-ibp", "digits", 0.1) == options("mtl-ibp") == dict(RECIPES["mtl-ibp"].options)
    assert options("exp-ibp", "mnist", 0.3) == options("exp-ibp")


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(ad.ArgumentError, match="unknown recipe 'mtl_ibp'; did you mean mtl-ibp"):
        options("mtl_ibp")
    with pytest.raises(ad.ArgumentError, match="known are ibp, crown-ibp, sabr, mtl-ibp, cc-ibp, exp-ibp, paper"):
        options("zebra")
