"""Configs: every published one parses, flags win, and mistakes are named."""

import math
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

import autodual as ad
from autodual.runs.config import TrainConfig, dump_yaml, read_yaml
from autodual.runs.schedule import eps_at, lr_at

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_published_config_parses_and_survives_a_round_trip(path: Path, tmp_path: Path) -> None:
    config = TrainConfig.from_mapping(read_yaml(path), str(path))
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_yaml(config.to_mapping()))
    assert TrainConfig.from_mapping(read_yaml(copy), str(copy)) == config


def test_the_papers_schedules() -> None:
    config = TrainConfig.from_mapping(read_yaml(CONFIGS[0].parent / "mnist-small-0.1.yaml"))
    assert [round(eps_at(config, e), 6) for e in (0, 1, 18, 19, 59)] == [0.01, 0.014737, 0.095263, 0.1, 0.1]
    assert [lr_at(config, e) for e in (0, 29, 30, 39, 40, 59)] == [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 1.25e-4]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "unknown option 'epoch'; did you mean epochs"),
        ({"zebra": 3}, "unknown option 'zebra'; known are dataset"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"flip": 1}, "flip must be true or false"),
        ({"norm": "l3"}, "norm must be one of linf, l2"),
        ({"eps": 0}, "eps must be positive"),
        ({"eps": float("nan")}, "eps must be a finite number"),
        ({"eps": 10**400}, "eps must be a finite number"),
        ({"lr": "1e-3"}, "lr must be a finite number, got '1e-3'; YAML takes this for a word: write .* 1.0e-3"),
        ({"eps": "2/0"}, "eps must be a finite number, got '2/0'"),
        ({"eps": "1/2/3"}, "eps must be a finite number"),
        ({"eps": "8"}, "eps must be a finite number"),
        ({"eps": 8}, "eps must be at most 1 for norm linf, got 8.0: .* write 8/255"),
        ({"eps": 1001, "norm": "l2"}, "eps must be at most 1000 for norm l2"),
        ({"eps": 0.1, "eps_start": 0.2}, "eps_start must not be larger than eps, which is 0.1, got 0.2"),
        ({"crop": 1001}, "crop must be at most 1000 pixels"),
        ({"momentum": 1.0}, "momentum must lie between 0 and 1"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"clip_gradients": 0}, "clip_gradients must be positive"),
        ({"seed": -1}, "seed must not be negative"),
        ({"seed": 2**32}, r"seed must be below 2\*\*32"),
        ({"lr": 1e38}, "lr must be at most 1e[+]30, got 1e[+]38: networks compute in float32"),
        ({"weight_decay": 1e300}, "weight_decay must be at most 1e[+]30"),
        ({"clip": [-1e300, 1e300]}, "clip must be at most 1e[+]30"),
        ({"lr_factor": 1e30, "lr_milestones": [1, 2]}, "lr_factor at 2 milestones makes the learning rate larger"),
        ({"lr_epochs": -1}, "lr_epochs must not be negative"),
        ({"clip": [0.2, 0.8]}, "clip must hold the images themselves"),
        ({"model": ""}, "model must be a word"),
        ({"clip": [1, 0]}, "clip must be low < high"),
        ({"clip": 3}, "clip must be two finite numbers or nothing"),
        ({"clip": [0, 1], "norm": "l2"}, "clip is for norm linf"),
        ({"k": 0}, "k must be at least 1"),
        ({"validation": 1.0}, "validation must be a part"),
        ({"adversarial": True}, "set engine to none"),
        ({"lr": -1}, "lr must be positive"),
        ([1, 2], "expected options by name, got list"),
        ("dataset", "expected options by name, got str"),
    ],
)
def test_mistakes_are_named(values: object, message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        TrainConfig.from_mapping(values, "file.yaml")  # type: ignore[arg-type]


NONSENSE = (
    -1,
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    True,
    "x",
    "",
    "\0",
    [],
    [1],
    [1, 0],
    [math.nan, 1],
    {},
    10**400,
    b"a",
)


SENSE: dict[str, tuple[Any, ...]] = {"eps": ([1], [1, 0]), "feature_eps": ([1], [1, 0]), "label_column": (-1,)}
"""What is none for these: an eps for each feature, and the last column."""


@pytest.mark.parametrize("field", fields(TrainConfig), ids=lambda f: f.name)
def test_nonsense_is_refused_and_its_field_named(field: Field[Any]) -> None:
    fine = {"bool": True, "str": "x"}.get(str(field.type).split(" ")[0])
    several = field.name == "lr_milestones"  # of which there may be one
    sense = (*SENSE.get(field.name, ()), *([[1]] if several else []))
    for value in (v for v in NONSENSE if v is not fine and v not in sense):
        with pytest.raises(ad.ArgumentError, match=rf"^file\.yaml: {field.name}\b"):
            TrainConfig.from_mapping({field.name: value}, "file.yaml")


def test_fractions_are_numbers() -> None:
    config = TrainConfig.from_mapping({"eps": "2/255", "eps_start": "1 / 510", "clip": ["-1/2", "3/2"]})
    assert (config.eps, config.eps_start, config.clip) == (2 / 255, 1 / 510, (-0.5, 1.5))


def test_the_default_start_gives_way_to_a_smaller_eps() -> None:
    config = TrainConfig(eps=0.004)
    assert eps_at(config, 0) == 0.004
    assert TrainConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eps: 0.1\nk: 3\neps: 0.2\n", "twice.yaml: eps is given twice, in lines 1 and 3; keep one"),
        ("{k: 3,\n 'k': 3}", "twice.yaml: k is given twice, in lines 1 and 2"),
        ("{k: 3, k: 4}", "twice.yaml: k is given twice, in line 1"),
    ],
)
def test_a_name_that_is_given_twice_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "twice.yaml").write_text(text)
    with pytest.raises(ad.ArgumentError, match=message):
        read_yaml(tmp_path / "twice.yaml")


def test_an_empty_config_is_fine(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "empty.yaml") is None


def test_broken_yaml_is_one_readable_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("eps: [1, 2\nmodel: {")
    with pytest.raises(ad.ArgumentError, match=r"broken\.yaml: is not YAML"):
        read_yaml(broken)
    broken.write_text("eps: 2024-13-99")
    with pytest.raises(ad.ArgumentError, match=r"broken\.yaml: is not YAML"):
        read_yaml(broken)
    with pytest.raises(ad.ArgumentError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "missing.yaml")
