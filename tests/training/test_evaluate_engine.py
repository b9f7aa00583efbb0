"""`evaluate_engine` names the bound of every evaluation of a run: validations, the final one, `certify RUN`, rows of a campaign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import autodual as ad
from autodual.cli.certify import Engine
from autodual.evaluation.judge import ENGINES
from autodual.evaluation.processes import Watch
from autodual.reproduce import evaluation
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.one_row import work_on
from autodual.runs.config import Proving, TrainConfig, dump_yaml
from autodual.runs.folder import Run
from autodual.runs.recipes import RECIPES, options
from autodual.runs.records import ValidationLine
from autodual.training.fitting import train
from cli.conftest import exit_code

TINY: dict[str, Any] = {
    "dataset": "digits", "model": "cnn5:2", "eps": 0.02, "epochs": 2, "batch": 30, "limit_train": 90, "limit_test": 12,
    "evaluate_every": 1, "evaluate_examples": 6, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "ibp"
    train(TrainConfig.from_mapping(options("ibp") | TINY), folder)
    return folder


def test_every_engine_that_proves_has_a_name() -> None:
    assert set(get_args(Proving)) == set(ENGINES)
    assert get_args(Engine) == (*get_args(Proving), "high-probability")
    assert len(set(map(repr, ENGINES.values()))) == len(ENGINES)  # a file of lines is checked by the name of its engine
    assert TrainConfig().evaluate_engine == "dual"


def test_a_run_is_validated_and_evaluated_by_its_engine(run: Path) -> None:
    record = json.loads((run / "evaluation.json").read_text())
    assert record["engine"] == repr(ENGINES["best-ibp"])
    lines = [line for line in Run(run).metrics() if isinstance(line, ValidationLine)]
    assert [line.engine for line in lines] == [record["engine"]] * 2
    trained, (images, labels) = ad.load_run(run), ad.load_digits("test")
    found = ad.certify(trained.model, images[:12], labels[:12], trained.ball, ENGINES["best-ibp"])
    assert record["certified"] == found.certified.tolist()
    assert len(record["radii"]) == 12
    assert all(
        radius >= 0.02 - 0.02 / 50 for radius, yes in zip(record["radii"], record["certified"], strict=True) if yes
    )


def test_certify_takes_the_runs_engine_unless_it_is_told_another(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = ["certify", str(run), "--device", "cpu", "--limit", "4"]
    assert exit_code(monkeypatch, *limited) == 0
    assert json.loads((run / "certificates-best-ibp-first-4.summary.json").read_text())["engine"] == repr(
        ENGINES["best-ibp"]
    )
    assert exit_code(monkeypatch, *limited, "--engine", "dual") == 0
    assert (run / "certificates-dual-first-4.jsonl").exists()
    assert exit_code(monkeypatch, "certify", "--check", str(run / "certificates-best-ibp-first-4.jsonl")) == 0


@pytest.mark.parametrize("units", [10**9, 0])
def test_a_row_counts_by_its_configs_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """A large network whose intervals are as good as any is not certified by the dear engines as well."""
    monkeypatch.setattr(evaluation, "WHOLE_UNITS", units)
    (tmp_path / "configs").mkdir()
    values = options("ibp") | TINY | {"limit_test": 30, "evaluate_every": 0}
    (tmp_path / "configs" / "mnist-small-0.1.yaml").write_text(dump_yaml(values))
    campaign = Campaign(tmp_path / "configs", tmp_path / "results", tmp_path / "work", device="cpu")
    record = work_on(campaign, Task("mnist-small-0.1"), Watch())
    assert record is not None
    assert record.complete
    figures: Any = record.figures
    assert list(figures.engines) == (["best-ibp", "dual", "ibp", "crown"] if units else ["best-ibp", "ibp"])
    assert figures.robust_error == figures.engines["best-ibp"].robust_error
    arrays = np.load(campaign.result(Task("mnist-small-0.1")) / "certificates.npz")
    assert all(engine.images == 30 for engine in figures.engines.values())
    any_ = np.any([arrays[f"{name}_certified"] for name in figures.engines], axis=0)
    assert figures.certified_best == any_.sum() >= figures.engines["best-ibp"].certified


def test_recipes_take_engines_that_fit_their_bounds() -> None:
    """Interval bounds of networks that were hardly trained with them prove little: those get tighter engines."""
    taken = {name: TrainConfig.from_mapping(options(name)).evaluate_engine for name in RECIPES}
    assert taken == dict.fromkeys(RECIPES, "best-ibp") | {"paper": "dual"}
    rows = {name: TrainConfig.from_mapping(options(name, "cifar10", "2/255")) for name in RECIPES}
    tight = {name for name, config in rows.items() if config.evaluate_engine == "best"}
    assert tight == {"sabr", "mtl-ibp", "cc-ibp", "exp-ibp"}
    little = {n for n, c in rows.items() if c.engine == "ibp" and (c.robust_weight < 0.1 or c.box_part < 0.1)}
    assert tight == little


def test_mistakes_are_named() -> None:
    with pytest.raises(ad.ArgumentError, match=r"evaluate_engine must be one of dual, crown, ibp, .* got 'cron'"):
        TrainConfig.from_mapping({"evaluate_engine": "cron"})
    with pytest.raises(ad.ArgumentError, match="evaluate_engine is for a single network: stages of a cascade"):
        TrainConfig(evaluate_engine="ibp", cascade=2)
