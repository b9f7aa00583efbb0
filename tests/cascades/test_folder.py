"""A combination comes back from its folder as it was; a folder that does not fit is refused, and says why."""

import errno
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.cascades import Cascade, RoutedCascade, SumEnsemble, load_combination
from autodual.cascades.base import Combination
from small import batch, mlp, tilted

X, LABELS = batch(12, 4), torch.arange(12) % 3
MODELS = [mlp(4, 8, 3, seed=s) for s in range(3)]
COMBINATIONS: dict[str, Callable[[], Combination]] = {
    "paper": lambda: Cascade(
        MODELS, ad.LinfBall(0.05, clip=(0.0, 1.0)), ad.Crown(intermediate=ad.IBP(), intersect=True)
    ),
    "routed": lambda: RoutedCascade(MODELS, [0.25, math.inf], ad.L2Ball(0.05), ad.IBP()),
    "sum": lambda: SumEnsemble(MODELS, ad.L1Ball(torch.tensor(0.05)), ad.ForwardDual()),
}
every = pytest.mark.parametrize("kind", COMBINATIONS)


@pytest.fixture
def safetensors() -> None:
    pytest.importorskip("safetensors", reason="the optional package safetensors is not installed")


def build(stage: int) -> nn.Module:
    return mlp(4, 8, 3, seed=100 + stage)


@every
@pytest.mark.usefixtures("safetensors")
def test_a_folder_gives_back_what_was_saved(kind: str, tmp_path: Path) -> None:
    saved = COMBINATIONS[kind]()
    saved.save(tmp_path / "new" / "folder")
    names = sorted(p.name for p in (tmp_path / "new" / "folder").iterdir())
    assert names == ["stage-0.safetensors", "stage-1.safetensors", "stage-2.safetensors", "stages.json"]
    for loaded in (
        type(saved).load(tmp_path / "new" / "folder", build),
        load_combination(tmp_path / "new/folder", build),
    ):
        assert type(loaded) is type(saved)
        assert loaded.engine == saved.engine
        assert repr(loaded) == repr(saved)
        assert not any(m.training for m in loaded.models)
        again, before = loaded.certify(X, LABELS), saved.certify(X, LABELS)
        assert torch.equal(again.sound, before.sound)
        assert torch.equal(again.answers.label, before.answers.label)
    saved.save(tmp_path / "new" / "folder")  # over the old one


@pytest.mark.usefixtures("safetensors")
def test_thresholds_come_back(tmp_path: Path) -> None:
    COMBINATIONS["routed"]().save(tmp_path)
    assert RoutedCascade.load(tmp_path, build).thresholds == (0.25, math.inf)


@pytest.mark.usefixtures("safetensors")
def test_shared_weights_are_written_for_each_stage(tmp_path: Path) -> None:
    Cascade([MODELS[0], MODELS[0]], ad.LinfBall(0.1)).save(tmp_path)
    assert len(Cascade.load(tmp_path, build).models) == 2


def _edit(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        record = json.loads((folder / "stages.json").read_text())
        (folder / "stages.json").write_text(json.dumps(record | changes))

    return spoil


def _cut(folder: Path) -> None:
    place = folder / "stage-1.safetensors"
    place.write_bytes(place.read_bytes()[:-8])


def _flip(folder: Path) -> None:
    place = folder / "stage-1.safetensors"
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    place.write_bytes(content)


def _swap(folder: Path) -> None:
    (folder / "stage-0.safetensors").write_bytes((folder / "stage-1.safetensors").read_bytes())


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no record": (lambda f: (f / "stages.json").unlink(), "stages.json: cannot be read: No such file"),
    "not JSON": (lambda f: (f / "stages.json").write_text("{"), "is not JSON"),
    "not text": (lambda f: (f / "stages.json").write_bytes(b"\xff\xfe\xff"), "is not JSON"),
    "another JSON": (lambda f: (f / "stages.json").write_text("[1]"), "does not describe a combination"),
    "a later version": (_edit(version=2), "version 2; this autodual reads version 1"),
    "another kind": (_edit(kind="sum"), "kind 'sum', not 'routed'"),
    "no stages": (_edit(stages=0), "stages must be a whole number"),
    "another number of stages": (_edit(stages=2), "one checksum for each of the 2 stages"),
    "no thresholds": (_edit(thresholds=None), "thresholds must be a list"),
    "too few thresholds": (_edit(thresholds=[0.1]), "3 models need 2"),
    "negative threshold": (_edit(thresholds=[0.1, -1]), r"thresholds\[1\] must be a number, not negative"),
    "threshold of text": (_edit(thresholds=[0.1, "1"]), r"thresholds\[1\] must be a number"),
    "unknown norm": (_edit(ball={"norm": "l7", "eps": 0.1}), "norm out of linf, l2, l1"),
    "negative eps": (_edit(ball={"norm": "l2", "eps": -0.1}), "eps must be finite and not negative"),
    "no eps": (_edit(ball={"norm": "l2"}), "eps"),
    "clip of text": (_edit(ball={"norm": "linf", "eps": 0.1, "clip": ["a", "b"]}), "could not convert"),
    "unknown engine": (_edit(engine={"name": "Projected", "options": {}}), "engine must have a name out of Dual"),
    "unknown option": (
        _edit(engine={"name": "Dual", "options": {"system": "rm"}}),
        "unexpected keyword argument 'system'",
    ),
    "missing weights": (lambda f: (f / "stage-2.safetensors").unlink(), "stage-2.safetensors: cannot be read"),
    "truncated weights": (_cut, "stage-1.safetensors: is damaged or was exchanged"),
    "one bit": (_flip, "stage-1.safetensors: is damaged or was exchanged"),
    "exchanged weights": (_swap, "stage-0.safetensors: is damaged or was exchanged"),
}


@pytest.mark.usefixtures("safetensors")
@pytest.mark.parametrize(("spoil", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named(spoil: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    COMBINATIONS["routed"]().save(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ad.ArgumentError, match=message):
        RoutedCascade.load(tmp_path, build)


@pytest.mark.usefixtures("safetensors")
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda j: mlp(4, 9, 3), r"does not fit the module that build\(0\) returned: .*size mismatch"),
        (lambda j: mlp(4, 8, 8, 3), r"does not fit the module that build\(0\) returned: .*Missing key"),
        (lambda j: mlp(4, 8, 3).float(), "saved as torch.float64, but build.* has it as torch.float32"),
        (lambda j: None, r"build\(0\) must return a torch.nn.Module, got NoneType"),
    ],
)
def test_modules_that_do_not_fit_are_refused(other: Callable[[int], Any], message: str, tmp_path: Path) -> None:
    COMBINATIONS["paper"]().save(tmp_path)
    with pytest.raises(ad.ArgumentError, match=f"(?s){message}"):
        load_combination(tmp_path, other)


def test_without_safetensors_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ad.ArgumentError, match=r"pip install 'autodual\[cli\]'"):
        COMBINATIONS["paper"]().save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("safetensors")
def test_a_full_disk_leaves_what_was_saved_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    COMBINATIONS["paper"]().save(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if self.name == "stage-2.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ad.ArgumentError, match=r"stage-2\.safetensors: not written, nothing is lost: No space left"):
        COMBINATIONS["sum"]().save(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("safetensors")
def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ad.ArgumentError, match="Tilted cannot be saved"):
        SumEnsemble(MODELS, tilted(4, 0.1)).save(tmp_path)
    with pytest.raises(ad.ArgumentError, match="cannot be saved; Dual, Crown"):
        SumEnsemble(MODELS, ad.LinfBall(0.1), ad.HighProbability()).save(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ad.ArgumentError, match="cannot write there"):
        COMBINATIONS["paper"]().save(tmp_path / "file")
    with pytest.raises(ad.ArgumentError, match=r"stages\.json: cannot be read"):
        load_combination(tmp_path / "nowhere", build)
    (tmp_path / "stages.json").write_text('{"format": "autodual combination", "version": 1, "kind": "x"}')
    with pytest.raises(ad.ArgumentError, match="kind must be one of paper, routed, sum"):
        load_combination(tmp_path, build)
