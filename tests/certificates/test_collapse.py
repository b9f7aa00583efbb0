"""A network is called collapsed if it gives one answer for (nearly) everything, and for nothing else."""

from __future__ import annotations

import pytest

from autodual.certificates.certificate import collapse

TEN = [i % 10 for i in range(300)]
RARE = [0] * 990 + [1] * 10
NAN = float("nan")

COLLAPSED = {
    "one class for all": ([3] * 300, TEN, "predicts class 3 for all 300 examples, although 270 of them"),
    "nearly all": ([3] * 296 + [1, 2, 4, 5], TEN, "predicts class 3 for 296 of 300 examples"),
    "a class that the data does not have": ([7] * 20, [0, 1] * 10, "class 7 for all 20 examples, although 20 of them"),
    "the larger of two classes": ([0] * 1000, RARE, "although 10 of them"),
    "few examples": ([0] * 10, TEN[:10], "class 0 for all 10 examples"),
}
FINE = {
    "right": (TEN, TEN),
    "all wrong": ([(i + 1) % 10 for i in TEN], TEN),
    "random": ([i * 7 // 3 % 10 for i in range(300)], TEN),
    "two classes of ten": ([i % 2 for i in range(300)], TEN),
    "one class that is rare, found": (RARE, RARE),
    "one class that is rare, found by half": ([0] * 995 + [1] * 5, RARE),
    "data of one class": ([3] * 300, [3] * 300),
    "too few examples to tell": ([3, 3, 3, 3], [3, 1, 2, 5]),
    "no examples": ([], []),
    "mostly one class": ([3] * 270 + [1] * 30, TEN),
}


@pytest.mark.parametrize("case", COLLAPSED)
def test_collapsed(case: str) -> None:
    predicted, labels, words = COLLAPSED[case]
    assert words in str(collapse(predicted, labels))


@pytest.mark.parametrize("case", FINE)
def test_not_collapsed(case: str) -> None:
    assert collapse(*FINE[case]) is None


def test_scores_that_are_no_numbers_are_said_to_be_none() -> None:
    words = "none of its margins is a finite number"
    for margins in ([NAN] * 300, [None] * 300):
        assert words in str(collapse([0] * 300, TEN, margins))
    assert words not in str(collapse([0] * 300, TEN, [0.5, *[NAN] * 299]))


def test_classes_have_names() -> None:
    assert "class 0 (cat)" in str(collapse([0] * 20, [0, 1] * 10, classes=("cat", "dog")))
    assert "class 0 for" in str(collapse([0] * 20, [0, 1] * 10, classes=("0", "1")))
