"""Specifications mean what they say: every rule against its definition, spelled out example by example."""

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.spec import AtLeast

NAN, INF = float("nan"), float("inf")
N, C = 6, 4
LABELS = torch.tensor([0, 1, 2, 3, 1, 0])
TARGETS = torch.tensor([[1, 2], [0, 3], [3, 2], [0, 0], [2, 1], [3, 1]])
ROWS = [[1.0, -2.0, 0.0, 0.5], [0.0, 1.0, 1.0, -1.0], [-1.0, 0.0, 0.0, 2.0]]
PER_EXAMPLE = torch.randn(N, 3, C, generator=torch.Generator().manual_seed(3))
OFFSETS = [0.25, -0.5, 0.0]
LIMITS = torch.linspace(-1, 1, N * C).reshape(N, C)

Meaning = Callable[[list[float], int], bool]
"""From the outputs of an example, and its number, whether the specification holds."""


def dot(row: list[float], z: list[float], offset: float) -> float:
    return math.fsum(a * b for a, b in zip(row, z, strict=True)) + offset


def is_largest(z: list[float], n: int) -> bool:
    """The first of the largest."""
    return max(range(C), key=lambda j: (z[j], -j)) == int(LABELS[n])


def linear(rows: Callable[[int], list[list[float]]], offsets: Callable[[int], list[float]], needed: int) -> Meaning:
    return lambda z, n: sum(dot(r, z, b) > 0 for r, b in zip(rows(n), offsets(n), strict=True)) >= needed


SPECIFICATIONS: dict[str, tuple[ad.Specification, Meaning]] = {
    "label": (ad.Label(LABELS), is_largest),
    "shared targets": (
        ad.Label(LABELS, targets=[[1, 3]]),
        lambda z, n: all(z[LABELS[n]] > z[t] for t in (1, 3) if t != LABELS[n]),
    ),
    "targets of each": (
        ad.Label(LABELS, targets=TARGETS),
        lambda z, n: all(z[LABELS[n]] > z[t] for t in TARGETS[n].tolist() if t != LABELS[n]),
    ),
    **{
        f"top {k}": (
            ad.TopK(LABELS, k),
            lambda z, n, k=k: sum(z[j] >= z[LABELS[n]] for j in range(C) if j != LABELS[n]) < k,
        )
        for k in (1, 2, 3)
    },
    "between": (ad.Between(-0.75, 0.75), lambda z, n: all(-0.75 < v < 0.75 for v in z)),
    "below": (ad.Between(upper=1.0, output=2), lambda z, n: z[2] < 1.0),
    "limits of outputs": (
        ad.Between([-1.0, -INF, 0.0, -2.0], [1.0, 0.5, INF, 2.0]),
        lambda z, n: -1 < z[0] < 1 and z[1] < 0.5 and z[2] > 0 and -2 < z[3] < 2,
    ),
    "limits of examples": (ad.Between(lower=LIMITS), lambda z, n: all(a < v for a, v in zip(LIMITS[n].tolist(), z, strict=True))),
    "rows": (ad.Positive(ROWS, OFFSETS), linear(lambda n: ROWS, lambda n: OFFSETS, 3)),
    "any row": (ad.Positive(ROWS, OFFSETS, needed=1), linear(lambda n: ROWS, lambda n: OFFSETS, 1)),
    "two rows": (ad.Positive(torch.tensor(ROWS), needed=2), linear(lambda n: ROWS, lambda n: [0.0] * 3, 2)),
    "rows of examples": (
        ad.Positive(PER_EXAMPLE, torch.arange(N * 3).reshape(N, 3) % 4 - 2),
        linear(lambda n: PER_EXAMPLE[n].tolist(), lambda n: [(3 * n + r) % 4 - 2.0 for r in range(3)], 3),
    ),
    "all of": (
        ad.AllOf([ad.TopK(LABELS, 2), ad.Between(upper=1.5)]),
        lambda z, n: sum(z[j] >= z[LABELS[n]] for j in range(C) if j != LABELS[n]) < 2 and max(z) < 1.5,
    ),
    "any of": (
        ad.AnyOf([ad.Positive(ROWS, OFFSETS), ad.Label(LABELS, targets=[[1], [0], [0], [0], [3], [2]])]),
        lambda z, n: (
            all(dot(r, z, b) > 0 for r, b in zip(ROWS, OFFSETS, strict=True))
            or z[LABELS[n]] > z[[1, 0, 0, 0, 3, 2][n]]
        ),
    ),
    "no disjunct": (  # as VNN-LIB asks: a counterexample satisfies all rows of one of them
        ad.AllOf([ad.Positive(ROWS[:2], OFFSETS[:2], needed=1), ad.Positive(ROWS[1:], OFFSETS[1:], needed=1)]),
        lambda z, n: not any(
            all(dot(r, z, b) <= 0 for r, b in zip(ROWS[p], OFFSETS[p], strict=True)) for p in (slice(2), slice(1, 3))
        ),
    ),
    "nested": (
        ad.AnyOf([ad.AllOf([ad.Between(upper=0.5), ad.AnyOf([ad.TopK(LABELS, 2), ad.Between(lower=0.0)])]), ad.Positive(ROWS)]),
        lambda z, n: (
            (max(z) < 0.5 and (sum(z[j] >= z[LABELS[n]] for j in range(C) if j != LABELS[n]) < 2 or min(z) > 0))
            or all(dot(r, z, 0.0) > 0 for r in ROWS)
        ),
    ),
}  # fmt: skip
every_specification = pytest.mark.parametrize("name", SPECIFICATIONS)


def outputs(count: int) -> Tensor:
    """[count, N, C]: random ones, and many with ties and values on the border."""
    generator = torch.Generator().manual_seed(0)
    smooth = torch.randn(count // 2, N, C, generator=generator, dtype=torch.float64)
    coarse = torch.randint(-3, 4, (count - count // 2, N, C), generator=generator) / 4
    return torch.cat([smooth, coarse.double()])


@every_specification
def test_what_holds_is_what_is_said(name: str) -> None:
    specification, meaning = SPECIFICATIONS[name]
    question = specification.put(torch.zeros(N, 2), (C,))
    seen = set()
    for z in outputs(200):
        expected = [meaning(values, n) for n, values in enumerate(z.tolist())]
        assert question.holds(z).tolist() == expected
        rows = question.values(z)
        assert torch.equal(question.rule.holds(rows > 0), question.value(z) > 0)
        if name != "label":  # which is right at a tie, too, if it comes first
            assert (question.value(z) > 0).tolist() == expected
        seen.update(expected)
    assert seen == {True, False}


@every_specification
def test_some_examples_are_asked_the_same(name: str) -> None:
    question = SPECIFICATIONS[name][0].put(torch.zeros(N, 2), (C,))
    some = torch.tensor([4, 1, 1])
    part, z = question.at(some), outputs(1)[0]
    assert torch.equal(part.value(z[some]), question.value(z)[some])
    assert torch.equal(part.holds(z[some]), question.holds(z)[some])


@every_specification
def test_rows_are_what_is_evaluated(name: str) -> None:
    """An engine that bounds `rows` at a single point finds the same values, but for the offsets."""
    question, z = SPECIFICATIONS[name][0].put(torch.zeros(N, 2), (C,)), outputs(1)[0]
    rows = question.rows(torch.float64).rows
    expected = (rows * z).sum(2).T + (0.0 if question.offsets is None else question.offsets)
    found, rounding = question.at_output(z)
    assert bool(((found - expected).abs() <= rounding + 1e-300).all()) or torch.allclose(found, expected, atol=1e-15)


@every_specification
def test_the_error_of_a_row_is_that_of_the_worst_outputs(name: str) -> None:
    """Every output off by its error, upwards or downwards: no row moves farther than `at_error` says, and one moves as far."""
    question, z = SPECIFICATIONS[name][0].put(torch.zeros(N, 2), (C,)), outputs(1)[0]
    error = torch.rand(N, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = question.rows(torch.float64).rows
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=C)), dtype=torch.float64)
    apart = torch.stack([question.at_output(z + s * error)[0] - question.at_output(z)[0] for s in signs]).amax(0)
    stated = question.at_error(error)
    assert bool((apart <= stated + 1e-12).all())
    reached = (rows != 0).any(2).T.expand_as(stated)  # not the row of a label with itself, which does not move
    assert torch.allclose(apart[reached], stated[reached])


@every_specification
def test_more_rows_never_hurt(name: str) -> None:
    """The rule is monotone: that is why proofs of rows are proofs of the whole."""
    question = SPECIFICATIONS[name][0].put(torch.zeros(N, 2), (C,))
    count = question.rows(torch.float64).rows.shape[0]
    for flags in itertools.islice(itertools.product((False, True), repeat=count), 512):
        before = question.rule.holds(torch.tensor([flags]))
        for row in range(count):
            more = torch.tensor([[*flags[:row], True, *flags[row + 1 :]]])
            assert bool(question.rule.holds(more)) or not bool(before)


@pytest.mark.parametrize("needed", [1, 2, 3, 5])
def test_a_rule_passes_nan_on(needed: int) -> None:
    values = torch.tensor([[1.0, 2.0, NAN, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    found = AtLeast(needed, tuple(range(5))).value(values)
    assert found.isnan().tolist() == [True, False]
    assert found[1] == 6 - needed


def test_gradients_pass_a_rule_to_the_row_that_decides() -> None:
    values = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
    for needed, row in ((1, 0), (2, 2), (3, 1)):
        (gradient,) = torch.autograd.grad(AtLeast(needed, (0, 1, 2)).value(values).sum(), values)
        assert gradient.tolist() == [[float(row == r) for r in range(3)]]


@pytest.mark.parametrize("outer", [1, 2, 4])
@pytest.mark.parametrize("inner", [1, 2, 3])
def test_parts_that_are_alike_are_asked_at_once(outer: int, inner: int) -> None:
    """The rows of the parts lie anywhere; one part with a rule of its own inside is asked part by part, and must say the same."""
    rows = torch.randperm(12, generator=torch.Generator().manual_seed(5)).reshape(4, 3).tolist()
    alike = AtLeast(outer, tuple(AtLeast(inner, tuple(part)) for part in rows))
    mixed = AtLeast(outer, (*alike.parts[:3], AtLeast(1, (alike.parts[3],))))
    assert alike._alike is not None
    assert mixed._alike is None
    values = torch.randn(50, 12, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    assert torch.equal(alike.holds(values > 0), mixed.holds(values > 0))
    assert torch.equal(alike.value(values), mixed.value(values))
    for rank in range(4):
        assert torch.equal(alike.failing(values, rank), mixed.failing(values, rank))
    by_hand = ((values[:, rows] > 0).sum(2) >= inner).sum(1) >= outer
    assert torch.equal(alike.holds(values > 0), by_hand)


@every_specification
def test_the_ways_to_break_a_rule_break_it(name: str) -> None:
    """Where none of the chosen rows holds and all others do, the rule is broken; and no row less would do."""
    question = SPECIFICATIONS[name][0].put(torch.zeros(N, 2), (C,))
    for z in outputs(4):
        values = question.values(z)
        for rank in range(4):
            failing = question.rule.failing(values, rank)
            assert not (failing & values.isinf()).any()
            assert not question.rule.holds(~failing).any()
            for row in range(values.shape[1]):
                fewer = failing.clone()
                fewer[:, row] = False
                assert question.rule.holds(~fewer)[failing[:, row]].all()


X = torch.zeros(2, 3)
ZERO_ONE = torch.tensor([0, 1])
BAD: dict[str, tuple[Callable[[], ad.Specification], str]] = {
    "labels of another number": (lambda: ad.Label(torch.tensor([0])), r"labels must have shape \[2\]"),
    "label beyond": (lambda: ad.Label(torch.tensor([0, 4])), "labels must lie in 0 ... 3"),
    "labels as floats": (lambda: ad.Label(torch.tensor([0.0, 1.0])), "labels must be integer class numbers"),
    "labels as text": (lambda: ad.Label("cat"), "labels must be a tensor"),
    "target beyond": (lambda: ad.Label(ZERO_ONE, targets=[[4]]), "targets must lie in 0 ... 3"),
    "targets that may mean two things": (lambda: ad.Label(ZERO_ONE, targets=[2, 3]), r"reshape them to \[2, 1\] or to \[1, 2\]"),
    "targets of three examples": (lambda: ad.Label(ZERO_ONE, targets=torch.ones(3, 1).long()), r"targets must have shape \[T\]"),
    "no targets": (lambda: ad.Label(ZERO_ONE, targets=torch.ones(2, 0).long()), "T >= 1"),
    "only the label": (lambda: ad.Label(ZERO_ONE, targets=[1]), "example 1 has no target but its own label"),
    "k of zero": (lambda: ad.TopK(ZERO_ONE, 0), "k must be a whole number of classes, at least 1, got 0"),
    "k of all": (lambda: ad.TopK(ZERO_ONE, 4), "k must be less than 4"),
    "half of a class": (lambda: ad.TopK(ZERO_ONE, 1.5), "k must be a whole number"),
    "no limit": (lambda: ad.Between(), "give a lower or an upper limit"),
    "no finite limit": (lambda: ad.Between(lower=-INF), "every example has no finite limit"),
    "lower limit that nothing meets": (lambda: ad.Between(lower=[INF, 0.0, 0.0, 0.0]), "lower holds \\+inf, a limit that nothing"),
    "upper limit that nothing meets": (lambda: ad.Between(upper=[-INF, 0.0, 0.0, 0.0]), "upper holds -inf, a limit that nothing"),
    "nan limit": (lambda: ad.Between(NAN), "lower holds NaN"),
    "limits the wrong way": (lambda: ad.Between(1.0, 0.0), "lower must be less than upper"),
    "limits that are equal": (lambda: ad.Between(1.0, 1.0), "lower must be less than upper"),
    "limits of three outputs": (lambda: ad.Between([0.0, 0.0, 0.0]), r"one per output \[4\]"),
    "limits of nothing": (lambda: ad.Between(torch.ones(0)), r"one per output \[4\]"),
    "output beyond": (lambda: ad.Between(0.0, output=4), r"output must lie in 0 ... 3"),
    "rows of three outputs": (lambda: ad.Positive([[1.0, 2.0, 3.0]]), r"rows must have shape \[R, 4\]"),
    "rows of three examples": (lambda: ad.Positive(torch.ones(3, 1, 4)), r"rows must have shape \[R, 4\], or \[2, R, 4\]"),
    "one bare row": (lambda: ad.Positive([1.0, 2.0, 3.0, 4.0]), "rows must have 2 or 3 dimensions"),
    "no row": (lambda: ad.Positive(torch.ones(0, 4)), "needs at least one row"),
    "ragged rows": (lambda: ad.Positive([[1.0], [1.0, 2.0]]), "lists of numbers of one length"),
    "nan rows": (lambda: ad.Positive([[NAN, 0.0, 0.0, 0.0]]), "rows holds NaN or infinite values"),
    "complex rows": (lambda: ad.Positive(torch.ones(1, 4) * 1j), "rows must be real numbers"),
    "offsets of another number": (lambda: ad.Positive(ROWS, [0.0, 0.0]), r"offsets must be a number or one per row \[3\]"),
    "offsets of three examples": (lambda: ad.Positive(ROWS, torch.ones(3, 3)), r"or \[2, R\] for 2 examples"),
    "infinite offset": (lambda: ad.Positive(ROWS, INF), "offsets holds NaN or infinite values"),
    "more than all": (lambda: ad.Positive(ROWS, needed=4), "needed must lie in 1 ... 3"),
    "none needed": (lambda: ad.Positive(ROWS, needed=0), "needed must lie in 1 ... 3"),
    "empty disjunction": (lambda: ad.AnyOf([]), "AnyOf: needs at least one specification"),
    "no list": (lambda: ad.AllOf(ad.Between(0.0)), "AllOf: needs a list of specifications, got Between"),
    "a tensor among parts": (lambda: ad.AllOf([ad.Between(0.0), ZERO_ONE]), "AllOf: part 1 must be a specification"),
    "a class among parts": (lambda: ad.AnyOf([ad.TopK]), "AnyOf: part 0 must be a specification such as .*, got the class TopK"),
    "sparse rows": (lambda: ad.Positive(torch.ones(1, 4).to_sparse()), "rows is a tensor of the layout 'sparse_coo'"),
    "too deep": (
        lambda: functools.reduce(lambda inside, _: ad.AllOf([inside]), range(3000), ad.Between(0.0)),
        "AllOf: specifications are nested deeper than 64 levels",
    ),
    "a bad part": (lambda: ad.AnyOf([ad.Between(0.0), ad.TopK(ZERO_ONE, 9)]), "k must be less than 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_specifications_are_refused_in_one_sentence(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(ad.ArgumentError, match=message) as caught:
        make().put(X, (4,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("specification", [ad.Label(ZERO_ONE), ad.TopK(ZERO_ONE, 1)], ids=repr)
def test_labels_need_scores_of_classes(specification: ad.Specification) -> None:
    for shape in ((1,), (), (2, 3)):
        with pytest.raises(ad.ArgumentError, match="the model's output must be"):
            specification.put(X, shape)


def test_rows_of_an_output_with_several_dimensions() -> None:
    z = torch.arange(12.0).reshape(2, 2, 3)
    question = ad.Positive(torch.eye(6)[5:], -6.0).put(X, (2, 3))
    assert question.value(z).tolist() == [-1.0, 5.0]
    assert ad.Between(lower=4.5).put(X, ()).value(torch.tensor([4.0, 5.0])).tolist() == [-0.5, 0.5]


def test_rows_are_kept_as_they_were_given() -> None:
    """0.1 of Python is no number of float32: rounded, the row would ask something else."""
    question = ad.Positive([[0.1, 1.0, 0.0, 0.0]]).put(X, (4,))
    assert question.exact_in(torch.float64)
    assert not question.exact_in(torch.float32)
    assert ad.Positive([[0.5, 1.0, 0.0, 0.0]]).put(X, (4,)).exact_in(torch.float32)


@every_specification
def test_names_are_short(name: str) -> None:
    assert len(repr(SPECIFICATIONS[name][0])) < 120
