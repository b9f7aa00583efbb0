"""Cascades are trained stage by stage on what is left open, and resumed inside any stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from autodual._errors import ArgumentError
from autodual._files import load_tensors
from autodual.cascades import Cascade, load_combination
from autodual.digits import digits_network, load_digits
from autodual.evaluation.processes import StoppedError, Watch
from autodual.runs.config import TrainConfig
from autodual.training import stages
from autodual.training.fitting import train
from autodual.training.setup import make_ball

BASE = TrainConfig(
    dataset="digits", model="digits", eps=0.03, clip=(0.0, 1.0), k=8, epochs=3, eps_epochs=2, lr_epochs=2, lr=3e-3, limit_train=200,
    limit_test=24, evaluate_every=0, evaluate_examples=60, batch=25, cascade=2, device="cpu", skip_curve=True,
)  # fmt: skip


@pytest.fixture(scope="module", params=["paper", "routed", "sum"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Path]:
    config = BASE.with_changes(cascade_kind=request.param)
    folder = tmp_path_factory.mktemp("cascade") / request.param
    train(config, folder)
    return config, folder


def test_the_record_says_who_answers_what(trained: tuple[TrainConfig, Path]) -> None:
    config, folder = trained
    record = json.loads((folder / "cascade.json").read_text())
    assert record["kind"] == config.cascade_kind
    assert sum(stage["answers"] for stage in record["stages"]) == 24
    assert record["models"] == 2
    for stage in record["stages"]:
        assert stage["certified_correct"] + stage["certified_wrong"] == stage["certified"]
    assert record["attacked_error"] >= record["on_attacked"]["error"] - 1e-9
    if config.cascade_kind != "paper":
        assert record["broken_claims"] == 0
        assert record["stage_certified_error"] == record["sound_certified_error"] >= record["attacked_error"] - 1e-9


def test_figures_that_stand_together_are_of_the_same_images(
    trained: tuple[TrainConfig, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first few only, where not all are attacked."""
    config, folder = trained
    monkeypatch.setattr(stages, "ATTACKED", 10)
    copied = tmp_path / "run"
    shutil.copytree(folder, copied)
    (copied / "cascade.json").unlink()
    record = train(config, copied, resume=True)["cascade"]
    images, labels = (t[:10] for t in load_digits("test"))
    combination = load_combination(folder / "cascade", lambda stage: digits_network())
    found = combination.certify(images, labels)
    assert record["examples"] == 24
    assert record["attacked_examples"] == 10
    assert record["on_attacked"] == {
        "error": found.error,
        "stage_certified_error": found.stage_certified_error,
        "sound_certified_error": found.sound_certified_error,
        "sound_certified_error_as_run": found.sound_certified_error_as_run,
    }
    assert record["attacked_error"] <= record["on_attacked"]["sound_certified_error"]
    assert record["broken_proofs"] == 0


def test_the_saved_combination_gives_the_recorded_figures(trained: tuple[TrainConfig, Path]) -> None:
    _, folder = trained
    combination = load_combination(folder / "cascade", lambda stage: digits_network())
    images, labels = (t[:24] for t in load_digits("test"))
    record = json.loads((folder / "cascade.json").read_text())
    assert combination.certify(images, labels).stage_certified_error == pytest.approx(record["stage_certified_error"])


def test_the_second_stage_is_trained_on_what_the_first_leaves_open(trained: tuple[TrainConfig, Path]) -> None:
    config, folder = trained
    if config.cascade_kind == "sum":
        assert not (folder / "stages" / "open-1.json").exists()
        return
    model = digits_network()
    model.load_state_dict(load_tensors(folder / "stages" / "0.safetensors"))
    images, _ = (t[:200] for t in load_digits("train"))
    certified = Cascade([model.eval()], make_ball(config)).predict(images).certified
    left = json.loads((folder / "stages" / "open-1.json").read_text())
    assert left["open"] == (~certified).nonzero().squeeze(1).tolist()
    assert left["sound"]
    assert 0 < len(left["open"]) < 200


@pytest.mark.parametrize(
    "content", ["{}", '{"open": 3}', '{"open": [0, 200]}', '{"open": [-1]}', '{"open": [3, 3]}', '{"open": ["1"]}']
)
def test_a_damaged_list_of_open_examples_is_named(
    trained: tuple[TrainConfig, Path], tmp_path: Path, content: str
) -> None:
    config, folder = trained
    if config.cascade_kind == "sum":
        pytest.skip("a sum leaves nothing open")
    copy = shutil.copytree(folder, tmp_path / "run")
    place = copy / "stages" / "open-1.json"
    before = place.read_bytes()
    place.write_text(content)
    with pytest.raises(ArgumentError, match=r"open-1\.json: is damaged; remove it"):
        train(config, copy, resume=True)
    place.unlink()
    train(config, copy, resume=True)
    assert place.read_bytes() == before


@pytest.mark.parametrize("content", ["{}", '{"kind": 5}'])
def test_a_damaged_record_is_named(trained: tuple[TrainConfig, Path], tmp_path: Path, content: str) -> None:
    config, folder = trained
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / "cascade.json").write_text(content)
    with pytest.raises(ArgumentError, match=r"cascade\.json: is damaged; remove it"):
        train(config, copy, resume=True)


@pytest.mark.parametrize("steps", [pytest.param(5, marks=pytest.mark.slow), 26], ids=["first stage", "second stage"])
def test_a_cascade_that_was_stopped_goes_on_bit_for_bit(
    trained: tuple[TrainConfig, Path], tmp_path: Path, steps: int
) -> None:
    config, folder = trained
    seen: list[int] = []
    with pytest.raises(StoppedError):
        train(config, tmp_path / "run", watch=Watch(step=lambda p: seen.append(1), stop=lambda: len(seen) >= steps))
    train(config, tmp_path / "run", resume=True)
    assert (folder / "cascade.json").read_bytes() == (tmp_path / "run" / "cascade.json").read_bytes()
    for stage in range(2):
        one, other = (load_tensors(f / "stages" / f"{stage}.safetensors") for f in (folder, tmp_path / "run"))
        assert all(torch.equal(one[k], other[k]) for k in one)


def test_a_stage_that_does_not_help_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([0.4, 0.3, 0.3])
    monkeypatch.setattr(stages, "_held_out_error", lambda *_: next(errors))
    said: list[str] = []
    train(
        BASE.with_changes(cascade=4, cascade_kind="sum", validation=0.2), tmp_path / "run", watch=Watch(say=said.append)
    )
    assert any("stage 2 does not improve the certified error on held-out data (30.00%)" in line for line in said)
    assert len(list((tmp_path / "run" / "cascade").glob("*.safetensors"))) == 2


def test_later_stages_choose_their_checkpoint_on_what_is_still_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on held-out images that a stage before has certified: those it will never be asked about."""
    sizes: list[int] = []
    usual = stages.train_stage

    def noted(config, run, stage, model, data, held_out, watch):  # type: ignore[no-untyped-def]
        sizes.append(0 if held_out is None else len(held_out))
        usual(config, run, stage, model, data, held_out, watch)

    monkeypatch.setattr(stages, "train_stage", noted)
    train(BASE.with_changes(validation=0.2, evaluate_every=3, epochs=8, eps=0.01, limit_test=2), tmp_path / "run")
    assert len(sizes) == 2
    record = json.loads((tmp_path / "run" / "stages" / "held-out-open-1.json").read_text())
    assert sizes == [40, len(record["open"])]
    assert sizes[1] < 40
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    seen = {line["stage"]: line["examples"] for line in lines if line["kind"] == "validation"}
    assert seen == dict(enumerate(sizes)) or sizes[1] == 0


def test_sorting_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left open of many images takes longer than a session may last."""
    monkeypatch.setattr(stages, "at_once", lambda model, data: 30)
    parts: list[slice] = []
    usual = stages._sort

    def noted(alone, data, part):  # type: ignore[no-untyped-def]
        parts.append(part)
        return usual(alone, data, part)

    monkeypatch.setattr(stages, "_sort", noted)
    run, sorting = tmp_path / "run", [0]

    def count(what: str, done: int, of: int) -> None:
        sorting[0] += what == "sorting"

    for _ in range(5):
        sorting[0] = 0
        watch = Watch(draw=count, stop=lambda: sorting[0] >= 2 or (run / "stages" / "open-1.json").exists())
        with pytest.raises(StoppedError):
            train(BASE, run, resume=run.exists(), watch=watch)
    assert [part.start for part in parts] == list(range(0, 200, 30))
    assert not list((run / "stages").glob("*.jsonl"))
    assert len(json.loads((run / "stages" / "open-1.json").read_text())["open"]) < 200
