"""Files of lines: gone on with exactly where whole batches end, by one process, and about one question."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autodual._errors import ArgumentError
from autodual.runs.lines import LineFile, Problem, SortingLine
from autodual.runs.records import plain

PROBLEM = Problem(Problem.FORMAT, "ball", "Dual()", 6, "data", "network", "float32", "cpu", 2, "1", "1", "1")
LINES = [SortingLine(i, True, True) for i in range(6)]


def line_file(path: Path, say: Callable[[str], None] = lambda line: None) -> LineFile[SortingLine]:
    return LineFile(path, SortingLine, say=say)


def begin(path: Path) -> int:
    """How many lines one may go on with."""
    file = line_file(path)
    try:
        found = file.begin(PROBLEM, 2)
    finally:
        file.close()
    assert found == LINES[: len(found)]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [plain(line) for line in found]
    return len(found)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = line_file(tmp_path / "found.jsonl")
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
    first = line_file(path)
    first.begin(PROBLEM, 2)
    with pytest.raises(ArgumentError, match="another process is writing to it"):
        begin(path)
    first.close()
    assert begin(path) == 6


def test_anew_forgets_what_was_there_but_not_under_another_process(path: Path) -> None:
    first, second = line_file(path), line_file(path)
    first.begin(PROBLEM, 2)
    with pytest.raises(ArgumentError, match="another process is writing to it"):
        second.begin(replace(PROBLEM, engine="IBP()"), 2, anew=True)
    second.close()
    assert len(path.read_text().splitlines()) == 6
    first.close()
    assert second.begin(replace(PROBLEM, engine="IBP()"), 2, anew=True) == []
    second.close()
    assert path.read_text() == ""


def test_only_files_are_written_to(tmp_path: Path) -> None:
    for place in (Path("/dev/full"), tmp_path):
        with pytest.raises(ArgumentError, match="is no file that one could go on with"):
            line_file(place).begin(PROBLEM, 2)


def test_a_full_disk_is_said_once(path: Path) -> None:
    file = line_file(path)
    file.begin(PROBLEM, 2)
    assert file.stream is not None
    file.stream.close()
    with Path("/dev/full").open("wb") as file.stream:
        with pytest.raises(ArgumentError, match="not written: No space left"):
            file.append(LINES)
        file.close()


def test_lines_about_something_else_stay_as_they_are(path: Path) -> None:
    before, file = path.read_text(), line_file(path)
    with pytest.raises(ArgumentError, match=r"engine was Dual\(\), now IBP\(\)"):
        file.begin(replace(PROBLEM, engine="IBP()"), 2)
    file.close()
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("note", "message"), [(None, "nothing beside it says"), ("{", "is not JSON"), ("[]", "holds no record")]
)
def test_a_note_that_is_missing_or_damaged(path: Path, note: str | None, message: str) -> None:
    place, before = line_file(path).note, path.read_text()
    place.unlink()
    if note is not None:
        place.write_text(note)
    with pytest.raises(ArgumentError, match=message):
        begin(path)
    assert path.read_text() == before


ENDS = {
    "carriage returns": lambda whole: whole.replace(b"\n", b"\r\n"),
    "some carriage returns": lambda whole: whole.replace(b"}\n", b"}\r\n", 3),
    "blanks": lambda whole: whole.replace(b"}\n", b"} \t\r\n"),
}


@pytest.mark.parametrize("ends", ENDS)
def test_other_line_ends_lose_nothing(path: Path, ends: str) -> None:
    whole = ENDS[ends](path.read_bytes())
    path.write_bytes(whole)
    file = line_file(path)
    assert file.begin(PROBLEM, 2) == LINES
    file.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_a_file_is_cut_at_the_same_byte_whatever_ends_its_lines(path: Path, ends: bytes) -> None:
    first = b"".join(path.read_bytes().splitlines(keepends=True)[:5]).replace(b"\n", ends)
    path.write_bytes(first + b'{"index": 5, "cert')
    file = line_file(path)
    assert file.begin(PROBLEM, 2) == LINES[:4]
    file.append(LINES[4:])
    file.close()
    assert path.read_bytes().replace(b"\r\n", b"\n") == b"".join(
        json.dumps(plain(line)).encode() + b"\n" for line in LINES
    )


@pytest.mark.parametrize(
    "torn",
    [b"", b"\xff\xfe\xff\n", b"\0" * 100 + b"\n", b"[" * 100_000 + b"\n", b'{"index": 1e999}\n', b'{"index": NaN}\n',
     b"9" * 5000 + b"\n",
     b'{"index": 4, "certified": ' + b"[" * 60 + b"]" * 60 + b"}\n"],
    ids=lambda torn: repr(torn[:20]),
)  # fmt: skip
def test_whatever_follows_is_cut_off(path: Path, torn: bytes) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]) + torn)
    assert begin(path) == 4


def test_a_last_line_without_its_end_is_found_again(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    assert begin(path) == 4


def test_what_another_version_wrote_is_refused_or_found_anew(path: Path) -> None:
    before, said = path.read_bytes(), list[str]()
    file = line_file(path, said.append)
    file.note.write_text(json.dumps({name: value for name, value in plain(PROBLEM).items() if name != "network"}))
    with pytest.raises(ArgumentError, match=r"what it is about is not noted in full; start anew \(--overwrite\)"):
        file.begin(PROBLEM, 2)
    file.close()
    assert path.read_bytes() == before
    assert file.begin(PROBLEM, 2, renewed=("torch",)) == []
    file.close()
    assert "all is found anew" in said[0]


@pytest.mark.parametrize(("name", "fine"), [("torch", True), ("network", False)])
def test_only_what_may_change_is_found_anew(path: Path, name: str, fine: bool) -> None:
    now = replace(PROBLEM, **{name: "2"})
    with closing(line_file(path)) as file:
        if fine:
            assert file.begin(now, 2, renewed=("torch",)) == []
        else:
            with pytest.raises(ArgumentError, match="network was network, now 2"):
                file.begin(now, 2, renewed=("torch",))
