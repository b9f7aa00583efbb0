"""The page as a whole: every section, every number from the files, nothing from outside, nothing unescaped."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from pages import KEYS, change, known, page_of
from synthetic_run import AS_RUN, EXAMPLES, config, epoch_line, write_run

from autodual._errors import ArgumentError, AutodualError
from autodual.report import write_report
from autodual.report.page import _chapter, _template, comparison_of
from autodual.report.run import read_run
from autodual.runs.folder import Run
from autodual.runs.records import plain

pytest.importorskip("jinja2", reason="the report needs Jinja2")

FIRST_STAGE = {"result", "epsilon", "margins", "classes", "gallery"}
ATTACK = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def test_every_section_is_there_and_nothing_is_missing(run: Path) -> None:
    page, _ = page_of(run)
    assert known(page) == list(KEYS)
    assert "missing" not in page.text
    assert "not hold" not in page.text
    assert len(set(page.ids)) == len(page.ids)


def test_nothing_comes_from_outside_and_nothing_is_run(runs: list[Path]) -> None:
    page, html = page_of(*runs)
    assert "http://" not in html
    assert "https://" not in html
    assert not {"script", "link", "iframe", "object", "embed"} & set(page.tags)
    assert page.references
    for reference in page.references:
        assert reference.startswith(("#", "data:image/png;base64,"))
    assert {reference[1:] for reference in page.references if reference[0] == "#"} <= set(page.ids)
    assert re.findall(r"url\(([^)]*)\)", html) == ["#hatch"]
    assert "@import" not in html


def test_numbers_are_those_of_the_files(run: Path) -> None:
    page, _ = page_of(run)
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    evaluation = json.loads((run / "evaluation.json").read_text())
    for key in ("error", "pgd_error", "robust_error"):
        assert f"{100 * evaluation[key]:.2f} %" in text
    curve = page.sections["run-1-epsilon"].replace("\N{NO-BREAK SPACE}", " ")
    for point in evaluation["curve"]:
        assert f"{100 - 100 * point['robust_error']:.2f} %" in curve
        assert f"{100 - 100 * point['pgd_error']:.2f} %" in curve
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-2]
    assert f"loss {last['loss']:.4g}, accuracy {100 - 100 * last['error']:.2f} %" in text
    cascade = json.loads((run / "cascade.json").read_text())
    for key in ("error", "attacked_error", "sound_certified_error"):
        assert f"{100 * cascade[key]:.2f} %" in text
    assert f"{100 - 100 * cascade['stage_certified_error']:.2f} %" in text
    margins = np.array(evaluation["margins"])
    assert f"{(margins > 0).sum()} of {len(margins)} are above zero" in text
    assert sum(map(int, re.findall(r": (\d+) examples,", page.sections["run-1-margins"]))) == EXAMPLES + 200


def test_classes_are_counted_as_by_hand(run: Path) -> None:
    _, html = page_of(run)
    evaluation = json.loads((run / "evaluation.json").read_text())
    labels, predicted = np.array(evaluation["labels"]), np.array(evaluation["predicted"])
    for label in range(10):
        members = labels == label
        wrong = predicted[members & (predicted != labels)]
        certified, attacked = (np.array(evaluation[key])[members] for key in ("certified", "attacked"))
        bad = (predicted != labels)[members]
        rates = [certified, ~certified & ~attacked & ~bad, attacked & ~bad & ~certified, bad]
        often = f"{np.bincount(wrong).argmax()} ({np.bincount(wrong).max()}×)" if len(wrong) else "–"
        cells = [str(members.sum()), *(f"{100 * rate.mean():.2f}\N{NO-BREAK SPACE}%" for rate in rates)]
        row = f'<tr><td class="word"><span>{label}</span></td>' + "".join(f"<td>{cell}</td>" for cell in cells)
        assert f'{row}<td class="word"><span>{often}</span></td></tr>' in html


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    run = write_run(tmp_path / ATTACK.replace("/", "-"), stages=2)
    twin = write_run(tmp_path / "twin", 1)
    names = dict.fromkeys(("split", "perturbation", "norm", "engine", "dtype"), ATTACK)
    change(run, "evaluation.json", classes=[ATTACK] * 10, **names)
    change(
        run,
        "environment.json",
        command=ATTACK,
        device=ATTACK,
        data={"name": ATTACK, "train": 1, "test": 1, "digest": ATTACK},
    )
    change(run, "cascade.json", kind=ATTACK)
    (run / "config.yaml").write_text(f"name: {ATTACK}\n</pre></style>{ATTACK}")
    *_, last = (run / "metrics.jsonl").read_text().splitlines()
    line = json.dumps(json.loads(last) | {"engine": ATTACK, "collapsed": ATTACK})
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() + line)
    for folders in ([run], [run, twin], [twin, run]):
        page, html = page_of(*folders)
        assert "<script" not in html.lower()
        assert "<img src=x" not in html
        assert page.tags.count("style") == 1
        assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in page.references)
        assert "<script>alert(1)</script>" in page.text  # seen as text, not run


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("evaluation.json", ("result", "epsilon", "margins", "classes")),
        ("metrics.jsonl", ("training",)),
        ("gallery.npz", ("gallery",)),
        ("cascade.json", ("cascade",)),
        ("config.yaml", ("settings",)),
        ("environment.json", ("settings",)),
    ],
)
def test_a_missing_file_is_one_sentence_in_its_section(run: Path, file: str, keys: tuple[str, ...]) -> None:
    if file == "cascade.json":
        (run / "config.yaml").write_text(config(cascade=3))
    (run / file).unlink()
    page, _ = page_of(run)
    assert known(page) == list(KEYS)
    for key in KEYS:
        assert (f"{file} is missing." in page.sections[f"run-1-{key}"]) == (key in keys)


def test_a_single_network_has_no_section_about_stages(run: Path) -> None:
    (run / "cascade.json").unlink()
    page, _ = page_of(run)
    assert known(page) == [key for key in KEYS if key != "cascade"]
    assert "first stage" not in page.text


def test_a_cascades_result_comes_first_and_what_is_of_its_first_stage_says_so(run: Path) -> None:
    page, html = page_of(run)
    sections = {key.removeprefix("run-1-"): words for key, words in page.sections.items()}
    assert next(iter(sections)) == "cascade"
    for rate in ("69.17", "6.39", "83.89", "19.44", "30.83"):
        assert f"{rate}\N{NO-BREAK SPACE}%" in sections["cascade"]
    alone = {key for key, words in sections.items() if "first stage alone" in words}
    assert alone & set(KEYS) == FIRST_STAGE
    assert html.count("(first stage alone)</a>") == len(alone)


@pytest.mark.parametrize("damage", [None, "{", "{}"])
def test_a_cascade_without_its_figures_is_still_no_single_network(run: Path, damage: str | None) -> None:
    """The config says so where cascade.json is missing, as after an interrupted evaluation."""
    if damage is None:
        (run / "cascade.json").unlink()
        (run / "config.yaml").write_text(config(cascade=3))
    else:
        (run / "cascade.json").write_text(damage)
    page, _ = page_of(run)
    assert known(page) == list(KEYS)
    assert "The cascade was not evaluated." in page.sections["run-1-cascade"]
    assert "first stage alone" in page.sections["run-1-result"]


def test_a_network_that_may_be_single_is_not_called_a_first_stage(run: Path) -> None:
    """The config cannot be read, so that it does not say."""
    (run / "cascade.json").unlink()
    (run / "config.yaml").write_text("cascade: 1\n")
    page, _ = page_of(run)
    assert known(page) == list(KEYS)
    assert "A single network, or a cascade not evaluated." in page.text
    assert "first stage" not in page.text


def test_the_attack_on_a_cascade_counts_the_examples_that_were_attacked(run: Path) -> None:
    """And what stands beside it is about the same ones: 20 of 100 would contradict a bound of 19 % on 360."""
    beside = {
        "error": 0.07,
        "stage_certified_error": 0.18,
        "sound_certified_error": 0.21,
        "sound_certified_error_as_run": 0.22,
    }
    change(
        run, "cascade.json", kind="routed", attacked_examples=100, attacked_error=0.2, sound_certified_error=0.19, on_attacked=beside
    )  # fmt: skip
    section = page_of(run)[0].sections["run-1-cascade"]
    assert "do not trust" not in section
    every, _, attacked = section.partition("the first 100 examples only")
    assert "Broken" not in every
    assert "not proved, and not attacked" in every
    assert "292 of 360" in every
    for number in ("7 of 100", "82 of 100", "13 of 100", "79 of 100", "attacked error, with the wrong: 20.00"):
        assert number in attacked
    assert "neither proved nor broken: 1.00" in attacked
    assert "neither proved nor broken: " not in every


def test_what_a_cascade_certifies_wrongly_is_drawn_apart(run: Path) -> None:
    page, html = page_of(run)
    section = page.sections["run-1-cascade"]
    for words in ("stage 0 certifies 266 rightly", "stage 0 certifies 4 wrongly", "stage 2 certifies 2 wrongly"):
        assert section.count(words) == 2
    assert "stage 1 certifies 0 wrongly" not in section
    assert "certified by no stage: 50" in section
    chart = html.partition("Examples certified by each stage")[2].partition("</svg>")[0]
    assert chart.count("f-wrong segment") == 2


def test_a_sum_says_of_how_many_models_it_is(run: Path) -> None:
    one = {
        "stage": 0,
        "answers": 360,
        "certified": 300,
        "correct": 320,
        "certified_correct": 290,
        "certified_wrong": 10,
    }
    change(run, "cascade.json", kind="sum", models=3, stages=[one])
    section = page_of(run)[0].sections["run-1-cascade"]
    assert "Sum of logits of 3 models" in section
    assert "sum of logits of 3 models certifies 290 rightly" in section
    assert "stage 0" not in section


@pytest.mark.parametrize("proof", [{"broken_proofs": 2}, {"sound_certified_error_as_run": 0.1}])
def test_a_cascade_that_is_broken_where_it_is_proved_says_so(runs: list[Path], proof: dict) -> None:
    change(runs[0], "cascade.json", **proof)
    page = page_of(*runs)[0]
    for section in ("run-1-cascade", "comparison"):
        assert "do not trust" in page.sections[section]
    assert "do not trust" not in page.sections["run-2-cascade"]


@pytest.mark.parametrize(
    ("stages", "epoch", "validation"), [(1, "Last epoch:", "(200"), (3, "Last epoch (stage 2):", "(stage 2, 200")]
)
def test_the_last_epoch_is_of_a_stage_where_there_are_several(
    tmp_path: Path, stages: int, epoch: str, validation: str
) -> None:
    section = page_of(write_run(tmp_path / "run", stages=stages))[0].sections["run-1-training"]
    assert epoch in section
    assert f"Last validation {validation} examples" in section


def test_bars_reach_to_the_whole_or_say_where_they_are_cut(run: Path) -> None:
    (run / "cascade.json").unlink()
    for robust, cut in ((0.044, "94"), (0.3333, ""), (0.6667, ""), (1.0, ""), (0.0, ""), (0.002, "99.5")):
        change(run, "evaluation.json", error=robust / 4, pgd_error=robust / 2, robust_error=robust)
        page, html = page_of(run)
        assert html.count('class="torn"') == (1 if cut else 0)
        section = page.sections["run-1-result"].replace("\N{NO-BREAK SPACE}", " ")
        assert (f"Cut at {cut} %" if cut else "") in section
        assert ("Cut at" in section) == bool(cut)
        proved = re.findall(r'width="([\d.]+)%" [^>]*class="f-proved segment"', html)
        low = float(cut or 0)
        assert sum(map(float, proved)) == pytest.approx(100 * (100 * (1 - robust) - low) / (100 - low), abs=0.01)


def test_a_point_far_below_the_curves_does_not_flatten_them(run: Path) -> None:
    early = {
        "kind": "validation",
        "stage": 0,
        "epoch": 9,
        "split": "train",
        "engine": "Dual()",
        "examples": 500,
        "eps": 0.1,
    }
    lines = [plain(epoch_line(0, e, error=0.01, robust_error=0.04 + 0.001 * e)) for e in range(20)]
    lines += [
        early | {"error": 0.01, "robust_error": 0.988},
        early | {"epoch": 19, "error": 0.01, "robust_error": 0.03},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page, html = page_of(run)
    section = page.sections["run-1-training"]
    assert "Below the frame, at its edge: 1.20\N{NO-BREAK SPACE}% at epoch 10." in section
    assert "Last exact evaluation (500 training examples" in section
    assert "certified accuracy, exact: accuracy, % 1.2 at epochs trained 10" in html


@pytest.mark.parametrize(
    "file", ["evaluation.json", "metrics.jsonl", "gallery.npz", "cascade.json", "environment.json"]
)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b"[" * 100_000, b"PK\x03\x04 cut short"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(run: Path, file: str, content: bytes) -> None:
    (run / file).write_bytes(content)
    page, _ = page_of(run)
    assert known(page) == list(KEYS)
    if content or file != "metrics.jsonl":  # an empty metrics file is whole: nothing was trained yet
        assert f"{file} is damaged" in page.text


def test_damaged_lines_are_left_out_with_a_note(run: Path) -> None:
    before = page_of(run)[0].sections["run-1-training"]
    path = run / "metrics.jsonl"
    path.write_text('{"kind": "ep\n' + path.read_text() + '{"kind": "epoch", "epo')
    after = page_of(run)[0].sections["run-1-training"]
    note = "metrics.jsonl is damaged: 2 lines were no records and left out."
    assert note in after
    assert after.replace(note, "").split() == before.split()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [],
        {},
        float("nan"),
        float("inf"),
        -1,
        10**400,
        1e300,
        5e-324,
        [1e300, -1e300],
        [None],
        [[1]],
        "\ud800",
    ],
    ids=lambda value: repr(value)[:12],
)
def test_values_of_another_kind_never_stop_the_page(run: Path, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry on its own; of those for which a file counts as damaged, one is drawn."""
    (run / "gallery.npz").unlink()  # only slow here
    settings = Run(run).config()
    monkeypatch.setattr(Run, "config", lambda self: settings)  # as slow, and always the same
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:6]]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for file in ("evaluation.json", "cascade.json", "environment.json"):
        saved, damaged = json.loads((run / file).read_text()), 0
        for key in saved:
            (run / file).write_text(json.dumps(saved | {key: value}))
            found = read_run(run)
            damaged += file in found.problems
            if file not in found.problems or damaged == 1:
                _chapter(0, [found] * 2)
                comparison_of([found] * 2)
        (run / file).write_text(json.dumps(dict.fromkeys(saved, value)))
        page_of(run)
        (run / file).write_text(json.dumps(saved))
    for key in lines[0]:
        (run / "metrics.jsonl").write_text("\n".join(json.dumps(line | {key: value}) for line in lines))
        _chapter(0, [read_run(run)])


DAMAGES = {
    "lacks curve": {"curve": None},
    "lacks labels": {"labels": None},
    "has 2.0 as robust_error": {"robust_error": 2.0},
    "has -0.5 as pgd_error": {"curve": [{"eps": 0.1, "robust_error": 0.2, "pgd_error": -0.5}]},
    "has 1 entries in attacked and 360 in labels": {"attacked": [True]},
    "has 361 entries in radii and 360 in labels": {"radii": [0.1] * 361},
    "is about no examples": {"curve_examples": 0},
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_record_that_contradicts_itself_is_damaged_and_the_rest_is_shown(run: Path, words: str) -> None:
    values = json.loads((run / "evaluation.json").read_text()) | DAMAGES[words]
    (run / "evaluation.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    page, _ = page_of(run)
    assert known(page) == list(KEYS)
    for section in ("result", "epsilon", "margins", "classes"):
        assert f"evaluation.json is damaged: it {words}." in page.sections[f"run-1-{section}"]


def test_a_pickle_in_the_gallery_is_refused(run: Path) -> None:
    np.savez(run / "gallery.npz", images=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "gallery.npz is damaged" in page_of(run)[0].text


def test_a_contradiction_is_said_aloud(run: Path) -> None:
    change(run, "evaluation.json", pgd_error=0.5, robust_error=0.4)
    assert "do not trust" in page_of(run)[0].text.lower()


def test_both_statements_are_shown_in_plain_words(run: Path) -> None:
    evaluation = json.loads((run / "evaluation.json").read_text())
    curve = [point | {"robust_error_as_run": 0.4321} for point in evaluation["curve"]]
    as_run = [False, *evaluation["certified"][1:]]
    broken = [True, *evaluation["attacked"][1:]]
    change(run, "evaluation.json", **AS_RUN, curve=curve, certified_as_run=as_run, attacked_as_run=broken)
    page = page_of(run)[0]
    head = page.sections["run-1-result"].replace("\N{NO-BREAK SPACE}", " ")
    for words in (
        "216 of 360",
        "in real numbers; as the network runs in float32: 59.95 %",
        "PGD error, with the wrong: 20.00 % as the network runs in float32, 19.95 % in real numbers",
        "in real numbers, at least 60.00 % of the examples are robust, at most 80.05 %; as the network runs in float32, at least "
        "59.95 % and at most 80.00 %.",
    ):
        assert words in head
    assert "do not trust" not in page.text.lower()
    assert "56.79\N{NO-BREAK SPACE}%" in page.sections["run-1-epsilon"]
    table = page.sections["run-1-classes"]
    assert "Certified as run" in table
    assert f"{100 * sum(as_run) / len(as_run):.2f}\N{NO-BREAK SPACE}%" in table
    assert "as the networks run: 68.89\N{NO-BREAK SPACE}%" in page.sections["run-1-cascade"]


def test_published_records_say_nothing_about_the_second_statement(run: Path) -> None:
    (run / "cascade.json").unlink()
    page = page_of(run)[0]
    assert "real numbers" not in page.text
    assert "as run" not in page.text.lower()


SAME_ARITHMETIC = {
    "rounding only": ({"pgd_error": 0.4003}, False),
    "as run": ({"pgd_error": 0.41}, True),
    "in real numbers": ({"pgd_error_exact": 0.41}, True),
}


@pytest.mark.parametrize("name", SAME_ARITHMETIC)
def test_an_attack_contradicts_a_proof_in_the_same_arithmetic_only(run: Path, name: str) -> None:
    rates, wrong = SAME_ARITHMETIC[name]
    change(run, "evaluation.json", **AS_RUN | rates)
    assert ("breaks more than the proof allows" in page_of(run)[0].text) == wrong


def test_flags_contradict_each_other_in_the_same_arithmetic_only(run: Path) -> None:
    count = len(json.loads((run / "evaluation.json").read_text())["certified"])
    yes, no = [True] * count, [False] * count
    change(run, "evaluation.json", certified=yes, attacked=no, certified_as_run=no, attacked_as_run=yes)
    assert "do not trust" not in page_of(run)[0].text.lower()
    change(run, "evaluation.json", certified_as_run=yes)
    assert f"{count} examples are certified as the network runs and yet broken" in page_of(run)[0].text


def test_a_probability_is_no_robust_error(run: Path) -> None:
    change(run, "evaluation.json", engine="HighProbability(k=100)")
    assert "it is not certain" in page_of(run)[0].sections["run-1-result"]


def test_the_papers_cascade_says_what_it_does_not_promise_and_sound_ones_do_not(run: Path) -> None:
    for kind, warned in (("paper", True), ("routed", False), ("sum", False), ("something new", True)):
        change(run, "cascade.json", kind=kind)
        assert ("does not promise" in page_of(run)[0].sections["run-1-cascade"]) == warned


def test_the_same_folders_give_the_same_page(runs: list[Path]) -> None:
    assert page_of(*runs)[1] == page_of(*runs)[1]


def test_what_is_no_run_or_no_target_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folders, target, words in (
        ([], tmp_path / "a.html", "at least one"),
        ([tmp_path / "nothing"], tmp_path / "a.html", "not a folder"),
        ([tmp_path / "empty"], tmp_path / "a.html", "not a run folder"),
        ([run], tmp_path / "empty", "is a folder"),
    ):
        with pytest.raises(ArgumentError, match=words):
            write_report(folders, target)
    assert not (tmp_path / "a.html").exists()


def test_without_jinja_the_message_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(AutodualError, match=r"autodual\[cli\]"):
        write_report([run], run.parent / "report.html")


def test_a_run_that_measured_nothing_shows_nothing(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text(config())
    page, _ = page_of(bare)
    assert list(page.sections) == ["run-1-result", "run-1-settings"]
    assert "Nothing was trained and nothing was measured" in page.sections["run-1-result"]
    (bare / "failure.json").write_text(json.dumps({"error": f"the model {ATTACK}", "when": "now"}))
    page, _ = page_of(bare)
    assert f"It failed: the model {ATTACK}" in page.sections["run-1-result"]


def test_a_failed_run_says_so_above_its_figures(run: Path) -> None:
    (run / "failure.json").write_text(json.dumps({"error": "the loss is nan", "when": "now"}))
    assert "This run failed: the loss is nan" in page_of(run)[0].text


def test_a_training_that_ended_short_of_what_is_certified_says_so(run: Path) -> None:
    """As published runs may have."""
    words = "Training ended at eps 0.1, but eps 0.2 is certified"
    assert "Training ended" not in page_of(run)[0].text
    change(run, "evaluation.json", eps=0.2)
    assert words in page_of(run)[0].sections["run-1-training"]
    (run / "config.yaml").write_text(config(engine="none", robust_weight=0.0))
    assert "Training ended" not in page_of(run)[0].text
