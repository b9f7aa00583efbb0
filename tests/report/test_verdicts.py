"""Proved, unknown, broken, wrong: four meanings, each with its own words and colour, wherever examples are counted."""

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from pages import page_of

from autodual.report.page import TEMPLATES
from autodual.report.verdicts import Rates, verdicts
from autodual.runs.records import Evaluation, read

pytest.importorskip("jinja2", reason="the report needs Jinja2")

MEANINGS = ("proved", "unknown", "broken", "wrong")


def single(run: Path) -> Path:
    (run / "cascade.json").unlink()
    return run


def test_certified_accuracy_is_the_largest_number_and_has_the_colour_of_what_is_proved(run: Path) -> None:
    single(run)
    robust = json.loads((run / "evaluation.json").read_text())["robust_error"]
    head = page_of(run)[1].partition('<section id="run-1-result"')[2].partition("</section>")[0]
    large = re.findall(r'<div class="large"><dt>(.*?)</dt><dd><span class="value( t-\w+)?">(.*?)</span>', head)
    assert large == [("Certified accuracy", " t-proved", f"{100 - 100 * robust:.2f}\N{NO-BREAK SPACE}%")]
    assert re.findall(r'class="value t-(\w+)"', head) == list(MEANINGS)
    assert "t-proved" not in head.replace(f't-proved">{large[0][2]}', "")  # no error rate in that colour


RATES = {
    "all": (0.1, 0.2, 0.4, (0.6, 0.2, 0.1, 0.1)),
    "nothing is unknown": (0.1, 0.4, 0.4, (0.6, 0.0, 0.3, 0.1)),
    "collapsed": (0.9, 0.9, 0.9, (0.1, 0.0, 0.0, 0.9)),
    "all proved": (0.0, 0.0, 0.0, (1.0, 0.0, 0.0, 0.0)),
    "not attacked": (0.1, None, 0.4, (0.6, 0.3, 0.0, 0.1)),
}


@pytest.mark.parametrize("name", RATES)
def test_shares_fill_the_bar(name: str) -> None:
    error, attacked, robust, wanted = RATES[name]
    segments = Rates("", error, attacked, robust).segments()
    assert [segment.tone for segment in segments] == list(MEANINGS)
    assert [segment.end - segment.start for segment in segments] == pytest.approx(wanted)
    assert (segments[0].start, segments[-1].end) == (0.0, 1.0)


def test_an_attack_counts_in_the_arithmetic_of_the_proof() -> None:
    rates = Rates("", 0.1, 0.42, 0.4, robust_as_run=0.43, attacked_exact=0.3)
    assert [segment.end - segment.start for segment in rates.segments()] == pytest.approx([0.6, 0.1, 0.2, 0.1])


def test_every_example_has_one_verdict(run: Path) -> None:
    record = json.loads((run / "evaluation.json").read_text())
    found = verdicts(read(Evaluation, run / "evaluation.json"))
    wrong = np.array(record["labels"]) != np.array(record["predicted"])
    assert [tone == "proved" for tone in found] == record["certified"]
    assert [tone == "wrong" for tone in found] == wrong.tolist()
    assert sum(tone in ("broken", "wrong") for tone in found) / len(found) == pytest.approx(record["pgd_error"])


def test_histograms_tell_unknown_from_wrong(run: Path) -> None:
    single(run)
    html = page_of(run)[1].partition("<h3>Smallest margin of each example</h3>")[2].partition("</figure>")[0]
    counts = dict.fromkeys(MEANINGS, 0)
    in_its_colour = r': (\d+) examples, (\w+)</title><rect [^>]*class="f-\2"'
    for number, tone in re.findall(in_its_colour, html):
        counts[tone] += int(number)
    found = verdicts(read(Evaluation, run / "evaluation.json"))
    assert counts == {tone: found.count(tone) for tone in MEANINGS}


def test_the_gallery_tells_what_is_broken_from_what_was_wrong_before(run: Path) -> None:
    """The made-up gallery has eight images of each kind; one of those that the attack breaks is wrong without it."""
    html = page_of(run)[1].partition('id="run-1-gallery"')[2].partition("</section>")[0]
    groups = dict(re.findall(r'<h3 class="t-\w+">(.*?)</h3>(.*?)</ul>', html, re.DOTALL))
    assert {title: rest.count("<li>") for title, rest in groups.items()} == {
        "Right, then broken by the attack": 7, "Proved": 8, "Unknown": 8, "Wrong without any attack": 1,
    }  # fmt: skip
    assert {title: rest.count("<img") for title, rest in groups.items()} == {
        "Right, then broken by the attack": 21, "Proved": 24, "Unknown": 24, "Wrong without any attack": 1,
    }  # fmt: skip
    for card in groups["Right, then broken by the attack"].split("<li>")[1:]:
        label, read, attacked = re.search(r"<strong>(\d).*?read as (\d)<.*?attacked: (\d)<", card, re.DOTALL).groups()
        assert read == label != attacked


def test_an_image_that_the_kept_attack_does_not_break_is_not_said_to_be(run: Path) -> None:
    with np.load(run / "gallery.npz") as archive:
        arrays = dict(archive)
    np.savez(run / "gallery.npz", **arrays | {"attacked_label": arrays["label"]})
    assert page_of(run)[0].sections["run-1-gallery"].count("broken, but not by the image that was kept") == 7


# Colours: what people with a colour vision deficiency see. [Viénot, Brettel and Mollon, 1999; the blue-blind matrix by Machado, 2009]

SIMULATED = {
    "full": np.eye(3),
    "no red": np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]),
    "no green": np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
    "no colour": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}


def _lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB of a colour as it is seen."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = seen @ np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear.clip(0, 1)
    x, y, z = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("eyes", SIMULATED)
def test_everybody_can_tell_the_meanings_apart(scheme: str, eyes: str) -> None:
    """Unknown is hatched, so the other three must differ by colour: ten just noticeable differences, two where there is none."""
    style = (TEMPLATES / "style.css").read_text()
    light, dark = style.split("@media screen", 1)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if scheme == "light" else dark.split("* {", 1)[0]))
    least = 5 if eyes == "no colour" else 23
    for one, other in combinations(("proved", "broken", "wrong"), 2):
        difference = np.linalg.norm(_lab(colours[one], SIMULATED[eyes]) - _lab(colours[other], SIMULATED[eyes]))
        assert difference >= least, (one, other)


def test_a_colour_has_one_meaning() -> None:
    """Lines of runs, links and notes are in other colours than proved, unknown, broken and wrong."""
    style = (TEMPLATES / "style.css").read_text()
    light, dark = style.split("@media screen", 1)
    for scheme in (light, dark.split("* {", 1)[0]):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", scheme))
        others = {colours[name] for name in colours if name.startswith("run-") or name in ("link", "note-rule", "mark")}
        assert not others & {colours[tone] for tone in MEANINGS}
