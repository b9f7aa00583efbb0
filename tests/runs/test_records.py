"""Every kept file of a run reads as its type and writes itself again; what is missing or of another type is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autodual import ArgumentError
from autodual._files import to_json
from autodual.runs.folder import Run
from autodual.runs.lines import Asked, CertificateLine, Problem, SortingLine
from autodual.runs.records import Basis, CurvePoint, Environment, Evaluation, Summary, parse, plain, read, read_if_sound
from autodual.runs.row_records import RowRecord

RESULTS = Path(__file__).parents[2] / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("**/metrics.jsonl"))
PROBLEM = Problem(Problem.FORMAT, "ball", "Dual()", 6, "data", "network", "float32", "cpu", 2, "1", "1", "1")


def names(places: list[Path]) -> list[str]:
    return [str(place.relative_to(RESULTS)) for place in places]


@pytest.mark.parametrize("folder", RUNS, ids=names(RUNS))
def test_every_kept_run_reads_as_it_was_written(folder: Path) -> None:
    run = Run(folder)
    lines = run.metrics()
    assert lines
    assert None not in lines
    written = [{"robust_error_as_run": None, "collapsed": None} | plain(line) for line in lines]
    found = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert written == [{"robust_error_as_run": None, "collapsed": None} | line for line in found]
    if run.environment_file.exists():
        assert to_json(plain(read(Environment, run.environment_file))) == run.environment_file.read_text()
    text = run.evaluation_file.read_text()
    if folder.parent == RESULTS:  # written before weights were noted
        nothing_said = {"collapsed": None, "trained": None}
        assert plain(read(Evaluation, run.evaluation_file)) == json.loads(text) | nothing_said
    else:
        assert plain(read(RowRecord, run.evaluation_file)) == json.loads(text)


EVALUATION = json.loads((RESULTS / "mnist-small-0.1" / "evaluation.json").read_text())
FAULTS: dict[str, tuple[type, Any, str]] = {
    "no record": (SortingLine, [], "holds no record"),
    "missing": (SortingLine, {"index": 1, "certified": True}, "lacks right"),
    "a number for a truth": (SortingLine, {"index": 1, "certified": 1, "right": True}, "has 1 as certified"),
    "a truth for a number": (SortingLine, {"index": True, "certified": True, "right": True}, "has True as index"),
    "inside a list": (Evaluation, EVALUATION | {"labels": [1, "x"]}, r"has \[1, 'x'\] as labels"),
    "inside a record": (Evaluation, EVALUATION | {"curve": [{"eps": "x"}]}, "as curve"),
    "two of three": (Asked, {"clip": [0.0, 1.0, 2.0]}, "as clip"),
    "half a probability": (Problem, plain(PROBLEM) | {"delta": 0.01}, "lacks estimates"),
    "no examples": (Problem, plain(PROBLEM) | {"examples": 0}, "is about no examples"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_of_another_type_is_refused(tmp_path: Path, name: str) -> None:
    kind, values, message = FAULTS[name]
    with pytest.raises(ValueError, match=message):
        parse(kind, values)
    (tmp_path / "record.json").write_text(json.dumps(values))
    with pytest.raises(ArgumentError, match=r"record\.json: is damaged; remove it, and it will be made anew"):
        read(kind, tmp_path / "record.json")
    assert read_if_sound(kind, tmp_path / "record.json") is None


def test_only_lines_refuse_what_they_do_not_know() -> None:
    line = {"index": 1, "certified": True, "right": False}
    assert parse(SortingLine, line | {"later": 1}) == SortingLine(1, True, False)
    with pytest.raises(ValueError, match="does not hold index, certified, right, and nothing else"):
        parse(SortingLine, line | {"later": 1}, exactly=True)


def test_what_is_optional_is_written_where_it_is_there() -> None:
    assert list(plain(CurvePoint(eps=1.0, robust_error=0.5, pgd_error=0.4))) == ["eps", "robust_error", "pgd_error"]
    asked = Asked("run", eps=0.1)
    assert plain(asked) == {"target": "run", "eps": 0.1, "clip": None}
    assert parse(Problem, plain(replace(PROBLEM, asked=asked))).asked == asked
    assert "cascade" not in plain(Summary(perturbation="", engine="", examples=1, error=0.0, confidence=1.0))


def test_a_problem_knows_whether_its_lines_are_proofs() -> None:
    random = replace(PROBLEM, basis=Basis(0.01, 3, 5, 7, 0))
    assert [parse(Problem, plain(problem)).basis for problem in (PROBLEM, random)] == [None, random.basis]
    assert PROBLEM.difference(random) == (
        "delta",
        "its certificates are about something else (delta was None, now 0.01)",
    )
    for name in ("format", "python"):
        assert PROBLEM.difference(replace(PROBLEM, **{name: "other"})) is None  # type: ignore[arg-type]
    assert PROBLEM.difference(replace(PROBLEM, asked=Asked())) is None
    assert PROBLEM.difference(replace(PROBLEM, device="cuda"), "device") is None


CLAIMS: dict[str, tuple[dict[str, Any], bool]] = {
    "proved": ({}, True),
    "another label": ({"predicted": 2}, False),
    "no margin": ({"margin": None}, False),
    "margin": ({"margin": 0.0}, False),
    "as run alone": ({"certified": False}, False),
    "neither": ({"certified": False, "certified_as_run": False, "margin": -1.0}, True),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_line_that_contradicts_itself_says_so(name: str) -> None:
    changes, fine = CLAIMS[name]
    line = CertificateLine(0, label=1, predicted=1, certified=True, certified_as_run=True, margin=0.5, slack=0.1)
    assert (replace(line, **changes).fault() is None) == fine
