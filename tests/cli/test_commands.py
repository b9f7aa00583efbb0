"""The commands: what a person types, what they see, and what a mistake costs (one line, exit code 2, nothing lost)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autodual.cli.certify import tell_cascade
from autodual.data import ImageData
from autodual.data.known import KNOWN
from autodual.runs.records import AttackFigures, CascadeErrors, CascadeSummary

Call = Callable[..., tuple[int, str, str]]


@pytest.mark.filterwarnings("always:4,000,000,000 projections")
def test_too_many_projections_train_with_exact_bounds(call: Call, small: list[str], tmp_path: Path) -> None:
    options = [*small, "--k", "4000000000", "--epochs", "1", "--limit-train", "50", "--out", str(tmp_path / "run")]
    code, _, complaint = call("train", *options)
    assert code == 0, complaint
    assert (
        len(
            re.findall(
                "^note: 4,000,000,000 projections are no fewer than .*: using exact bounds$", complaint, re.MULTILINE
            )
        )
        == 1
    )
    assert "Warning" not in complaint


def test_train_certify_attack_and_report(call: Call, small: list[str], tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    code, said, _ = call("train", *small, "--out", out)
    assert code == 0
    assert "robust error" in said
    assert "at linf 0.05 (10 test images)" in said
    record = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert f"robust error {record['robust_error']:.2%} (as run in float32: {record['robust_error_as_run']:.2%})" in said
    code, said, _ = call("certify", out, "--engine", "crown", "--limit", "5", "--device", "cpu")
    assert code == 0
    assert "(5 images)" in said
    record = json.loads((tmp_path / "run" / "certificates-crown-first-5.summary.json").read_text())
    assert f"robust error {record['robust_error']:.2%} (as run in float32: {record['robust_error_as_run']:.2%})" in said
    assert len((tmp_path / "run" / "certificates-crown-first-5.jsonl").read_text().splitlines()) == 5
    code, said, _ = call("attack", out, "--eps", "0.2", "--device", "cpu")
    assert code == 0
    assert re.search(
        r"PGD error \d+\.\d\d% as run in float32 \(in real numbers: \d+\.\d\d%; 360 images, 40 steps from 4 starts\)",
        said,
    )
    code, said, _ = call("report", out)
    assert code == 0
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!")


def test_a_comparison_leaves_every_runs_own_page_alone(call: Call, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("a", "b")]
    for run in runs:
        run.mkdir()
        (run / "config.yaml").write_text("cascade: 1\n")
        assert call("report", str(run))[0] == 0
    before = [(run / "report.html").read_bytes() for run in runs]
    code, said, _ = call("report", *map(str, runs))
    assert (code, said) == (0, f"{tmp_path / 'comparison.html'}\n")
    assert "2 runs" in (tmp_path / "comparison.html").read_text()
    code, _, told = call("report", *map(str, runs), "--out", str(runs[1] / "report.html"))
    assert code != 0
    assert "give a comparison another name" in told
    assert [(run / "report.html").read_bytes() for run in runs] == before


def test_an_older_evaluation_is_shown_without_the_second_statement(
    call: Call, run_folder: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    record = json.loads((run / "evaluation.json").read_text())
    newer = ("robust_error_as_run", "certified_as_run", "attacked_as_run", "pgd_error_exact")
    older = {name: record[name] for name in record if name not in newer}
    older["curve"] = [{name: point[name] for name in ("eps", "robust_error", "pgd_error")} for point in record["curve"]]
    (run / "evaluation.json").write_text(json.dumps(older))
    code, said, complaint = call("train", "--resume", "--out", str(run))
    assert code == 0, complaint
    assert f"robust error {record['robust_error']:.2%} at linf 0.05" in said
    assert call("certify", str(run), "--device", "cpu", "--limit", "10")[0] == 0
    assert call("report", str(run))[0] == 0
    assert "as the network runs" not in (run / "report.html").read_text()


def test_the_curve_can_wait(call: Call, small: list[str], run_folder: Path, tmp_path: Path) -> None:
    """It is then the one that `run_folder` has, which was trained with it."""
    run = tmp_path / "run"
    assert call("train", *small, "--out", str(run))[0] == 0
    early = json.loads((run / "evaluation.json").read_text())
    assert (early["curve"], early["radii"], early["curve_examples"]) == ([], [], 0)
    code, _, complaint = call("report", str(run))
    assert (code, complaint) == (0, "")
    assert "No curve over epsilon to show." in (run / "report.html").read_text()
    assert call("report", str(run), str(run_folder))[0] == 0
    lines = (run / "certificates.jsonl").read_bytes()
    assert call("train", "--resume", "--out", str(run))[0] == 0
    assert json.loads((run / "evaluation.json").read_text()) == early
    code, _, complaint = call("train", "--resume", "--no-skip-curve", "--out", str(run))
    assert code == 0, complaint
    assert json.loads((run / "evaluation.json").read_text()) == json.loads((run_folder / "evaluation.json").read_text())
    assert (run / "certificates.jsonl").read_bytes() == lines


def test_attack_on_a_cascade(call: Call, cascade_run: Path, tmp_path: Path) -> None:
    out = str(shutil.copytree(cascade_run, tmp_path / "run"))
    code, said, err = call("attack", out, "--device", "cpu", "--limit", "4")
    assert code == 0, err
    assert "first stage alone" in said
    assert "stage-certified error" in said
    assert "soundly certified error" in said
    assert "first stage alone" in call("certify", out, "--device", "cpu", "--limit", "4")[1]


def test_what_stands_beside_an_attack_on_a_cascade_is_of_the_same_images(capsys: pytest.CaptureFixture[str]) -> None:
    plain = CascadeSummary(
        kind="paper", perturbation="", engine="", examples=360, stages=(), errors=CascadeErrors(0.1, 0.2, 0.5733, 0.58),
        no_wrong_certificate=1.0,
    )  # fmt: skip
    attack = AttackFigures(
        attacked_examples=100, attacked_error=0.58, attacked_certified_error=0.5, broken_claims=3, broken_proofs=0,
        on_attacked=CascadeErrors(0.11, 0.21, 0.59, 0.6),
    )  # fmt: skip
    attacked = replace(plain, attack=attack)
    tell_cascade("It", attacked)
    assert capsys.readouterr().out.splitlines() == [
        "It: error 10.00%, stage-certified error 20.00%, soundly certified error 57.33% (as run: 58.00%) (360 images)",
        "Attacked: error 11.00%, stage-certified error 21.00%, attacked error 58.00% (3 claims broken), "
        "soundly certified error 59.00% (as run: 60.00%) (the first 100 of them)",
    ]
    tell_cascade("It", plain)
    assert capsys.readouterr().out.count("\n") == 1
    tell_cascade("It", replace(plain, examples=100, attack=replace(attack, broken_proofs=1)))
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert "1 images are soundly certified and yet broken" in said.err


def test_certify_weights_by_name(call: Call, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    code, said, _ = call("certify", str(weights), "--model", "digits", "--dataset", "digits", "--eps", "0.05", "--clip", "0", "1",
                         "--limit", "20", "--out", str(out), "--device", "cpu")  # fmt: skip
    assert code == 0, said
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 20
    assert sum(line["certified"] for line in lines) > 10


def test_a_config_file_and_flags_that_win_over_it(call: Call, small: list[str], tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("dataset: digits\nmodel: digits\nepochs: 50\neps: 0.2\n")
    code, said, _ = call("train", str(config), *small, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "at linf 0.05" in said


@pytest.mark.parametrize("by_file", [False, True])
def test_to_resume_what_is_not_there_begins_it_and_says_so(
    call: Call, small: list[str], tmp_path: Path, by_file: bool
) -> None:
    out, config = tmp_path / "run", tmp_path / "mine.yaml"
    config.write_text("seed: 3\n")
    given = [str(config)] if by_file else ["--seed", "3"]
    code, said, complaint = call("train", *given, *small, "--epochs", "1", "--resume", "--out", str(out))
    assert code == 0, complaint
    assert "robust error" in said
    assert complaint.count(f"{out}: holds no run to go on with, so one is begun\n") == 1
    assert "seed: 3\n" in (out / "config.yaml").read_text()
    code, _, complaint = call("train", *given, *small, "--epochs", "1", "--resume", "--out", str(out))
    assert code == 0
    assert "holds no run" not in complaint


def test_help_reads_well(call: Call) -> None:
    code, said, _ = call("--help")
    assert code == 0
    assert all(command in said for command in ("train", "certify", "attack", "report", "data"))
    assert "random projections" in call("train", "--help")[1]


def test_data_commands(call: Call, tmp_path: Path) -> None:
    code, said, _ = call("data", "list", "--folder", str(tmp_path))
    assert code == 0
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert list(lines) == ["name", "digits", "mnist", "fashion-mnist", "cifar10"]
    assert lines["digits"].endswith("1437 + 360       1x8x8    10       comes with the package")
    assert lines["mnist"].endswith("not here; `autodual data fetch mnist` gets 55 MB")
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"not labels")
    code, said, complaint = call("data", "verify", "mnist", "--folder", str(tmp_path))
    assert code == 2
    assert "train-images-idx3-ubyte: missing\n" in said
    assert f"{tmp_path}/t10k-labels-idx1-ubyte: wrong size\n" in said
    assert complaint == "error: mnist: 4 of 4 files are not as published; get them with `autodual data fetch mnist`\n"


def test_data_that_are_there(call: Call, tmp_path: Path) -> None:
    for file in KNOWN["cifar10"].files:
        (tmp_path / file.name).touch()
    said = call("data", "list", "--folder", str(tmp_path))[1]
    assert said.splitlines()[-1].endswith(f"3x32x32  10       {tmp_path}")


@pytest.mark.parametrize("command", ["verify", "fetch"])
def test_digits_come_with_the_package(call: Call, command: str) -> None:
    code, said, complaint = call("data", command, "digits")
    assert (code, complaint) == (0, "")
    assert said.startswith("digits: comes with the package")


MISTAKES = {
    "unknown data set": (["train", "--dataset", "minst"], "mnist"),
    "unknown model": (["train", "--model", "smal", "--dataset", "digits"], "did you mean small"),
    "eps zero": (["train", "--eps", "0"], "eps must be positive"),
    "missing config": (["train", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
    "no such run": (["certify", "nowhere"], "nowhere: no such file or folder"),
    "no GPU": (["train", "--device", "cuda:7", "--dataset", "digits", "--model", "digits"], "device"),
    "unknown option": (["train", "--epoch", "3"], "No such option: --epoch; did you mean --epochs?"),
    "unknown command": (["tran"], "train"),
    "missing argument": (["certify"], "Missing argument"),
    "half a clip": (
        ["train", "--clip", "0", "--eps", "0.1"],
        "'--clip': expected two numbers, such as 0 1, got '0' and '--eps'",
    ),
    "half a clip of a run": (["certify", "run", "--clip", "0", "--eps", "0.1"], "'--clip': expected two numbers"),
    "a word for a number": (["train", "--eps", "2/x"], "'--eps': expected a number, such as 0.1 or 2/255, got '2/x'"),
    "grey levels": (["train", "--eps", "8"], "eps must be at most 1 for norm linf"),
    "negative": (["train", "--eps", "-1"], "eps must be positive"),
    "late start": (["train", "--eps", "0.1", "--eps-start", "0.2"], "--eps-start must not be larger than eps"),
    "wrong type": (["train", "--epochs", "many"], "--epochs"),
    "no report": (["report", "nowhere"], "nowhere"),
    "not a number": (["train", "--lr", "nan"], "lr must be a finite number"),
    "infinite": (["train", "--clip-gradients", "inf"], "--clip-gradients must be a finite number"),
    "momentum": (["train", "--momentum", "1"], "momentum must lie between 0 and 1"),
    "weight decay": (["train", "--weight-decay", "-1"], "--weight-decay must not be negative"),
    "seed": (["train", "--seed", "-1"], "seed must not be negative"),
    "narrow clip": (["train", "--clip", "0.2", "0.8"], "clip must hold the images themselves"),
    "no device": (["train", "--device", "meta", "--dataset", "digits", "--model", "digits"], "device: 'meta'"),
    "empty name": (["train", "--dataset", ""], "dataset must be a word"),
    "both clips": (["train", "--clip", "0", "1", "--no-clip"], "--clip and --no-clip exclude each other"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    call: Call, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "no GPU" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    arguments, message = MISTAKES[name]
    code, _, said = call(*arguments)
    assert code == 2
    assert message in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


BLAME = {
    "the flag": ("eps: 0.1\n", ["--eps", "-1"], "--eps must be positive, got -1.0"),
    "the flag, though the file is wrong": ("eps: -2\n", ["--eps", "-1"], "--eps must be positive, got -1.0"),
    "the flag, though it puts the file right": (
        "adversarial: true\n", ["--engine", "none", "--batch", "0"], "--batch must be at least 1"
    ),
    "the file": ("eps: -2\n", ["--k", "5"], "{}: eps must be positive, got -2.0"),
    "the file, for a name": ("epoch: 2\n", ["--k", "5"], "{}: unknown option 'epoch'"),
    "both": (
        "engine: none\nadversarial: true\n", ["--engine", "dual"], "--engine with {}: adversarial training uses no bounds"
    ),
}  # fmt: skip


@pytest.mark.parametrize("who", BLAME)
def test_a_mistake_is_blamed_on_whoever_made_it(call: Call, tmp_path: Path, who: str) -> None:
    text, flags, message = BLAME[who]
    config = tmp_path / "mine.yaml"
    config.write_text(text)
    code, _, complaint = call("train", str(config), *flags, "--out", str(tmp_path / "run"))
    assert code == 2
    assert complaint.startswith(f"error: {message.format(config)}")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("command", ["certify", "attack"])
def test_a_wrong_flag_on_a_run_is_named(call: Call, run_folder: Path, command: str) -> None:
    assert call(command, str(run_folder), "--eps", "-1")[2].startswith("error: --eps must be positive, got -1.0")


def test_unknown_names_in_yaml(call: Call, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("epoch: 3\n")
    code, _, said = call("train", str(config))
    assert code == 2
    assert "unknown option 'epoch'; did you mean epochs?" in said
    config.write_text("- 1\n- 2\n")
    assert call("train", str(config))[0] == 2


def test_a_model_that_is_not_safetensors(call: Call, tmp_path: Path) -> None:
    pickled = tmp_path / "model"
    torch.save({"a": torch.zeros(1)}, pickled)
    code, _, said = call("certify", str(pickled), "--model", "digits", "--dataset", "digits", "--device", "cpu")
    assert code == 2
    assert "not a readable safetensors file" in said


def test_weights_of_another_network(call: Call, weights: Path) -> None:
    code, _, said = call("certify", str(weights), "--model", "small", "--dataset", "digits", "--device", "cpu")
    assert code == 2
    assert "for another network" in said


def test_own_data_from_a_factory(call: Call, small: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def data(split):\n"
        "    g = torch.Generator().manual_seed(0)\n"
        "    return torch.utils.data.TensorDataset(torch.rand(60, 1, 8, 8, generator=g), torch.arange(60) % 3)\n"
        "def model(shape, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes))\n"
    )
    arguments = [a for a in small if a not in ("--model", "digits")]
    code, said, err = call("train", *arguments, "--dataset", f"{tmp_path}/mine.py:data", "--model", f"{tmp_path}/mine.py:model",
                           "--out", str(tmp_path / "run"))  # fmt: skip
    assert code == 0, err
    assert "10 test images" in said


def test_image_data_is_public() -> None:
    assert ImageData(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64), ("a",), "mine").shape == (1, 2, 2)
