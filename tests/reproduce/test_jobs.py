"""Several rows: in turn or side by side, within a time limit; one that fails does not keep the others from running."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import pytest

from autodual.evaluation.processes import Watch
from autodual.reproduce import jobs
from autodual.reproduce.campaign import Campaign, Phase, Task
from autodual.reproduce.jobs import Deadline, run_in_turn, run_side_by_side
from autodual.runs.config import dump_yaml, read_yaml

from .conftest import OTHER, ROW, kept


def test_a_job_that_fails_is_told_by_its_last_line(campaign: Campaign) -> None:
    _break(campaign, OTHER)
    said: list[str] = []
    outcome = run_side_by_side(campaign, [Task(OTHER)], Deadline(), 2, said.append)
    assert said[0] == f"{OTHER}: begun; see {campaign.log(Task(OTHER))}"
    assert list(outcome.failed) == [Task(OTHER)]
    assert "no-such-data" in outcome.failed[Task(OTHER)]
    assert outcome.unfinished == []


@pytest.mark.slow
def test_two_jobs(campaign: Campaign) -> None:
    """One of them fails."""
    _break(campaign, OTHER)
    said: list[str] = []
    outcome = run_side_by_side(campaign, [Task(ROW), Task(OTHER)], Deadline(), 2, said.append)
    assert said[:2] == [f"{row}: begun; see {campaign.log(Task(row))}" for row in (ROW, OTHER)]
    assert outcome.unfinished == []
    assert "no-such-data" in outcome.failed.pop(Task(OTHER))
    assert outcome.failed == {}
    record = kept(campaign, Task(ROW))
    assert record["complete"]
    assert record["training"]["side_by_side"] == 2
    assert any(line.startswith(f"{ROW}: done: robust error") for line in said)
    assert run_side_by_side(campaign, [Task(ROW)], Deadline(), 2, said.append).unfinished == []
    assert said[-1] == f"{ROW}: done already"


def test_in_turn_one_that_fails_is_passed_over(campaign: Campaign) -> None:
    _break(campaign, OTHER)
    outcome = run_in_turn(campaign, [Task(OTHER), Task(ROW)], Deadline(), Watch, lambda line: None)
    assert list(outcome.failed) == [Task(OTHER)]
    assert campaign.progress(Task(ROW)).step == Phase.DONE


def test_within_a_time_limit(campaign: Campaign) -> None:
    said: list[str] = []
    late = Deadline.within(0.0, lambda: False)
    outcome = run_in_turn(campaign, [Task(ROW), Task(OTHER)], late, lambda: Watch(stop=late.is_over), said.append)
    assert (outcome.unfinished, said) == ([Task(ROW), Task(OTHER)], [])
    assert campaign.progress(Task(ROW)).step == Phase.NOT_RUN
    assert run_side_by_side(campaign, [Task(ROW)], late, 2, said.append).unfinished == [Task(ROW)]
    asked = itertools.count()
    outcome = run_in_turn(
        campaign, [Task(ROW), Task(OTHER)], Deadline(), lambda: Watch(stop=lambda: next(asked) > 4), said.append
    )
    assert outcome.unfinished == [Task(ROW), Task(OTHER)]
    assert said == [f"{ROW}: stopped at epoch 1 of 2; the same command goes on from there"]
    outcome = run_in_turn(campaign, [Task(ROW)], Deadline.within(5.0, lambda: False), Watch, said.append)
    assert outcome.unfinished == []
    assert campaign.progress(Task(ROW)).step == Phase.DONE


def test_asked_to_stop_all_are_asked_and_none_has_failed(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even those that have not begun to listen, as these never do."""

    def endless(*_: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])

    monkeypatch.setattr(jobs, "_start_process", endless)
    said: list[str] = []
    tasks = [Task(ROW), Task(OTHER), Task(ROW, seed=1)]
    started = time.monotonic()
    outcome = run_side_by_side(campaign, tasks, Deadline(asked_to_stop=lambda: len(said) >= 2), 2, said.append)
    assert time.monotonic() - started < 20
    assert outcome.failed == {}
    assert set(outcome.unfinished) == set(tasks)
    assert set(said[2:]) == {f"{row}: stopped not run; the same command goes on from there" for row in (ROW, OTHER)}


def test_processes_that_start_later_end_at_the_same_time() -> None:
    now = time.time()
    assert 9 < Deadline.within(None, lambda: False, now + 10).seconds_left() <= 10
    assert 5 < Deadline.within(0.1, lambda: False, now + 10).seconds_left() <= 6
    assert Deadline.within(1.0, lambda: False, now - 1).is_over()
    assert not Deadline.within(None, lambda: False).is_over()


def _break(campaign: Campaign, row: str) -> None:
    file = campaign.configs / f"{row}.yaml"
    file.write_text(dump_yaml(read_yaml(file) | {"dataset": "no-such-data"}))
