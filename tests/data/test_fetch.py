"""Downloads resume, are checked, fall back to mirrors, and never leave half a file."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autodual import ArgumentError
from autodual.data import downloads as downloads
from autodual.data import fetch, load, verify
from autodual.data.downloads import SourceError, store
from autodual.data.known import DataFile
from data.samples import cifar_files, idx_files, write
from data.server import Site, serving

FILES = idx_files(train=40, test=5)
CIFAR = cifar_files()
BIG = "train-images-idx3-ubyte"


def packed(files: dict[str, bytes], folder: str = "mnist") -> dict[str, bytes]:
    return {f"/{folder}/{name}.gz": gzip.compress(contents, 1) for name, contents in files.items()}


def archive(files: dict[str, bytes], *extra: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
        for info, contents in extra:
            tar.addfile(info, io.BytesIO(contents))
        for name, contents in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            tar.addfile(info, io.BytesIO(contents))
    return out.getvalue()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(packed(FILES))) as running:
        yield running


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def assert_whole(folder: Path) -> None:
    assert names(folder) == sorted(FILES)
    assert all((folder / "mnist" / name).read_bytes() == contents for name, contents in FILES.items())


def test_files_are_fetched_once(tmp_path: Path, site: Site, publish: Any) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    seen: list[tuple[str, int, int | None]] = []
    assert fetch("mnist", tmp_path, lambda *told: seen.append(told)) == tmp_path / "mnist"
    assert_whole(tmp_path)
    size = len(site.files[f"/mnist/{BIG}.gz"])
    assert seen[0] == (f"{BIG}.gz", size, size)
    assert len(load("mnist", "train", tmp_path)) == 40
    asked = len(site.asked)
    fetch("mnist", tmp_path)
    assert len(site.asked) == asked


def test_only_what_is_missing_or_wrong_is_fetched(tmp_path: Path, site: Site, publish: Any) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    write(tmp_path / "mnist", FILES)
    (tmp_path / "mnist" / BIG).write_bytes(FILES[BIG][:-1])
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    fetch("mnist", tmp_path)
    assert [path for path, _ in site.asked] == [f"/mnist/{BIG}.gz", "/mnist/t10k-labels-idx1-ubyte.gz"]
    assert_whole(tmp_path)


def test_compressed_files_count_as_there(tmp_path: Path, publish: Any) -> None:
    publish("mnist", FILES)
    write(tmp_path / "mnist", FILES, compress=True)
    fetch("mnist", tmp_path)
    assert all(check.ok for check in verify("mnist", tmp_path))


def test_digits_need_no_fetching(tmp_path: Path) -> None:
    fetch("digits", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_urls(tmp_path: Path, publish: Any) -> None:
    source = write(tmp_path / "source", FILES, compress=True)
    publish("mnist", FILES, web=(f"{source.as_uri()}/",))
    fetch("mnist", tmp_path / "here")
    assert_whole(tmp_path / "here")


def test_a_cut_connection_is_taken_up(tmp_path: Path, site: Site, publish: Any) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    site.cuts = 2
    fetch("mnist", tmp_path)
    half = len(site.files[f"/mnist/{BIG}.gz"]) // 2
    assert site.asked[0] == (f"/mnist/{BIG}.gz", None)
    assert site.asked[1] == (f"/mnist/{BIG}.gz", f"bytes={half}-")
    assert_whole(tmp_path)


def test_a_cut_download_goes_on_the_next_time(tmp_path: Path, site: Site, publish: Any) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    site.cuts = downloads.ATTEMPTS
    with pytest.raises(ArgumentError, match=r"the connection was cut after \d+ of \d+ bytes"):
        fetch("mnist", tmp_path)
    assert names(tmp_path) == [f"{BIG}.gz.part"]
    have = (tmp_path / "mnist" / f"{BIG}.gz.part").stat().st_size
    site.asked.clear()
    fetch("mnist", tmp_path)
    assert site.asked[0] == (f"/mnist/{BIG}.gz", f"bytes={have}-")
    assert_whole(tmp_path)


def test_a_server_without_ranges_starts_afresh(tmp_path: Path, site: Site, publish: Any) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    site.cuts, site.ranges = 1, False
    fetch("mnist", tmp_path)
    assert_whole(tmp_path)


@pytest.mark.parametrize("extra", [b"", b"too long"])
def test_a_part_that_is_complete_or_too_long(tmp_path: Path, site: Site, publish: Any, extra: bytes) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    write(tmp_path / "mnist", {f"{BIG}.gz.part": site.files[f"/mnist/{BIG}.gz"] + extra})
    fetch("mnist", tmp_path)
    assert_whole(tmp_path)


def test_wrong_checksum(tmp_path: Path, site: Site, publish: Any) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    wrong = bytearray(FILES[BIG])
    wrong[100] ^= 1
    site.files[f"/mnist/{BIG}.gz"] = gzip.compress(wrong)
    with pytest.raises(
        ArgumentError, match=rf"{BIG}: wrong checksum, expected SHA-256 [0-9a-f]{{64}}, found [0-9a-f]{{64}}"
    ) as raised:
        fetch("mnist", tmp_path)
    assert "\n" not in str(raised.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (gzip.compress(FILES[BIG][:-1]), "expected 31376 bytes, found 31375"),
        (gzip.compress(FILES[BIG] + b"x"), "expected 31376 bytes, found more than 31376"),
        (gzip.compress(bytes(50 << 20)), "found more than"),
        (gzip.compress(FILES[BIG])[:-9], "cannot be unpacked"),
        (b"<html>Log in to this hotel's network", "cannot be unpacked"),
        (bytes(3 << 20), r"more than \d+ bytes came, which cannot be the file"),
    ],
)
def test_wrong_contents(tmp_path: Path, site: Site, publish: Any, contents: bytes, message: str) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    site.files[f"/mnist/{BIG}.gz"] = contents
    with pytest.raises(ArgumentError, match=message):
        fetch("mnist", tmp_path)
    assert names(tmp_path) == []


def test_what_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        yield bytes(11)
        raise AssertionError("read on")

    with pytest.raises(SourceError, match="x: expected 10 bytes, found more than 10"):
        store(endless(), DataFile("x", 10, "0" * 64), tmp_path)
    assert names(tmp_path) == []


def test_mirrors_are_tried_in_turn(tmp_path: Path, site: Site, publish: Any) -> None:
    site.files |= packed({name: FILES[name] for name in list(FILES)[:2]}, "half")
    site.files |= packed(dict.fromkeys(FILES, b"wrong"), "wrong")
    publish(
        "mnist", FILES, web=("http://127.0.0.1:9/", *(f"{site.url}/{place}/" for place in ("wrong", "half", "mnist")))
    )
    fetch("mnist", tmp_path)
    assert_whole(tmp_path)
    fetched = [path for path, _ in site.asked if path.startswith(("/half", "/mnist"))]
    assert fetched[:2] == [f"/half/{name}.gz" for name in list(FILES)[:2]]
    assert fetched[3:] == [f"/mnist/{name}.gz" for name in list(FILES)[2:]]  # [2:3] was answered with 404


def test_every_reason_is_given(tmp_path: Path, site: Site, publish: Any) -> None:
    publish("mnist", FILES, web=("http://127.0.0.1:9/", f"{site.url}/nowhere/"))
    with pytest.raises(
        ArgumentError, match=r"127.0.0.1:9/: cannot be reached .*nowhere/: the server answers 404"
    ) as raised:
        fetch("mnist", tmp_path)
    assert f"put the files into {tmp_path / 'mnist'} by hand" in str(raised.value)


def cifar_archive(*extra: tuple[tarfile.TarInfo, bytes]) -> bytes:
    return archive({f"cifar-10-batches-bin/{name}": contents for name, contents in CIFAR.items()}, *extra)


def test_archive(tmp_path: Path, publish: Any) -> None:
    with serving(Site({"/c.tar.gz": cifar_archive()}, cuts=1)) as site:
        publish("cifar10", CIFAR, web=(f"{site.url}/c.tar.gz",))
        fetch("cifar10", tmp_path)
    assert names(tmp_path) == sorted([*CIFAR, "batches.meta.txt"])
    assert len(load("cifar10", "train", tmp_path)) == 15
    assert load("cifar10", "test", tmp_path).classes[9] == "truck"


def _info(name: str, size: int = 0, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in fields.items():
        setattr(info, key, value)
    return info, bytes(size)


def test_an_archive_writes_nothing_else(tmp_path: Path, publish: Any) -> None:
    hostile = [
        _info("../escaped", 4),
        _info(f"{tmp_path}/absolute", 4),
        _info("cifar-10-batches-bin/more.bin", 4),
        _info("cifar-10-batches-bin/test_batch.bin", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        _info("cifar-10-batches-bin/data_batch_1.bin", type=tarfile.LNKTYPE, linkname="../escaped"),
    ]
    (tmp_path / "c.tar.gz").write_bytes(cifar_archive(*hostile))
    publish("cifar10", CIFAR, web=((tmp_path / "c.tar.gz").as_uri(),))
    fetch("cifar10", tmp_path / "here")
    assert names(tmp_path) == sorted([*CIFAR, "batches.meta.txt", "c.tar.gz"])
    assert not (tmp_path / "here" / "cifar-10-batches-bin" / "test_batch.bin").is_symlink()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (cifar_archive()[:-300], "c.tar.gz.part cannot be unpacked"),
        (b"<html>", "c.tar.gz.part cannot be unpacked"),
        (
            archive({"cifar-10-batches-bin/test_batch.bin": CIFAR["test_batch.bin"]}),
            r"lacks cifar-10-batches-bin/data_batch_1.bin",
        ),
        (archive({f"cifar-10-batches-bin/{name}": b"x" for name in CIFAR}), "expected 9219 bytes, found 1"),
    ],
)
def test_damaged_archives(tmp_path: Path, publish: Any, contents: bytes, message: str) -> None:
    with serving(Site({"/c.tar.gz": contents})) as site:
        publish("cifar10", CIFAR, web=(f"{site.url}/c.tar.gz",))
        with pytest.raises(ArgumentError, match=message):
            fetch("cifar10", tmp_path)
    assert all(check.ok or check.path is None for check in verify("cifar10", tmp_path))
    assert not [name for name in names(tmp_path) if name.endswith(".part")]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a disk that is always full")
@pytest.mark.parametrize("part", [f"{BIG}.gz.part", f"{BIG}.part"])
def test_disk_full(tmp_path: Path, site: Site, publish: Any, part: str) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / part).symlink_to("/dev/full")
    with pytest.raises(
        ArgumentError, match="no space is left there; free some, or name another folder in AUTODUAL_DATA"
    ):
        fetch("mnist", tmp_path)
    assert names(tmp_path) == []
    assert list((tmp_path / "mnist").iterdir()) == []


def test_read_only_folder(tmp_path: Path, site: Site, publish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    if os.geteuid() == 0:  # nothing is read-only to root

        def refuse(self: Path, **kwargs: Any) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(Path, "mkdir", refuse)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(
            ArgumentError, match="the folder cannot be written to; change its permissions, or name another"
        ):
            fetch("mnist", tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert site.asked == []


def test_folder_that_is_a_file(tmp_path: Path, publish: Any) -> None:
    publish("mnist", FILES)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="Not a directory; check the folder"):
        fetch("mnist", tmp_path / "file")


def test_stopped_by_the_user(tmp_path: Path, site: Site, publish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("mnist", FILES, web=(f"{site.url}/mnist/",))
    monkeypatch.setattr(downloads, "CHUNK", 1000)

    def stop(name: str, done: int, total: int | None) -> None:
        if done > 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("mnist", tmp_path, stop)
    assert names(tmp_path) == [f"{BIG}.gz.part"]
    fetch("mnist", tmp_path)
    assert site.asked[1] == (f"/mnist/{BIG}.gz", "bytes=6000-")
    assert_whole(tmp_path)


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="did you mean 'cifar10'"):
        fetch("cifar-10", tmp_path)
