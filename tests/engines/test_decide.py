"""One place decides: what exceeds its errors is proved, and NaN and infinities never are."""

import pytest
import torch

from autodual.engines.results import exceeds, proves, worth_another_look
from autodual.spec import Label, Question

NAN, INF = float("nan"), float("inf")


def label(*labels: int) -> Question:
    return Label(torch.tensor(labels)).put(torch.zeros(len(labels), 1), (3,))


EXCEEDS = [
    # lower, errors, verdict
    (1.0, [0.0], True),
    (1.0, [0.5], True),
    (1.0, [1.0], False),
    (1.0, [2.0], False),
    (1.0, [0.4, 0.4], True),
    (1.0, [0.6, 0.6], False),
    (0.0, [0.0], False),
    (-1.0, [0.0], False),
    (-1.0, [-2.0], True),  # an error that is known to one side, such as a drift, may be negative
    (NAN, [0.0], False),
    (INF, [0.0], False),
    (-INF, [0.0], False),
    (1.0, [NAN], False),
    (1.0, [INF], False),
    (1.0, [-INF], False),
    (1.0, [0.0, NAN], False),
    (1.0, [INF, -INF], False),
    (INF, [INF], False),
    (INF, [-INF], False),
]


@pytest.mark.parametrize(("lower", "errors", "verdict"), EXCEEDS)
def test_exceeds(lower: float, errors: list[float], verdict: bool) -> None:
    assert exceeds(torch.tensor([[lower]]), *(torch.tensor([[e]]) for e in errors)).tolist() == [[verdict]]


@pytest.mark.parametrize(("lower", "errors", "verdict"), EXCEEDS)
def test_a_label_is_proved_if_all_others_are_exceeded(lower: float, errors: list[float], verdict: bool) -> None:
    """Whatever stands at the label itself."""
    for at_label in (0.0, NAN, INF, -INF):
        margins = torch.tensor([[at_label, 5.0, lower]])
        given = [torch.tensor([[at_label, 0.0, e]]) for e in errors]
        assert proves(label(0), margins, *given).tolist() == [verdict]


def test_one_that_is_not_exceeded_is_enough() -> None:
    margins, none = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, -1.0]]), torch.zeros(2, 3)
    assert proves(label(0, 0), margins, none).tolist() == [True, False]
    assert proves(label(0, 2), margins, none).tolist() == [True, False]
    assert label(0, 2).idle_rows().tolist() == [[True, False, False], [False, False, True]]


@pytest.mark.parametrize(
    ("lower", "slack", "run_error", "again"),
    [
        pytest.param(1.0, 0.1, 0.1, False, id="all is proved"),
        pytest.param(0.1, 0.2, 0.0, True, id="within the slack"),
        pytest.param(-0.001, 0.2, 0.0, True, id="hardly below zero"),
        pytest.param(-0.1, 0.2, 0.0, False, id="clearly below zero"),
        pytest.param(-0.1, 0.0, 0.0, False, id="below zero, exactly"),
        pytest.param(1.0, 0.1, 0.95, True, id="only its slack keeps it from being proved as run"),
        pytest.param(1.0, 0.1, 2.0, False, id="never to be proved as run"),
        pytest.param(NAN, 0.1, 0.1, True, id="nan may be a number in float64"),
        pytest.param(-INF, 0.1, 0.1, True, id="minus infinity may be one"),
        pytest.param(1.0, INF, 0.1, True, id="infinite slack"),
        pytest.param(1.0, NAN, 0.1, True, id="nan slack"),
        pytest.param(1.0, 0.1, INF, True, id="infinite run error"),
        pytest.param(1.0, 0.1, NAN, True, id="nan run error"),
    ],
)
def test_another_look_is_for_what_may_be_settled(lower: float, slack: float, run_error: float, again: bool) -> None:
    given = (torch.tensor([[NAN, 5.0, value]]) for value in (lower, slack, run_error))
    margins, slacks, run_errors = given
    slacks[0, 1] = run_errors[0, 1] = 0.0
    assert worth_another_look(label(0), margins, slacks, run_errors).tolist() == [again]
