"""Files that are whole or not there, and tensors in them."""

import errno
import fcntl
import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import autodual as ad
from autodual._files import (
    check_plain,
    claim,
    digest,
    encode_tensors,
    load_tensors,
    parse_json,
    read_content,
    read_json,
    replacing,
    write_bytes,
    write_json,
)


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


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(5 * 2**30)


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a pipe, not a file"),
    "folder": (Path.mkdir, "is a folder, not a file"),
    "socket": (_socket, "is a socket, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
    "loop": (_loop, "cannot be read: Too many levels of symbolic links"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file"),
    "gigabytes": (_huge, "is larger than|not a readable safetensors file"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("read", [read_json, load_tensors, lambda path: read_content(path, 1000)])
def test_what_is_no_file_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, read: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    make, message = NO_FILES[kind]
    make(Path("x"))
    with pytest.raises(ad.ArgumentError, match=f"x: .*({message})"):
        read(Path("x"))


def test_a_digest_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    for look in (digest, check_plain):
        with pytest.raises(ad.ArgumentError, match="is a pipe"):
            look(tmp_path / "x")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 10**6, '{"a":' * 10**5, "[" * 40 + "]" * 40, "NaN", "[1e999]", "-Infinity", "9" * 10**5, str(2**63),
     "1e99999", "\ud800", b"\xff",
     '"\0"', "[1,]", "\ufeff{}"],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_json_that_has_no_place_in_a_record(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the reason
        parse_json(text)


@pytest.mark.parametrize(
    "value", [{}, [1e308, -5e-324, 2**63 - 1, -(2**63) + 1, True, None], {"a": [[[{"b": "\u2028"}]]]}]
)
def test_json_of_records_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value


BUSY = "another process"
LOCKS = {
    errno.EWOULDBLOCK: BUSY, errno.EACCES: BUSY, errno.ENOLCK: "", errno.ENOTSUP: "", errno.EOPNOTSUPP: "", errno.ENOSYS: "",
    errno.EINVAL: "", errno.EIO: "cannot be locked: ",
}  # fmt: skip


@pytest.mark.parametrize("number", LOCKS, ids=errno.errorcode.get)
def test_only_a_lock_means_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "x").open("a") as handle:
        if LOCKS[number]:
            with pytest.raises(ad.ArgumentError, match=LOCKS[number]):
                claim(handle, tmp_path / "x", BUSY)
        else:
            with pytest.warns(UserWarning, match=rf"x: its file system has no locks \({os.strerror(number)}\)"):
                claim(handle, tmp_path / "x", BUSY)
