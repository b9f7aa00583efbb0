"""`certify` and what it leaves: names that say what was asked, results that are never lost unasked, clips that can be taken off."""

from __future__ import annotations

import errno
import fcntl
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import autodual
from autodual.cascades import load_combination
from autodual.cli.terminal import Signals, warnings_as_notes
from autodual.digits import digits_network, load_digits
from autodual.engines import Crown
from autodual.engines.effort import TimeLimitError
from autodual.evaluation import judge

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def ask(call: Call, run: Path, *arguments: str) -> tuple[int, str, str]:
    return call("certify", str(run), "--device", "cpu", "--limit", "6", *arguments)


NAMES = {
    "certificates-dual-first-6.jsonl": [],
    "certificates-ibp-first-6.jsonl": ["--engine", "ibp", "--eps", "0.05", "--clip", "0", "1"],
    "certificates-dual-eps-0.02-first-6.jsonl": ["--eps", "0.02"],
    "certificates-dual-no-clip-first-6.jsonl": ["--no-clip"],
    "certificates-crown-clip--1-2-first-6.jsonl": ["--engine", "crown", "--clip", "-1", "2"],
    "certificates-dual-l2-eps-0.1-first-6.jsonl": ["--norm", "l2", "--eps", "0.1"],
}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_says_what_differs_from_the_run(call: Call, run: Path, name: str) -> None:
    code, said, complaint = ask(call, run, *NAMES[name])
    assert code == 0, complaint
    assert said.strip().endswith(str(run / name))
    assert len((run / name).read_text().splitlines()) == 6
    assert json.loads((run / name.replace(".jsonl", ".summary.json")).read_text())["examples"] == 6


def test_bare_weights_give_their_name(
    call: Call, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--model", "digits", "--dataset", "digits", "--eps", "0.02", "--device", "cpu", "--limit", "3"]
    assert call("certify", str(weights), *given)[0] == 0
    assert (tmp_path / "digits-certificates-dual-eps-0.02-first-3.jsonl").exists()


def test_a_file_that_exists_is_refused_until_one_says_what_to_do(call: Call, run: Path) -> None:
    file = run / "certificates-dual-first-6.jsonl"
    first = ask(call, run)[1]
    before = file.read_bytes()
    code, _, complaint = ask(call, run)
    assert code == 2
    assert "holds 6 of 6 certificates of LinfBall(eps=0.05, clip=(0.0, 1.0)) by Dual(" in complaint
    assert all(option in complaint for option in ("--resume", "--overwrite", "--out"))
    assert ask(call, run, "--resume")[1] == first
    assert ask(call, run, "--overwrite")[1] == first
    assert file.read_bytes() == before
    assert ask(call, run, "--resume", "--overwrite")[0] == 2


def test_an_interrupted_file_is_gone_on_with(call: Call, run: Path) -> None:
    file = run / "certificates-dual-first-6.jsonl"
    first = ask(call, run)[1]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert ask(call, run, "--resume")[1] == first
    assert file.read_bytes() == whole


@pytest.fixture
def short_of_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Two images at a time, and a clock that stops before the batch of this number."""

    def after(batches: int) -> None:
        calls = iter(range(batches))

        def check_time(until: float | None) -> None:
            if until is not None and next(calls, None) is None:
                raise TimeLimitError("time is up")

        monkeypatch.setattr(judge, "check_time", check_time)

    monkeypatch.setattr(judge, "at_once", lambda *_: 2)
    return after


def test_a_time_limit_leaves_the_rest_for_another_call(
    call: Call, run: Path, short_of_time: Callable[[int], None]
) -> None:
    file = run / "certificates-dual-first-6.jsonl"
    first, whole = ask(call, run)[1], file.read_bytes()
    short_of_time(2)
    code, said, complaint = ask(call, run, "--overwrite", "--timeout", "1000")
    assert code == 4, complaint
    assert said.splitlines()[-1] == "time is up after 4 of 6 images; go on with --resume"
    assert "(4 images)" in said
    assert file.read_bytes() == b"".join(whole.splitlines(keepends=True)[:4])
    assert not file.with_suffix(".summary.json").exists()
    short_of_time(0)
    code, said, _ = ask(call, run, "--resume", "--timeout", "1000", "--json")
    assert (code, json.loads(said)["examples"], json.loads(said)["of"]) == (4, 4, 6)
    assert ask(call, run, "--resume")[1] == first
    assert file.read_bytes() == whole
    assert call("certify", str(file), "--check", "--device", "cpu")[0] == 0


def test_a_time_limit_before_the_first_images(call: Call, run: Path, cascade_run: Path, tmp_path: Path) -> None:
    code, said, complaint = ask(call, run, "--timeout", "1e-9")
    assert code == 4, complaint
    assert said.startswith("time is up before the first images are done (of 6); go on with --resume")
    assert json.loads(ask(call, run, "--timeout", "1e-9", "--resume", "--json")[1])["examples"] == 0
    assert ask(call, cascade_run, "--timeout", "1e-9", "--out", str(tmp_path / "a.jsonl"))[1].startswith("time is up")


def test_a_time_limit_of_a_cascade(
    call: Call, cascade_run: Path, tmp_path: Path, short_of_time: Callable[[int], None]
) -> None:
    out = tmp_path / "a.jsonl"
    short_of_time(4)  # three batches of the first stage, and one of all stages
    code, said, complaint = ask(call, cascade_run, "--out", str(out), "--timeout", "1000")
    assert code == 4, complaint
    assert said.endswith("time is up after 6 of 6 images, and all stages together are not done; go on with --resume\n")
    assert len((tmp_path / "a.cascade.jsonl").read_text().splitlines()) == 2
    code, said, complaint = ask(call, cascade_run, "--out", str(out), "--resume")
    assert code == 0, complaint
    assert "time is up" not in said
    assert json.loads((tmp_path / "a.summary.json").read_text())["cascade"]["examples"] == 6


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_time_limit_that_is_none(call: Call, seconds: str) -> None:
    code, _, complaint = call("certify", "run", "--timeout", seconds)
    assert (code, complaint.count("\n")) == (2, 1)
    assert complaint.startswith("error: --timeout must be more than 0 seconds")


def test_certificates_about_something_else_stay(call: Call, run: Path) -> None:
    out = run / "mine"
    assert ask(call, run, "--out", str(out))[0] == 0
    before = out.read_bytes()
    for more in ([], ["--resume"]):
        code, _, complaint = ask(call, run, "--out", str(out), "--eps", "0.01", *more)
        assert code == 2
        assert "mine: " in complaint
        assert out.read_bytes() == before
    assert "about something else (perturbation was LinfBall(eps=0.05" in complaint
    assert ask(call, run, "--out", str(out), "--eps", "0.01", "--overwrite")[0] == 0


@pytest.mark.parametrize("names", [("found-0.01", "found-0.02"), ("a", "a.jsonl"), ("a.jsonl", "a.jsonl.jsonl")])
def test_names_that_are_alike_keep_apart(call: Call, run: Path, names: tuple[str, str]) -> None:
    questions = dict(zip(names, ("0.01", "0.02"), strict=True))
    for name, eps in questions.items():
        assert ask(call, run, "--eps", eps, "--out", str(run / name))[0] == 0
    for kind in ("problem", "summary"):
        records = "".join(path.read_text() for path in run.glob(f"*{kind}.json"))
        assert all(f"eps={eps}," in records for eps in questions.values())
    for name, eps in questions.items():
        assert ask(call, run, "--eps", eps, "--out", str(run / name), "--resume")[0] == 0


def test_files_of_others_and_folders_are_not_touched(call: Call, run: Path) -> None:
    (run / "notes.txt").write_text("mine")
    code, _, complaint = ask(call, run, "--out", str(run / "notes.txt"))
    assert code == 2
    assert "holds no certificates that one could go on with" in complaint
    assert (run / "notes.txt").read_text() == "mine"
    code, _, complaint = ask(call, run, "--out", str(run))
    assert code == 2
    assert "is a folder" in complaint


def test_a_clip_of_the_run_is_dropped_for_another_norm_and_said_so(call: Call, run: Path) -> None:
    for command in ("certify", "attack"):
        code, said, complaint = call(command, str(run), "--norm", "l2", "--device", "cpu", "--limit", "4")
        assert code == 0, complaint
        assert said.startswith("at l2 0.05")
        assert "note: clip [0.0, 1.0] is dropped" in complaint
    code, _, complaint = call("attack", str(run), "--norm", "l2", "--clip", "0", "1", "--device", "cpu")
    assert code == 2
    assert "clip is for norm linf" in complaint


def test_a_clip_can_be_taken_off(call: Call, run: Path, tmp_path: Path, small: list[str]) -> None:
    code, said, complaint = call("attack", str(run), "--no-clip", "--device", "cpu", "--limit", "4")
    assert code == 0
    assert said.startswith("at l-infinity 0.05: ")  # without "in [0, 1]"
    assert "note:" not in complaint
    config = tmp_path / "clipped.yaml"
    config.write_text("clip: [0, 1]\nlimit_test: 3\n")
    at = small.index("--clip")
    assert (
        call("train", str(config), *small[:at], *small[at + 3 :], "--no-clip", "--out", str(tmp_path / "free"))[0] == 0
    )
    assert "clip: null" in (tmp_path / "free" / "config.yaml").read_text()


def test_an_attack_takes_steps_and_starts(call: Call, run: Path) -> None:
    asked = ("attack", str(run), "--eps", "0.3", "--device", "cpu", "--limit", "6")
    code, weak, complaint = call(*asked, "--steps", "0", "--restarts", "1")
    assert code == 0, complaint
    assert "(in real numbers: " in weak
    assert "6 images, 0 steps from 1 start)" in weak
    code, strong, complaint = call(*asked, "--steps", "10", "--restarts", "3")
    assert code == 0, complaint
    assert "6 images, 10 steps from 3 starts)" in strong
    errors = [float(re.search(r"PGD error ([\d.]+)%", said).group(1)) for said in (weak, strong)]
    assert errors[0] < errors[1]
    for option, value in (("--steps", "-1"), ("--restarts", "0"), ("--restarts", "many")):
        code, _, complaint = call(*asked, option, value)
        assert code == 2
        assert option in complaint


def test_an_attack_that_is_stopped_promises_nothing(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signals, "stop", lambda self: True)
    code, _, complaint = call("attack", str(run), "--device", "cpu", "--limit", "4")
    assert code == 130
    assert "an attack keeps nothing" in complaint
    assert "--resume" not in complaint


def test_weights_alone_do_not_know_their_model_and_data(call: Call, weights: Path) -> None:
    for given in ([], ["--model", "digits"], ["--dataset", "digits"]):
        code, _, complaint = call("certify", str(weights), *given)
        assert code == 2
        assert "does not say which" in complaint
        assert "give --model and --dataset" in complaint


def test_a_cascade_is_certified_at_the_size_that_is_asked(call: Call, cascade_run: Path, tmp_path: Path) -> None:
    out = str(shutil.copytree(cascade_run, tmp_path / "run"))
    errors = []
    for eps in ("0.0001", "0.9"):
        code, said, complaint = call("certify", out, "--device", "cpu", "--limit", "10", "--eps", eps)
        assert code == 0, complaint
        record = json.loads(
            (tmp_path / "run" / f"certificates-dual-eps-{float(eps):g}-first-10.summary.json").read_text()
        )
        assert f"stage-certified error {record['cascade']['stage_certified_error']:.2%}" in said
        errors.append(record["cascade"]["stage_certified_error"])
    assert errors[0] < errors[1] == 1


def test_a_cascade_has_a_line_for_every_image(call: Call, cascade_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    options = ["certify", str(cascade_run), "--device", "cpu", "--engine", "crown", "--limit", "10", "--out", str(out)]
    code, said, complaint = call(*options)
    assert code == 0, complaint
    file = tmp_path / "found.cascade.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    combination = load_combination(cascade_run / "cascade", lambda stage: digits_network()).with_engine(Crown())
    images, labels = (t[:10] for t in load_digits("test"))
    found = combination.certify(images, labels)
    assert [line["index"] for line in lines] == list(range(10))
    for name, values in (
        ("label", labels), ("answer", found.answers.label), ("stage", found.answers.stage), ("certified", found.answers.certified),
        ("sound", found.sound), ("no_wrong_certificate", found.no_wrong_certificate),
    ):  # fmt: skip
        assert [line[name] for line in lines] == values.tolist()
    assert f"{file}: {combination!r}: error {found.error:.2%}" in said
    assert "Crown()" in said
    assert json.loads((tmp_path / "found.summary.json").read_text())["cascade"] == found.summary()
    assert json.loads((tmp_path / "found.cascade.problem.json").read_text())["engine"] == "Crown()"
    before = file.read_text()
    file.write_text("".join(before.splitlines(keepends=True)[:4]))
    code, _, complaint = call(*options)
    assert code == 2
    assert "go on with --resume" in complaint
    assert call(*options, "--resume")[:2] == (0, said)
    assert file.read_text() == before


def test_a_cascade_is_refused_by_an_engine_that_it_cannot_use(call: Call, cascade_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    options = ["--engine", "high-probability", "--device", "cpu", "--out", str(out)]
    code, _, complaint = call("certify", str(cascade_run), *options)
    assert code == 2
    assert "use dual, crown or ibp" in complaint
    assert not out.exists()


@pytest.mark.parametrize("command", ["train", "attack", "certify"])
def test_certificates_that_an_attack_breaks_are_an_error(call: Call, run: Path, command: str) -> None:
    large = ["--eps", "0.3", "--device", "cpu"]
    assert call("certify", str(run), *large)[0] == 0
    file = {"train": run / "certificates.jsonl"}.get(command, run / "certificates-dual-eps-0.3.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [line | {"predicted": line["label"], "certified": True, "margin": 1.0} for line in lines]
    arguments = {
        "train": ["train", "--resume", "--out", str(run)],
        "attack": ["attack", str(run), *large],
        "certify": ["certify", str(run), *large, "--resume"],
    }
    if command == "certify":  # what an attack at this size would have found
        shutil.copy(run / "certificates-dual-eps-0.3.problem.json", run / "certificates.problem.json")
        record = json.loads((run / "evaluation.json").read_text())
        (run / "evaluation.json").write_text(json.dumps(record | {"attacked": [True] * len(lines)}))
    else:
        (run / "evaluation.json").unlink()
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, said, complaint = call(*arguments[command])
    assert (code, said) == (2, "")
    assert "error: " in complaint
    assert "certified, but an attack gives them another label: examples " in complaint


def test_a_probability_is_said_and_written_with_what_it_rests_on(call: Call, run: Path) -> None:
    asked = ["--engine", "high-probability", "--delta", "0.05", "--k", "400", "--seed", "7"]
    code, said, complaint = ask(call, run, *asked)
    assert code == 0, complaint
    assert ", not certified with probability 0.95 each: " in said
    assert "robust error" not in said
    for kind in ("problem", "summary"):
        record = json.loads((run / f"certificates-high-probability-first-6.{kind}.json").read_text())
        assert [record[name] for name in ("delta", "k", "m", "seed")] == [0.05, 400, 1, 7]
        assert record["estimates"] > 0
    assert not any("robust" in name for name in record)
    assert 0 <= record["not_certified"] <= record["not_certified_as_run"] <= 1
    assert ask(call, run, *asked, "--resume")[1] == said
    assert "delta" in call("certify", "--help")[1]
    for wrong in (["--delta", "0.05"], ["--seed", "1", "--engine", "crown"]):
        code, _, complaint = ask(call, run, *wrong, "--overwrite")
        assert code == 2
        assert "is for --engine high-probability" in complaint
    assert "delta must be a probability" in ask(call, run, "--engine", "high-probability", "--delta", "2")[2]


@pytest.mark.filterwarnings("always:2,000 projections")
def test_a_notice_is_one_line_and_a_probability_is_not_claimed_where_nothing_was_estimated(
    call: Call, run: Path
) -> None:
    code, said, complaint = call("certify", str(run), "--device", "cpu", "--engine", "high-probability")
    assert code == 0, complaint
    notes = [line for line in complaint.splitlines() if not line.startswith("certifying")]
    assert len(notes) == 1
    assert notes[0].startswith("note: 2,000 projections are no fewer than the ")
    assert "; nothing was estimated, the bounds are exact (" in said
    assert json.loads((run / "certificates-high-probability.summary.json").read_text())["estimates"] == 0


def test_warnings_of_others_look_as_usual(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="theirs"), warnings_as_notes():
        warnings.warn("theirs", stacklevel=1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("rank", "told"), [("0", "note: of ours, in two lines\n"), ("1", "")])
def test_a_note_is_told_once_by_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: str, told: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    with warnings_as_notes():
        for line in (1, 2):
            warnings.showwarning("of ours,\n  in two lines", UserWarning, autodual.__file__, line)
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("kind", ["summary", "problem"])
@pytest.mark.parametrize("content", ["my own notes", '{"examples": 3}', "", None])
@pytest.mark.parametrize("option", [[], ["--overwrite"], ["--resume"]])
def test_records_of_others_are_never_written_over(
    call: Call, run: Path, kind: str, content: str | None, option: list[str]
) -> None:
    record = run / f"r.{kind}.json"
    if content is None:
        record.mkdir()
    else:
        record.write_text(content)
    code, _, complaint = ask(call, run, "--out", str(run / "r.jsonl"), *option)
    assert code == 2
    assert f"r.{kind}.json: would be written over, but is not from `autodual certify`" in complaint
    assert not (run / "r.jsonl").exists()
    assert record.is_dir() if content is None else record.read_text() == content


def test_a_summary_whose_lines_are_gone_is_not_lost_unasked(call: Call, run: Path) -> None:
    out = run / "r.jsonl"
    assert ask(call, run, "--out", str(out))[0] == 0
    out.unlink()
    code, _, complaint = ask(call, run, "--out", str(out), "--eps", "0.01")
    assert code == 2
    assert "is left from certificates that are not there any more" in complaint
    assert ask(call, run, "--out", str(out), "--eps", "0.01", "--overwrite")[0] == 0


def test_carriage_returns_lose_no_line(call: Call, run: Path) -> None:
    file = run / "certificates-dual-first-6.jsonl"
    first = ask(call, run)[1]
    whole = file.read_bytes().replace(b"\n", b"\r\n")
    file.write_bytes(whole)
    assert ask(call, run, "--resume")[1] == first
    assert file.read_bytes() == whole


def test_what_an_earlier_version_wrote_is_not_gone_on_with(call: Call, run: Path) -> None:
    file, note = run / "certificates-dual-first-6.jsonl", run / "certificates-dual-first-6.problem.json"
    first = ask(call, run)[1]
    about = json.loads(note.read_text())
    note.write_text(json.dumps({name: about[name] for name in ("perturbation", "engine", "examples", "data")}))
    before = file.read_bytes()
    code, _, complaint = ask(call, run, "--resume")
    assert code == 2
    assert "another version wrote it, and what it is about is not noted in full; start anew (--overwrite)" in complaint
    assert "from another version, which one cannot go on with" in ask(call, run)[2]
    assert file.read_bytes() == before
    assert ask(call, run, "--overwrite")[1] == first


def test_a_system_without_locks_is_told_and_used(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, complaint = ask(call, run)
    assert code == 0
    assert "note: " in complaint
    assert "its file system has no locks (No locks available)" in complaint
    assert "Traceback" not in complaint


def test_weights_of_another_type_are_told_or_refused(call: Call, weights: Path, tmp_path: Path) -> None:
    for dtype, code, words in (
        (torch.float16, 0, "are of another type than the model's"),
        (torch.float64, 2, "rounded, they would be another network"),
    ):
        changed = {k: v.to(torch.float64).mul(1 / 3).to(dtype) for k, v in load_file(weights).items()}
        save_file(changed, tmp_path / "w.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            given = [
                "--model",
                "digits",
                "--dataset",
                "digits",
                "--device",
                "cpu",
                "--limit",
                "3",
                "--out",
                str(tmp_path / "w.jsonl"),
            ]
            found, _, complaint = call("certify", str(tmp_path / "w.safetensors"), *given, "--overwrite")
        assert (found, words in complaint) == (code, True), complaint
