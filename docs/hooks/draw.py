"""Draws the pictures of the tutorials, of the README and of the architecture into docs/figures.

    python docs/hooks/draw.py

The pictures of "How the proof works" show one network of two inputs and two hidden units, small enough to be computed by hand:

    h = relu(A x + a),   margin = h_2 - h_1 + 1/2,   |x - (0.6, 0.2)| <= 0.3 in either coordinate

The README's picture is drawn from the record of a trained network in results/. Colours are variables that the site's palettes set
(docs/assets/site.css); where nothing sets them, as on its own, a picture is dark on white.
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
RECORD = ROOT / "results" / "mnist-small-0.1" / "evaluation.json"

COLOURS = {"ink": "#1b1f24", "faint": "#8a939c", "proved": "#0b7285", "broken": "#c92a2a", "open": "#b7791f"}
STYLE = "".join([
    "svg.palette text{font-family:system-ui,sans-serif;font-size:14px;fill:var(--ink,#1b1f24)}",
    "svg.palette .small{font-size:12.5px}svg.palette .head{font-weight:600}",
    *(
        f"svg.palette .s-{name}{{stroke:var(--{name},{colour});fill:none;stroke-width:2}}"
        f"svg.palette .f-{name}{{fill:var(--{name},{colour});fill-opacity:.16;stroke:var(--{name},{colour});stroke-width:2}}"
        f"svg.palette .d-{name}{{fill:var(--{name},{colour})}}svg.palette text.t-{name}{{fill:var(--{name},{colour})}}"
        for name, colour in COLOURS.items()
    ),
    "svg.palette .thin{stroke-width:1}svg.palette .thick{stroke-width:3}svg.palette .dash{stroke-dasharray:6 5}",
])  # fmt: skip

Point = tuple[float, float]


class Plot:
    """Part of a picture with axes of its own: x from x0 to x1 and y from y0 to y1, at a place and of a size in the picture."""

    def __init__(self, place: Point, size: Point, x: Point, y: Point) -> None:
        self.place, self.size, self.x, self.y = place, size, x, y
        self.parts: list[str] = []

    def at(self, point: Point) -> Point:
        across = (point[0] - self.x[0]) / (self.x[1] - self.x[0])
        up = (point[1] - self.y[0]) / (self.y[1] - self.y[0])
        return self.place[0] + across * self.size[0], self.place[1] + (1 - up) * self.size[1]

    def line(self, points: Iterable[Point], kind: str) -> None:
        self.parts.append(f'<polyline points="{self._points(points)}" class="{kind}"/>')

    def area(self, points: Iterable[Point], kind: str) -> None:
        self.parts.append(f'<polygon points="{self._points(points)}" class="{kind}"/>')

    def dot(self, point: Point, kind: str, radius: float = 4) -> None:
        x, y = self.at(point)
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{kind}"/>')

    def say(self, words: str, point: Point, kind: str = "", shift: Point = (0, 0), anchor: str = "start") -> None:
        x, y = self.at(point)
        self.parts.append(text(words, (x + shift[0], y + shift[1]), kind, anchor))

    def axes(
        self,
        across: str,
        up: str,
        xs: Sequence[float] = (),
        ys: Sequence[float] = (),
        show: Callable[[float], str] = "{:g}".format,
    ) -> None:
        """Along the left and the lower edge, with ticks where they are asked for."""
        (x0, x1), (y0, y1) = self.x, self.y
        self.line([(x0, y1), (x0, y0), (x1, y0)], "s-faint thin")
        for x in xs:
            self.line([(x, y0), (x, y0 - 0.015 * (y1 - y0))], "s-faint thin")
            self.say(show(x), (x, y0), "small t-faint", (0, 20), "middle")
        for y in ys:
            self.line([(x0, y), (x0 - 0.012 * (x1 - x0), y)], "s-faint thin")
            self.say(show(y), (x0, y), "small t-faint", (-9, 5), "end")
        self.say(across, (x1, y0), "small", (0, 38 if xs else 22), "end")
        self.say(up, (x0, y1), "small", (0, -10))

    def _points(self, points: Iterable[Point]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.at, points))


def text(words: str, place: Point, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def picture(name: str, title: str, size: Point, *parts: str | Plot) -> None:
    """FIGURES/NAME.svg."""
    inside = "".join(part if isinstance(part, str) else "".join(part.parts) for part in parts)
    (FIGURES / f"{name}.svg").write_text(
        f'<svg class="palette" role="img" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:g} {size[1]:g}" '
        f'width="{size[0]:g}" height="{size[1]:g}"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<rect width="{size[0]:g}" height="{size[1]:g}" style="fill:var(--ground,#fff)"/>{inside}</svg>\n',
        encoding="utf-8",
    )


# ------------------------------------------------------------------------------------------------------------
# How the proof works

LOWER, UPPER = -0.2, 1.0
"""What enters the unstable unit."""
SLOPE = UPPER / (UPPER - LOWER)
RADIUS = -SLOPE * LOWER / 2


def relaxation() -> None:
    """A ReLU between two parallel lines, as `Dual` has them, and between two lines of its own choice, as `Crown` does."""
    plots = []
    for place, head, lines in (
        (50.0, "Dual: one slope", [(SLOPE, 0.0), (SLOPE, 2 * RADIUS)]),
        (430.0, "Crown: two slopes", [(1.0, 0.0), (SLOPE, 2 * RADIUS)]),
    ):
        plot = Plot((place, 56), (310, 230), (-0.4, 1.2), (-0.35, 1.25))
        (low, _), (high, above) = lines
        corners = [
            (LOWER, low * LOWER),
            (UPPER, low * UPPER),
            (UPPER, high * UPPER + above),
            (LOWER, high * LOWER + above),
        ]
        plot.area(corners, "f-proved")
        plot.line([(-0.4, 0), (1.2, 0)], "s-faint thin")
        plot.line([(0, -0.35), (0, 1.25)], "s-faint thin")
        plot.line([(-0.4, 0), (0, 0), (1.15, 1.15)], "s-ink thick")
        for end, letter in ((LOWER, "l"), (UPPER, "u")):
            plot.line([(end, -0.3), (end, 1.2)], "s-open thin dash")
            plot.say(f"{letter} = {end:g}", (end, -0.35), "small t-open", (0, 18), "middle")
        plot.say("relu(z)", (1.1, 1.1), "", (6, -4))
        plot.say(head, (-0.4, 1.25), "head", (0, -22))
        plots.append(plot)
    picture("proof-relaxation", "A ReLU enclosed between two lines", (800, 325), *plots)


def hidden_space() -> None:
    """Where the ball can get to behind the hidden layer: truth, intervals, and the enclosure by lines; and where the label changes."""
    left = Plot((50, 60), (230, 270), (0, 1.15), (-0.25, 1.1))
    left.axes("x₁", "x₂", (0.3, 0.6, 0.9), (-0.1, 0.2, 0.5))
    left.area([(0.3, -0.1), (0.9, -0.1), (0.9, 0.5), (0.3, 0.5)], "f-ink")
    left.dot((0.6, 0.2), "d-ink")
    left.say("x", (0.6, 0.2), "", (8, -6))
    left.say("the ball", (0.3, 0.5), "", (0, -8))
    left.say("input", (0, 1.1), "head", (60, -28))

    right = Plot((390, 60), (430, 270), (-0.25, 1.55), (-0.05, 1.6))
    right.axes("h₁", "h₂", (0, 0.5, 1.0, 1.5), (0.2, 0.8, 1.4))
    right.area([(0.45, -0.05), (1.55, 1.05), (1.55, -0.05)], "d-broken")
    right.parts[-1] = right.parts[-1].replace("/>", ' style="fill-opacity:.13"/>')
    right.line([(0.45, -0.05), (1.55, 1.05)], "s-broken")
    right.say("here the label is another", (1.53, 0.02), "small t-broken", (0, 4), "end")
    right.area([(0, 0.2), (1, 0.2), (1, 1.4), (0, 1.4)], "s-open dash")
    right.say("IBP: crosses the line", (1.0, 1.4), "small t-open", (8, 4))
    diamond = [(UPPER, 0.8), (0.4, 1.4), (LOWER, 0.8), (0.4, 0.2)]
    bands = [(SLOPE * z + RADIUS, h) for z, h in diamond]
    hull = [
        (bands[0][0] + RADIUS, 0.8), (bands[1][0] + RADIUS, 1.4), (bands[1][0] - RADIUS, 1.4),
        (bands[2][0] - RADIUS, 0.8), (bands[3][0] - RADIUS, 0.2), (bands[3][0] + RADIUS, 0.2),
    ]  # fmt: skip
    right.area(hull, "f-proved")
    right.say("Dual: stays away from it", (0.42, 1.4), "small t-proved", (0, -8), "middle")
    right.area([(1.0, 0.8), (0.4, 1.4), (0.0, 1.0), (0.0, 0.6), (0.4, 0.2)], "f-ink")
    right.say("the truth", (0.4, 0.8), "", (0, 5), "middle")
    right.say("behind the hidden layer", (-0.25, 1.6), "head", (60, -28))
    arrow = '<path d="M300 195 H352 M344 188 L353 195 L344 202" class="s-ink"/>'
    picture("proof-hidden", "The ball behind the hidden layer, enclosed in two ways", (850, 390), left, arrow, right)


def waterfall() -> None:
    """The margin at the centre, less the length of every generator, is the bound."""
    steps = (
        ("centre", 0.0, 5.3 / 6, "ink"), ("x₁: 0.3 · 0.17", 5 / 6, 5.3 / 6, "open"), ("x₂: 0.3 · 1.83", 1.7 / 6, 5 / 6, "open"),
        ("unstable unit: r", 1.2 / 6, 1.7 / 6, "open"), ("proved margin", 0.0, 1.2 / 6, "proved"),
    )  # fmt: skip
    plot = Plot((70, 40), (690, 220), (0, 5), (0, 1))
    plot.axes("", "margin", (), (0, 0.2, 0.4, 0.6, 0.8))
    for column, (words, low, high, kind) in enumerate(steps):
        plot.area([(column + 0.2, low), (column + 0.8, low), (column + 0.8, high), (column + 0.2, high)], f"f-{kind}")
        sign = "−" if kind == "open" else ""
        plot.say(f"{sign}{high - low:.3f}", (column + 0.5, high), "", (0, -8), "middle")
        plot.say(words, (column + 0.5, 0), "small", (0, 20), "middle")
        if column < len(steps) - 1:
            level = high if column == 0 else low
            plot.line([(column + 0.8, level), (column + 1.2, level)], "s-faint thin dash")
    picture("proof-generators", "From the centre to the bound: one step down for every generator", (800, 300), plot)


def projections() -> None:
    """|V| of k random combinations of generators whose lengths add up to 1, and the median, for three values of k."""
    source = random.Random(3)
    plot = Plot((90, 40), (660, 230), (0, 5), (0, 3))
    plot.axes("|V|, in units of the exact radius", "", (0, 1, 2, 3, 4, 5))
    for row, k in enumerate((10, 50, 200)):
        level = 2.45 - 0.9 * row
        sums = [abs(math.tan(math.pi * (source.random() - 0.5))) for _ in range(k)]
        for value in sums:
            plot.dot((min(value, 5.0), level + source.uniform(-0.22, 0.22)), "d-open", 2.6)
        median = statistics.median(sums)
        plot.line([(median, level - 0.34), (median, level + 0.34)], "s-proved thick")
        plot.say(f"k = {k}", (0, level), "", (-14, 5), "end")
        plot.say(f"median {median:.2f}", (median, level + 0.34), "small t-proved", (6, 2))
    plot.line([(1, 0), (1, 3)], "s-ink dash")
    plot.say("exact", (1, 3), "small", (0, -8), "middle")
    picture("proof-projections", "The median of k Cauchy sums estimates the radius", (800, 330), plot)


def routes() -> None:
    """Why a stage's certificate is not the cascade's: at x the first stage certifies the right label, at x' the second a wrong one."""
    plot = Plot((20, 20), (760, 250), (0, 12), (0, 5))
    plot.area([(0.2, 0.2), (5.6, 0.2), (5.6, 4.8), (0.2, 4.8)], "f-proved")
    plot.say("stage 1 certifies “dog” here", (0.2, 4.8), "small t-proved", (10, 22))
    plot.area([(6.0, 0.2), (11.8, 0.2), (11.8, 4.8), (6.0, 4.8)], "f-broken")
    plot.say("stage 2 certifies “cat” here", (11.8, 4.8), "small t-broken", (-10, 22), "end")
    plot.area([(3.7, 1.0), (6.9, 1.0), (6.9, 4.0), (3.7, 4.0)], "s-ink dash")
    plot.say("the ball around x", (3.7, 4.0), "small", (8, 18))
    plot.dot((5.3, 2.5), "d-proved", 6)
    plot.say("x", (5.3, 2.5), "t-proved", (-11, 5), "end")
    plot.say("x is a dog. Stage 1 answers", (3.7, 2.5), "small t-proved", (-10, -3), "end")
    plot.say("“dog”, with a certificate.", (3.7, 2.5), "small t-proved", (-10, 15), "end")
    plot.dot((6.5, 2.0), "d-broken", 6)
    plot.say("x′", (6.5, 2.0), "t-broken", (-9, 5), "end")
    plot.say("x′ is the same dog. Stage 1 is not sure", (6.9, 2.5), "small t-broken", (10, -3))
    plot.say("and passes it on. Stage 2 answers", (6.9, 2.5), "small t-broken", (10, 15))
    plot.say("“cat”, with a certificate.", (6.9, 2.5), "small t-broken", (10, 33))
    picture("cascade-routes", "A certificate of a stage is no certificate of the cascade", (800, 290), plot)


# ------------------------------------------------------------------------------------------------------------
# README


def certified_curve() -> None:
    """Certified accuracy below, accuracy under attack above, and between them what neither settles."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    count = record["curve_examples"]
    right = sum(p == y for p, y in zip(record["predicted"][:count], record["labels"][:count], strict=True)) / count
    proved = [(0.0, right), *((at["eps"], 1 - at["robust_error"]) for at in record["curve"])]
    survived = [(0.0, right), *((at["eps"], 1 - at["pgd_error"]) for at in record["curve"])]
    plot = Plot((64, 50), (560, 270), (0, 0.2), (0, 1))
    plot.area([*survived, *reversed(proved)], "f-open")
    plot.area([*proved, (0.2, 0), (0, 0)], "f-proved")
    plot.line(survived, "s-broken thick")
    plot.line(proved, "s-proved thick")
    plot.line([(record["eps"], 0), (record["eps"], 1)], "s-ink thin dash")
    plot.axes(
        "largest change of a pixel, eps",
        "part of the test images",
        (0, 0.05, 0.1, 0.15, 0.2),
        (0, 0.25, 0.5, 0.75, 1),
        "{:g}".format,
    )
    at = next(index for index, (eps, _) in enumerate(proved) if math.isclose(eps, record["eps"]))
    plot.say("trained for 0.1", (record["eps"], 0), "small", (-8, -12), "end")
    plot.say(
        f"{100 * proved[at][1]:.1f} % proved, {100 * survived[at][1]:.1f} % survive the attack",
        (record["eps"], 0.8),
        "small",
        (-8, 0),
        "end",
    )
    plot.say("proved: no attack changes these", (0.003, 0.4), "t-proved", (6, 0))
    plot.say("open", (0.166, 0.6), "t-open")
    plot.say("broken by an attack", (0.2, 1.0), "t-broken", (0, -8), "end")
    for curve, kind in ((survived, "d-broken"), (proved, "d-proved")):
        for point in curve:
            plot.dot(point, kind, 3.5)
    picture(
        "certified-curve",
        "Certified accuracy and accuracy under attack against the size of the perturbation",
        (660, 380),
        plot,
    )


# ------------------------------------------------------------------------------------------------------------
# Architecture


def box(words: Sequence[str], corner: Point, size: Point, kind: str = "f-faint thin") -> str:
    """A rectangle with a line of text, and smaller ones below it."""
    (x, y), (width, height) = corner, size
    first = y + height / 2 + 5 - 8.5 * (len(words) - 1)
    lines = (text(w, (x + width / 2, first + 18 * i), "small" if i else "head", "middle") for i, w in enumerate(words))
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>' + "".join(lines)


def arrow(start: Point, end: Point) -> str:
    """A line with a head at its end, which is straight to the right or straight down."""
    x, y = end
    head = [(x - 7, y - 5), end, (x - 7, y + 5)] if start[1] == y else [(x - 5, y - 7), end, (x + 5, y - 7)]
    lines = ([start, end], head)
    return "".join(
        f'<polyline points="{" ".join(f"{a:g},{b:g}" for a, b in line)}" class="s-faint"/>' for line in lines
    )


FLOW = (
    (("your model", "nn.Module"), ("Network", "graph/"), ("DualNetwork", "dual/"), ("Bounds", "engines/"),
     ("Certificate", "certificates/")),
    (("robust loss", "certificates/"), ("weights", "training/"), ("run folder", "runs/, evaluation/"),
     ("report, tables", "report/, reproduce/")),
)  # fmt: skip
"""What is made of what, and the folder that makes it. The second row begins with the bounds of the first."""


def flow() -> None:
    """From a model to its certificate, and from a loss to a report."""
    width, step, bounds = 140.0, 164.0, 3
    parts = []
    for row, things in enumerate(FLOW):
        y, left = 20 + 112 * row, 12 + row * step
        for i, words in enumerate(things):
            parts.append(
                box(
                    words,
                    (left + step * i, y),
                    (width, 56),
                    "f-proved" if words[0] == "Certificate" else "f-faint thin",
                )
            )
            if i > 0:
                parts.append(arrow((left + step * i - step + width, y + 28), (left + step * i - 2, y + 28)))
    down, first = 12 + step * bounds + width / 2, 12 + step + width / 2
    corner = f'<polyline points="{down:g},76 {down:g},104 {first:g},104 {first:g},112" class="s-faint"/>'
    parts += [corner, arrow((first, 112), (first, 130))]
    picture("architecture-flow", "From a model to its certificate, and from a loss to a report", (824, 208), *parts)


def rooms() -> None:
    """The folders of the source in the order that `make lint` checks: none imports from a row above its own."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    rows = [[name.strip() for name in re.split("[|:]", row)] for row in settings[0]["layers"]]
    source, parts = ROOT / "src" / "autodual", []
    rows = [names for row in rows if (names := [name for name in row if (source / name).is_dir()])]
    for number, names in enumerate(rows):
        width = (420 - 10 * (len(names) - 1)) / len(names)
        for i, name in enumerate(names):
            kind = "f-proved thin" if name in ("engines", "dual") else "f-faint thin"
            parts.append(box([f"{name}/"], (80 + (width + 10) * i, 12 + 36 * number), (width, 30), kind))
    height = 36 * len(rows)
    parts += [arrow((44, 16), (44, height)), text("imports", (44, height + 20), "small t-faint", "middle")]
    picture(
        "architecture-rooms",
        "The folders of the source, each above those that it imports from",
        (520, height + 32),
        *parts,
    )


def main() -> None:
    for draw in (relaxation, hidden_space, waterfall, projections, routes, certified_curve, flow, rooms):
        draw()


if __name__ == "__main__":
    main()
