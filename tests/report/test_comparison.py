"""Several runs on one page: every number is that of its run, nothing is mixed, and no run's own page is replaced."""

import json
import re
from pathlib import Path

import pytest
from pages import KEYS, change, known, page_of
from synthetic_run import AS_RUN, EXAMPLES, config, epoch_line, write_run

from autodual._errors import ArgumentError
from autodual.report import write_report
from autodual.runs.records import plain

pytest.importorskip("jinja2", reason="the report needs Jinja2")


def test_the_comparison_has_a_column_for_the_network_as_it_runs(runs: list[Path]) -> None:
    for run in runs:
        (run / "cascade.json").unlink()
    change(runs[0], "evaluation.json", **AS_RUN)
    html = page_of(*runs)[1].partition('id="run-1')[0].replace("\N{NO-BREAK SPACE}", " ")
    assert '<th scope="col">As run</th>' in html
    assert "<td>60.00 %</td><td>59.95 %</td><td>80.05 %</td>" in html
    assert "%</td><td>–</td><td>" in html  # the older record


def test_several_runs_side_by_side(runs: list[Path]) -> None:
    page, html = page_of(*runs)
    assert next(iter(page.sections)) == "comparison"
    assert known(page) == [*KEYS, *KEYS]
    table = page.sections["comparison"]
    for run in runs:
        evaluation = json.loads((run / "evaluation.json").read_text())
        assert run.name in table
        for key in ("error", "pgd_error", "robust_error"):
            assert f"{100 - 100 * evaluation[key]:.2f}\N{NO-BREAK SPACE}%" in table
    assert "with care" not in table
    assert re.findall("<mark>(.*)</mark>", html) == ["seed: 0", "seed: 1"]
    change(runs[1], "evaluation.json", perturbation="L2Ball(eps=1.0)")
    assert "different perturbations" in page_of(*runs)[0].sections["comparison"]


def test_a_cascade_and_its_first_stage_have_a_row_each(runs: list[Path]) -> None:
    (runs[0] / "cascade.json").unlink()
    page, html = page_of(*runs)
    single, first = (json.loads((run / "evaluation.json").read_text()) for run in runs)
    cascade = json.loads((runs[1] / "cascade.json").read_text())
    network, whole = ("robust_error", "pgd_error", "error"), ("sound_certified_error", "attacked_error", "error")
    for name, rates, as_run, claimed in (
        ("A · digits-0", [single[key] for key in network], "–", "–"),
        ("B · colour-1, the paper&#39;s cascade", [cascade[key] for key in whole], "68.89 %", "83.89 %"),
        ("B · colour-1, first stage alone", [first[key] for key in network], "–", "–"),
    ):
        robust, *others = (f"{100 - 100 * rate:.2f} %" for rate in rates)
        shown = [f"<td>{cell}</td>" for cell in (robust, as_run, *others, claimed, str(EXAMPLES))]
        cells = "".join(shown).replace(" %", "\N{NO-BREAK SPACE}%")
        assert f'<tr><td class="word"><span>{name}</span></td>{cells}</tr>' in html
    comparison = page.sections["comparison"]
    assert comparison.count("Of each cascade (B): its first stage alone.") == 2
    (runs[1] / "cascade.json").unlink()
    comparison = page_of(*runs)[0].sections["comparison"]
    assert "cascade" not in comparison.lower()


def test_the_comparison_has_a_row_for_those_that_were_attacked(runs: list[Path]) -> None:
    beside = {
        "error": 0.07,
        "stage_certified_error": 0.18,
        "sound_certified_error": 0.31,
        "sound_certified_error_as_run": 0.32,
    }
    change(runs[0], "cascade.json", attacked_examples=100, attacked_error=0.2, on_attacked=beside)
    html = page_of(*runs)[1]
    for name, cells in (
        ("", ("69.17 %", "–", "68.89 %", "–", "93.61 %", "83.89 %", "360")),
        (", first 100 examples", ("69.00 %", "58.9–77.9 %", "68.00 %", "80.00 %", "93.00 %", "82.00 %", "100")),
    ):
        row = "".join(f"<td>{cell}</td>".replace(" %", "\N{NO-BREAK SPACE}%") for cell in cells)
        assert f"<span>A · digits-0, the paper&#39;s cascade{name}</span></td>{row}</tr>" in html


def test_different_norms_have_no_axis_in_common(runs: list[Path]) -> None:
    html = page_of(*runs)[1].partition('id="run-1')[0]
    assert html.count("<h3>Certified accuracy</h3>") == html.count("<h3>Accuracy under attack</h3>") == 1
    change(runs[1], "evaluation.json", norm="l2")
    html = page_of(*runs)[1].partition('id="run-1')[0]
    for title in ("Certified accuracy", "Accuracy under attack"):
        for norm, tone, other in (("linf", "run-1", "run-2"), ("l2", "run-2", "run-1")):
            figure = html.partition(f"<h3>{title}, epsilon ({norm})</h3>")[2].partition("</figure>")[0]
            assert f"epsilon ({norm})" in figure
            assert f"s-{tone}" in figure
            assert other not in figure


def test_short_curves_in_the_comparison_show_their_points(runs: list[Path]) -> None:
    for run, epochs in zip(runs, (1, 8), strict=True):
        lines = [plain(epoch_line(0, epoch)) for epoch in range(epochs)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = page_of(*runs)[1].partition("<h3>Certified accuracy by epoch</h3>")[2].partition("</figure>")[0]
    assert html.count("dot f-run-1") == 1
    assert html.count("dot f-run-2") == 8


def test_beside_others_a_run_that_measured_nothing_has_no_bar(tmp_path: Path) -> None:
    good, bare = write_run(tmp_path / "good", stages=1), tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text(config())
    page, html = page_of(good, bare)
    assert "Run B has measured nothing." in page.sections["comparison"]
    assert html.count('class="name strong">A') == 2
    assert html.count('class="name strong">B') == 0


def test_accuracy_stands_against_certified_accuracy(tmp_path: Path) -> None:
    """One point for each run, at the place of its two rates; runs that share a perturbation have a chart of their own."""
    rates = [(0.02, 0.30), (0.04, 0.20), (0.50, 0.90)]
    runs = [write_run(tmp_path / name, seed) for seed, name in enumerate(("a", "b", "c"))]
    for run, (error, robust) in zip(runs, rates, strict=True):
        (run / "cascade.json").unlink()
        change(run, "evaluation.json", error=error, robust_error=robust)
    change(runs[2], "evaluation.json", perturbation="L2Ball(eps=0.5)")
    html = page_of(*runs)[1].partition('id="run-1"')[0].replace("\N{NO-BREAK SPACE}", " ")
    everyone, apart = html.split("Accuracy and certified accuracy, all runs")[1].split(
        "<h3>Those with LinfBall(eps=0.1, clip=(0.0, 1.0))</h3>"
    )
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>(\w)', everyone)
    spots = {letter: (float(x), float(y)) for x, y, letter in found}
    assert set(spots) == {"A", "B", "C"}
    assert spots["C"][0] < spots["B"][0] < spots["A"][0]  # accuracy: 50, 96, 98 %
    assert spots["C"][1] > spots["A"][1] > spots["B"][1]  # certified: 10, 70, 80 %, and y grows downwards
    assert "A · a: accuracy 98.00 %, certified accuracy 70.00 %" in everyone
    chart = apart.partition("</svg>")[0]
    assert len(re.findall("<circle", chart)) == 2
    assert "C · c" not in chart


def test_no_page_of_a_single_run_is_replaced(runs: list[Path], tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", 2)
    for run in (*runs, other):
        own = write_report([run], run / "report.html").read_bytes()
        with pytest.raises(ArgumentError, match="give a comparison another name"):
            write_report(runs, run / "report.html")
        assert (run / "report.html").read_bytes() == own
    assert write_report(runs, tmp_path / "report.html").exists()  # a folder that holds no run


def test_runs_compare_by_what_all_of_them_have(runs: list[Path]) -> None:
    """Exact evaluations where every run has some; else what training saw, so that no curve mixes the two."""
    words = "On the examples that were looked at exactly."
    assert words in page_of(*runs)[0].sections["comparison"]
    path = runs[1] / "metrics.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"validation"' not in line))
    assert words not in page_of(*runs)[0].sections["comparison"]
