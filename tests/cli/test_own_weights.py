"""Weights of one's own: state dictionaries as .pt or safetensors, for a network in a file of one's own with neighbours."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from autodual._errors import ArgumentError
from autodual.certificates import certify
from autodual.data import named_function
from autodual.digits import load_digits, load_digits_network
from autodual.runs.checkpoint import load_model, read_tensors
from autodual.sets import LinfBall

Call = Callable[..., tuple[int, str, str]]

NETWORK = """
from layers import body

def factory(shape, classes):
    import late
    assert late.FINE
    return body(shape, classes)
"""
NEIGHBOUR = """
from autodual.training.setup import make_model

def body(shape, classes):
    return make_model("digits", shape, classes)
"""
CPU = ["--dataset", "digits", "--eps", "0.05", "--clip", "0", "1", "--limit", "20", "--device", "cpu"]


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "layers.py").write_text(NEIGHBOUR)
    (tmp_path / "late.py").write_text("FINE = True\n")
    return f"{tmp_path}/net.py:factory"


@pytest.mark.parametrize("suffix", ["pt", "pth", "safetensors"])
def test_a_factory_with_weights(
    call: Call, own: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = dict(load_digits_network().state_dict())
    if suffix == "safetensors":
        save_file(state, "w.safetensors")
    else:
        torch.save(state, f"w.{suffix}")
    code, said, complaint = call("certify", own, "--weights", f"w.{suffix}", *CPU)
    assert code == 0, complaint
    x, labels = load_digits("test")
    found = certify(load_digits_network(), x[:20], labels[:20], LinfBall(0.05, clip=(0.0, 1.0)))
    assert f"robust error {found.robust_error:.2%}" in said
    assert "(20 images)" in said
    assert call("certify", "--check", "w-certificates-dual-eps-0.05-clip-0-1-first-20.jsonl", "--device", "cpu")[0] == 0
    code, again, _ = call("certify", f"w.{suffix}", "--model", own, *CPU, "--out", "other.jsonl")
    assert code == 0
    assert again.split(";")[0] == said.split(";")[0]
    assert call("attack", own, "--weights", f"w.{suffix}", *CPU)[0] == 0
    assert not {"layers", "late", "net"} & sys.modules.keys()
    assert str(tmp_path) not in sys.path


def test_an_eps_that_nobody_gave_is_noted(
    call: Call, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(dict(load_digits_network().state_dict()), "w.safetensors")
    without = [option for option in CPU if option not in ("--eps", "0.05")]
    for command in (["certify", "--out", "lines.jsonl", "--overwrite"], ["attack", "--steps", "1", "--restarts", "1"]):
        code, said, complaint = call(*command, own, "--weights", "w.safetensors", *without)
        assert code == 0, complaint
        assert "note: --eps was not given, so that it is 0.1\n" in complaint
        assert "l-infinity 0.1" in said
        code, said, complaint = call(*command, own, "--weights", "w.safetensors", *CPU)
        assert code == 0, complaint
        assert "not given" not in complaint


class Trap:
    """Runs code when it is unpickled."""

    ran = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (Trap, "ran", True)


def test_no_other_pickle_is_opened(call: Call, tmp_path: Path) -> None:
    whole, plain, cut = tmp_path / "whole.pt", tmp_path / "plain.pt", tmp_path / "cut.pt"
    torch.save({"weight": Trap()}, whole)
    plain.write_bytes(pickle.dumps(Trap()))
    torch.save(load_digits_network().state_dict(), cut)
    cut.write_bytes(cut.read_bytes()[:5000])
    for file in (whole, plain):
        code, _, complaint = call("certify", str(file), "--model", "digits", *CPU)
        assert code == 2
        assert complaint.startswith(f"error: {file}: holds more than weights"), complaint
        assert complaint.count("\n") == 1
    assert not Trap.ran
    with pytest.raises(ArgumentError, match=r"cut.pt: cannot be read as weights of PyTorch \(.+\); save torch.save"):
        read_tensors(cut)
    torch.save({"epoch": 3, "model": {}}, whole)
    with pytest.raises(
        ArgumentError, match="holds the entries epoch, model, not a state dictionary of tensors by name"
    ):
        read_tensors(whole)
    torch.save([torch.ones(1)], whole)
    with pytest.raises(ArgumentError, match="holds a list, not a state dictionary"):
        read_tensors(whole)


def test_weights_that_do_not_fit_say_how(tmp_path: Path) -> None:
    file, model = tmp_path / "w.pt", torch.nn.Sequential(torch.nn.Linear(2, 3))
    state = model.state_dict()
    for change, message in (
        ({"0.weight": torch.zeros(4, 2)}, r"0.weight does not fit: the file has \[4, 2\], the model \[3, 2\]"),
        ({"more": torch.zeros(1)}, r"more does not fit: the file has \[1\], the model none of that name"),
        (
            {"0.weight": state["0.weight"].to_sparse()},
            "0.weight is a sparse or quantised tensor; save it as an ordinary one",
        ),
    ):
        torch.save(state | change, file)
        with pytest.raises(ArgumentError, match=message):
            load_model(file, model)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
@pytest.mark.parametrize("entry", [None, "state_dict", "model"])
def test_checkpoints_and_wrapped_names_are_read(tmp_path: Path, prefix: str, entry: str | None) -> None:
    """What DataParallel and torch.compile write, alone or beside the state of an optimiser, is read and told."""
    file, trained = tmp_path / "w.pt", torch.nn.Sequential(torch.nn.Linear(2, 3))
    optimiser = torch.optim.Adam(trained.parameters())
    trained(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    state = {f"{prefix}{name}": tensor for name, tensor in trained.state_dict().items()}
    torch.save({"epoch": 3, "optimizer": optimiser.state_dict(), entry: state} if entry else state, file)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load_model(file, model)
    assert torch.equal(model[0].weight, trained[0].weight)
    said = " ".join(str(each.message) for each in told)
    assert ("is a checkpoint; its weights are taken from the entry" in said) == (entry is not None)
    assert (f"all names begin with {prefix!r}" in said) == (prefix != "")


def test_a_checkpoint_with_two_networks_is_refused(tmp_path: Path) -> None:
    file, state = tmp_path / "w.pt", torch.nn.Linear(2, 3).state_dict()
    torch.save({"model": state, "ema": state}, file)
    with pytest.raises(
        ArgumentError, match=r"more than one state dictionary \(model, ema\); save the one that you mean"
    ):
        read_tensors(file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.py:factory"], "names a network, but not its weights; give them with --weights"),
        (["net.py:factory", "--weights", "w.pt", "--model", "digits"], "leave --model out"),
        (["net.py:factory", "--weights", "none.pt"], "none.pt: no such file or folder"),
        (["w.pt", "--weights", "w.pt"], "w.pt: exists, and --weights is for a network's name"),
        (["net.py:none", "--weights", "w.pt"], "has no function 'none'"),
    ],
)
def test_what_cannot_be_opened(
    call: Call, own: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(load_digits_network().state_dict(), "w.pt")
    code, _, complaint = call("certify", *arguments, *CPU)
    assert code == 2
    assert message in complaint
    assert complaint.count("\n") == 1


def test_neighbours_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "parts").mkdir(parents=True)
        (tmp_path / name / "parts" / "__init__.py").write_text("from parts.inner import NAME\n")
        (tmp_path / name / "parts" / "inner.py").write_text(f"NAME = {name!r}\n")
        (tmp_path / name / "helper.py").write_text(f"class Kind: name = {name!r}\n")
        (tmp_path / name / "net.py").write_text(
            "import helper\nfrom parts import NAME\ndef factory(): return helper.Kind, NAME\n"
        )
    before = dict(sys.modules)
    first, second = (named_function(f"{tmp_path}/{name}/net.py:factory") for name in ("one", "two"))
    assert [found() for found in (first, second)] == [(first()[0], "one"), (second()[0], "two")]
    assert (first()[0].name, second()[0].name) == ("one", "two")
    assert named_function(f"{tmp_path}/one/net.py:factory")()[0] is first()[0]  # imported once
    new = {name for name in sys.modules if name not in before} - {"autodual_user_net"}
    assert not {name for name in new if name.partition(".")[0] in ("helper", "parts")}
    (tmp_path / "one" / "helper.py").write_text("class Kind: name = 'changed since'\n")
    assert named_function(f"{tmp_path}/one/net.py:factory")()[0].name == "changed since"


def test_modules_of_the_caller_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's program keeps its name; Python's own modules are not hidden by a neighbour."""
    program, beside = tmp_path / "program", tmp_path / "beside"
    program.mkdir()
    beside.mkdir()
    (program / "own_utils.py").write_text("WHERE = 'program'\n")
    (beside / "own_utils.py").write_text("WHERE = 'beside'\n")
    (beside / "json.py").write_text("raise RuntimeError\n")
    (beside / "net.py").write_text("import json, own_utils\ndef factory(): return own_utils.WHERE, json.dumps(1)\n")
    monkeypatch.syspath_prepend(str(program))
    import own_utils  # type: ignore[import-not-found]

    assert named_function(f"{beside}/net.py:factory")() == ("beside", "1")
    assert sys.modules["own_utils"] is own_utils
    assert own_utils.WHERE == "program"
    monkeypatch.delitem(sys.modules, "own_utils")
    (beside / "broken.py").write_text("import own_utils\nraise RuntimeError('half way')\n")
    with pytest.raises(ArgumentError, match="RuntimeError: half way"):
        named_function(f"{beside}/broken.py:factory")
    assert "own_utils" not in sys.modules
    assert str(beside) not in sys.path
