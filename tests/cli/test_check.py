"""`certify --check` finds what was changed by hand, and refuses to compare with another network or other data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import autodual as ad
from autodual.evaluation.judge import compare
from autodual.runs.lines import CertificateLine

Call = Callable[..., tuple[int, str, str]]
CPU = ["--device", "cpu"]
NETWORK = """
import torch
from torch import nn

def factory(shape, classes):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
"""
DATA = """
import torch

def factory(split):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(12, 1, 8, 8, generator=generator)
    return torch.utils.data.TensorDataset(images, torch.arange(12) % 10)
"""


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def check(call: Call, file: Path, *more: str) -> tuple[int, str, str]:
    return call("certify", "--check", str(file), *CPU, *more)


def edit(file: Path, index: int, **changes: Any) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[index] |= changes
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_certificates_of_a_run_hold(call: Call, run: Path) -> None:
    for place in (run, run / "certificates.jsonl"):
        code, said, complaint = check(call, place, "--sample", "4", "--sample-seed", "3")
        assert code == 0, complaint
        assert "4 of 10 examples computed again (LinfBall(eps=0.05, clip=(0.0, 1.0)), Dual(), seed 3;" in said
        assert said.rstrip().endswith("all as written")


QUESTIONS = {
    "crown": ["--engine", "crown", "--eps", "0.02"],
    "no clip": ["--no-clip", "--limit", "5"],
    "l2": ["--norm", "l2", "--eps", "0.1", "--engine", "ibp"],
    "probable": ["--engine", "high-probability", "--k", "40", "--seed", "3"],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_can_be_asked_again(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out = tmp_path / "elsewhere" / "found.jsonl"
    assert call("certify", str(run), *CPU, *QUESTIONS[name], "--out", str(out))[0] == 0
    assert str(tmp_path) not in out.with_name("found.problem.json").read_text()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, said, complaint = check(call, Path("found.jsonl"), "--sample", "100")
    assert code == 0, said + complaint


CHANGES: dict[str, dict[str, Any]] = {
    "margin": {"margin": -0.0123},
    "predicted": {"predicted": 9},
    "slack": {"slack": 7.5},
    "no margin": {"margin": None},
    "certified": {"certified": True, "predicted": 4, "label": 4, "margin": 0.5},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_line_that_was_edited_is_found(call: Call, run: Path, name: str) -> None:
    """A line that is not certified, so that no edit makes it contradict itself."""
    file = run / "certificates.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    index, before = next((i, line) for i, line in enumerate(lines) if not line["certified"])
    changes = CHANGES[name]
    if name == "certified":  # as right as it can look
        changes = {"certified": True, "predicted": before["label"], "margin": 0.5}
    edit(file, index, **changes)
    code, said, complaint = check(call, file, "--sample", "10")
    assert code == 1, complaint
    entry = {"no margin": "margin"}.get(name, name)
    assert f"certificates.jsonl: example {index}: {entry} is written as " in said
    assert "10 of 10 examples computed again" in said
    assert all(f"example {index}:" in line for line in said.splitlines()[:-1])


def test_a_line_that_cannot_be_right_is_found_without_luck(call: Call, run: Path) -> None:
    edit(run / "certificates.jsonl", 5, certified=True, margin=-1.0)
    code, said, _ = check(call, run, "--sample", "1", "--sample-seed", "0")
    assert code == 1
    assert "line 6 is certified, but has the label" in said


def test_the_probability_in_a_summary_is_compared(call: Call, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    assert call("certify", str(run), *CPU, *QUESTIONS["probable"], "--out", str(out))[0] == 0
    summary = out.with_name("found.summary.json")
    summary.write_text(summary.read_text().replace('"delta": 0.01', '"delta": 1e-07'))
    code, said, _ = check(call, out, "--sample", "1")
    assert code == 1
    assert "found.summary.json has 1e-07 as delta, but the lines say 0.01" in said


def test_a_certificate_without_a_slack_is_none(call: Call, run: Path) -> None:
    """Each row must hold by more than its slack, so a slack that is not finite certifies nothing."""
    file = run / "certificates.jsonl"
    index = next(i for i, line in enumerate(file.read_text().splitlines()) if json.loads(line)["certified"])
    edit(file, index, slack=None)
    code, said, _ = check(call, run, "--sample", "1", "--sample-seed", "0")
    assert code == 1
    assert f"line {index + 1} is certified, but has no slack" in said


def test_a_cascade_is_checked_as_a_whole(call: Call, cascade_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    assert call("certify", str(cascade_run), *CPU, "--limit", "8", "--out", str(out))[0] == 0
    file = tmp_path / "found.cascade.jsonl"
    for each in (out, file):
        code, said, complaint = check(call, each)
        assert code == 0, said + complaint
    before = json.loads(file.read_text().splitlines()[2])
    edit(file, 2, no_wrong_certificate=not before["no_wrong_certificate"])
    code, said, _ = check(call, file)
    assert code == 1
    assert "example 2: no_wrong_certificate is written as" in said


@pytest.fixture
def own(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Certificates of a network and data that files of one's own make; named from where one stands."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK)
    Path("data.py").write_text(DATA)
    options = ["--model", "net.py:factory", "--dataset", "data.py:factory", "--eps", "0.05", "--clip", "0", "1", "--k", "4",
               "--epochs", "1", "--evaluate-every", "0", *CPU]  # fmt: skip
    code, _, complaint = call("train", *options, "--out", "runs/own")
    assert code == 0, complaint
    return tmp_path / "runs" / "own"


def test_a_network_or_data_that_changed_are_refused(call: Call, own: Path, tmp_path: Path) -> None:
    assert call("certify", "runs/own", *CPU, "--out", "found.jsonl")[0] == 0
    before = Path("found.jsonl").read_bytes()
    for file, change, what in (
        ("net.py", ("nn.ReLU()", "nn.Tanh()"), "makes another network than the one that this run has trained"),
        ("data.py", ("rand(12", "rand(12"), ""),
        ("data.py", ("manual_seed(0)", "manual_seed(1)"), r"(data was "),
    ):
        text = Path(file).read_text()
        Path(file).write_text(text.replace(*change))
        code, _, complaint = check(call, Path("found.jsonl"))
        assert (code, what in complaint) == (2 if what else 0, True), complaint
        if file == "net.py":
            with pytest.raises(ad.ArgumentError, match=what):
                ad.load_run("runs/own")
        if what:
            code, _, complaint = call("certify", "runs/own", *CPU, "--out", "found.jsonl", "--resume")
            assert (code, what in complaint) == (2, True), complaint
        Path(file).write_text(text)
    assert Path("found.jsonl").read_bytes() == before


def test_one_may_stand_anywhere(call: Call, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the same name lie there, which are others."""
    kept = [p for p in own.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml") and p.name != "environment.json"]
    assert len(kept) > 4
    assert not any(str(tmp_path) in p.read_text() for p in kept)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "net.py").write_text(NETWORK.replace("ReLU", "Tanh"))
    (elsewhere / "data.py").write_text(DATA.replace("rand(", "zeros(").replace(", generator=generator", ""))
    monkeypatch.chdir(elsewhere)
    assert check(call, own)[0] == 0
    assert call("certify", str(own), *CPU, "--limit", "3")[0] == 0
    assert call("train", "--resume", "--out", str(own))[0] == 0
    moved = shutil.copytree(tmp_path, tmp_path.parent / "moved")
    try:
        assert check(call, moved / "runs" / "own")[0] == 0
    finally:
        shutil.rmtree(moved)


def test_weights_alone_are_gone_on_with_by_the_network_that_they_were_for(
    call: Call, own: Path, tmp_path: Path
) -> None:
    asked = ["certify", "runs/own/model.safetensors", "--model", "net.py:factory", "--dataset", "data.py:factory", "--eps", "0.05",
             *CPU, "--out", "found.jsonl"]  # fmt: skip
    assert call(*asked)[0] == 0
    whole = Path("found.jsonl").read_bytes()
    Path("found.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
    Path("net.py").write_text(NETWORK.replace("nn.ReLU()", "nn.LeakyReLU(0.5)"))
    code, _, complaint = call(*asked, "--resume")
    assert code == 2
    assert "found.jsonl: its certificates are about something else (network was " in complaint
    assert check(call, Path("found.jsonl"))[0] == 2
    Path("net.py").write_text(NETWORK)
    assert check(call, Path("found.jsonl"))[0] == 0
    assert call(*asked, "--resume")[0] == 0
    assert Path("found.jsonl").read_bytes() == whole


def test_what_cannot_be_checked_says_why(call: Call, run: Path) -> None:
    file, note = run / "certificates.jsonl", run / "certificates.problem.json"
    record = json.loads(note.read_text())
    refused = {
        "was written by another version": {k: v for k, v in record.items() if k != "format"},
        "is damaged": record | {"examples": "many"},
        "holds no record": [],
        "cannot make again": record | {"engine": "Dual(intersect=True)"},
        "network was 00000000": record | {"network": "0" * 64},
    }
    for message, content in refused.items():
        note.write_text(json.dumps(content))
        code, said, complaint = check(call, file)
        assert (code, said) == (2, "")
        assert message in complaint
    note.unlink()
    assert "certificates.problem.json is not beside it" in check(call, file)[2]
    assert "No such file" in check(call, run / "nowhere.jsonl")[2]
    for option in (["--engine", "ibp"], ["--limit", "3"], ["--out", "x"], ["--resume"], ["--k", "3"]):
        assert "leave it out" in check(call, file, *option)[2]
    assert "are for --check" in call("certify", str(run), "--sample", "3")[2]


def test_another_device_or_version_is_told(call: Call, run: Path) -> None:
    note = run / "certificates.problem.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"torch": "1.2.3", "device": "cuda"}))
    code, said, _ = check(call, run)
    assert code == 0
    assert "it was made with device cuda, now cpu, torch 1.2.3, now " in said


def test_every_entry_of_a_line_is_compared() -> None:
    line = CertificateLine(1, label=1, predicted=1, certified=True, certified_as_run=True, margin=0.5, slack=1e-3)
    assert compare(replace(line, label=2), line) == ["example 1: label is written as 2, but is 1"]
    others: dict[str, Any] = {
        "label": 2, "predicted": 2, "certified": False, "certified_as_run": False, "margin": 0.503, "slack": 1e-2
    }  # fmt: skip
    assert {"index", *others} == {f.name for f in fields(line)}
    for name, value in others.items():
        assert len(compare(replace(line, **{name: value}), line)) == 1
    nearby: list[dict[str, Any]] = [{"margin": 0.5019}, {"margin": 0.4981}, {"slack": 1.5e-3}]
    for near in nearby:
        assert compare(replace(line, **near), line) == []


RECORDS = {
    "the summary's count": ("found.summary.json", "robust_error", 0.0),
    "the summary's count as run": ("found.summary.json", "robust_error_as_run", 0.0),
    "the summary's engine": ("found.summary.json", "engine", "Crown()"),
    "the summary's set": ("found.summary.json", "perturbation", "LinfBall(eps=0.5, clip=(0.0, 1.0))"),
    "the evaluation's count": ("evaluation.json", "robust_error", 0.0),
    "the evaluation's flags": ("evaluation.json", "certified", [True] * 10),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_says_something_else_than_the_lines_is_found(call: Call, run: Path, name: str) -> None:
    """Numbers that people quote are those of the records beside the lines."""
    place, entry, value = RECORDS[name]
    lines = run / "certificates.jsonl"
    if place != "evaluation.json":
        lines = run / "found.jsonl"
        assert call("certify", str(run), *CPU, "--out", str(lines))[0] == 0
    assert check(call, lines, "--sample", "1")[0] == 0
    record = json.loads((run / place).read_text())
    (run / place).write_text(json.dumps(record | {entry: value}))
    code, said, complaint = check(call, lines, "--sample", "1")
    assert code == 1, complaint
    assert f"{lines.name}: {place} has " in said
    assert f" as {entry}, but the lines say " in said


def test_a_cascade_that_is_summed_up_wrongly_is_found(call: Call, cascade_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    assert call("certify", str(cascade_run), *CPU, "--limit", "8", "--out", str(out))[0] == 0
    summary = json.loads((tmp_path / "found.summary.json").read_text())
    summary["cascade"]["robust_error"] = -1.0
    (tmp_path / "found.summary.json").write_text(json.dumps(summary))
    code, said, _ = check(call, tmp_path / "found.cascade.jsonl", "--sample", "1")
    assert code == 1
    assert "found.summary.json has " in said


def test_a_file_that_ends_too_early_is_told(call: Call, run: Path) -> None:
    file = run / "certificates.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:7]))
    code, said, _ = check(call, file, "--sample", "2")
    assert code == 0
    assert "all as written; the file ends after 7 of 10 examples" in said


def test_a_file_of_certify_data_says_that_it_cannot_be_opened(call: Call, tmp_path: Path) -> None:
    images, labels = ad.load_digits("test")
    lines = tmp_path / "lines.jsonl"
    ad.certify_data(ad.load_digits_network(), (images[:5], labels[:5]), ad.LinfBall(0.05), out=lines)
    code, _, complaint = call("certify", "--check", str(lines), *CPU)
    assert code == 2
    assert "does not say where its model and data are, as certify_data leaves it; certify again there" in complaint
    assert complaint.count("\n") == 1
