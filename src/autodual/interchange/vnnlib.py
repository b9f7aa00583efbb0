"""VNN-LIB files: which inputs are allowed, and which outputs a counterexample has.

A file asserts what a counterexample satisfies. Read here is the part of the language that the competition's files are written in:
`declare-const`, and `assert` of `and`, `or`, `<=`, `>=` and `=` over linear terms in the inputs X_i or in the outputs Y_i. Decimals
are read exactly and rounded to the safe side, once for proofs and once for counterexamples.
"""

from __future__ import annotations

import gzip
import io
import itertools
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import NoReturn, TypeAlias

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._files import read_content

LARGEST_TEXT = 128 * 2**20
"""Bytes, after unpacking; a property of an image of 224 x 224 pixels has about 20 million."""
DEEPEST = 64
"""Levels of parentheses."""
MOST_DISJUNCTS = 20_000
"""The most disjuncts of the whole condition in disjunctive normal form."""
MOST_BOUNDS = 2_000_000
"""On the inputs of all boxes together."""
LONGEST_NUMBER = 400
"""Letters."""


@dataclass(frozen=True, eq=False)
class Conjunction:
    """Linear conditions on the outputs, all of which a counterexample satisfies: rows @ y <= limits. Without rows, all do."""

    rows: Tensor
    """[K, outputs], float64, exact."""
    limits: Tensor
    """[K], rounded up: no counterexample is left out. A proof must exceed these."""
    inner_limits: Tensor
    """[K], rounded down: a counterexample must stay below these."""


@dataclass(frozen=True, eq=False)
class Case:
    """A box of inputs [inputs], and what an output must satisfy to be a counterexample: all rows of one of the disjuncts."""

    lower: Tensor
    upper: Tensor
    """Float64, rounded outwards: no input is left out. A proof must hold for this box."""
    inner_lower: Tensor
    inner_upper: Tensor
    """Rounded inwards: every point is allowed, but for the inputs of `exact`, where both are the number of float64 nearest to it."""
    exact: dict[int, Fraction]
    """Inputs that float64 has no allowed number for, as for X_0 = 0.1, with a number that is allowed."""
    disjuncts: tuple[Conjunction, ...]


@dataclass(frozen=True, eq=False)
class VnnLibProperty:
    """What a VNN-LIB file asks for. A counterexample is an input in the box of some case whose output satisfies all rows of one of its
    disjuncts; the property holds if there is none. Inputs and outputs are numbered in the order of the flattened tensors."""

    inputs: int
    outputs: int
    cases: tuple[Case, ...]


def load_vnnlib(path: Path | str) -> VnnLibProperty:
    """Load a property in the VNN-LIB format, also one that is packed by gzip.

    Args:
        path: The file. It may hold `declare-const`, and `assert` of `and`, `or`, `<=`, `>=` and `=` over sums and multiples of
            the inputs X_0, X_1 ... or of the outputs Y_0, Y_1 ...; every input needs a lower and an upper bound.

    Returns:
        A frozen record of its cases: a box of inputs each, and the disjuncts that a counterexample's output satisfies one of.

    Raises:
        ArgumentError: The file cannot be read, is no VNN-LIB, or says something that is not supported; the message names the line.

    Examples:
        >>> import tempfile, pathlib
        >>> import autodual as ad
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "property.vnnlib"
        >>> _ = file.write_text("(declare-const X_0 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)"
        ...                     "(assert (>= X_0 -0.5)) (assert (<= X_0 0.5)) (assert (<= Y_0 Y_1))")
        >>> found = ad.load_vnnlib(file)
        >>> found.cases[0].lower.tolist(), found.cases[0].disjuncts[0].rows.tolist()
        ([-0.5], [[1.0, -1.0]])
    """
    place = Path(path)
    return _Reading(place, _text(place)).property()


def _text(place: Path) -> str:
    content = read_content(place, LARGEST_TEXT)
    if content[:2] == b"\x1f\x8b":
        content = _unpacked(place, content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ArgumentError(
            f"{place}: is not a VNN-LIB file: it is no text; the network comes first, the property second"
        ) from None
    if not text.strip():
        raise ArgumentError(f"{place}: is empty, not a VNN-LIB file")
    return text


def _unpacked(place: Path, content: bytes) -> bytes:
    """What gzip has packed, and no more than is allowed: a small file may stand for gigabytes."""
    try:
        text = gzip.GzipFile(fileobj=io.BytesIO(content)).read(LARGEST_TEXT + 1)
    except EOFError:
        raise ArgumentError(f"{place}: was cut short: its packed content does not end") from None
    except (OSError, zlib.error) as error:
        raise ArgumentError(f"{place}: cannot be unpacked: {error}") from None
    if len(text) > LARGEST_TEXT:
        raise ArgumentError(
            f"{place}: unpacks to more than {LARGEST_TEXT:,} bytes, so it is not what is looked for here"
        )
    return text


# Terms and conditions.

Form: TypeAlias = "str | list[Form]"
"""A word, or what stands between parentheses."""


@dataclass(frozen=True)
class Term:
    """constant + sum of coefficient * variable; as a condition: the term is <= 0."""

    coefficients: dict[str, Fraction]
    constant: Fraction

    def plus(self, other: Term, factor: Fraction) -> Term:
        total = dict(self.coefficients)
        for name, value in other.coefficients.items():
            total[name] = total.get(name, Fraction(0)) + factor * value
        return Term({n: v for n, v in total.items() if v != 0}, self.constant + factor * other.constant)

    def times(self, factor: Fraction) -> Term:
        return Term({n: factor * v for n, v in self.coefficients.items() if factor != 0}, factor * self.constant)


Conditions: TypeAlias = list[Term]
"""All of them hold."""

TOKEN = re.compile(r"[()]|;[^\n]*|[^\s();]+")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?")
VARIABLE = re.compile(r"[XY]_(0|[1-9]\d{0,8})")
IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")


class _Reading:
    """The work on one file: what was declared and asserted so far."""

    def __init__(self, place: Path, text: str) -> None:
        self._place, self._text, self._at = place, text, 0
        self._declared: set[str] = set()
        self._always: Conditions = []
        self._choices: list[list[Conditions]] = []
        """One alternative of each list holds."""

    def _refuse(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise ArgumentError(f"{self._place}, line {line}: {reason}")

    def property(self) -> VnnLibProperty:
        for form in self._forms():
            self._statement(form)
        inputs, outputs = self._count("X"), self._count("Y")
        self._limit_alternatives(math.prod(map(len, self._choices)))
        bounds = _Bounds(inputs)
        shared = self._outputs_of(self._always, bounds)
        boxes: dict[tuple[object, ...], tuple[_Bounds, list[Conditions]]] = {}
        for chosen in itertools.product(*self._choices):
            terms = [term for part in chosen for term in part]
            own = bounds.copy() if any(name[0] == "X" for term in terms for name in term.coefficients) else bounds
            rows = shared + self._outputs_of(terms, own)
            missing = own.missing
            if missing is not None:
                self._refuse(
                    f"X_{missing} has no {'lower' if own.lower[missing] is None else 'upper'} bound; every input needs both"
                )
            if own.empty or any(not t.coefficients and t.constant > 0 for t in rows):
                continue  # nothing satisfies this alternative
            boxes.setdefault(own.key, (own, []))[1].append([t for t in rows if t.coefficients])
            if len(boxes) * inputs > MOST_BOUNDS:
                self._refuse(f"it has more than {MOST_BOUNDS:,} bounds on inputs in its alternatives together")
        try:
            return VnnLibProperty(inputs, outputs, tuple(self._case(b, rows, outputs) for b, rows in boxes.values()))
        except OverflowError:
            self._refuse("a number is too large for float64")

    def _forms(self) -> Iterator[list[Form]]:
        """The statements of the file, one after the other; no deeper than is allowed."""
        open_lists: list[list[Form]] = []
        for token in TOKEN.finditer(self._text):
            word, self._at = token[0], token.start()
            if word[0] == ";":
                continue
            if word == "(":
                if len(open_lists) == DEEPEST:
                    self._refuse(f"parentheses are nested deeper than {DEEPEST} levels")
                open_lists.append([])
            elif word == ")":
                if not open_lists:
                    self._refuse("a parenthesis is closed that was not opened")
                done = open_lists.pop()
                if open_lists:
                    open_lists[-1].append(done)
                else:
                    yield done
            elif not open_lists:
                self._refuse(f"{word[:40]!r} stands outside of parentheses, so this is no VNN-LIB file")
            else:
                open_lists[-1].append(word)
        if open_lists:
            self._at = len(self._text)
            self._refuse("the file ends inside of parentheses: it was cut short")

    def _statement(self, form: list[Form]) -> None:
        match form:
            case ["declare-const", str(name), "Real"] | ["declare-fun", str(name), [], "Real"]:
                if not VARIABLE.fullmatch(name):
                    self._refuse(f"declares {name[:40]!r}; inputs are X_0, X_1 ..., outputs Y_0, Y_1 ...")
                self._declared.add(name)
            case ["assert", condition]:
                found = self._condition(condition)
                if len(found) == 1:
                    self._always += found[0]
                else:
                    self._choices.append(found)
            case [str(word), *_] if word in IGNORED:
                pass
            case [str(word), *_]:
                self._refuse(f"{word[:40]!r} is no statement that is known here: declare-const, and assert")
            case _:
                self._refuse("a statement must begin with a word")

    def _condition(self, form: Form) -> list[Conditions]:
        """In disjunctive normal form: one of the alternatives holds."""
        match form:
            case ["and", *parts]:
                each = [self._condition(part) for part in parts]
                self._limit_alternatives(math.prod(map(len, each)))
                return [[term for part in chosen for term in part] for chosen in itertools.product(*each)]
            case ["or", *parts]:
                found = [alternative for part in parts for alternative in self._condition(part)]
                self._limit_alternatives(len(found))
                return found
            case ["<=", left, right]:
                return [[self._term(left).plus(self._term(right), Fraction(-1))]]
            case [">=", left, right]:
                return [[self._term(right).plus(self._term(left), Fraction(-1))]]
            case ["=", left, right]:
                difference = self._term(left).plus(self._term(right), Fraction(-1))
                return [[difference, difference.times(Fraction(-1))]]
            case [("<=" | ">=" | "=") as word, *terms]:
                self._refuse(
                    f"{word!r} compares two terms here, but is given {len(terms)}; write one condition for each pair"
                )
            case [("<" | ">") as word, *_]:
                self._refuse(f"{word!r} is strict, which is not supported; write {word}=")
            case [str(word), *_]:
                self._refuse(f"{word[:40]!r} is no condition that is known here: and, or, <=, >=, =")
            case _:
                self._refuse("a condition such as (<= Y_0 Y_1) is missing")

    def _limit_alternatives(self, count: int) -> None:
        if count > MOST_DISJUNCTS:
            self._refuse(f"its condition has more than {MOST_DISJUNCTS:,} alternatives")

    def _term(self, form: Form) -> Term:
        match form:
            case str(word):
                return self._word(word)
            case ["-", only]:
                return self._term(only).times(Fraction(-1))
            case [("+" | "-") as sign, first, *rest]:
                total = self._term(first)
                for part in rest:
                    total = total.plus(self._term(part), Fraction(f"{sign}1"))
                return total
            case ["*", first, *rest]:
                product = self._term(first)
                for factor in map(self._term, rest):
                    if factor.coefficients and product.coefficients:
                        self._refuse("a product of two variables is not linear, and not supported")
                    product = product.times(factor.constant) if product.coefficients else factor.times(product.constant)
                return product
            case [str(word), *_]:
                self._refuse(f"{word[:40]!r} is no operation that is known here: +, -, *")
            case _:
                self._refuse("a number, a variable or a term such as (+ Y_0 Y_1) is missing")

    def _word(self, word: str) -> Term:
        if word in self._declared:
            return Term({word: Fraction(1)}, Fraction(0))
        if len(word) <= LONGEST_NUMBER and NUMBER.fullmatch(word):
            return Term({}, Fraction(word))
        self._refuse(f"{word[:40]!r} is neither a number nor a variable that was declared before")

    def _count(self, kind: str) -> int:
        """How many variables of a kind there are; they must be numbered without gaps."""
        count = sum(name[0] == kind for name in self._declared)
        if count == 0:
            self._refuse(f"declares no {'input X_0' if kind == 'X' else 'output Y_0'}, so this is no VNN-LIB property")
        gap = next((i for i in range(count) if f"{kind}_{i}" not in self._declared), None)
        if gap is not None:
            self._refuse(f"declares {count} variables {kind}_i, but not {kind}_{gap}")
        return count

    def _outputs_of(self, terms: Conditions, bounds: _Bounds) -> Conditions:
        """The conditions on outputs; those on inputs are noted as bounds."""
        found: Conditions = []
        for term in terms:
            names = [name for name in term.coefficients if name[0] == "X"]
            if not names:
                found.append(term)
            elif len(term.coefficients) > 1:
                what = "several inputs" if len(names) == len(term.coefficients) else "inputs and outputs"
                self._refuse(
                    f"a condition on {what} at once ({', '.join(sorted(term.coefficients)[:4])}) is not supported"
                )
            else:
                bounds.note(int(names[0][2:]), term.coefficients[names[0]], term.constant)
        return found

    def _case(self, bounds: _Bounds, disjuncts: list[Conditions], outputs: int) -> Case:
        ends = [(_exact(low), _exact(high)) for low, high in zip(bounds.lower, bounds.upper, strict=True)]
        outer = [(_below(low), _above(high)) for low, high in ends]
        inner = [(_above(low), _below(high)) for low, high in ends]
        exact = {i: ends[i][0] for i, (first, last) in enumerate(inner) if first > last}
        inner = [(float(exact[i]), float(exact[i])) if i in exact else pair for i, pair in enumerate(inner)]
        columns = (*zip(*outer, strict=True), *zip(*inner, strict=True))
        lower, upper, inner_lower, inner_upper = (torch.tensor(c, dtype=torch.float64) for c in columns)
        found = tuple(self._conjunction(terms, outputs) for terms in disjuncts)
        return Case(lower, upper, inner_lower, inner_upper, exact, found)

    def _conjunction(self, terms: Conditions, outputs: int) -> Conjunction:
        rows = torch.zeros(len(terms), outputs, dtype=torch.float64)
        limits: list[Fraction] = []
        for row, term in zip(rows, terms, strict=True):
            scale = self._scale(term)
            for name, value in term.coefficients.items():
                row[int(name[2:])] = float(scale * value)
            limits.append(-scale * term.constant)
        above, below = (torch.tensor([f(v) for v in limits], dtype=torch.float64) for f in (_above, _below))
        return Conjunction(rows, above, below)

    def _scale(self, term: Term) -> Fraction:
        """A positive factor that makes all coefficients numbers of float64: a condition stays what it is."""
        for scale in (Fraction(1), *(Fraction(10**power) for power in range(1, 16))):
            if all(Fraction(float(scale * v)) == scale * v for v in term.coefficients.values()):
                return scale
        self._refuse("a coefficient has more digits than float64 holds; round it")


class _Bounds:
    """The tightest bounds on every input so far; None where there is none."""

    def __init__(self, count: int) -> None:
        self.lower: list[Fraction | None] = [None] * count
        self.upper: list[Fraction | None] = [None] * count

    def copy(self) -> _Bounds:
        twin = _Bounds(0)
        twin.lower, twin.upper = list(self.lower), list(self.upper)
        return twin

    def note(self, index: int, coefficient: Fraction, constant: Fraction) -> None:
        """coefficient * x + constant <= 0."""
        end = -constant / coefficient
        if coefficient > 0:
            before = self.upper[index]
            self.upper[index] = end if before is None else min(before, end)
        else:
            before = self.lower[index]
            self.lower[index] = end if before is None else max(before, end)

    # Asked for once all bounds are noted.

    @cached_property
    def missing(self) -> int | None:
        """The first input without a lower or an upper bound; None if all have both."""
        return next((i for i, ends in enumerate(zip(self.lower, self.upper, strict=True)) if None in ends), None)

    @cached_property
    def empty(self) -> bool:
        return any(_exact(low) > _exact(high) for low, high in zip(self.lower, self.upper, strict=True))

    @cached_property
    def key(self) -> tuple[object, ...]:
        return tuple(self.lower), tuple(self.upper)


def _exact(end: Fraction | None) -> Fraction:
    assert end is not None
    return end


def _below(value: Fraction) -> float:
    """The largest number of float64 that is not larger."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


def _above(value: Fraction) -> float:
    return -_below(-value)
