"""A row goes from its config to its record; stopped or killed anywhere, it ends with the same record, and nothing is done twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autodual as ad
from autodual._files import load_tensors
from autodual.digits import load_digits
from autodual.evaluation import judge
from autodual.evaluation.processes import Watch
from autodual.reproduce import evaluation
from autodual.reproduce.campaign import Campaign, Phase, Task
from autodual.reproduce.one_row import Extent, work_on
from autodual.runs.config import dump_yaml, read_yaml
from autodual.training import stages
from autodual.training.loop import StoppedError

from .conftest import CASCADE, ROW, kept

OF_THE_DAY = ("seconds", "started", "seconds_per_epoch")
"""What differs between two runs of one row."""


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(each) for name, each in value.items() if name not in OF_THE_DAY}
    return value


def _assert_same(one: Path, other: Path) -> None:
    """Records without times, weights and certificates, bit for bit."""
    records = [json.loads((folder / "evaluation.json").read_text()) for folder in (one, other)]
    assert _timeless(records[0]) == _timeless(records[1])
    arrays = [np.load(folder / "certificates.npz") for folder in (one, other)]
    assert set(arrays[0]) == set(arrays[1])
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    if records[0]["weights"]["kept"]:
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_the_record_is_about_the_rounded_network(finished: Campaign) -> None:
    record = kept(finished, Task(ROW))
    network = ad.load_pretrained(ROW, recipe="paper", folder=finished.results)
    weights = load_tensors(finished.result(Task(ROW)) / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    images, labels = (part[:10] for part in load_digits("test"))
    proofs = [
        ad.certify(network.model, images, labels, network.ball, engine) for engine in (ad.Dual(), ad.IBP(), ad.Crown())
    ]
    for name, proof in zip(("dual", "ibp", "crown"), proofs, strict=True):
        figures = record["engines"][name]
        assert figures["certified"] == int(proof.certified.sum())
        assert figures["certified_as_run"] == int(proof.certified_as_run.sum())
    best = torch.stack([proof.certified for proof in proofs]).any(0)
    assert record["robust_error_best"] == pytest.approx(1 - best.double().mean().item())
    assert record["robust_error"] == pytest.approx(1 - proofs[0].certified.double().mean().item())
    assert record["pgd_error_exact"] <= record["robust_error_best"] + 1e-9
    assert (record["examples"], record["weights"]["chosen"], record["complete"]) == (10, "last epoch", True)


def test_certificates_of_all_images_are_kept_compressed(finished: Campaign) -> None:
    record = kept(finished, Task(ROW))
    found = np.load(finished.result(Task(ROW)) / "certificates.npz")
    assert len(found["labels"]) == len(found["dual_margin"]) == 10
    for name in ("dual", "ibp", "crown"):
        assert int(found[f"{name}_certified"].sum()) == record["engines"][name]["certified"]
    assert (found["dual_margin"][found["dual_certified"]] > 0).all()


def test_a_cascade_has_four_figures(finished: Campaign) -> None:
    record = kept(finished, Task(CASCADE))
    assert 0 <= record["error"] <= record["stage_certified_error"] <= 1
    assert record["attacked_error"] >= record["on_attacked"]["error"]
    assert record["sound_certified_error"] >= record["attacked_error"] - 1e-9
    assert record["best_sound"]["chosen_on"] == "6 training images"
    tried = record["best_sound"]["error_on_fitting"]
    assert tried[record["best_sound"]["chosen"]] == min(tried.values())
    assert len(record["weights"]["sha256"]) == 2


def test_the_first_stage_of_a_cascade_is_the_single_network(finished: Campaign) -> None:
    single, cascade = kept(finished, Task(ROW)), kept(finished, Task(CASCADE))
    assert cascade["weights"]["sha256"][0] == single["weights"]["sha256"][0]


@pytest.mark.parametrize(("row", "calls"), [(ROW, 3), (ROW, 10), (CASCADE, 7)])
def test_stopped_again_and_again_it_ends_the_same(campaign: Campaign, finished: Campaign, row: str, calls: int) -> None:
    """`calls`: how often a session may be asked whether it should stop, before it should."""
    task, states = Task(row), [campaign.progress(Task(row))]
    for _ in range(40):
        asked = iter(range(calls))
        try:
            work_on(campaign, task, Watch(stop=lambda asked=asked: next(asked, None) is None))  # type: ignore[misc]
            break
        except StoppedError:
            states.append(campaign.progress(task))
    assert campaign.progress(task).step == Phase.DONE
    assert len(states) >= 2
    assert states == sorted(states)
    _assert_same(campaign.result(task), finished.result(task))


def test_finished_parts_are_not_done_again(
    campaign: Campaign, finished: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("results", "work"):
        source, target = getattr(finished, place), getattr(campaign, place)
        subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    (campaign.result(Task(ROW)) / "evaluation.json").unlink()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(judge, "judge_lines", fail)
    monkeypatch.setattr(stages.Loop, "fit", fail)
    work_on(campaign, Task(ROW), Watch())
    _assert_same(campaign.result(Task(ROW)), finished.result(Task(ROW)))


def test_engines_may_come_one_after_the_other(
    campaign: Campaign, finished: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one has found is taken from the results, even where its lines are gone."""
    task, asked = Task(ROW), list[str]()
    usual = judge.judge_lines

    def noted(model, ball, engine, data, part, until=None):  # type: ignore[no-untyped-def]
        asked.append(repr(engine))
        return usual(model, ball, engine, data, part, until)

    monkeypatch.setattr(judge, "judge_lines", noted)
    assert work_on(campaign, task, Watch(), Extent(evaluate=False)) is None
    assert str(campaign.progress(task)) == "trained; evaluated by no engine yet; 0 lines"
    for engines, complete in ((["dual"], False), (["dual"], False), (["ibp"], False), (["crown"], True)):
        record = work_on(campaign, task, Watch(), Extent(engines))
        assert record is not None
        assert record.complete == complete
        for file in campaign.run(task).folder.glob("certificates-*.jsonl"):
            file.unlink()
    assert asked == ["Dual()", "IBP()", "Crown()"]
    _assert_same(campaign.result(task), finished.result(task))


@pytest.mark.parametrize(
    "changes",
    [{}, {"engine": "none", "eps": 0.1, "epochs": 6, "limit_train": 300, "limit_test": 15}],
    ids=["none", "some"],
)
def test_of_a_large_network_engines_get_what_can_be_certified(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """The row's own engine is spared what the attack has broken, `Crown()` what is certified, too; figures are the same."""
    file, task = campaign.configs / f"{ROW}.yaml", Task(ROW)
    file.write_text(dump_yaml(read_yaml(file) | changes))
    work_on(campaign, task, Watch())
    whole = kept(campaign, task)
    for old in (*campaign.run(task).folder.glob("certificates-*"), *campaign.result(task).glob("*")):
        old.unlink()
    monkeypatch.setattr(evaluation, "WHOLE_UNITS", 10)
    monkeypatch.setattr(evaluation, "CHECKED", 1)
    work_on(campaign, task, Watch())
    record = kept(campaign, task)
    crown, arrays = record["engines"]["crown"], np.load(campaign.result(task) / "certificates.npz")
    dual, tried = record["engines"]["dual"], ~np.isnan(arrays["dual_margin"])
    assert tried[~arrays["attacked"]].all()
    assert tried[arrays["attacked"]].sum() == min(1, arrays["attacked"].sum())
    assert (dual["images"], dual.get("tried", len(tried))) == (len(tried), tried.sum())
    assert {name: dual[name] for name in dual if name not in ("tried", "seconds")} == {
        name: value for name, value in whole["engines"]["dual"].items() if name != "seconds"
    }
    is_open = ~(arrays["attacked"] | arrays["dual_certified_as_run"] | arrays["ibp_certified_as_run"])
    assert crown["images"] == is_open.sum() < record["examples"]
    assert bool(changes) == bool(is_open.any())
    assert "robust_error" not in crown
    assert np.isnan(arrays["crown_margin"][~is_open]).all()
    assert not np.isnan(arrays["crown_margin"][is_open]).any()
    for name in (
        "error",
        "robust_error",
        "robust_error_as_run",
        "certified_best",
        "certified_best_as_run",
        "robust_error_best",
    ):
        assert record[name] == whole[name]


@pytest.mark.parametrize(("missing", "again"), [(0, False), (1, True)], ids=["finished", "a line is missing"])
def test_a_finished_attack_counts_on_another_machine(
    campaign: Campaign, finished: Campaign, monkeypatch: pytest.MonkeyPatch, missing: int, again: bool
) -> None:
    task, attacked = Task(ROW), list[int]()
    shutil.copytree(finished.work, campaign.work)
    folder, attack = campaign.run(task).folder, evaluation.attack
    for old in folder.glob("certificates-*"):
        old.unlink()
    lines, note = folder / "attack.jsonl", folder / "attack.problem.json"
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[: -missing or None]))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"device": "cuda", "torch": "2.0.0"}))

    def counted(*args: Any) -> Any:
        attacked.append(len(args[1]))
        return attack(*args)

    monkeypatch.setattr(evaluation, "attack", counted)
    work_on(campaign, task, Watch())
    assert bool(attacked) == again
    _assert_same(campaign.result(task), finished.result(task))


def test_optimised_slopes_are_added_on_request_where_images_are_open(campaign: Campaign) -> None:
    """Also to a row that is done, and for good."""
    file, task = campaign.configs / f"{ROW}.yaml", Task(ROW)
    trained_as_usual = {"engine": "none", "eps": 0.1, "epochs": 6, "limit_train": 300, "limit_test": 15}
    file.write_text(dump_yaml(read_yaml(file) | trained_as_usual))
    work_on(campaign, task, Watch())
    before = kept(campaign, task)
    assert before["complete"]
    assert "alpha" not in before["engines"]
    arrays = np.load(campaign.result(task) / "certificates.npz")
    decided = np.any([arrays["attacked"], *(arrays[f"{e}_certified_as_run"] for e in ("dual", "ibp", "crown"))], axis=0)
    work_on(campaign, task, Watch(), Extent(("alpha",)))
    after, alpha = kept(campaign, task), np.load(campaign.result(task) / "certificates.npz")["alpha_certified"]
    assert after["complete"]
    assert 0 < after["engines"]["alpha"]["images"] == (~decided).sum()
    assert not alpha[decided].any()
    assert after["engines"]["alpha"]["certified"] == alpha.sum()
    assert after["certified_best"] == before["certified_best"] + alpha.sum()
    assert {name: after["engines"][name] for name in before["engines"]} == before["engines"]
    work_on(campaign, task, Watch())
    assert kept(campaign, task) == after


@pytest.mark.parametrize(("units", "wanted"), [(1, [10]), (10**9, [1] * 10)])
def test_batches_of_certificates_shrink_with_the_network(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, units: int, wanted: list[int]
) -> None:
    """So that a session can stop in between; the images of all batches together are the same."""
    monkeypatch.setattr(judge, "generators", lambda network: units)
    sizes: list[int] = []
    usual = judge.judge_lines

    def noted(model, ball, engine, data, part, until=None):  # type: ignore[no-untyped-def]
        sizes.append(part.stop - part.start)
        return usual(model, ball, engine, data, part, until)

    monkeypatch.setattr(judge, "judge_lines", noted)
    work_on(campaign, Task(ROW), Watch(), Extent(("dual",)))
    assert sizes == wanted


def test_an_evaluation_goes_on_from_the_results_alone(
    campaign: Campaign, finished: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the run folder is gone, the network is taken from the results; it is not trained again, and its seconds still count."""
    task = Task(ROW)
    work_on(campaign, task, Watch(), Extent(("dual",)))
    before = kept(campaign, task)["training"]
    shutil.rmtree(campaign.work)
    assert str(campaign.progress(task)) == "trained; evaluated by dual"
    monkeypatch.setattr(stages.Loop, "fit", None)
    work_on(campaign, task, Watch())
    _assert_same(campaign.result(task), finished.result(task))
    after = kept(campaign, task)["training"]
    assert all(after["seconds"][name] >= spent > 0 for name, spent in before["seconds"].items())


def test_a_finished_row_needs_neither_data_nor_config(finished: Campaign, tmp_path: Path) -> None:
    bare = Campaign(tmp_path, finished.results, tmp_path / "work", data_folder=str(tmp_path))
    assert work_on(bare, Task(ROW), Watch()) == finished.record(Task(ROW))


def test_seeds_differ_and_lie_beside_each_other(campaign: Campaign) -> None:
    for seed in (0, 1):
        work_on(campaign, Task(ROW, seed=seed), Watch())
    first, second = (kept(campaign, Task(ROW, seed=seed)) for seed in (0, 1))
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["weights"]["sha256"] != second["weights"]["sha256"]
    assert campaign.result(Task(ROW, seed=1)) == campaign.results / "paper" / ROW / "seed-1"


@pytest.mark.slow
def test_killed_it_goes_on(campaign: Campaign) -> None:
    """By SIGKILL, in the middle of the training, with checkpoints after every epoch."""
    file = campaign.configs / f"{ROW}.yaml"
    file.write_text(dump_yaml(read_yaml(file) | {"epochs": 400, "validation": 0.2, "evaluate_every": 1}))
    options = ["--configs", campaign.configs, "--results", campaign.results, "--work", campaign.work, "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "autodual", "reproduce", ROW, *map(str, options)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while campaign.progress(Task(ROW)).steps < 8:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < until, "it trains no epoch within a minute"
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = campaign.progress(Task(ROW))
    with pytest.raises(StoppedError):
        work_on(campaign, Task(ROW), Watch(stop=lambda: True))
    assert campaign.progress(Task(ROW)) >= before
    assert "of 400" in str(before)
