"""Files of lines: gone on with exactly where whole batches end, by one process, and about one question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autodual._errors import ArgumentError
from autodual.train.lines import LineFile

PROBLEM = {"engine": "Dual()", "examples": 6}
LINES = [{"index": i, "certified": True} for i in range(6)]


def begin(path: Path) -> int:
    """How many lines one may go on with."""
    file = LineFile(path)
    try:
        found = file.begin(PROBLEM, 2)
    finally:
        file.close()
    assert found == LINES[: len(found)]
    assert [json.loads(line) for line in path.read_text().splitlines()] == found
    return len(found)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = LineFile(tmp_path / "found.jsonl")
    assert file.begin(PROBLEM, 2) == []
    file.append(LINES[:4])
    file.append(LINES[4:])
    file.close()
    return tmp_path / "found.jsonl"


def test_a_whole_file_is_whole(path: Path) -> None:
    assert begin(path) == 6


@pytest.mark.parametrize(("kept", "expected"), [(0, 0), (1, 0), (2, 2), (3, 2), (5, 4)])
def test_half_a_batch_is_done_again(path: Path, kept: int, expected: int) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    assert begin(path) == expected


@pytest.mark.parametrize("damage", ["{", '{"index": 4, "cert', "[]\n", '{"index": 9}\n', "4\n"])
def test_what_follows_damage_is_done_again(path: Path, damage: str) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]) + damage)
    assert begin(path) == 4


def test_lines_that_two_processes_wrote_count_once(path: Path) -> None:
    path.write_text(path.read_text() + path.read_text())
    assert begin(path) == 6


def test_a_second_process_is_refused(path: Path) -> None:
    first = LineFile(path)
    first.begin(PROBLEM, 2)
    with pytest.raises(ArgumentError, match="another process is writing to it"):
        begin(path)
    first.close()
    assert begin(path) == 6


def test_anew_forgets_what_was_there_but_not_under_another_process(path: Path) -> None:
    first, second = LineFile(path), LineFile(path)
    first.begin(PROBLEM, 2)
    with pytest.raises(ArgumentError, match="another process is writing to it"):
        second.begin(PROBLEM | {"engine": "IBP()"}, 2, anew=True)
    second.close()
    assert len(path.read_text().splitlines()) == 6
    first.close()
    assert second.begin(PROBLEM | {"engine": "IBP()"}, 2, anew=True) == []
    second.close()
    assert path.read_text() == ""


def test_only_files_are_written_to(tmp_path: Path) -> None:
    for place in (Path("/dev/full"), tmp_path):
        with pytest.raises(ArgumentError, match="is no file that one could go on with"):
            LineFile(place).begin(PROBLEM, 2)


def test_a_full_disk_is_said_once(path: Path) -> None:
    file = LineFile(path)
    file.begin(PROBLEM, 2)
    assert file.stream is not None
    file.stream.close()
    with Path("/dev/full").open("w") as file.stream:
        with pytest.raises(ArgumentError, match="not written: No space left"):
            file.append(LINES)
        file.close()


def test_lines_about_something_else_stay_as_they_are(path: Path) -> None:
    before, file = path.read_text(), LineFile(path)
    with pytest.raises(ArgumentError, match=r"engine was Dual\(\), now IBP\(\)"):
        file.begin(PROBLEM | {"engine": "IBP()"}, 2)
    file.close()
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("note", "message"), [(None, "nothing beside it says"), ("{", "cannot be gone on with"), ("[]", "holds no record")]
)
def test_a_note_that_is_missing_or_damaged(path: Path, note: str | None, message: str) -> None:
    place, before = LineFile(path).note, path.read_text()
    place.unlink()
    if note is not None:
        place.write_text(note)
    with pytest.raises(ArgumentError, match=message):
        begin(path)
    assert path.read_text() == before
