"""Files that are whole or not there, and tensors in them."""

import os
import stat
import sys
from pathlib import Path

import pytest
import torch

import autodual as ad
from autodual._files import encode_tensors, load_tensors, replacing, write_bytes, write_json


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(2, 3), "b": torch.arange(4), "c": torch.zeros((), dtype=torch.float64)}
    write_bytes(tmp_path / "deep" / "er" / "x.safetensors", encode_tensors(tensors))
    found = load_tensors(tmp_path / "deep" / "er" / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in tensors.items())


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, b"\x08" + b"\0" * 7 + b"not json"])
def test_what_is_not_safetensors_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ad.ArgumentError, match="x: not a readable safetensors file: "):
        load_tensors(tmp_path / "x")


def test_a_missing_file_and_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ad.ArgumentError, match="nowhere: cannot be read: No such file"):
        load_tensors(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ad.ArgumentError, match="safetensors, which is not installed: pip install"):
        encode_tensors({})


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with replacing(tmp_path / "folder") as place:
            place.mkdir()
            (place / name).write_text(name)
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "two"]


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("old")
    move = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(source).name == "folder" and Path(source).parent != tmp_path:  # the new one, onto its place
            raise OSError(28, "No space left on device")
        move(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ad.ArgumentError, match="nothing is lost: No space"), replacing(tmp_path / "folder") as place:
        place.mkdir()
    monkeypatch.undo()
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "old"]


def test_a_folder_that_cannot_be_synced_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refuse(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(22, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    write_json(tmp_path / "x.json", {})
    assert (tmp_path / "x.json").read_text() == "{}\n"


def test_others_may_read_what_they_may_usually_read(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    write_json(tmp_path / "x.json", {})
    assert (tmp_path / "x.json").stat().st_mode == (tmp_path / "usual").stat().st_mode
