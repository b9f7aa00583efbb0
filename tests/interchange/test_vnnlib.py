"""VNN-LIB files mean what their formulas mean; decimals are rounded to the safe side; hostile files are refused in one line."""

from __future__ import annotations

import gzip
import random
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import autodual as ad

HEAD = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
BOX = "(assert (>= X_0 -0.5)) (assert (<= X_0 0.5)) (assert (>= X_1 0)) (assert (<= X_1 1e-1))\n"


def _load(text: str, folder: Path) -> ad.VnnLibProperty:
    path = folder / "property.vnnlib"
    path.write_text(text)
    return ad.load_vnnlib(path)


def test_a_box_and_a_disjunction(tmp_path: Path) -> None:
    found = _load(
        HEAD + BOX + "(assert (or (and (>= Y_0 Y_1)) (and (<= Y_0 2.5) (>= (+ Y_1 (* -2 Y_0)) 3))))", tmp_path
    )
    assert (found.inputs, found.outputs, len(found.cases)) == (2, 2, 1)
    case = found.cases[0]
    assert case.lower.tolist() == [-0.5, 0.0]
    assert case.upper[0].item() == 0.5
    first, second = case.disjuncts
    assert first.rows.tolist() == [[-1.0, 1.0]]
    assert first.limits.tolist() == [0.0]
    assert second.rows.tolist() == [[1.0, 0.0], [2.0, -1.0]]
    assert second.limits.tolist() == [2.5, -3.0]


def test_packed_by_gzip_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "property.vnnlib"
    path.write_bytes(gzip.compress((HEAD + BOX + "(assert (<= Y_0 Y_1))").encode()))
    assert ad.load_vnnlib(str(path)).cases[0].disjuncts[0].rows.tolist() == [[1.0, -1.0]]


def test_several_boxes_are_several_cases(tmp_path: Path) -> None:
    first, second = "(>= X_0 0) (<= X_0 1)", "(>= X_0 2) (<= X_0 3)"
    boxes = f"(assert (or (and {first} (<= Y_0 1)) (and {second} (<= Y_0 2)) (and {first} (>= Y_1 4))))"
    found = _load(HEAD + "(assert (>= X_1 0)) (assert (<= X_1 1))" + boxes, tmp_path)
    assert [case.lower.tolist() for case in found.cases] == [[0.0, 0.0], [2.0, 0.0]]
    assert [len(case.disjuncts) for case in found.cases] == [2, 1]


def test_asserts_are_taken_together(tmp_path: Path) -> None:
    found = _load(
        HEAD + BOX + "(assert (or (<= Y_0 1) (<= Y_0 2))) (assert (or (<= Y_1 3) (<= Y_1 4))) (assert (= Y_0 Y_1))",
        tmp_path,
    )
    disjuncts = found.cases[0].disjuncts
    assert len(disjuncts) == 4
    assert all(d.rows.shape == (4, 2) for d in disjuncts)


def test_tighter_bounds_win_and_empty_boxes_are_left_out(tmp_path: Path) -> None:
    found = _load(HEAD + BOX + "(assert (<= X_0 0.25)) (assert (<= Y_0 Y_1))", tmp_path)
    assert found.cases[0].upper[0].item() == 0.25
    assert _load(HEAD + BOX + "(assert (<= X_0 -0.75)) (assert (<= Y_0 Y_1))", tmp_path).cases == ()
    assert _load(HEAD + BOX + "(assert (<= 2 1))", tmp_path).cases == ()


def test_a_condition_on_inputs_alone_has_no_rows(tmp_path: Path) -> None:
    assert _load(HEAD + BOX, tmp_path).cases[0].disjuncts[0].rows.shape == (0, 2)


@pytest.mark.parametrize(
    "text", ["0.1", "0.3", "1e-3", "0.48235294222831726", "123456789.123456789123456789", "-0.7", ".5", "3."]
)
def test_decimals_are_rounded_to_the_safe_side(text: str, tmp_path: Path) -> None:
    exact = Fraction(text)
    head = "(declare-const X_0 Real) (declare-const Y_0 Real)"
    found = _load(
        f"{head}(assert (>= X_0 {text})) (assert (<= X_0 (+ {text} 1))) (assert (<= Y_0 {text}))", tmp_path
    ).cases[0]
    outer, inner = Fraction(found.lower.item()), Fraction(found.inner_lower.item())
    assert outer <= exact <= inner
    assert abs(inner - outer) <= abs(exact) * Fraction(1, 2**51)
    assert Fraction(found.inner_upper.item()) <= exact + 1 <= Fraction(found.upper.item())
    limit, inside = (Fraction(t.item()) for t in (found.disjuncts[0].limits, found.disjuncts[0].inner_limits))
    assert inside <= exact <= limit


def test_a_point_that_float64_does_not_hold(tmp_path: Path) -> None:
    head = "(declare-const X_0 Real) (declare-const Y_0 Real)"
    found = _load(f"{head}(assert (>= X_0 0.1)) (assert (<= X_0 0.1)) (assert (<= Y_0 0))", tmp_path).cases[0]
    assert found.lower < found.upper
    assert found.inner_lower == found.inner_upper == torch.tensor(0.1, dtype=torch.float64)
    assert found.exact == {0: Fraction(1, 10)}


def test_coefficients_are_exact(tmp_path: Path) -> None:
    found = _load(HEAD + BOX + "(assert (<= (+ (* 0.1 Y_0) (* -0.25 Y_1)) 0.3))", tmp_path).cases[0].disjuncts[0]
    scaled = [Fraction(v) for v in found.rows[0].tolist()]
    assert scaled[0] / scaled[1] == Fraction(1, 10) / Fraction(-1, 4)
    assert Fraction(found.limits.item()) / scaled[0] >= 3
    with pytest.raises(ad.ArgumentError, match="more digits than float64"):
        _load(HEAD + BOX + "(assert (<= (* 0.12345678901234567 Y_0) 0.3))", tmp_path)


# Random formulas, against their own meaning.


def _formula(draw: random.Random, depth: int) -> tuple[str, list[object]]:
    if depth == 0 or draw.random() < 0.3:
        sign, limit = draw.choice(["<=", ">="]), Fraction(draw.randint(-4, 4), 2)
        kind = draw.choice("XYYY")
        if kind == "X":
            name = f"X_{draw.randint(0, 1)}"
            return f"({sign} {name} {float(limit)})", [sign, {name: Fraction(1)}, limit]
        a, b = draw.randint(-2, 2), draw.randint(-2, 2)
        text = f"({sign} (- (* {a} Y_0) (* Y_1 {b})) {float(limit)})"
        return text, [sign, {"Y_0": Fraction(a), "Y_1": Fraction(-b)}, limit]
    word = draw.choice(["and", "or"])
    parts = [_formula(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    return f"({word} {' '.join(text for text, _ in parts)})", [word, *(meaning for _, meaning in parts)]


def _holds(meaning: list[object], point: dict[str, Fraction]) -> bool:
    word, *parts = meaning
    if word in ("and", "or"):
        return (all if word == "and" else any)(_holds(part, point) for part in parts)  # type: ignore[arg-type]
    coefficients, limit = parts
    assert isinstance(coefficients, dict)
    value = sum((c * point[name] for name, c in coefficients.items()), Fraction(0))
    return value <= limit if word == "<=" else value >= limit


@pytest.mark.parametrize("seed", range(40))
def test_random_formulas_mean_what_they_say(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    asserted = [_formula(draw, 3) for _ in range(2)]
    box = "(assert (and (>= X_0 -2) (<= X_0 2) (>= X_1 -2) (<= X_1 2)))"
    found = _load(HEAD + box + "".join(f"(assert {text})" for text, _ in asserted), tmp_path)
    agreed = set()
    for _ in range(200):
        point = {name: Fraction(draw.randint(-8, 8), 4) for name in ("X_0", "X_1", "Y_0", "Y_1")}
        x, y = (torch.tensor([float(point[f"{k}_{i}"]) for i in (0, 1)], dtype=torch.float64) for k in "XY")
        expected = all(_holds(meaning, point) for _, meaning in asserted)
        told = any(
            bool((case.lower <= x).all() and (x <= case.upper).all())
            and any(bool((d.rows @ y <= d.limits).all()) for d in case.disjuncts)
            for case in found.cases
        )
        assert told == expected
        agreed.add(told)
    assert agreed


# Hostile and other files.

BAD = {
    "empty": ("", "is empty"),
    "blank": ("  \n\n", "is empty"),
    "a text": ("this is a text", "line 1: 'this' stands outside of parentheses"),
    "only a comment": ("; nothing\n", "declares no input X_0"),
    "unbalanced": (HEAD + BOX + "(assert (<= Y_0 Y_1)", "the file ends inside of parentheses: it was cut short"),
    "closed twice": (HEAD + "(assert (<= Y_0 Y_1)))", "a parenthesis is closed that was not opened"),
    "deep": ("(" * 1_000_000, "nested deeper than 64 levels"),
    "deep or": (HEAD + "(assert " + "(or " * 5000 + ")" * 5001, "nested deeper than 64 levels"),
    "no lower bound": (
        HEAD + "(assert (<= X_0 1)) (assert (>= X_0 0)) (assert (<= X_1 1)) (assert (<= Y_0 Y_1))", "X_1 has no lower bound"),
    "unknown variable": (HEAD + BOX + "(assert (<= Y_7 Y_1))", "'Y_7' is neither a number nor a variable"),
    "gap": ("(declare-const X_1 Real) (declare-const Y_0 Real)", "declares 1 variables X_i, but not X_0"),
    "other names": ("(declare-const Z_0 Real)", "declares 'Z_0'"),
    "no outputs": ("(declare-const X_0 Real)(assert (<= X_0 1))(assert (>= X_0 0))", "declares no output Y_0"),
    "strict": (HEAD + BOX + "(assert (< Y_0 Y_1))", "'<' is strict"),
    "three terms": (HEAD + BOX + "(assert (<= 0 Y_0 1))", "'<=' compares two terms here, but is given 3"),
    "not": (HEAD + BOX + "(assert (not (<= Y_0 Y_1)))", "'not' is no condition"),
    "product": (HEAD + BOX + "(assert (<= (* Y_0 Y_1) 1))", "a product of two variables"),
    "division": (HEAD + BOX + "(assert (<= (/ Y_0 2) 1))", "'/' is no operation"),
    "inputs together": (HEAD + BOX + "(assert (<= X_0 X_1))", "a condition on several inputs at once (X_0, X_1)"),
    "inputs and outputs": (HEAD + BOX + "(assert (<= Y_0 X_1))", "a condition on inputs and outputs at once"),
    "unknown statement": (HEAD + "(maximise Y_0)", "'maximise' is no statement"),
    "a statement without a word": (HEAD + "((<= Y_0 Y_1))", "must begin with a word"),
    "a bare assert": (HEAD + BOX + "(assert Y_0)", "a condition such as (<= Y_0 Y_1) is missing"),
    "number with an endless exponent": (HEAD + BOX + "(assert (<= Y_0 1e999999999))", "is neither a number"),
    "number of a million digits": (HEAD + BOX + f"(assert (<= Y_0 {'9' * 1_000_000}))", "is neither a number"),
    "number too large": (HEAD + BOX + "(assert (<= Y_0 1e400))", "too large for float64"),
    "not a number": (HEAD + BOX + "(assert (<= Y_0 nan))", "'nan' is neither a number"),
    "alternatives without end": (
        HEAD + BOX + "(assert (or (<= Y_0 1) (<= Y_1 1)))" * 40, "more than 20,000 alternatives"),
    "alternatives inside": (
        HEAD + BOX + "(assert (and" + "(or (<= Y_0 1) (<= Y_1 1))" * 40 + "))", "more than 20,000 alternatives"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_other_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, said = BAD[name]
    with pytest.raises(ad.ArgumentError) as caught:
        _load(text, tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_mark_of_byte_order_and_lines_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "property.vnnlib"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + BOX + "(assert (<= Y_0 Y_1))").replace("\n", "\r\n").encode())
    assert ad.load_vnnlib(path).cases[0].disjuncts[0].rows.tolist() == [[1.0, -1.0]]


def test_the_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(ad.ArgumentError, match=r"property\.vnnlib, line 6: "):
        _load(HEAD + BOX + "(assert (<= Y_0 Y_9))", tmp_path)


def test_gigabytes_behind_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autodual.interchange.vnnlib.LARGEST_TEXT", 1_000_000)
    packed, plain = tmp_path / "bomb.vnnlib.gz", tmp_path / "large.vnnlib"
    packed.write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(ad.ArgumentError, match="unpacks to more than 1,000,000 bytes"):
        ad.load_vnnlib(packed)
    plain.write_bytes(b" " * 1_000_001)
    with pytest.raises(ad.ArgumentError, match="is larger than 1,000,000 bytes"):
        ad.load_vnnlib(plain)


def test_all_members_of_a_packed_file_are_read(tmp_path: Path) -> None:
    """As gunzip does: what is left out would be a condition that nobody asked for."""
    path = tmp_path / "p.vnnlib.gz"
    first, second = (gzip.compress(text.encode()) for text in (HEAD + BOX, "(assert (<= Y_0 Y_1))"))
    for padding in (b"", bytes(512)):
        path.write_bytes(first + second + padding)
        assert ad.load_vnnlib(path).cases[0].disjuncts[0].rows.tolist() == [[1.0, -1.0]]
    path.write_bytes(first + second[:-9])
    with pytest.raises(ad.ArgumentError, match="was cut short"):
        ad.load_vnnlib(path)
    path.write_bytes(first + b"(assert (<= Y_0 Y_1))")
    with pytest.raises(ad.ArgumentError, match="cannot be unpacked"):
        ad.load_vnnlib(path)


def test_packed_and_cut_short_or_no_text_at_all(tmp_path: Path) -> None:
    path = tmp_path / "p.vnnlib.gz"
    path.write_bytes(gzip.compress((HEAD * 100).encode())[:-20])
    with pytest.raises(ad.ArgumentError, match="was cut short"):
        ad.load_vnnlib(path)
    path.write_bytes(b"\x1f\x8b" + bytes(100))
    with pytest.raises(ad.ArgumentError, match="cannot be unpacked"):
        ad.load_vnnlib(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ad.ArgumentError, match="it is no text; the network comes first"):
        ad.load_vnnlib(path)
    with pytest.raises(ad.ArgumentError, match="is a folder"):
        ad.load_vnnlib(tmp_path)
    with pytest.raises(ad.ArgumentError, match="No such file"):
        ad.load_vnnlib(tmp_path / "nothing")
