"""What is on this machine: the records of verify and catalogue, and the real data where it is at hand."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from autodual import ArgumentError
from autodual.data import FileState, catalogue, load, verify
from autodual.data.known import KNOWN
from data.samples import idx_files, write

REAL = Path("/tmp/data")


def test_every_state(tmp_path: Path, publish: Any) -> None:
    files = idx_files()
    publish("mnist", files)
    images, labels, test_images, test_labels = files
    assert {check.state for check in verify("mnist", tmp_path)} == {FileState.MISSING}
    folder = write(tmp_path / "mnist", files)
    assert all(check.ok for check in verify("mnist", tmp_path))
    (folder / images).write_bytes(files[images][:-1])
    (folder / labels).write_bytes(bytes(len(files[labels])))
    (folder / test_images).unlink()
    (folder / test_labels).unlink()
    (folder / f"{test_labels}.gz").write_bytes(gzip.compress(files[test_labels])[:-1])
    checks = verify("mnist", tmp_path)
    states = (FileState.WRONG_SIZE, FileState.WRONG_CONTENTS, FileState.MISSING, FileState.UNREADABLE)
    assert tuple(check.state for check in checks) == states
    assert not any(check.ok for check in checks)
    assert (checks[0].size, checks[0].expected_size) == (len(files[images]) - 1, len(files[images]))
    assert checks[1].sha256 != checks[1].expected_sha256
    assert (checks[2].path, checks[3].path) == (None, folder / f"{test_labels}.gz")


def test_digits_have_no_files_and_own_data_is_not_known() -> None:
    assert verify("digits") == ()
    with pytest.raises(ArgumentError, match="'my/folder' is not known"):
        verify("my/folder")


def test_catalogue(tmp_path: Path, publish: Any) -> None:
    files = idx_files()
    publish("mnist", files, web=("https://example.org/",), npm="p@1")
    entries = {entry.data.name: entry for entry in catalogue(tmp_path)}
    assert list(entries) == ["digits", "mnist", "fashion-mnist", "cifar10"]
    assert {name for name, entry in entries.items() if entry.present} == {"digits"}
    assert entries["mnist"].data.sources == ("https://example.org/", "npm package p@1")
    assert (entries["digits"].folder, entries["mnist"].folder) == (None, tmp_path / "mnist")
    write(tmp_path / "mnist", files, compress=True)
    mnist = catalogue(tmp_path)[1]
    assert (mnist.present, mnist.data.size) == (True, sum(map(len, files.values())))
    assert all(entry.data is KNOWN[name] for name, entry in entries.items())


def test_published_sizes_fit_the_formats() -> None:
    for data in (KNOWN["mnist"], KNOWN["fashion-mnist"]):
        assert [file.size for file in data.files] == [60000 * 784 + 16, 60000 + 8, 10000 * 784 + 16, 10000 + 8]
    assert KNOWN["cifar10"].size == 60000 * 3073
    digests = [file.sha256 for data in KNOWN.values() for file in data.files]
    assert len(set(digests)) == 14
    assert all(len(digest) == 64 and int(digest, 16) for digest in digests)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "fashion-mnist"])
def test_the_real_data(name: str) -> None:
    if not (REAL / KNOWN[name].folder).is_dir():
        pytest.skip(f"{REAL / KNOWN[name].folder} is not there")
    assert [check.state for check in verify(name, REAL)] == [FileState.RIGHT] * len(KNOWN[name].files)
    test = load(name, "test", REAL)
    assert (len(test), test.shape) == (KNOWN[name].test, KNOWN[name].shape)
    assert test.labels.bincount().tolist() == (
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009] if name == "mnist" else [1000] * 10
    )
