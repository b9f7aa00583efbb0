"""`autodual verify` and `export`, and `certify` and `attack` of an ONNX file, as they are typed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import autodual as ad

pytest.importorskip("onnx", reason="needs the package onnx: pip install 'autodual[onnx]'")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    ad.save_onnx(ad.load_digits_network(), path, torch.zeros(1, 1, 8, 8))
    return path


def _property(folder: Path, eps: float, index: int = 0, extra: str = "") -> Path:
    """No other label for a digit within eps."""
    images, labels = ad.load_digits("test")
    label = int(labels[index])
    lines = [f"(declare-const {kind}_{i} Real)" for kind, n in (("X", 64), ("Y", 10)) for i in range(n)]
    for i, value in enumerate(images[index].flatten().tolist()):
        lines += [f"(assert (<= X_{i} {min(value + eps, 1)!r}))", f"(assert (>= X_{i} {max(value - eps, 0)!r}))"]
    others = " ".join(f"(and (>= Y_{k} Y_{label}))" for k in range(10) if k != label)
    path = folder / f"property-{eps}.vnnlib"
    path.write_text("\n".join(["; a digit", *lines, f"(assert (or {others}))", extra]))
    return path


def test_what_holds_is_unsat(call: Call, network: Path, tmp_path: Path) -> None:
    code, said, told = call("verify", str(network), str(_property(tmp_path, 0.02)))
    assert (code, said) == (0, "unsat\n")
    assert re.search(r"in real numbers, least margin [\d.]+ \(slack .*\); as run: proved as well", told)


def test_a_property_that_contradicts_itself_is_told(call: Call, network: Path, tmp_path: Path) -> None:
    """It is proved of any network, and hardly ever what was meant."""
    code, said, told = call("verify", str(network), str(_property(tmp_path, 0.02, extra="(assert (<= X_0 -1))")))
    assert (code, said) == (0, "unsat\n")
    assert "note: the property contradicts itself, such as by a lower bound above the upper one" in told


def test_what_is_broken_is_sat_with_a_counterexample(call: Call, network: Path, tmp_path: Path) -> None:
    property_file = _property(tmp_path, 0.6)
    code, said, _ = call("verify", str(network), str(property_file))
    assert code == 1
    lines = said.splitlines()
    assert lines[0] == "sat"
    assert len(lines) == 1 + 64 + 10
    assert lines[1].startswith("((X_0 ")
    assert lines[-1].endswith("))")
    values = dict(re.findall(r"\(([XY]_\d+) (\S+?)\)", said))
    x = torch.tensor([float(values[f"X_{i}"]) for i in range(64)], dtype=torch.float64)
    case = ad.load_vnnlib(property_file).cases[0]
    assert bool((case.lower <= x).all() and (x <= case.upper).all())
    scores = ad.load_digits_network().double()(x.reshape(1, 1, 8, 8))[0]
    assert any(bool((d.rows @ scores <= d.limits).all()) for d in case.disjuncts)
    ran = torch.tensor([float(values[f"Y_{i}"]) for i in range(10)], dtype=torch.float64)
    assert torch.allclose(scores, ran, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_decided_is_unknown(call: Call, network: Path, tmp_path: Path) -> None:
    images, labels = ad.load_digits("test")
    certificate = ad.certify(ad.load_digits_network(), images[:1], labels[:1], ad.LinfBall(0.15, clip=(0, 1)), ad.IBP())
    assert not bool(certificate.certified.any())
    code, said, told = call("verify", str(network), str(_property(tmp_path, 0.15)), "--engine", "ibp")
    assert code in (1, 3)
    assert said.split()[0] == {1: "sat", 3: "unknown"}[code]
    if code == 3:
        assert re.search(r"\d of 9 disjuncts refuted", told)


def test_time_that_is_up(call: Call, network: Path, tmp_path: Path) -> None:
    code, said, _ = call("verify", str(network), str(_property(tmp_path, 0.02)), "--timeout", "0.000001")
    assert (code, said) == (4, "timeout\n")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs alarms, which this system does not have")
def test_time_that_is_up_while_the_file_is_read(
    call: Call, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference may take hours for a large network."""

    def forever(file: object) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr("autodual.interchange.onnx_reading.load_file", forever)
    code, said, told = call("verify", str(network), str(_property(tmp_path, 0.02)), "--timeout", "2")
    assert (code, said) == (4, "timeout\n")
    assert "note: the time was over before both files were read" in told


def test_json_has_both_statements_and_every_bound(call: Call, network: Path, tmp_path: Path) -> None:
    code, said, told = call("verify", str(network), str(_property(tmp_path, 0.02)), "--json")
    found = json.loads(said)
    assert (code, told) == (0, "")
    assert (found["result"], found["rests_on"], found["unsat_as_run"]) == ("unsat", "real numbers", True)
    assert (found["network"], found["property"]) == ("digits.onnx", "property-0.02.vnnlib")
    [case] = found["cases"]
    assert len(case) == 9
    assert all(proof["margin"] > proof["slack"] + proof["run_error"] for proof in case)
    code, said, _ = call("verify", str(network), str(_property(tmp_path, 0.6)), "--json")
    found = json.loads(said)
    assert code == 1
    assert len(found["counterexample"]["inputs"]) == 64


def test_the_competitions_command_in_a_process_of_its_own(network: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "autodual",
        "verify",
        str(network),
        str(_property(tmp_path, 0.02)),
        "--timeout",
        "120",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "unsat\n")


BAD = {
    "a network that was cut short": (lambda n, p: n.write_bytes(n.read_bytes()[:-200]), [], "n.onnx: "),
    "a network that is a text": (lambda n, p: n.write_text("hello"), [], "is not an ONNX file"),
    "an empty network": (lambda n, p: n.write_bytes(b""), [], "n.onnx: is empty"),
    "a property that was cut short": (lambda n, p: p.write_text(p.read_text()[:-30]), [], "it was cut short"),
    "a property for another network": (
        lambda n, p: p.write_text(
            "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1))(assert (>= X_0 0))(assert (<= Y_0 0))"),
        [], "the property is about 1 inputs, but the network has 64"),
    "no time": (lambda n, p: None, ["--timeout", "0"], "--timeout must be more than 0 seconds, got 0"),
    "negative time": (lambda n, p: None, ["--timeout=-3"], "--timeout must be more than 0 seconds"),
    "no such engine": (lambda n, p: None, ["--engine", "magic"], "magic"),
    "no such device": (lambda n, p: None, ["--device", "moon"], "'moon' is none that PyTorch can use here"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name: str, call: Call, network: Path, tmp_path: Path) -> None:
    change, options, expected = BAD[name]
    copy, asked = tmp_path / "n.onnx", _property(tmp_path, 0.02)
    copy.write_bytes(network.read_bytes())
    change(copy, asked)
    code, said, told = call("verify", str(copy), str(asked), *options)
    assert (code, said) == (2, "")
    assert expected in told
    assert told.count("\n") == 1


def test_files_that_are_not_there(call: Call, network: Path, tmp_path: Path) -> None:
    asked = _property(tmp_path, 0.02)
    assert "No such file" in call("verify", str(tmp_path / "no.onnx"), str(asked))[2]
    assert "No such file" in call("verify", str(network), str(tmp_path / "no.vnnlib"))[2]
    assert "is a folder" in call("verify", str(tmp_path), str(asked))[2]


# Export, and certificates of ONNX files.


def test_a_trained_run_is_exported_and_certified_as_before(call: Call, run_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.onnx"
    code, said, told = call("export", str(run_folder), "--onnx", str(file))
    assert (code, told) == (0, "")
    assert "read again and compared" in said
    own, again = tmp_path / "own.jsonl", tmp_path / "again.jsonl"
    options = ["--limit", "6", "--device", "cpu", "--eps", "0.05", "--clip", "0", "1"]
    assert call("certify", str(run_folder), *options, "--out", str(own))[0] == 0
    code, said, told = call("certify", str(file), "--dataset", "digits", *options, "--out", str(again))
    assert code == 0, told
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in (own, again)]
    assert [line["certified"] for line in lines[0]] == [line["certified"] for line in lines[1]]
    code, said, told = call("certify", str(again), "--check")
    assert code == 0, told
    assert "all as written" in said
    code, said, told = call(
        "attack", str(file), "--dataset", "digits", "--limit", "6", "--eps", "0.05", "--device", "cpu"
    )
    assert code == 0, told


def test_export_refuses_in_one_line(call: Call, run_folder: Path, cascade_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.onnx"
    file.write_text("something")
    refused = {
        "exists already": [str(run_folder), "--onnx", str(file)],
        "is a cascade of several networks": [str(cascade_run), "--onnx", str(tmp_path / "c.onnx")],
        "no such folder": [str(tmp_path / "nothing"), "--onnx", str(tmp_path / "n.onnx")],
        "is no folder": [str(file), "--onnx", str(tmp_path / "n.onnx")],
    }
    for reason, arguments in refused.items():
        code, said, told = call("export", *arguments)
        assert (code, said) == (2, "")
        assert reason in told
    assert file.read_text() == "something"
    assert call("export", str(run_folder), "--onnx", str(file), "--overwrite")[0] == 0


def test_certify_says_what_an_onnx_file_lacks(call: Call, network: Path, tmp_path: Path) -> None:
    assert "give --dataset" in call("certify", str(network))[2]
    assert "leave out --model" in call("certify", str(network), "--dataset", "digits", "--model", "small")[2]
    other = tmp_path / "other.onnx"
    ad.save_onnx(torch.nn.Linear(5, 10).eval(), other, torch.zeros(1, 5))
    assert (
        "takes inputs of shape [5], but the images of this data set have [1, 8, 8]"
        in call("certify", str(other), "--dataset", "digits")[2]
    )


def test_images_may_enter_as_vectors(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "flat.onnx"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10)).eval()
    ad.save_onnx(model, file, torch.zeros(1, 64))
    options = [
        "--dataset",
        "digits",
        "--limit",
        "4",
        "--eps",
        "0.01",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "c.jsonl"),
    ]
    assert call("certify", str(file), *options)[0] == 0
    assert call("certify", str(file), *options, "--normalise", "--overwrite")[0] == 0
