"""A cascade of two stages in the plane, trained and drawn: the paper's figure, and what it leaves out.

    OMP_NUM_THREADS=1 python benchmarks/two_stage_cascade.py [--plot-only]          (half a minute)

Twelve points of two classes, each with a box of half-width 0.08 (l-infinity). Both stages are networks of 30 + 30 hidden units,
trained with the exact robust loss: the first on all points, the second on those that the first does not certify. `Cascade` combines
them. Points, labels and seeds are fixed; this arrangement was chosen, of a few drawn at random, because the first stage leaves
points open. Regions are found on a grid of points. Writes benchmarks/results/two_stage_cascade.json and .md, and
docs/figures/two-stage-cascade.svg.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from typing import Any

import torch
from drawing import Key, Panel, sheet, write_figure
from machine import RESULTS, describe, in_words
from torch import Tensor, nn

import autodual as ad
from autodual.report.svg import Scale, Svg, element, group

FIGURE = "two-stage-cascade"
EPS = 0.08
BALL = ad.LinfBall(EPS)
POINTS, HIDDEN, STEPS, RAMP = 12, 30, 400, 25
DATA_SEED, STAGE_SEEDS = 2, (0, 1)
GRID = 160
SIDE = 290.0


def draw_points(seed: int) -> tuple[Tensor, Tensor]:
    """Points of the unit square whose boxes do not meet, with labels by the toss of a coin."""
    generator = torch.Generator().manual_seed(seed)
    points: list[Tensor] = []
    while len(points) < POINTS:
        point = torch.rand(2, generator=generator) * (1 - 2 * EPS) + EPS
        if all((point - other).abs().max() > 2.4 * EPS for other in points):
            points.append(point)
    return torch.stack(points), (torch.rand(POINTS, generator=generator) < 0.5).long()


def train(x: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """One stage: Adam on the exact robust loss of all its points, eps growing over the first half."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for start in range(0, STEPS, RAMP):
        loss = ad.RobustCrossEntropy(model, ad.LinfBall(EPS * min(1.0, (start + 1) / (STEPS / 2))), ad.Dual())
        for _ in range(RAMP):
            optimiser.zero_grad()
            loss(x, labels).backward()
            optimiser.step()
    return model.eval()


def measure() -> dict[str, Any]:
    """Trains both stages; what each certifies at the points and on the grid, and what the cascade's certificate is worth."""
    x, labels = draw_points(DATA_SEED)
    first = train(x, labels, STAGE_SEEDS[0])
    left = ~certified_own(first, x)[1]
    second = train(x[left], labels[left], STAGE_SEEDS[1])
    cascade = ad.Cascade([first, second], BALL)
    answers, found = cascade.predict(x), cascade.certify(x, labels)
    attacked = cascade.attack(x, labels, generator=torch.Generator().manual_seed(0))
    both = cascade.predict(_grid())
    return {
        "machine": describe(),
        "eps": EPS,
        "points": [[round(float(v), 4) for v in point] for point in x],
        "labels": labels.tolist(),
        "left_open": left.tolist(),
        "stages": [_stage(model, x) for model in (first, second)],
        "cascade": {
            "label": answers.label.tolist(),
            "certified": answers.certified.tolist(),
            "stage": answers.stage.tolist(),
            "soundly_certified": found.sound.tolist(),
            "attacked": attacked.found.tolist(),
            "regions": _regions(both.label, both.certified),
        },
    }


def certified_own(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The labels that a stage gives, and where it certifies them."""
    with torch.no_grad():
        label = model(x).argmax(1)
    return label, ad.certify(model, x, label, BALL).certified


def _stage(model: nn.Module, x: Tensor) -> dict[str, Any]:
    label, certified = certified_own(model, x)
    return {
        "label": label.tolist(),
        "certified": certified.tolist(),
        "regions": _regions(*certified_own(model, _grid())),
    }


def _grid() -> Tensor:
    """Middles of the cells, row by row from the bottom."""
    middles = (torch.arange(GRID) + 0.5) / GRID
    return torch.stack(torch.meshgrid(middles, middles, indexing="xy"), 2).reshape(-1, 2)


def _regions(label: Tensor, certified: Tensor) -> list[str]:
    """A line of letters for each row of the grid, run by run: A and B are certified, a and b are not. "12A3b" is 12 A, 3 b."""
    letters = ["abAB"[place] for place in (label + 2 * certified).tolist()]
    rows = [letters[start : start + GRID] for start in range(0, len(letters), GRID)]
    return ["".join(f"{len(list(run))}{letter}" for letter, run in groupby(row)) for row in rows]


# --------------------------------------------------------------------------------------------------------
# The picture

TONES = {"A": "sure-a", "B": "sure-b", "a": "open-a", "b": "open-b"}
STYLE = (
    ".f-sure-a{fill:#a9cbea}.f-sure-b{fill:#f3c3a5}.f-open-a{fill:#e9f1f8}.f-open-b{fill:#fbeee6}.point{stroke:#fff;stroke-width:1.5}"
    ".box{fill:none;stroke-width:2}.frame{fill:none;stroke:#6e7781}.faint{opacity:.3}"
)
POINT_TONES = ("run-1", "run-2")


def draw(record: dict[str, Any]) -> str:
    first, second = record["stages"]
    everything, left = [True] * len(record["labels"]), record["left_open"]
    together = record["cascade"]
    panels = [
        Panel(_plane(record, stage, shown), words, size=(SIDE, SIDE))
        for stage, shown, words in (
            (first, everything, _words("stage 1", first, record, everything)),
            (second, left, _words("stage 2", second, record, left)),
            (
                together,
                everything,
                f"{_words('both', together, record, everything)}, attack breaks {sum(together['attacked'])}",
            ),
        )
    ]
    legend = {
        "certified, class A": Key("sure-a", filled=True),
        "certified, class B": Key("sure-b", filled=True),
        "labelled A, not certified": Key("open-a", filled=True),
        "labelled B, not certified": Key("open-b", filled=True),
        "box of a point: certified": Key("run-6"),
        "box: not certified": Key("run-6", "3 3"),
    }
    return sheet("A cascade of two stages in the plane", [panels], legend, STYLE)


def _words(name: str, stage: dict[str, Any], record: dict[str, Any], shown: list[bool]) -> str:
    right = [
        sure and label == true
        for sure, label, true, one in zip(stage["certified"], stage["label"], record["labels"], shown, strict=True)
        if one
    ]
    return f"{name}: {sum(right)} of {len(right)} certified"


def _plane(record: dict[str, Any], stage: dict[str, Any], shown: list[bool]) -> Svg:
    """The regions of a stage, and its points with their boxes; points that are not its own are faint."""
    x, y = Scale.exactly(0.0, 1.0, 1.0, SIDE - 1), Scale.exactly(0.0, 1.0, SIDE - 1, 1.0)
    parts = [_region(stage["regions"], letter, x, y) for letter in TONES]
    half = x(record["eps"]) - x(0.0)
    for (across, up), label, sure, own in zip(
        record["points"], record["labels"], stage["certified"], shown, strict=True
    ):
        tone, middle = POINT_TONES[label], (x(across), y(up))
        box = element(
            "rect",
            x=middle[0] - half,
            y=middle[1] - half,
            width=2 * half,
            height=2 * half,
            class_=f"box s-{tone}",
            stroke_dasharray="" if sure else "3 3",
        )
        dot = element("circle", cx=middle[0], cy=middle[1], r=4.5, class_=f"point f-{tone}")
        parts.append(group([box, dot]) if own else group([dot], class_="faint"))
    frame = element("rect", x=1, y=1, width=SIDE - 2, height=SIDE - 2, class_="frame")
    return element("svg", *parts, frame, viewBox=f"0 0 {SIDE:g} {SIDE:g}")


def _region(rows: list[str], letter: str, x: Scale, y: Scale) -> Svg:
    """All cells of one letter as one path of flat rectangles; neighbouring equal rows are one."""
    cell, path, row = 1 / len(rows), "", 0
    for runs, equal in groupby(rows):
        height, column, number = len(list(equal)), 0, ""
        for sign in runs:
            if sign.isdigit():
                number += sign
                continue
            if sign == letter:
                left, right = x(column * cell), x((column + int(number)) * cell)
                low, high = y(row * cell), y((row + height) * cell)
                path += f"M{left:.1f} {low:.1f}H{right:.1f}V{high:.1f}H{left:.1f}z"
            column, number = column + int(number), ""
        row += height
    return element("path", d=path, class_=f"f-{TONES[letter]}", shape_rendering="crispEdges")


def show(record: dict[str, Any]) -> str:
    cascade, n = record["cascade"], len(record["labels"])
    right = [
        sure and a == b for sure, a, b in zip(cascade["certified"], cascade["label"], record["labels"], strict=True)
    ]
    lines = [
        "# A cascade of two stages in the plane",
        "",
        "`OMP_NUM_THREADS=1 python benchmarks/two_stage_cascade.py`",
        "",
        f"![Two stages](../../docs/figures/{FIGURE}.svg)",
        "",
        f"{n} points, boxes of half-width {record['eps']:g}. Stage 1 certifies {sum(record['stages'][0]['certified'])}, and leaves "
        f"{sum(record['left_open'])} to stage 2. The cascade certifies {sum(right)} with the right label (the paper's metric); "
        f"{sum(cascade['soundly_certified'])} are soundly certified; an attack makes it answer wrongly somewhere in "
        f"{sum(cascade['attacked'])} of the {n} boxes.",
        "",
        in_words(record["machine"]),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot-only", action="store_true", help="draw the picture from the json file")
    options = parser.parse_args()
    kept = RESULTS / "two_stage_cascade.json"
    if not options.plot_only:
        torch.set_num_threads(1)
        record = measure()
        kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "two_stage_cascade.md").write_text(show(record), encoding="utf-8")
        print(show(record))
    print(write_figure(FIGURE, draw(json.loads(kept.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
