"""ad.certify_data: loaders, arrays and images; batches, a time limit, a file that is gone on with, one table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import autodual as ad
from autodual.runs.lines import record_about

BALL = ad.LinfBall(0.05, clip=(0.0, 1.0))
MODEL = ad.load_digits_network()
IMAGES, LABELS = (part[:60] for part in ad.load_digits("test"))
EXPECTED = ad.certify(MODEL, IMAGES, LABELS, BALL)


def same(found: ad.DataCertificate, expected: ad.Certificate = EXPECTED, count: int = 60) -> None:
    """The verdicts are those of one call of `certify`."""
    assert torch.equal(found.certified, expected.certified[:count])
    assert torch.equal(found.certified_as_run, expected.certified_as_run[:count])
    assert torch.equal(found.right, expected.right[:count])
    assert bool(found.reached.all())
    assert len(found) == count
    assert found.verdicts == expected.verdicts[:count]


def _read_only(values: Tensor) -> np.ndarray:
    array = values.numpy().copy()
    array.setflags(write=False)
    return array


KINDS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: (IMAGES, LABELS),
    "a list": lambda: [IMAGES, LABELS],
    "arrays": lambda: (IMAGES.numpy(), LABELS.numpy()),
    "arrays of doubles": lambda: (IMAGES.double().numpy(), LABELS.numpy().astype(np.int32)),
    "arrays of long doubles": lambda: (IMAGES.numpy().astype(np.longdouble), LABELS.tolist()),
    "arrays that are read-only": lambda: (_read_only(IMAGES), _read_only(LABELS)),
    "half of a float": lambda: (IMAGES.bfloat16(), LABELS),
    "a specification": lambda: (IMAGES, ad.Label(LABELS)),
    "a loader": lambda: DataLoader(TensorDataset(IMAGES, LABELS), batch_size=7),
    "a data set": lambda: TensorDataset(IMAGES, LABELS),
    "batches": lambda: [(IMAGES[:9], LABELS[:9]), (IMAGES[9:], LABELS[9:])],
    "images": lambda: ad.ImageData((IMAGES * 16).byte(), LABELS, tuple("0123456789"), "digits", scale=16),
    "any arrays": lambda: ad.ArrayData(IMAGES, LABELS, tuple("0123456789")),
}


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_every_kind_of_data(data: Callable[[], Any]) -> None:
    same(ad.certify_data(MODEL, data(), BALL, batch=25))
    same(ad.certify_data(MODEL, data(), BALL, limit=11), count=11)


def test_the_table() -> None:
    found = ad.certify_data(MODEL, (IMAGES, LABELS), BALL)
    certified, wrong = int(EXPECTED.certified.sum()), int((~EXPECTED.right).sum())
    head, *rows = str(found).splitlines()
    assert head == "60 examples at l-infinity 0.05 in [0, 1] by Dual()"
    assert [row.split()[:-2] if row.endswith("%") else row.split()[:1] for row in rows] == [
        ["certified"], ["as", "run"], ["unknown"], ["wrong"], ["not", "reached"], ["seconds"],
    ]  # fmt: skip
    assert [int(row.split()[-2]) for row in rows[:5]] == [
        certified, int(EXPECTED.certified_as_run.sum()), 60 - certified - wrong, wrong, 0,
    ]  # fmt: skip
    assert sum(count for name, count in found.counts.items() if name != "as run") == 60
    assert found.certified_accuracy == EXPECTED.certified_accuracy
    assert found.error == EXPECTED.error
    record = json.loads(found.to_json())
    assert record["certified"] == EXPECTED.certified.tolist()
    assert record["counts"]["not_reached"] == 0
    assert record["perturbation"] == EXPECTED.perturbation
    assert record["network"] == EXPECTED.subject.network
    assert repr(found) == f"<DataCertificate: {certified} of 60 certified at l-infinity 0.05 in [0, 1]>"


@pytest.mark.parametrize(
    "asked",
    [
        ad.TopK(LABELS, 2),
        ad.Label(LABELS, targets=[1, 8]),
        ad.Label(LABELS, targets=((LABELS + 1) % 10).unsqueeze(1)),
        ad.Between(upper=torch.linspace(5, 20, 60).unsqueeze(1).expand(60, 10)),
        ad.Between(lower=torch.full((10,), -15.0)),
        ad.Positive(torch.eye(10)[LABELS].unsqueeze(1), torch.linspace(-9, 2, 60).unsqueeze(1)),
        ad.Positive(torch.eye(10)[:2], 6.0, needed=1),
        ad.AllOf([ad.TopK(LABELS, 3), ad.Between(upper=14.0)]),
        ad.AnyOf([ad.Label(LABELS), ad.Label((LABELS + 1) % 10)]),
    ],
    ids=repr,
)
def test_specifications(asked: ad.Specification, tmp_path: Path) -> None:
    ball = ad.LinfBall(0.12)
    expected = ad.certify(MODEL, IMAGES, asked, ball)
    # batches of 10, as many as there are classes, must not be taken for numbers per class
    found = ad.certify_data(MODEL, (IMAGES, asked), ball, batch=10, out=tmp_path / "lines.jsonl")
    same(found, expected)
    assert 0 < int(found.certified.sum()) < 60
    assert f" for {type(asked).__name__}(" in str(found)
    same(ad.certify_data(MODEL, (IMAGES, asked), ball, batch=10, out=tmp_path / "lines.jsonl", resume=True), expected)
    other = (IMAGES, ad.TopK(LABELS, 5))
    with pytest.raises(ad.ArgumentError, match="its certificates are about something else"):
        ad.certify_data(MODEL, other, ball, batch=10, out=tmp_path / "lines.jsonl", resume=True)


@pytest.mark.parametrize(
    "ball",
    [
        ad.LinfBall(torch.linspace(0.01, 0.1, 60)),
        ad.LinfBall(torch.linspace(0.0, 0.1, 64).reshape(1, 8, 8)),
        ad.L2Ball(torch.linspace(0.01, 0.3, 60)),
        ad.LinfBall(0.5, clip=(0.0, 1.0), scale=torch.linspace(0.0, 0.2, 64).reshape(1, 8, 8)),
        ad.Box((IMAGES - 0.04).clamp(0, 1), (IMAGES + 0.06).clamp(0, 1)),
    ],
    ids=["per example", "per feature", "l2 per example", "scale", "box"],
)
def test_balls_of_every_size(ball: ad.Perturbation | ad.InputSet) -> None:
    same(ad.certify_data(MODEL, (IMAGES, LABELS), ball, batch=8), ad.certify(MODEL, IMAGES, LABELS, ball))


def test_a_model_in_double_and_a_captured_one() -> None:
    same(ad.certify_data(ad.load_digits_network().double(), (IMAGES.numpy(), LABELS), BALL))
    same(ad.certify_data(ad.load_digits_network().double(), KINDS["images"](), BALL))
    same(ad.certify_data(ad.capture(MODEL, IMAGES[:2]), (IMAGES, LABELS), BALL))


def test_probable_certificates() -> None:
    engine = ad.HighProbability(k=500)
    found = ad.certify_data(MODEL, (IMAGES[:10], LABELS[:10]), BALL, engine)
    assert "each with probability 0.99" in str(found)
    assert set(found.verdicts) <= {ad.Verdict.PROBABLE, ad.Verdict.UNKNOWN, ad.Verdict.WRONG}


# A file of lines.


def test_a_file_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autodual.evaluation import data_set

    file, calls = tmp_path / "found" / "lines.jsonl", list[int]()

    def interrupted(model: object, x: Tensor, *rest: object, **options: object) -> object:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(x))
        return ad.certify(model, x, *rest, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(data_set, "certify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ad.certify_data(MODEL, (IMAGES, LABELS), BALL, batch=20, out=file)
    assert len(file.read_text().splitlines()) == 40
    assert not record_about(file, "summary").exists()
    calls.clear()
    same(ad.certify_data(MODEL, (IMAGES, LABELS), BALL, batch=20, out=file, resume=True))
    assert calls == [20]  # only what was missing
    before = file.read_bytes()
    same(ad.certify_data(MODEL, (IMAGES, LABELS), BALL, batch=20, out=file, resume=True))
    assert calls == [20]
    assert file.read_bytes() == before
    summary = json.loads(record_about(file, "summary").read_text())
    assert summary["robust_error"] == EXPECTED.robust_error
    assert summary["examples"] == 60
    with pytest.raises(
        ad.ArgumentError, match=r"holds 60 of 60 certificates of .* already; go on with resume=True, start anew with"
    ):
        ad.certify_data(MODEL, (IMAGES, LABELS), BALL, out=file)
    for change in ((IMAGES.flip(0), LABELS), (IMAGES, (LABELS + 1) % 10)):
        with pytest.raises(ad.ArgumentError, match=r"something else \(data was .*start anew \(overwrite=True\)"):
            ad.certify_data(MODEL, change, BALL, batch=20, out=file, resume=True)
    with pytest.raises(ad.ArgumentError, match=r"something else \(perturbation was"):
        ad.certify_data(MODEL, (IMAGES, LABELS), ad.LinfBall(0.06), batch=20, out=file, resume=True)
    assert file.read_bytes() == before  # nothing is lost
    calls.clear()
    ad.certify_data(MODEL, (IMAGES[:20], LABELS[:20]), BALL, out=file, overwrite=True)
    assert len(file.read_text().splitlines()) == 20


def test_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found in time is kept and counted, the rest is not reached; a second call goes on."""
    from autodual.evaluation import data_set

    file, slow = tmp_path / "lines.jsonl", list[float]()

    def slowly(model: object, x: Tensor, *rest: object, timeout: float, **options: object) -> object:
        slow.append(timeout)
        if len(slow) == 3:
            time.sleep(timeout)
        return ad.certify(model, x, *rest, timeout=timeout, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(data_set, "certify", slowly)
    found = ad.certify_data(MODEL, (IMAGES, LABELS), BALL, batch=15, timeout=2.0, out=file)
    assert 30 <= len(file.read_text().splitlines()) <= 45
    done = int(found.reached.sum())
    assert 30 <= done < 60
    assert found.counts["not reached"] == 60 - done
    assert found.seconds >= 1.5
    assert torch.equal(found.certified[:done], EXPECTED.certified[:done])
    assert not bool(found.certified[done:].any())
    assert found.margins[-1] == -torch.inf
    assert found.predicted is not None
    assert int(found.predicted[-1]) == -1
    assert found.verdicts[-1] is ad.Verdict.UNKNOWN
    assert "not reached" in str(found)
    assert json.loads(found.to_json())["margins"][-1] is None
    monkeypatch.undo()
    same(ad.certify_data(MODEL, (IMAGES, LABELS), BALL, batch=15, out=file, resume=True))


def test_a_time_limit_in_a_further_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of examples that the last engine was kept from are not written: a later call would not look at these again."""
    from autodual.engines.effort import TimeLimitError

    file, ball, best = tmp_path / "lines.jsonl", ad.LinfBall(0.09, clip=(0.0, 1.0)), ad.BestOf(ad.Dual(), ad.Crown())
    whole = ad.certify_data(MODEL, (IMAGES, LABELS), ball, best, batch=15)
    prove, calls = ad.Crown.prove, list[int]()

    def late(self: ad.Crown, *rest: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise TimeLimitError("late")
        return prove(self, *rest)

    monkeypatch.setattr(ad.Crown, "prove", late)
    found = ad.certify_data(MODEL, (IMAGES, LABELS), ball, best, batch=15, out=file)
    monkeypatch.undo()
    assert len(file.read_text().splitlines()) == 15 <= int(found.reached.sum()) < 30
    again = ad.certify_data(MODEL, (IMAGES, LABELS), ball, best, batch=15, out=file, resume=True)
    assert torch.equal(again.certified, whole.certified)
    assert bool(again.reached.all())


def test_progress_goes_from_nothing_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autodual.engines.effort.PATIENCE", 0.0)
    monkeypatch.setattr("autodual.engines.effort.OFTEN", 0.0)
    heard = list[float]()
    ad.certify_data(MODEL, (IMAGES, LABELS), BALL, batch=20, progress=lambda p: heard.append(p.fraction))
    assert heard == sorted(heard)
    assert 0 <= heard[0] < 0.4
    assert 0.8 < heard[-1] <= 1.0


# Bad input: one clear sentence.


def _endless() -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield IMAGES[:5], LABELS[:5]


def test_a_loader_is_read_no_further_than_the_limit() -> None:
    assert len(ad.certify_data(MODEL, _endless(), BALL, limit=12)) == 12


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "labels for others": ((IMAGES, LABELS[:5]), {}, r"labels have shape \(5,\), but there are 60 inputs"),
    "one-hot labels": ((IMAGES, torch.eye(10)[LABELS]), {}, r"of one-hot labels, pass labels.argmax\(1\)"),
    "single examples": (list(zip(IMAGES, LABELS, strict=True)), {}, "these seem to be single examples; put them into batches"),
    "batches as dictionaries": ([{"x": IMAGES, "y": LABELS}], {}, r"batch 0 holds a dict, .*; pass a generator of pairs"),
    "labels with fractions": ((IMAGES, LABELS.float()), {}, "labels are float32, but must be integers"),
    "bytes": (((IMAGES * 255).byte().numpy(), LABELS), {}, "inputs hold uint8, but networks take floats"),
    "labels of several lengths": ((IMAGES, [[0], [1, 2]] * 30), {}, "labels: lists inside are not of one length"),
    "a masked label": ((IMAGES, np.ma.array(LABELS.numpy(), mask=[1] + [0] * 59)), {}, "labels: 1 entries are masked"),
    "masked pixels": ((np.ma.masked_less(IMAGES.numpy(), 0.5), LABELS), {}, "entries are masked"),
    "inputs alone": (IMAGES, {}, "got Tensor alone"),
    "a number": (3, {}, "data must be .* got int"),
    "words": ("digits", {}, "got str alone"),
    "nothing": ([], {}, "there are no examples"),
    "batches without labels": ([IMAGES, IMAGES, IMAGES], {}, "batch 0 holds a Tensor"),
    "batches of two shapes": ([(IMAGES, LABELS), (IMAGES[..., :4], LABELS)], {}, r"batch 1 has examples \[1, 8, 4\]"),
    "a label that is none": ((IMAGES, LABELS + 9), {}, "labels must lie in 0 ... 9"),
    "a wrong shape": ((IMAGES.flatten(1), LABELS), {}, "."),
    "numbers of a specification": ((IMAGES, ad.TopK(LABELS[:7], 2)), {}, "labels: there are 60 examples, but numbers for 7"),
    "a class": ((IMAGES, ad.TopK), {}, "labels must be integers"),
    "no time": ((IMAGES, LABELS), {"timeout": 0}, "timeout must be a positive number of seconds"),
    "no batch": ((IMAGES, LABELS), {"batch": 0}, "batch must be a whole number, at least 1"),
    "half an example": ((IMAGES, LABELS), {"limit": 0.5}, "limit must be a whole number"),
    "to go on with nothing": ((IMAGES, LABELS), {"resume": True}, "name it with out="),
    "both": ((IMAGES, LABELS), {"resume": True, "overwrite": True, "out": "x"}, "exclude each other"),
    "NaN": ((IMAGES * torch.nan, LABELS), {}, "inputs: example 0 has nan as feature"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "options", "message"), BAD.values(), ids=BAD)
def test_bad_input(
    data: Any, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ad.AutodualError, match=message) as refused:
        ad.certify_data(MODEL, data, BALL, **options)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_loader_that_shuffles_has_no_file(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=20, shuffle=True)
    with pytest.raises(ad.ArgumentError, match="make it with shuffle=False"):
        ad.certify_data(MODEL, loader, BALL, out=tmp_path / "lines.jsonl")
    assert int(ad.certify_data(MODEL, loader, BALL).certified.sum()) == int(EXPECTED.certified.sum())


def test_engines_and_balls_that_prove_nothing() -> None:
    with pytest.raises(ad.UnsoundError):
        ad.certify_data(MODEL, (IMAGES, LABELS), BALL, ad.Projected(10))
    with pytest.raises(ad.ArgumentError, match="ball must be a perturbation"):
        ad.certify_data(MODEL, (IMAGES, LABELS), 0.1)  # type: ignore[arg-type]
    with pytest.raises(ad.ArgumentError, match="does not fit x of shape"):
        ad.certify_data(MODEL, (IMAGES, LABELS), ad.LinfBall(torch.ones(5)))
    with pytest.raises(ad.ArgumentError, match=r"model must be a torch.nn.Module"):
        ad.certify_data(lambda x: x, (IMAGES, LABELS), BALL)  # type: ignore[arg-type]


@pytest.mark.parametrize("out", [3, b"lines.jsonl", "a\0b", "a" * 300])
def test_a_name_that_no_file_can_have(out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ad.ArgumentError, match=r"out must be a path|cannot be written: File name too long"):
        ad.certify_data(MODEL, (IMAGES, LABELS), BALL, out=out)


@pytest.mark.parametrize("how", ["killed", "a time limit", "another question"])
def test_no_summary_outlives_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It would answer for lines of another question, perhaps of another network, which it does not name."""
    from autodual.evaluation import data_set

    file = tmp_path / "lines.jsonl"
    summary = record_about(file, "summary")
    ad.certify_data(MODEL, (IMAGES, LABELS), BALL, out=file)
    assert summary.exists()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if how == "another question":
        ad.certify_data(MODEL, (IMAGES, ad.TopK(LABELS, 2)), BALL, out=file, overwrite=True)
    elif how == "a time limit":
        ad.certify_data(MODEL, (IMAGES, LABELS), ad.LinfBall(0.3), out=file, overwrite=True, timeout=1e-9)
    else:
        monkeypatch.setattr(data_set, "certify", killed)
        with pytest.raises(KeyboardInterrupt):
            ad.certify_data(MODEL, (IMAGES, LABELS), ad.LinfBall(0.3), out=file, overwrite=True)
    assert not summary.exists()
