"""Whatever a file holds, every command that reads it ends soon, without a traceback, and says what is wrong in one line."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autodual.runs.config import CONFIG_LIMIT, read_yaml

Call = Callable[..., tuple[int, str, str]]
CPU = ["--device", "cpu"]


def _sparse(path: Path) -> None:
    """More than any memory holds, so that who reads all of it fails at once, and not after minutes."""
    with path.open("wb") as stream:
        stream.truncate(2**40)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "gigabytes": _sparse,
}
CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "deep": b"[" * 300_000,
    "deep objects": b'{"a":' * 100_000,
    "number": b"9" * 100_000,
    "infinite": b'{"examples": 1e999}',
    "not text": b"\xff\xfe\0\0",
    "list": b"[[], {}]",
}
READERS: dict[str, tuple[str, list[str]]] = {
    "train --resume, config": ("config.yaml", ["train", "--resume", "--out", "RUN"]),
    "train --resume, evaluation": ("evaluation.json", ["train", "--resume", "--out", "RUN"]),
    "train --resume, environment": ("environment.json", ["train", "--resume", "--out", "RUN"]),
    "certify, weights": ("model.safetensors", ["certify", "RUN", "--overwrite", *CPU]),
    "certify --resume, problem": ("r.problem.json", ["certify", "RUN", "--out", "RUN/r.jsonl", "--resume", *CPU]),
    "certify --check, problem": ("r.problem.json", ["certify", "--check", "RUN/r.jsonl", *CPU]),
    "certify --check, lines": ("r.jsonl", ["certify", "--check", "RUN/r.jsonl", *CPU]),
    "attack, weights": ("model.safetensors", ["attack", "RUN", *CPU]),
}
NOTED: dict[str, tuple[str, list[str]]] = {
    "report, evaluation": ("evaluation.json", ["report", "RUN"]),
    "report, metrics": ("metrics.jsonl", ["report", "RUN"]),
    "report, gallery": ("gallery.npz", ["report", "RUN"]),
    "report, config": ("config.yaml", ["report", "RUN"]),
    "attack, certificates": ("r.jsonl", ["attack", "RUN", "--limit", "3", *CPU]),
    "attack, problem": ("certificates.problem.json", ["attack", "RUN", "--limit", "3", *CPU]),
}
"""Commands that go on without what they cannot read."""


@pytest.fixture(scope="module")
def certified(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with certificates of its own in r.jsonl."""
    run = Path(shutil.copytree(run_folder, tmp_path_factory.mktemp("certified") / "run"))
    for kind in ("jsonl", "problem.json"):
        shutil.copy(run / f"certificates.{kind}", run / f"r.{kind}")
    note = json.loads((run / "r.problem.json").read_text())
    (run / "r.problem.json").write_text(
        json.dumps(note | {"asked": {"target": ".", "eps": 0.05, "clip": [0.0, 1.0], "norm": "linf"}})
    )
    return run


@pytest.fixture
def run(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "run"))


def ask(call: Call, run: Path, arguments: list[str]) -> tuple[int, str]:
    code, _, complaint = call(*(a.replace("RUN", str(run)) for a in arguments))
    return code, "\n".join(line for line in complaint.splitlines() if line.startswith("error: "))


FINE = ("train --resume, evaluation", "loop"), ("train --resume, environment", "loop")
"""As if nothing were there: it is made anew."""
CASES = [(reader, kind) for reader in READERS for kind in (*NO_FILES, *CONTENTS) if (reader, kind) not in FINE]


@pytest.mark.parametrize(("reader", "kind"), CASES)
def test_what_cannot_be_read_is_named(call: Call, run: Path, reader: str, kind: str) -> None:
    name, arguments = READERS[reader]
    (run / name).unlink()
    NO_FILES[kind](run / name) if kind in NO_FILES else (run / name).write_bytes(CONTENTS[kind])
    code, complaint = ask(call, run, arguments)
    if reader.endswith("lines") and kind in CONTENTS and kind != "nothing":
        assert code == 1  # the file is there, and its lines are wrong
        return
    assert code == 2
    assert len(complaint.splitlines()) == 1
    assert str(run) in complaint
    assert len(complaint) < 1000


@pytest.mark.parametrize("reader", NOTED)
@pytest.mark.parametrize("kind", ["pipe", "gigabytes", "deep", "infinite"])
def test_what_is_not_needed_does_not_stop_a_command(call: Call, run: Path, reader: str, kind: str) -> None:
    name, arguments = NOTED[reader]
    (run / name).unlink()
    NO_FILES[kind](run / name) if kind in NO_FILES else (run / name).write_bytes(CONTENTS[kind])
    assert ask(call, run, arguments)[0] in (0, 2)


VALUES: list[Any] = [None, True, "x", 1e308, 5e-324, 10**18, -1, [], {}, [[1e308]], "y" * 100_000]
RECORDS = {
    "r.problem.json": ["certify", "--check", "RUN/r.jsonl", "--sample", "1", *CPU],
    "evaluation.json": ["report", "RUN"],
    "environment.json": ["report", "RUN"],
}


@pytest.mark.parametrize("file", RECORDS)
def test_entries_of_any_type_are_borne(call: Call, run: Path, file: str) -> None:
    """Each entry with two of the values, so that all values are met."""
    record = json.loads((run / file).read_text())
    places = [(record, name) for name in record]
    places += [(record["asked"], name) for name in record.get("asked", {})]
    for number, (where, name) in enumerate(places):
        before = where[name]
        for value in (VALUES[2 * number % len(VALUES)], VALUES[(2 * number + 1) % len(VALUES)]):
            where[name] = value
            (run / file).write_text(json.dumps(record))
            code, complaint = ask(call, run, RECORDS[file])
            assert code in (0, 1, 2)
            assert len(complaint) < 3000
        where[name] = before


YAML: dict[str, str] = {
    "deep": "[" * 90_000,
    "deep names": "{a: " * 20_000,
    "deep list": "- " * 40_000 + "a",
    "bomb": "a: &a [1, 1]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    "merge": "a: &a {eps: 1}\n<<: *a\n",
    "itself": "&a [*a]",
    "digits": "eps: " + "9" * 5000,
    "hexadecimal": "eps: 0x" + "F" * 4000,
    "minutes": "eps: " + ":".join(["1"] * 3000) + ".5",
    "not finite": "eps: .nan",
    "too large": "eps: 1.0e+999",
    "largest": "eps: 1.0e+308",
    "time": "eps: !!timestamp x",
    "no whole number": "eps: !!int ''",
    "no truth": "eps: !!bool x",
    "object": "eps: !!python/object/apply:os.system [ls]",
    "name": "{[a]: b}",
    "text": "x" * 50_000,
    "many": "eps: 1\n" * 20_000,
    "null": "a: \0",
    "two": "eps: 1\n---\neps: 2",
    "list": "- eps",
}


@pytest.mark.parametrize("name", YAML)
def test_hostile_configs_are_one_line(call: Call, tmp_path: Path, name: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(YAML[name])
    code, said, complaint = call("train", str(config), "--out", str(tmp_path / "run"))
    assert (code, said) == (2, "")
    assert len(complaint.splitlines()) == 1
    assert complaint.startswith(f"error: {config}: ")
    assert len(complaint) < 1000
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_config_that_is_no_file_is_named(call: Call, tmp_path: Path, kind: str) -> None:
    NO_FILES[kind](tmp_path / "c.yaml")
    code, _, complaint = call("train", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run"))
    assert code == 2
    assert complaint.startswith(f"error: {tmp_path / 'c.yaml'}: ")


def test_names_for_single_values_are_fine(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("eps: &e 0.1\neps_start: *e\nclip: [0, 1]\r\n" + "# a comment\n" * 1000)
    assert read_yaml(tmp_path / "c.yaml") == {"eps": 0.1, "eps_start": 0.1, "clip": [0, 1]}
    (tmp_path / "c.yaml").write_bytes(b"#" * (CONFIG_LIMIT + 1))
    with pytest.raises(ValueError, match="is larger than 100,000 bytes"):
        read_yaml(tmp_path / "c.yaml")


def test_data_that_claim_to_be_gigabytes_are_wrong_at_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sparse(tmp_path / "train-images-idx3-ubyte")
    with gzip.open(tmp_path / "t10k-images-idx3-ubyte.gz", "wb", 1) as stream:
        stream.write(bytes(2**24))
    monkeypatch.setattr(importlib.import_module("autodual.data.downloads"), "LIMIT", 2**23)
    os.mkfifo(tmp_path / "train-labels-idx1-ubyte")
    code, said, complaint = call("data", "verify", "mnist", "--folder", str(tmp_path))
    assert code == 2
    assert said.count("wrong size") == 2
    assert said.count("missing") == 2
    assert "4 of 4 files are not as published" in complaint


def test_what_is_there_before_a_run_begins_is_not_read_whole(call: Call, tmp_path: Path, small: list[str]) -> None:
    _sparse(tmp_path / "environment.json")
    code, _, complaint = call("train", *small, "--out", str(tmp_path))
    assert code == 2
    assert "environment.json: is larger than" in complaint


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_a_run_does_not_wait_for_pipes(call: Call, run: Path, name: str) -> None:
    for left in (run / name, run / "model.safetensors", run / "evaluation.json"):
        left.unlink(missing_ok=True)
    shutil.rmtree(run / "checkpoints")
    (run / "stages").mkdir()
    os.mkfifo(run / name)
    code, _, complaint = call("train", "--resume", "--out", str(run))
    assert code == 2
    assert f"{name}: is a pipe, not a file" in complaint


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("command", ["certify", "attack"])
def test_weights_that_are_no_file_are_named(call: Call, tmp_path: Path, command: str, kind: str) -> None:
    NO_FILES[kind](tmp_path / "w")
    code, _, complaint = call(command, str(tmp_path / "w"), "--model", "digits", "--dataset", "digits", *CPU)
    assert code == 2
    assert complaint.startswith(f"error: {tmp_path / 'w'}: ")
