"""Tables on the command line: train, certify, attack and report, with an eps for each column, and everything that can be wrong."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import autodual as ad
from autodual.runs.config import OptionError, TrainConfig
from autodual.runs.folder import Run

Call = Callable[..., tuple[int, str, str]]
FEATURES = ("age", "income", "noise")


def write_table(path: Path, rows: int = 150, seed: int = 0) -> Path:
    """Three columns in very different units, and an outcome that two of them decide."""
    drawn = np.random.RandomState(seed)
    age, income, noise = drawn.uniform(20, 80, rows), drawn.uniform(1e3, 1e5, rows), drawn.normal(size=rows)
    outcome = np.where(age / 60 + income / 1e5 > 1.2, "ill", "healthy")
    with path.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow([*FEATURES, "outcome"])
        table.writerows(zip(age.round(2), income.round(), noise.round(3), outcome, strict=True))
    return path


FAST = [
    "--normalise",
    "--epochs",
    "4",
    "--lr",
    "0.01",
    "--k",
    "4",
    "--device",
    "cpu",
    "--evaluate-every",
    "0",
    "--model",
    "mlp:8",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "table.csv")


@pytest.fixture
def run(call: Call, table: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    asked = ["--label-column", "outcome", "--eps", "age=1,income=2000", "--out", str(folder)]
    code, said, complaint = call("train", "--data", str(table), *asked, *FAST)
    assert code == 0, complaint
    assert "at linf 1 (31 test examples)" in said
    return folder


def test_columns_in_very_different_units_are_told_without_normalise(call: Call, table: Path, tmp_path: Path) -> None:
    asked = ["--label-column", "outcome", "--eps", "age=1", "--epochs", "1", "--skip-curve"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, told = call("train", "--data", str(table), *FAST[1:], *asked, "--out", str(tmp_path / "run"))
    assert code == 0, told
    assert "note: the columns of this table spread between" in told


def test_a_run_from_training_to_its_report(call: Call, run: Path, table: Path) -> None:
    config = Run(run).config()
    assert (config.eps, config.feature_eps, config.label_column) == (1.0, "[1.0, 2000.0, 0.0]", "outcome")
    code, said, _ = call("certify", str(run), "--device", "cpu")
    assert code == 0
    assert "at l-infinity 0 to 2000 by Dual()" in said
    assert "(31 examples)" in said
    # the same from Python, from nothing but the files
    loaded = ad.load_run(run)
    _, test = ad.load_table(table, "outcome")
    found = ad.certify_data(loaded.model, test, loaded.ball)
    written = [json.loads(line) for line in (run / "certificates.jsonl").read_text().splitlines()]
    assert [line["certified"] for line in written] == found.certified.tolist()
    assert int(found.certified.sum()) > 0
    # points of the set, in the units of the columns, keep their label
    drawn = torch.Generator().manual_seed(0)
    x = test.scaled()[found.certified]
    for _ in range(200):
        moved = x + (2 * torch.rand(x.shape, generator=drawn) - 1) * torch.tensor([1.0, 2000.0, 0.0])
        assert torch.equal(loaded.model(moved).argmax(1), test.labels[found.certified])
    assert call("certify", "--check", str(run), "--device", "cpu")[0] == 0
    code, said, _ = call("attack", str(run), "--device", "cpu", "--limit", "10")
    assert code == 0
    assert "10 examples," in said
    assert call("report", str(run))[0] == 0
    page = (run / "report.html").read_text()
    assert "Gallery" not in page
    assert "ill" in page
    assert not (run / "gallery.npz").exists()


def test_the_network_standardises_first(run: Path, table: Path) -> None:
    first = ad.load_run(run).model[0]
    train, _ = ad.load_table(table, "outcome")
    assert isinstance(first, ad.models.Standardize)
    rows = train.values.double()
    torch.testing.assert_close(first.mean.double(), rows.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first.std.double(), rows.std(0, unbiased=False), rtol=1e-5, atol=1e-5)


def test_other_sizes_for_a_run(call: Call, run: Path, tmp_path: Path) -> None:
    def robust(*asked: str) -> float:
        code, said, complaint = call(
            "certify", str(run), *asked, "--device", "cpu", "--out", str(tmp_path / f"{len(asked)}{asked[-1][-9:]}")
        )
        assert code == 0, complaint
        return float(said.split("robust error ")[1].split("%")[0])

    half, none = robust("--eps", "0.5"), robust("--eps", "noise=0.000001")
    assert none <= half <= robust("--eps", "3")
    np.savez(tmp_path / "eps.npz", eps=np.array([0.5, 1000.0, 0.0]))
    assert robust("--eps", str(tmp_path / "eps.npz")) == robust("--eps", "0.5,1000,0") == half
    code, _, complaint = call("certify", str(run), "--eps", "aeg=1", "--device", "cpu")
    assert code == 2
    assert "has no column 'aeg'; did you mean 'age'?" in complaint


def test_a_second_file_and_a_resumed_run(
    call: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "test.csv", 40, seed=5)
    (tmp_path / "table.csv").write_bytes(table.read_bytes())
    np.savez("eps.npz", eps=np.array([0.5, 1000.0, 0.0]))
    asked = [
        "train",
        "--data",
        "table.csv",
        "--test-dataset",
        "test.csv",
        "--label-column",
        "4",
        "--eps",
        "eps.npz",
        *FAST,
    ]
    code, said, complaint = call(*asked, "--out", "run")
    assert code == 0, complaint
    assert "(40 test examples)" in said
    assert call(*asked, "--out", "run", "--resume")[0] == 0
    code, _, complaint = call(*asked, "--split-seed", "3", "--out", "run", "--resume")
    assert code == 2
    assert "split_seed was 0, now 3" in complaint
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, said, complaint = call("certify", "../run", "--device", "cpu")  # paths are seen from the run
    assert code == 0, complaint
    assert "(40 examples)" in said
    asked = [
        "--model",
        "mlp:8",
        "--normalise",
        "--data",
        "../table.csv",
        "--label-column",
        "outcome",
        "--eps",
        "age=1,*=0.01",
    ]
    code, said, complaint = call(
        "certify", "../run/model.safetensors", *asked, "--device", "cpu", "--out", "bare.jsonl"
    )
    assert code == 0, complaint
    assert call("certify", "--check", "bare.jsonl", "--device", "cpu")[0] == 0


def test_a_network_of_its_own_for_tables(call: Call, table: Path, tmp_path: Path) -> None:
    """Without --model, a small one is made."""
    asked = ["--data", str(table), "--label-column", "outcome", "--eps", "*=0.01", "--out", str(tmp_path / "run")]
    fast = FAST[: FAST.index("--model")]
    code, _, complaint = call("train", *asked, *fast, "--limit-test", "5")
    assert code == 0, complaint
    assert Run(tmp_path / "run").config().model == "mlp:64,64"


BAD: dict[str, tuple[list[str], str]] = {
    "no label column": ([], "which column holds the labels is not said; name it with --label-column"),
    "another label column": (["--label-column", "y"], "has no column 'y' to take labels from"),
    "an unknown column": (["--label-column", "outcome", "--eps", "size=3"], "no column 'size'; its columns are age, income, noise"),
    "too few": (["--label-column", "outcome", "--eps", "1,2"], "is given for [2] features, but an example of data"),
    "no number": (["--label-column", "outcome", "--eps", "age=old"], "of 'age' must be a finite number, not negative, got 'old'"),
    "a negative one": (["--label-column", "outcome", "--eps", "age=-1"], "--eps of 'age' must be a finite number, not negative"),
    "nothing moves": (["--label-column", "outcome", "--eps", "age=0"], "--eps must be positive for one feature at least"),
    "some named": (["--label-column", "outcome", "--eps", "age=1,2"], "names some columns and others not"),
    "twice": (["--label-column", "outcome", "--eps", "age=1,age=2"], "names a column twice"),
    "no JSON": (["--label-column", "outcome", "--eps", "{age: 1}"], "--eps is no JSON"),
    "no such file": (["--label-column", "outcome", "--eps", "none.npz"], "none.npz: cannot be read: No such file"),
    "l2": (["--label-column", "outcome", "--eps", "age=1", "--norm", "l2"], "is for norm linf"),
    "a cascade": (["--label-column", "outcome", "--eps", "age=1", "--cascade", "2"], "is for a single network"),
    "crops": (["--label-column", "outcome", "--crop", "2"], "--crop is for images"),
    "a model for images": (["--label-column", "outcome", "--model", "small"], "small takes square images"),
    "a model without units": (["--label-column", "outcome", "--model", "mlp:0"], "unknown model 'mlp:0'; known are"),
    "a word": (["--label-column", "outcome", "--eps", "large"], "expected a number, such as 0.1 or 2/255"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_options(call: Call, table: Path, arguments: list[str], message: str, tmp_path: Path) -> None:
    code, _, complaint = call(
        "train", "--data", str(table), *arguments, "--out", str(tmp_path / "run"), "--device", "cpu"
    )
    assert code == 2
    assert message in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_table_with_text_is_refused_before_anything_is_begun(call: Call, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,y\n1,a\nold,b\n")
    code, _, complaint = call(
        "train", "--data", str(tmp_path / "t.csv"), "--label-column", "y", "--out", str(tmp_path / "run")
    )
    assert code == 2
    assert "t.csv: line 3, column 'age': 'old' is no number" in complaint
    assert not (tmp_path / "run").exists()


def test_every_way_to_say_an_eps_per_feature() -> None:
    ways = [{"age": 1, "income": 2000}, "age=1,income=2000", '{"age": 1, "income": 2000}']
    for eps in ways:
        for config in (TrainConfig(eps=eps), TrainConfig(feature_eps=eps), TrainConfig.from_mapping({"eps": eps})):  # type: ignore[arg-type]
            assert (config.eps, config.feature_eps) == (1.0, '{"age": 1.0, "income": 2000.0}')
            assert TrainConfig.from_mapping(config.to_mapping()) == config
    assert TrainConfig(eps=[1, "2/255"]).feature_eps == f"[1.0, {2 / 255}]"  # type: ignore[arg-type]
    assert TrainConfig(eps=0.5, feature_eps="1,2").eps == 0.5
    assert TrainConfig().eps == 0.1
    assert type(TrainConfig().eps) is float
    assert type(TrainConfig().model) is str
    with pytest.raises(OptionError, match="given for each feature twice"):
        TrainConfig(eps="a=1", feature_eps="a=1")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"save them as an \.npz"):
        TrainConfig(eps=[0.123456789] * 1000)  # type: ignore[arg-type]


def test_a_run_on_a_table_is_exported(call: Call, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    code, _, complaint = call("export", str(run), "--onnx", str(tmp_path / "table.onnx"))
    assert code == 0, complaint
    assert ad.load_onnx(tmp_path / "table.onnx").input_shape == (3,)
