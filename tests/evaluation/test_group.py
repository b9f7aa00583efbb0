"""Several processes: what one of them cannot do fails in all, with its words, and nobody waits for ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from autodual._errors import ArgumentError, AutodualError
from autodual.evaluation.processes import Group, own_device

pytestmark = pytest.mark.slow


def _fail(error: Exception) -> int:
    raise error


def _said(act: Callable[[], object]) -> str:
    try:
        return repr(act())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    group = Group(rank, 2, dist.new_group(backend="gloo"))
    answers = {
        "any": group.any(rank == 1, False),
        "all": _said(lambda: group.from_all(lambda: rank + 10)),
        "second fails": _said(
            lambda: group.from_all(lambda: 1 if rank == 0 else _fail(ArgumentError("no such image")))
        ),
        "second breaks": _said(lambda: group.from_all(lambda: 1 if rank == 0 else _fail(OSError("disk full")))),
        "first": _said(lambda: group.by_first(lambda: rank)),
        "first fails": _said(lambda: group.by_first(lambda: _fail(AutodualError("refused")))),
        "first breaks": _said(lambda: group.by_first(lambda: _fail(ValueError("odd")))),
        "sum": group.add_up_(torch.tensor([1.0 + rank])).tolist(),
    }
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(answers))


def test_errors_are_shared(tmp_path: Path) -> None:
    multiprocessing.spawn(_work, (str(tmp_path),), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for answers in (first, second):
        assert answers["any"] == [True, False]
        assert answers["all"] == "[10, 11]"
        assert answers["second fails"] == "ArgumentError: no such image"
        assert answers["first"] == "0"
        assert answers["first fails"] == "AutodualError: refused"
        assert answers["sum"] == [3.0]
    assert first["second breaks"] == "AutodualError: process 1 failed: OSError: disk full"
    assert second["second breaks"] == "OSError: disk full"
    assert first["first breaks"] == "ValueError: odd"
    assert second["first breaks"] == "AutodualError: process 0 failed: ValueError: odd"


def test_every_process_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ArgumentError, match="more processes than GPUs"):
        own_device(torch.device("cuda"))
    with pytest.raises(ArgumentError, match="a GPU of its own"):
        own_device(torch.device("cuda", 0))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert own_device(torch.device("cuda")) == torch.device("cuda", 0)
    assert own_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert own_device(torch.device("cuda", 0)) == torch.device("cuda", 0)
