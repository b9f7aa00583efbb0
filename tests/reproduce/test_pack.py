"""Packs travel in small parts and come back whole; merging loses nothing that is newer."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autodual import ArgumentError
from autodual.evaluation.processes import Watch
from autodual.reproduce import pack
from autodual.reproduce.campaign import Campaign, Phase, Task
from autodual.reproduce.one_row import work_on
from autodual.reproduce.pack import that_fit, unit_of, unpack, write_pack
from autodual.training.loop import StoppedError

from .conftest import CASCADE, OTHER, ROW

SMALL = 128 * 1024


def _train(campaign: Campaign, row: str, steps: int) -> None:
    """Some more steps."""
    asked = itertools.count(1)
    with pytest.raises(StoppedError):
        work_on(campaign, Task(row), Watch(stop=lambda: next(asked) >= steps))


def _pack(campaign: Campaign, out: Path, *tasks: Task, light: bool = False) -> list[Path]:
    units = [unit_of(campaign, task, light) for task in tasks]
    return write_pack(out, [unit for unit in units if unit is not None], SMALL)


def _elsewhere(campaign: Campaign, tmp_path: Path) -> Campaign:
    return replace(campaign, results=tmp_path / "there/results", work=tmp_path / "there/work")


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_finished_comes_back_as_it_was(finished: Campaign, tmp_path: Path) -> None:
    tasks = [Task(ROW), Task(ROW, "best"), Task(CASCADE)]
    parts = _pack(finished, tmp_path / "out.tar", *tasks)
    there = _elsewhere(finished, tmp_path)
    assert set(unpack(there, parts)) == set(tasks)
    assert _tree(there.results) == _tree(finished.results)
    assert not there.work.exists()


@pytest.mark.parametrize(("row", "steps"), [(ROW, 5), (ROW, 10), (CASCADE, 10)])
def test_what_is_not_goes_on_elsewhere(
    campaign: Campaign, finished: Campaign, tmp_path: Path, row: str, steps: int
) -> None:
    """From any part of the work: in the middle of an epoch, of an evaluation, or of a stage of a cascade."""
    _train(campaign, row, steps)
    parts = _pack(campaign, tmp_path / "out.tar", Task(row))
    assert len(parts) > 1 or campaign.progress(Task(row)).step == Phase.EVALUATING
    assert all(part.stat().st_size <= SMALL for part in parts)
    there = _elsewhere(campaign, tmp_path)
    unpack(there, parts)
    assert there.progress(Task(row)) == campaign.progress(Task(row))
    found, expected = work_on(there, Task(row), Watch()), finished.record(Task(row))
    assert expected is not None
    assert found is not None
    assert (found.weights, found.figures.error) == (expected.weights, expected.figures.error)


def test_nothing_newer_is_lost(campaign: Campaign, tmp_path: Path) -> None:
    task, there = Task(ROW), _elsewhere(campaign, tmp_path)
    packs = []
    for number in range(3):
        _train(campaign, ROW, 3)
        packs.append(_pack(campaign, tmp_path / f"{number}.tar", task))
    work_on(campaign, task, Watch())
    packs.append(_pack(campaign, tmp_path / "done.tar", task))
    for number, order in enumerate(([1, 0, 2, 1], [2, 0], [0, 3, 2, 1, 0], [1, 1])):
        tree = replace(there, results=tmp_path / f"{number}/results", work=tmp_path / f"{number}/work")
        farthest = tree.progress(task)
        for index in order:
            before = _tree(tmp_path / str(number)) if (tmp_path / str(number)).exists() else {}
            said = unpack(tree, packs[index])[task]
            now = tree.progress(task)
            assert now >= farthest
            if said.startswith("kept"):
                assert _tree(tmp_path / str(number)) == before
            farthest = now


def test_a_later_attempt_replaces_an_earlier_one_but_no_finished_one(campaign: Campaign, tmp_path: Path) -> None:
    task, there = Task(ROW), _elsewhere(campaign, tmp_path)
    _train(campaign, ROW, 6)
    early = _pack(campaign, tmp_path / "early.tar", task)
    file = campaign.run(task).folder / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"started": "2999-01-01T00:00:00+00:00"}))
    late = _pack(campaign, tmp_path / "late.tar", task)
    unpack(there, early)
    assert unpack(there, late)[task].startswith("taken")
    assert unpack(there, early)[task].startswith("kept")
    other = replace(campaign, results=tmp_path / "b/results", work=tmp_path / "b/work")
    work_on(other, task, Watch())
    assert unpack(other, late)[task].startswith("kept")
    assert other.progress(task).step == Phase.DONE


def test_a_light_pack_says_only_that_a_row_is_done(finished: Campaign, tmp_path: Path) -> None:
    parts = _pack(finished, tmp_path / "out.tar", Task(ROW), light=True)
    there = _elsewhere(finished, tmp_path)
    unpack(there, parts)
    assert [path.name for path in there.results.rglob("*") if path.is_file()] == [
        "evaluation.json"
    ]  # its cascade is done
    assert there.progress(Task(ROW)).step == Phase.DONE
    whole = _pack(there, tmp_path / "back.tar", Task(ROW))
    before = _tree(finished.results)
    assert unpack(finished, whole)[Task(ROW)].startswith("kept")
    assert _tree(finished.results) == before


def test_a_light_pack_has_what_a_cascade_begins_with(finished: Campaign, campaign: Campaign, tmp_path: Path) -> None:
    before = replace(campaign, results=tmp_path / "before")
    unpack(before, _pack(finished, tmp_path / "whole.tar", Task(ROW)))
    unpack(campaign, _pack(before, tmp_path / "light.tar", Task(ROW), light=True))
    assert not (campaign.result(Task(ROW)) / "certificates.npz").exists()
    said: list[str] = []
    asked = itertools.count(1)
    with pytest.raises(StoppedError):
        work_on(campaign, Task(CASCADE), Watch(say=said.append, stop=lambda: next(asked) >= 2))
    assert "stage 0: is the network of mnist-small-0.1, which is trained already" in said


def test_what_does_not_fit_is_left_out(finished: Campaign, campaign: Campaign) -> None:
    _train(campaign, ROW, 5)
    units = [unit for unit in (unit_of(campaign, Task(ROW)), unit_of(finished, Task(ROW, "best"))) if unit is not None]
    fitting, left_out = that_fit(units, SMALL)
    assert ([unit.task for unit in fitting], [unit.task for unit in left_out]) == ([Task(ROW, "best")], [Task(ROW)])


def test_a_pack_is_deterministic_and_not_written_over(finished: Campaign, tmp_path: Path) -> None:
    one, other = (_pack(finished, tmp_path / name, Task(ROW)) for name in ("a.tar", "b"))
    assert [part.name for part in one] == ["a-1.tar"]
    assert [part.read_bytes() for part in one] == [part.read_bytes() for part in other]
    with pytest.raises(ArgumentError, match=r"a-1\.tar: is there already"):
        _pack(finished, tmp_path / "a.tar", Task(ROW))


def test_missing_and_damaged_parts_change_nothing(campaign: Campaign, tmp_path: Path) -> None:
    _train(campaign, ROW, 5)
    parts, there = _pack(campaign, tmp_path / "out.tar", Task(ROW)), _elsewhere(campaign, tmp_path)
    for number in range(len(parts)):
        with pytest.raises(ArgumentError, match="name all parts of the pack"):
            unpack(there, parts[:number] + parts[number + 1 :] or parts[1:])
    content = bytearray(parts[0].read_bytes())
    content[len(content) // 2] ^= 1
    parts[0].write_bytes(content)
    with pytest.raises(ArgumentError):
        unpack(there, parts)
    (tmp_path / "text.tar").write_text("no tar file")
    with pytest.raises(ArgumentError, match=r"text\.tar: is no part of a pack"):
        unpack(there, [tmp_path / "text.tar"])
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "work/../../evil", "elsewhere/evil"])
def test_a_pack_writes_nowhere_else(campaign: Campaign, tmp_path: Path, name: str) -> None:
    chunk = pack.Chunk("000000", name, 0, "", 0, 0, False)
    entry = pack.Entry(Task(ROW), "", (1, 0, 0, 0), (name,))
    content = pack._tar([entry], [(chunk, b"")])
    (tmp_path / "evil.tar").write_bytes(content)
    with pytest.raises(ArgumentError, match="a pack holds files below results and work only"):
        unpack(campaign, [tmp_path / "evil.tar"])


@pytest.mark.parametrize("row", ["../evil", "a/b", ""])
def test_a_row_of_a_pack_is_no_path(campaign: Campaign, tmp_path: Path, row: str) -> None:
    entry = pack.Entry(Task(row), "", (1, 0, 0, 0), ())
    (tmp_path / "evil.tar").write_bytes(pack._tar([entry], []))
    with pytest.raises(ArgumentError, match="names no row"):
        unpack(campaign, [tmp_path / "evil.tar"])


@pytest.mark.parametrize("light", [False, True])
def test_files_of_two_attempts_are_never_mixed(
    finished: Campaign, campaign: Campaign, tmp_path: Path, light: bool
) -> None:
    """Parts of two packs about one row would give the record of the one beside the network of the other."""
    file = campaign.config_file(Task(ROW))
    file.write_text(file.read_text().replace("lr: 0.003", "lr: 0.001"))
    work_on(campaign, Task(ROW), Watch())
    one, other = (
        _pack(finished, tmp_path / "a.tar", Task(ROW), light=light),
        _pack(campaign, tmp_path / "b.tar", Task(ROW)),
    )
    there = _elsewhere(campaign, tmp_path)
    for parts in ([*one, *other], [*other, *one]):
        with pytest.raises(ArgumentError, match="is of another pack than a part before it; unpack one pack after the"):
            unpack(there, parts)
    assert not there.results.exists()
    assert list(unpack(there, [*other, *other])) == [Task(ROW)]


def _made(tmp_path: Path, entry: pack.Entry, chunks: list[tuple[pack.Chunk, bytes]]) -> Path:
    """A pack of one's own making."""
    path = tmp_path / "made.tar"
    path.write_bytes(pack._tar([replace(entry, files=tuple(chunk.file for chunk, _ in chunks))], chunks))
    return path


def _chunk(file: str, content: bytes, number: int = 0, **changes: Any) -> tuple[pack.Chunk, bytes]:
    sha256 = hashlib.sha256(content).hexdigest()
    return replace(pack.Chunk(f"{number}", file, len(content), sha256, 0, len(content), False), **changes), content


RECORD = f"results/paper/{ROW}/evaluation.json"
DONE = pack.Entry(Task(ROW), "2999", (3, 0, 0, 0), ())
FORGED: dict[str, tuple[pack.Entry, str, str]] = {
    "no member": (DONE, RECORD, r"made\.tar: is no part of a pack, or damaged: 1 is not in it"),
    "not compressed": (DONE, RECORD, r"damaged: 0 in it cannot be expanded"),
    "no name": (DONE, "", "'': a pack holds files below results and work only"),
    "a folder": (DONE, f"work/paper/{ROW}/seed-0/", "a pack holds files below results and work only"),
    "NUL": (DONE, f"work/paper/{ROW}/seed-0/a\0b", "a pack holds files below results and work only"),
    "no such result": (DONE, f"results/paper/{ROW}/evil.py", "evil.py: is in the pack as a file of"),
    "of another row": (DONE, f"results/paper/{OTHER}/evaluation.json", "is in the pack as a file of"),
    "no state": (replace(DONE, progress=()), RECORD, "has come to no state that a row can have"),
    "no seed": (replace(DONE, task=Task(ROW, seed=-1)), RECORD, "has come to no state"),
    "row with NUL": (replace(DONE, task=Task("a\0b")), RECORD, "names no row"),
    "said to be unfinished": (replace(DONE, progress=(2, 0, 0, 0)), RECORD, "and not what the list says"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_list_is_refused_in_one_line(
    finished: Campaign, campaign: Campaign, tmp_path: Path, name: str
) -> None:
    entry, file, words = FORGED[name]
    content = (finished.result(Task(ROW)) / "evaluation.json").read_bytes()
    chunk, packed = _chunk(file, content, compressed=name == "not compressed")
    path = _made(tmp_path, entry, [(chunk, packed)])
    if name == "no member":
        path.write_bytes(path.read_bytes().replace(b'"name": "0"', b'"name": "1"'))
    with pytest.raises(ArgumentError, match=words):
        unpack(campaign, [path])
    assert not campaign.results.exists()
    assert not campaign.work.exists()


def test_a_record_takes_no_place_of_another_one(finished: Campaign, campaign: Campaign, tmp_path: Path) -> None:
    content = (finished.result(Task(ROW)) / "evaluation.json").read_bytes()
    weights = (finished.result(Task(ROW, "best")) / "model.safetensors").read_bytes()
    other = f"results/paper/{OTHER}/evaluation.json"
    for entry, chunks, words in (
        (
            replace(DONE, task=Task(OTHER)),
            [_chunk(other, content)],
            rf"evaluation\.json: in the pack, is about '{ROW}' \('paper', done\)",
        ),
        (DONE, [_chunk(RECORD, b"{}")], "is no evaluation of a row, or damaged"),
        (DONE, [], "its record is not there"),
        (
            DONE,
            [_chunk(RECORD, content), _chunk(f"results/paper/{ROW}/model.safetensors", weights, 1)],
            "are not the weights that its record is about",
        ),
    ):
        with pytest.raises(ArgumentError, match=words):
            unpack(campaign, [_made(tmp_path, entry, chunks)])
    assert not campaign.results.exists()


def test_links_pipes_and_bombs_are_no_packs(campaign: Campaign, tmp_path: Path) -> None:
    link = tarfile.TarInfo("0")
    link.type, link.linkname = tarfile.SYMTYPE, "0"
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        archive.addfile(link)
    with pytest.raises(ArgumentError, match="'0' in it is no plain file"):
        unpack(campaign, [tmp_path / "link.tar"])
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(ArgumentError, match="is a pipe, not a file"):
        unpack(campaign, [tmp_path / "pipe.tar"])
    chunk, _ = _chunk(RECORD, b"a" * 100, compressed=True)
    assert len(chunk.content(zlib.compress(bytes(10**7)))) == 100
