"""What scripts rely on: one JSON object with documented names, exit codes, the version, and what a shell completes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import autodual
from autodual.cli.app import command_line
from autodual.cli.catalogue import SHOWN, USUAL
from autodual.cli.options import DATASETS, MODELS
from autodual.data.known import KNOWN
from autodual.evaluation.judge import ENGINES
from autodual.evaluation.processes import StoppedError
from autodual.reproduce.rows import ROWS
from autodual.training import fitting
from autodual.training.setup import PLAIN, SIZED

Call = Callable[..., tuple[int, str, str]]
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """Names that the page promises, by command: always there, and sometimes. "each with" begins those of rows."""
    found = {}
    for command, always, sometimes in re.findall(
        r"^\| `([a-z -]+)` \| (`.+) \| (.*)\|$", PAGE.read_text(), re.MULTILINE
    ):
        own = re.sub(r": each with [^;|]*", "", always)
        found[command] = set(re.findall(r"`(\w+)`", own)), set(re.findall(r"`(\w+)`", sometimes))
    return found


def answered(call: Call, command: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The object on standard output; its names are the documented ones."""
    ended, said, complaint = call(*command.split(), *arguments, "--json")
    assert ended == code, complaint
    found = json.loads(said)
    assert isinstance(found, dict)
    always, sometimes = documented()[command]
    assert always <= found.keys() <= always | sometimes | ({"error"} if code == 2 else set())
    return found


def leaves(command: Any, name: str = "") -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name
    for key, each in (inner or {}).items():
        yield from leaves(each, f"{name} {key}".strip())


def test_every_command_takes_json_and_the_page_has_its_names(call: Call) -> None:
    every = list(leaves(typer.main.get_command(command_line())))
    assert {*every, "certify --check"} == documented().keys()
    for command in every:
        assert "--json " in call(*command.split(), "--help")[1]


def test_a_run(call: Call, small: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = answered(call, "train", *small, "--eps", "2/255", "--out", str(run))
    record = json.loads((run / "evaluation.json").read_text())
    assert found["run"] == str(run)
    assert found["robust_error"] == record["robust_error"]
    assert found["certified_accuracy"] == 1 - record["robust_error"]
    assert found["eps"] == 2 / 255
    assert "cascade" not in found
    limited = ("--device", "cpu", "--limit", "5")
    found = answered(call, "certify", str(run), *limited)
    lines = [json.loads(line) for line in Path(found["file"]).read_text().splitlines()]
    assert found["certified_accuracy"] == pytest.approx(sum(line["certified"] for line in lines) / 5)
    assert answered(call, "certify", str(run), "--engine", "high-probability", "--k", "100", *limited)["delta"] == 0.01
    checked = answered(call, "certify --check", found["file"], "--device", "cpu")
    assert (checked["examples"], checked["of"], checked["differences"]) == (5, 5, [])
    assert answered(call, "attack", str(run), *limited)["examples"] == 5
    assert Path(answered(call, "report", str(run))["file"]).read_text().startswith("<!")
    lines[2]["margin"] += 1
    Path(found["file"]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    [difference] = answered(call, "certify --check", found["file"], "--device", "cpu", code=1)["differences"]
    assert "example 2: margin" in difference


def test_eps_is_told_as_a_fraction(call: Call, run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    for command in ("certify", "attack"):
        said = call(command, str(run), "--device", "cpu", "--limit", "3", "--eps", "2/255")[1]
        assert said.startswith("at l-infinity 2/255 in [0, 1]")


def test_a_cascade(call: Call, cascade_run: Path, tmp_path: Path) -> None:
    limited = ("--device", "cpu", "--limit", "4")
    found = answered(call, "certify", str(cascade_run), "--out", str(tmp_path / "found.jsonl"), *limited)
    assert found["cascade"]["examples"] == 4
    assert Path(found["cascade_file"]).exists()
    assert answered(call, "attack", str(cascade_run), *limited)["cascade"]["attacked_examples"] == 4
    assert len(answered(call, "train", "--resume", "--out", str(cascade_run))["cascade"]["stages"]) == 2


def test_data(call: Call, tmp_path: Path) -> None:
    rows = answered(call, "data list", "--folder", str(tmp_path))["datasets"]
    assert [(row["name"], row["present"]) for row in rows] == [
        ("digits", True),
        *((name, False) for name in DATASETS[1:]),
    ]
    assert answered(call, "data fetch", "digits") == {"name": "digits", "path": None}
    found = answered(call, "data verify", "mnist", "--folder", str(tmp_path), code=2)
    assert set(found["files"].values()) == {"missing"}
    assert "4 of 4 files are not as published" in found["error"]


def test_models(call: Call) -> None:
    rows = {(row["name"], row["dataset"]): row for row in answered(call, "models")["models"]}
    assert rows["small", "mnist"]["hidden_units"] == 4804
    assert rows["small", "cifar10"]["parameters"] == 214_918
    assert rows["resnet", "cifar10"]["parameters"] == 4_214_850
    assert rows["wide:8", "mnist"]["hidden_units"] == 8 * 1304
    assert {name.partition(":")[0] for name, _ in rows} == USUAL.keys() == {*PLAIN, *SIZED, "digits"}
    [row] = answered(call, "models", "deep:2", "--dataset", "cifar10")["models"]
    assert row["shape"] == [3, 32, 32]
    assert "4,804" in call("models", "small")[1]
    code, said, complaint = call("models", "mine.py:net", "--json")
    assert (code, json.loads(said)["error"]) == (2, complaint.removeprefix("error: ").strip())
    assert "say with --dataset" in complaint
    assert "did you mean small" in call("models", "smal")[2]
    assert "--dataset must be one of" in call("models", "--dataset", "minst")[2]


def test_rows_of_the_paper(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = PAGE.parents[1]
    monkeypatch.chdir(tmp_path)
    places = ("--configs", str(root / "configs"), "--results", str(root / "results"))
    found = answered(call, "reproduce list", *places)
    row = next(row for row in found["rows"] if (row["row"], row["recipe"]) == ("mnist-small-0.1", "paper"))
    assert 0 < row["robust_error"] < 0.1
    assert row["paper_robust_error"] == 0.0499
    assert found["of"] == len(ROWS)
    found = answered(call, "reproduce run", "mnist-small-0.1", "--minutes", "0", *places, "--work", str(tmp_path))
    assert (found["finished"], len(found["left"])) == ([], 1)
    packed = answered(call, "reproduce pack", str(tmp_path / "out.tar"), "mnist-small-0.1", "--light", *places)
    assert packed["packed"]
    parts = [part["path"] for part in packed["parts"]]
    unpacked = answered(
        call, "reproduce unpack", *parts, "--configs", str(root / "configs"), "--results", str(tmp_path / "r")
    )
    assert list(unpacked["tasks"]) == packed["packed"]
    assert "figures" in answered(call, "reproduce figures", *places, "--out", str(tmp_path / "figures"))
    found = answered(
        call, "reproduce tables", *places, "--markdown", str(tmp_path / "a.md"), "--page", str(tmp_path / "a.html")
    )
    assert Path(found["page"]).exists()


FAILURES: dict[str, tuple[BaseException, int, str]] = {
    "the disk": (OSError(28, "No space left on device"), 2, "No space left on device"),
    "memory": (MemoryError(), 2, "there is not enough memory for this"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted"),
    "a signal": (StoppedError("stopped as asked; go on with --resume"), 130, "stopped as asked; go on with --resume"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_an_object_with_the_same_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    error, code, message = FAILURES[name]

    def raises(*_: object) -> None:
        print("on the way")
        raise error

    monkeypatch.setattr(fitting, "train_run", raises)
    ended, said, complaint = call("train", "--json")
    assert ended == code == call("train")[0]
    assert json.loads(said)["error"].startswith(message)
    assert "on the way\n" in complaint
    assert message in complaint


def test_our_own_mistake_is_an_object_and_a_traceback(
    monkeypatch: pytest.MonkeyPatch, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(fitting, "train_run", raises)
    with pytest.raises(ZeroDivisionError):
        call("train", "--json")
    assert json.loads(capsys.readouterr().out) == {"error": "ZeroDivisionError: ours"}


@pytest.mark.parametrize(
    "arguments", [["nonsense", "--json"], ["certify", "--json"], ["train", "--json", "--eps", "-1"], ["train", "--json", "--epoch"]]
)  # fmt: skip
def test_a_mistake_in_the_arguments_is_an_object(call: Call, arguments: list[str]) -> None:
    code, said, complaint = call(*arguments)
    assert code == 2
    assert complaint == f"error: {json.loads(said)['error']}\n"


def test_only_the_first_process_answers(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert call("models", "--json")[:2] == (0, "")
    assert call("train", "--epoch", "--json") == (2, "", "")


def in_a_process(*arguments: str, **variables: str) -> tuple[str, float]:
    """What `autodual` prints, where PyTorch cannot be imported, and the seconds that its process was busy."""
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv[0] = 'autodual'; "
        "from autodual.cli.app import main\ntry:\n    main()\nfinally:\n    import time; print(time.process_time(), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *arguments]
    source = str(Path(autodual.__file__).parents[1])  # also where the working folder is another
    environment = {**os.environ, "PYTHONPATH": source, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    *complaint, seconds = done.stderr.splitlines()
    assert done.returncode == 0, complaint
    return done.stdout, float(seconds)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["certify", "--help"]])
def test_quick_answers_without_pytorch(arguments: list[str]) -> None:
    said, seconds = in_a_process(*arguments)
    assert said.startswith(f"autodual {autodual.__version__}\n" if arguments == ["--version"] else "Usage: autodual ")
    assert seconds < 1


def completed(*words: str) -> list[str]:
    """What bash offers for the last word, where PyTorch cannot be imported."""
    line = " ".join(("autodual", *words))
    variables = {"_AUTODUAL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    return in_a_process(**variables)[0].split()


def test_completion_of_names() -> None:
    assert completed("cer") == ["certify"]
    assert completed("certify", "--engine", "") == [*ENGINES, "high-probability"]
    assert completed("train", "--dataset", "") == list(DATASETS) == list(KNOWN) == completed("data", "fetch", "")
    assert completed("train", "--model", "") == list(MODELS)
    assert {name.partition(":")[0] for name in MODELS} == {name.partition(":")[0] for name in SHOWN}
    assert completed("reproduce", "mnist-small-0.3") == ["mnist-small-0.3", "mnist-small-0.3-cascade"]
    assert completed("reproduce", "fi") == ["figures"]
    assert "cifar-large-2" in completed("reproduce", "mnist-small-0.3", "cifar-l")
    assert completed("bench", "mnist-l") == ["mnist-large"]


def test_completion_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a/config.yaml", "runs/b/config.yaml", "runs/c/notes", "configs/mine.yaml", "net.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert completed("certify", "") == ["runs/a", "runs/b", "net.safetensors"]
    assert completed("attack", "runs/b") == ["runs/b"]
    assert completed("report", "runs/") == ["runs/a", "runs/b"]
    assert completed("train", "con") == ["configs/mine.yaml"]
    assert completed("certify", "nowhere/") == []


def test_the_script_for_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--show-completion` asks which shell called it; here none did, so the script is asked for as the shell would."""
    script = in_a_process(_AUTODUAL_COMPLETE="source_bash")[0]
    assert "complete -o default -F _autodual_completion autodual" in script
    assert "_AUTODUAL_COMPLETE=complete_bash" in script


def test_that_quick_answers_are_quick_by_the_clock() -> None:
    """By the wall, with room for a busy machine."""
    began = time.monotonic()
    in_a_process("--version")
    assert time.monotonic() - began < 5
