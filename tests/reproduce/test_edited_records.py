"""Results that were edited, swapped or made by another config are refused, and answer for no other row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import autodual as ad
from autodual.evaluation.processes import Watch
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.jobs import Deadline, run_in_turn, run_side_by_side
from autodual.reproduce.one_row import Extent, _check_kept_weights, _read_arrays, work_on
from autodual.reproduce.page import write_tables
from autodual.runs.row_records import NetworkFigures

from .conftest import CASCADE, OTHER, ROW

ROOT = Path(__file__).resolve().parents[2]
MORE = Extent(("dual", "ibp", "crown", "alpha"))
"""What makes a row that is done go on."""


@pytest.fixture
def kept(finished: Campaign, campaign: Campaign) -> Campaign:
    """The results alone, and nothing to go on with."""
    shutil.copytree(finished.results, campaign.results)
    return campaign


def test_a_record_of_another_row_is_not_shown_as_this_ones(kept: Campaign, tmp_path: Path) -> None:
    shutil.copytree(kept.result(Task(ROW)), kept.result(Task(OTHER)))
    with pytest.raises(
        ad.ArgumentError, match=rf"{OTHER}/evaluation\.json: is about '{ROW}' \('paper'\), so it was copied"
    ):
        write_tables(kept, tmp_path / "page.md", tmp_path / "page.html")
    shutil.copyfile(kept.result(Task(ROW)) / "evaluation.json", kept.result(Task(ROW, "best")) / "evaluation.json")
    with pytest.raises(ad.ArgumentError, match=rf"is about '{ROW}' \('paper'\)"):
        kept.record(Task(ROW, "best"))


def test_swapped_weights_are_no_reproduced_network(kept: Campaign) -> None:
    own, other = (kept.result(task) / "model.safetensors" for task in (Task(ROW), Task(ROW, "best")))
    assert ad.load_pretrained(ROW, recipe="paper", folder=kept.results).config.eps == 0.03
    shutil.copyfile(other, own)
    with pytest.raises(ad.ArgumentError, match=r"are not the weights that evaluation\.json beside them is about"):
        ad.load_pretrained(ROW, recipe="paper", folder=kept.results)
    with pytest.raises(ad.ArgumentError, match=r"are not the weights that evaluation\.json beside them is about"):
        work_on(kept, Task(ROW), Watch(), MORE)
    shutil.rmtree(kept.result(Task(CASCADE)))
    with pytest.raises(ad.ArgumentError, match=r"are not the weights"):  # nor the first stage of a cascade
        work_on(kept, Task(CASCADE), Watch())


def test_published_weights_and_verdicts_are_those_of_their_records() -> None:
    published, seen = Campaign(ROOT / "configs", ROOT / "results", ROOT / "nowhere"), 0
    for task in published.tasks():
        record, folder = published.record(task), published.result(task)
        if record is None or not isinstance(record.figures, NetworkFigures):
            continue
        assert published.changed_since(task) is None
        if (folder / "model.safetensors").exists():
            _check_kept_weights(published, task)
        if (folder / "certificates.npz").exists():
            seen += len(_read_arrays(folder / "certificates.npz", record, record.figures)["attacked"])
    assert seen >= 10_000


DAMAGE: dict[str, Callable[[dict[str, np.ndarray]], object]] = {
    "all certified": lambda arrays: arrays["dual_certified"].fill(True),
    "shorter": lambda arrays: arrays.update(dual_certified=arrays["dual_certified"][:3]),
    "numbers": lambda arrays: arrays.update(attacked=np.full(10, np.nan)),
    "objects": lambda arrays: arrays.update(attacked=np.array([{}] * 10, dtype=object)),
    "nothing": lambda arrays: arrays.pop("ibp_certified_as_run"),
}


@pytest.mark.parametrize("name", [*DAMAGE, "no archive", "half"])
def test_verdicts_that_the_record_does_not_count_are_not_gone_on_with(kept: Campaign, name: str) -> None:
    file = kept.result(Task(ROW)) / "certificates.npz"
    record = (kept.result(Task(ROW)) / "evaluation.json").read_bytes()
    if name in DAMAGE:
        with np.load(file) as found:
            arrays = dict(found)
        DAMAGE[name](arrays)
        np.savez(file, **arrays)
    else:
        file.write_bytes(b"junk" if name == "no archive" else file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ad.ArgumentError, match=r"certificates\.npz: is damaged \(.*\); put it back, or remove it"):
        work_on(kept, Task(ROW), Watch(), MORE)
    assert (kept.result(Task(ROW)) / "evaluation.json").read_bytes() == record
    file.unlink()
    again = work_on(kept, Task(ROW), Watch(), MORE)
    assert again is not None
    assert again.complete


def test_a_row_that_is_done_is_not_that_of_another_config(kept: Campaign) -> None:
    """Figures at 0.03 are no answer to whoever asks for 0.3."""
    file, said = kept.config_file(Task(ROW)), list[str]()
    file.write_text(file.read_text().replace("eps: 0.03", "eps: 0.3"))
    found = run_in_turn(kept, [Task(ROW), Task(ROW, "best")], Deadline(), Watch, said.append)
    assert list(found.failed) == [Task(ROW)]
    assert "was made by another config: eps was 0.03, now 0.3; put that back, or remove" in found.failed[Task(ROW)]
    assert said[1].startswith(f"{ROW} (best): done already")
    found = run_side_by_side(kept, [Task(ROW), Task(ROW, "best")], Deadline(), 2, said.append)
    assert "was made by another config" in found.failed[Task(ROW)]
    (kept.result(Task(ROW)) / "config.yaml").unlink()  # as a light pack leaves it: nothing tells
    assert not run_in_turn(kept, [Task(ROW)], Deadline(), Watch, said.append).failed


@pytest.mark.parametrize(
    "changes",
    [
        {"robust_error": 0.0},
        {"robust_error_best": 0.0},
        {"error": 7.5},
        {"pgd_error_exact": 1.0},
        {"engines": {"dual": {"images": 10, "certified": 10, "robust_error": 0.5, "engine": "Dual()"}}},
    ],
)
def test_figures_that_contradict_one_another_are_no_record(kept: Campaign, changes: dict[str, object]) -> None:
    file = kept.result(Task(ROW)) / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ad.ArgumentError, match="is no evaluation of `autodual reproduce`, or damaged"):
        kept.record(Task(ROW))
