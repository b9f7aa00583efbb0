"""Tables: CSV files of every kind read as they are, and what is wrong with one said in a sentence with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autodual as ad
from autodual.data import TableOptions, load
from autodual.data.tables import read_rows
from autodual.training.setup import with_columns

HEADED = "age,height,kind\n1.5,2,cat\n3,4e1,dog\n-5,6,cat\n7,8,dog\n"


def written(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


FINE = {
    "a header": (HEADED, "kind"),
    "by number": (HEADED, "3"),
    "from the end": (HEADED, "-1"),
    "no header": (HEADED.split("\n", 1)[1], "3"),
    "semicolons": (HEADED.replace(",", ";"), "kind"),
    "tabs": (HEADED.replace(",", "\t"), "kind"),
    "quotes": ('"age","height","kind"\r\n"1.5","2","cat"\r\n3,"4e1",dog\r\n-5,6,"cat"\r\n7,8,dog\r\n', "kind"),
    "a byte order mark and spaces": ("\ufeff" + HEADED.replace(",", ", "), "kind"),
    "empty lines": ("\n" + HEADED.replace("\n", "\n\n"), "kind"),
}


@pytest.mark.parametrize(("text", "column"), FINE.values(), ids=FINE)
def test_every_way_to_write_a_table(text: str, column: str, tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path, text), column)
    np.testing.assert_array_equal(rows.values, [[1.5, 2], [3, 40], [-5, 6], [7, 8]])
    assert rows.labels == ["cat", "dog", "cat", "dog"]
    assert rows.features in (("age", "height"), ("1", "2"))


def test_two_parts_and_their_classes(tmp_path: Path) -> None:
    path = written(tmp_path, HEADED)
    train, test = ad.load_table(path, "kind")
    assert train.classes == test.classes == ("cat", "dog")
    assert train.features == ("age", "height")
    assert sorted(train.labels.tolist()) == sorted(test.labels.tolist()) == [0, 1]  # of each class, one to test on
    both = torch.cat([train.values, test.values])
    assert sorted(both[:, 0].tolist()) == [-5, 1.5, 3, 7]
    again = ad.load_table(path, "kind")
    assert torch.equal(again[0].values, train.values)
    others = [ad.load_table(path, "kind", seed=seed)[1].values.tolist() for seed in range(8)]
    assert any(other != test.values.tolist() for other in others)


def test_a_second_file(tmp_path: Path) -> None:
    path = written(tmp_path, HEADED)
    second = written(tmp_path, "age,height,kind\n9,9,dog\n", "second.csv")
    train, test = ad.load_table(path, "kind", second)
    assert len(train) == 4
    assert (test.values.tolist(), test.labels.tolist(), test.classes) == ([[9, 9]], [1], ("cat", "dog"))


def test_whole_numbers_as_labels_keep_their_order(tmp_path: Path) -> None:
    rows = "".join(f"{i},{label}\n" for i, label in enumerate([10, 2, 2, 10, -1, -1]))
    train, _ = ad.load_table(written(tmp_path, rows), 2)
    assert train.classes == ("-1", "2", "10")


@pytest.mark.parametrize("odd", ["+-1", "9" * 5000, "9007199254740993", "a\x85b", "inf"])
def test_labels_that_are_nearly_numbers(odd: str, tmp_path: Path) -> None:
    rows = "".join(f"{i},{label}\n" for i, label in enumerate([odd, "9007199254740992", odd, "9007199254740992"]))
    train, _ = ad.load_table(written(tmp_path, rows), 2)
    assert set(train.classes) == {odd, "9007199254740992"}


def test_a_feature_that_float32_blurs(tmp_path: Path) -> None:
    """Numbers of customers, for example: all of them would be one number."""
    rows = "".join(f"{1234567890 + i},{i},{'ab'[i % 2]}\n" for i in range(20))
    with pytest.raises(
        ad.ArgumentError, match="feature 'number' lies between 1234567890 and 1234567909, which float32"
    ):
        ad.load_table(written(tmp_path, "number,age,kind\n" + rows), "kind")
    with pytest.raises(ad.ArgumentError, match="feature 1 lies between 100000000 and 100000001"):
        ad.ArrayData(np.array([[0, 100000000], [5, 100000001]]), np.array([0, 1]))
    constant = ad.ArrayData(np.array([[0, 100000001], [5, 100000001]]), np.array([0, 1]))
    assert constant.values[:, 1].tolist() == [100000000.0, 100000000.0]


def test_an_eps_below_what_float32_has_moved(tmp_path: Path) -> None:
    """The ball around a rounded number would not contain the number of the table."""
    rows = "".join(f"{1234567891 + 1000003 * i},{i},{'ab'[i % 2]}\n" for i in range(20))
    train, _ = ad.load_table(written(tmp_path, "income,age,kind\n" + rows), "kind")
    assert train.rounded_by is not None
    assert train.rounded_by[0] > 10
    assert train.rounded_by[1] == 0
    small, large, still = (torch.tensor([income, 0.01]) for income in (10.0, 1000.0, 0.0))
    with pytest.raises(
        ad.ArgumentError, match="eps of feature 'income' is 10, but its numbers are so large that float32"
    ):
        train.take(5).check_reach(small)
    train.check_reach(large)
    train.check_reach(still)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2)).eval()
    with pytest.raises(ad.ArgumentError, match="eps of feature 'income' is 10"):
        ad.certify_data(model, train, ad.LinfBall(1.0, scale=small))
    exact = np.array([[1234567891.0, 1.0], [5.0, 2.0]])
    with pytest.raises(
        ad.ArgumentError, match=r"example 0 has 1234567891 as feature \[0\], which the model's torch.float32 rounds"
    ):
        ad.certify_data(model, (exact, [0, 1]), ad.LinfBall(torch.tensor([[10.0, 0.01]])))
    assert len(ad.certify_data(model, (exact, [0, 1]), ad.LinfBall(100.0))) == 2
    assert len(ad.certify_data(model.double(), (exact, [0, 1]), ad.LinfBall(10.0))) == 2
    table = str(written(tmp_path, "income,age,kind\n" + rows))
    config = ad.TrainConfig(dataset=table, label_column="kind", eps="income=10,age=0.01")
    with pytest.raises(ad.ArgumentError, match="eps of feature 'income' is 10"):
        with_columns(config, train)
    with pytest.raises(ad.ArgumentError, match="eps of feature 'income' is 10"):
        with_columns(ad.TrainConfig(dataset=table, label_column="kind", eps=10.0), train)


BAD = {
    "text in a number column": (HEADED.replace("4e1", "tall"), "kind", "line 3, column 'height': 'tall' is no number"),
    "a missing value": (HEADED.replace("4e1", ""), "kind", "line 3, column 'height': the value is missing"),
    "NaN": (HEADED.replace("4e1", "NaN"), "kind", r"line 3, column 'height': the value is missing \('NaN'\)"),
    "a number as only Python writes it": (HEADED.replace("4e1", "4_1"), "kind", "column 'height': '4_1' is no number"),
    "a decimal comma": (
        HEADED.replace(",", ";").replace("4e1", "4,1"),
        "kind",
        "'4,1' has a comma, but numbers need a decimal point",
    ),
    "a decimal comma and no header": ("1,5;cat\n2,5;dog\n3,5;cat\n4,5;dog\n", "2", "'2,5' has a comma"),
    "thousands": (HEADED.replace("4e1", '"4,000"'), "kind", "without separators of thousands"),
    "one label in two ways": (HEADED.replace("cat", "1").replace("dog", "1.0"), "kind", "'1' and '1.0' are one number"),
    "numbers as names of columns": (
        "2019,2020,kind\n1,2,cat\n3,4,dog\n5,6,cat\n7,8,dog\n",
        "-1",
        "line 1 may hold the names of the columns, or the only row",
    ),
    "another break of lines inside a row": (
        HEADED + "1,2,cat\x0b3,4,dog\n",
        "kind",
        "line 6 has 5 values, but line 1 has 3",
    ),
    "infinity": (HEADED.replace("4e1", "inf"), "kind", "line 3, column 'height': inf is too large"),
    "beyond float32": (HEADED.replace("4e1", "1e39"), "kind", "line 3, column 'height': 1e39 is too large"),
    "no such label column": (
        HEADED,
        "sort",
        "has no column 'sort' to take labels from; its first line is: age, height, kind",
    ),
    "no such number": (HEADED, "4", "has no column 4 to take labels from; it has 3, of which 1 is the first"),
    "no column zero": (HEADED, "0", "has no column 0"),
    "no label column": (HEADED, None, "name it with --label-column .* out of: age, height, kind"),
    "a missing label": (HEADED.replace("dog", "", 1), "kind", "line 3, column 'kind': the label is missing"),
    "one class only": (
        HEADED.replace("dog", "cat"),
        "kind",
        "all 4 rows have the label 'cat', but a network chooses between",
    ),
    "unequal rows": (HEADED.replace("3,4e1,", "3,"), "kind", "line 3 has 2 values, but line 1 has 3"),
    "a row too long": (HEADED + "1,2,cat,4\n", "kind", "line 6 has 4 values, but line 1 has 3"),
    "a class that occurs once": (HEADED + "1,2,cow\n", "kind", "1 example has the label 'cow'"),
    "measurements as labels": ("".join(f"{i},{i * 0.37}\n" for i in range(50)), "2", "50 different values in 50 rows"),
    "two columns of a name": (HEADED.replace("height", "age"), "kind", "two columns are called 'age'"),
    "a column without a name": (HEADED.replace("height", ""), "kind", "line 1: column 2 has no name.*index=False"),
    "a header alone": ("age,kind\n", "kind", "has a header and no rows"),
    "one column": ("kind\ncat\ndog\n", "kind", "line 1 has one column"),
    "nothing": ("", "kind", "is empty"),
    "a quote that does not end": (HEADED + '1,"2,cat\n', "kind", "line 6: unexpected end of data"),
    "no text": ("age,kind\n1,\x00\n", "kind", "."),
}


@pytest.mark.parametrize(("text", "column", "message"), BAD.values(), ids=BAD)
def test_bad_tables(text: str, column: str | None, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ad.ArgumentError, match=message) as refused:
        load(path, "train", table=TableOptions(column))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(str(path))


def test_other_bad_files(tmp_path: Path) -> None:
    path = written(tmp_path, HEADED)
    with pytest.raises(ad.ArgumentError, match=r"none.csv: there is no such file"):
        ad.load_table(tmp_path / "none.csv", "kind")
    (tmp_path / "latin.csv").write_bytes("age,kind\n1,hübsch\n".encode("latin-1"))
    with pytest.raises(ad.ArgumentError, match=r"latin.csv: line 2 is not UTF-8"):
        ad.load_table(tmp_path / "latin.csv", "kind")
    other = written(tmp_path, "age,size,kind\n1,2,cat\n", "other.csv")
    with pytest.raises(
        ad.ArgumentError, match=r"other.csv: has other columns than .*table.csv: only one has the column 'height'"
    ):
        ad.load_table(path, "kind", other)
    other = written(tmp_path, "height,age,kind\n1,2,cat\n", "other.csv")
    with pytest.raises(ad.ArgumentError, match="they stand in another order"):
        ad.load_table(path, "kind", other)
    other = written(tmp_path, "age,height,kind\n1,2,cow\n", "other.csv")
    with pytest.raises(
        ad.ArgumentError, match=r"other.csv: line 2: the label 'cow' does not occur in the data to train on"
    ):
        ad.load_table(path, "kind", other)
    with pytest.raises(ad.ArgumentError, match="label_column is for tables"):
        load("digits", "train", table=TableOptions("kind"))


# Arrays that are no images.


def test_npz_files_of_tables(tmp_path: Path) -> None:
    x, y = np.arange(40, dtype=np.float64).reshape(20, 2) * 100, np.arange(20) % 2
    np.savez(tmp_path / "flat.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    data = load(tmp_path / "flat.npz", "test")
    assert isinstance(data, ad.ArrayData)
    assert data.scaled().tolist() == x[:4].tolist()
    np.savez(tmp_path / "named.npz", values=x, labels=y, features=["a", "b"], classes=["no", "yes"])
    parts = [load(tmp_path / "named.npz", split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [16, 4]
    assert isinstance(parts[0], ad.ArrayData)
    assert (parts[0].features, parts[0].classes) == (("a", "b"), ("no", "yes"))
    other = load(tmp_path / "named.npz", "test", table=TableOptions(seed=3))
    assert other.scaled().tolist() != parts[1].scaled().tolist()
    np.savez(tmp_path / "signals.npz", values=np.zeros((6, 3, 5, 2)) - 7, labels=np.arange(6) % 2)
    assert load(tmp_path / "signals.npz", "train").shape == (3, 5, 2)
    np.savez(tmp_path / "nan.npz", values=np.array([[1.0], [np.nan]] * 3), labels=np.arange(6) % 2)
    with pytest.raises(
        ad.ArgumentError, match=r"nan.npz.*: example 1 has nan as feature 0 \(3 numbers are not finite\)"
    ):
        load(tmp_path / "nan.npz", "train")


def test_a_factory_of_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "import torch\n"
        "class Rows(torch.utils.data.TensorDataset):\n"
        "    features = ('a', 'b')\n"
        "def factory(split): return Rows(torch.arange(12.0).reshape(6, 2) * 100, torch.arange(6) % 2)\n"
    )
    data = load(f"{tmp_path}/rows.py:factory", "train")
    assert isinstance(data, ad.ArrayData)
    assert (data.shape, data.features, data.classes) == ((2,), ("a", "b"), ("0", "1"))


ARRAYS = {
    "words": (np.array([["a"], ["b"]]), [0, 1], {}, "values are <U1, but must be numbers"),
    "one dimension": (np.zeros(3), [0, 1, 0], {}, r"must be numbers \[N, \*shape\]"),
    "nothing": (np.zeros((0, 3)), [], {}, "there are no labels|at least one of each"),
    "labels for others": (np.zeros((3, 2)), [0, 1], {}, r"labels have shape \(2,\), but there are 3 examples"),
    "a negative label": (np.zeros((2, 2)), [0, -1], {}, "label -1 is negative"),
    "fractions as labels": (np.zeros((2, 2)), torch.tensor([0.0, 1.0]), {}, "labels must be integers"),
    "infinity": (np.array([[1.0, np.inf], [0, 0]]), [0, 1], {"features": ("a", "b")}, "example 0 has inf as feature b"),
    "masked": (np.ma.array(np.zeros((2, 2)), mask=[[0, 1], [0, 0]]), [0, 1], {}, "1 entries are masked"),
    "too large": (np.array([[1e300, 1], [0, 0]]), [0, 1], {}, "beyond 3e38"),
    "names for others": (np.zeros((2, 2)), [0, 1], {"features": ("a",)}, "1 features are named"),
    "a label without a class": (np.zeros((2, 2)), [0, 2], {"classes": ("a", "b")}, "label 2 of example 1 is outside 0..1"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "labels", "options", "message"), ARRAYS.values(), ids=ARRAYS)
def test_bad_arrays(values: np.ndarray, labels: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        ad.ArrayData(values, np.array(labels, int) if isinstance(labels, list) else labels, **options)


def test_arrays_of_any_type_become_float32() -> None:
    for kind in (np.float64, np.float32, np.longdouble, ">f8", np.int64, np.uint16, bool):
        data = ad.ArrayData(np.array([[0, 1], [1, 0]], dtype=kind), np.array([0, 1]))
        assert data.values.dtype == torch.float32
        assert data.values.tolist() == [[0, 1], [1, 0]]
