"""The rows of the paper's tables, and of what came after it: names, what was published about them, and their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autodual._errors import ArgumentError
from autodual.runs.recipes import COMPARED_ROWS
from autodual.runs.recipes import RECIPES as METHODS

# A row's name is that of its config. Figures are in per cent. The paper chose its networks by their error on test data, so its figures
# are optimistic; those of the released weights were measured again by others, and are the fairer comparison.

PublishedErrors = tuple[float, float]
"""Robust error and clean error, in per cent; for a cascade, the first is the stage-certified error."""


@dataclass(frozen=True)
class Row:
    """One network, or one cascade, of the paper's tables."""

    name: str
    table: int
    """By the paper's own numbers: 2 is about l-infinity balls, 3 about width and depth, 4 about l2 balls."""
    data: str
    network: str
    eps: str
    paper: PublishedErrors
    released: PublishedErrors | None = None
    """The released weights, evaluated again by others."""

    @property
    def is_cascade(self) -> bool:
        return self.name.endswith("-cascade")


ROWS: tuple[Row, ...] = (
    Row("mnist-small-0.1", 2, "MNIST", "small", "0.1", (4.99, 1.37), (5.06, 1.21)),
    Row("mnist-small-exact-0.1", 2, "MNIST", "small, exact", "0.1", (4.48, 1.26), (4.46, 1.04)),
    Row("cifar-small-2", 2, "CIFAR-10", "small", "2/255", (52.75, 38.91), (53.57, 39.14)),
    Row("cifar-small-8", 2, "CIFAR-10", "small", "8/255", (79.25, 72.24), (79.42, 72.40)),
    Row("cifar-large-2", 2, "CIFAR-10", "large", "2/255", (46.59, 31.28), (47.35, 32.30)),
    Row("mnist-large-0.1", 2, "MNIST", "large", "0.1", (3.67, 1.08), (4.45, 1.19)),
    Row("cifar-resnet-2", 2, "CIFAR-10", "resnet", "2/255", (46.11, 31.72), (48.46, 33.67)),
    Row("mnist-small-0.3", 2, "MNIST", "small", "0.3", (43.10, 14.87)),
    Row("cifar-resnet-8", 2, "CIFAR-10", "resnet", "8/255", (78.22, 71.33)),
    Row("cifar-large-8", 2, "CIFAR-10", "large", "8/255", (83.43, 80.56)),
    Row("mnist-large-0.3", 2, "MNIST", "large", "0.3", (45.66, 12.61)),
    Row("mnist-small-l2", 4, "MNIST", "small", "1.58", (56.32, 13.11)),
    Row("mnist-small-exact-l2", 4, "MNIST", "small, exact", "1.58", (56.48, 11.86)),
    Row("cifar-small-l2", 4, "CIFAR-10", "small", "36/255", (53.73, 44.72)),
    Row("mnist-large-l2", 4, "MNIST", "large", "1.58", (55.47, 11.88)),
    Row("cifar-large-l2", 4, "CIFAR-10", "large", "36/255", (49.40, 40.24)),
    Row("cifar-resnet-l2", 4, "CIFAR-10", "resnet", "36/255", (48.04, 38.80)),
    Row("mnist-wide1-0.1", 3, "MNIST", "wide(1)", "0.1", (6.51, 2.27)),
    Row("mnist-wide2-0.1", 3, "MNIST", "wide(2)", "0.1", (5.46, 1.55)),
    Row("mnist-wide4-0.1", 3, "MNIST", "wide(4)", "0.1", (4.94, 1.33)),
    Row("mnist-wide8-0.1", 3, "MNIST", "wide(8)", "0.1", (4.79, 1.32)),
    Row("mnist-wide16-0.1", 3, "MNIST", "wide(16)", "0.1", (5.27, 1.36)),
    Row("mnist-deep1-0.1", 3, "MNIST", "deep(1)", "0.1", (5.28, 1.78)),
    Row("mnist-deep2-0.1", 3, "MNIST", "deep(2)", "0.1", (4.37, 1.28)),
    Row("mnist-deep3-0.1", 3, "MNIST", "deep(3)", "0.1", (4.20, 1.15)),
    Row("mnist-small-0.1-cascade", 2, "MNIST", "small", "0.1", (3.13, 3.13)),
    Row("cifar-small-2-cascade", 2, "CIFAR-10", "small", "2/255", (39.35, 39.35)),
    Row("cifar-small-8-cascade", 2, "CIFAR-10", "small", "8/255", (71.71, 71.71)),
    Row("mnist-small-0.3-cascade", 2, "MNIST", "small", "0.3", (33.64, 33.64)),
    Row("mnist-small-l2-cascade", 4, "MNIST", "small", "1.58", (25.34, 20.93)),
    Row("mnist-small-exact-l2-cascade", 4, "MNIST", "small, exact", "1.58", (24.42, 19.57)),
    Row("cifar-small-l2-cascade", 4, "CIFAR-10", "small", "36/255", (50.13, 48.64)),
    Row("cifar-large-2-cascade", 2, "CIFAR-10", "large", "2/255", (38.84, 36.08)),
    Row("mnist-large-0.1-cascade", 2, "MNIST", "large", "0.1", (3.42, 3.18)),
    Row("cifar-resnet-2-cascade", 2, "CIFAR-10", "resnet", "2/255", (36.41, 35.93)),
    Row("cifar-resnet-8-cascade", 2, "CIFAR-10", "resnet", "8/255", (70.95, 70.77)),
    Row("cifar-large-8-cascade", 2, "CIFAR-10", "large", "8/255", (79.24, 79.14)),
    Row("mnist-large-0.3-cascade", 2, "MNIST", "large", "0.3", (41.62, 35.24)),
    Row("mnist-large-l2-cascade", 4, "MNIST", "large", "1.58", (26.16, 24.97)),
    Row("cifar-large-l2-cascade", 4, "CIFAR-10", "large", "36/255", (41.36, 41.16)),
    Row("cifar-resnet-l2-cascade", 4, "CIFAR-10", "resnet", "36/255", (41.44, 41.28)),
)
BY_NAME = {row.name: row for row in ROWS}
DataAndEps = tuple[str, str]
PROBLEMS: dict[DataAndEps, str] = {
    ("MNIST", "0.1"): "mnist-0.1", ("CIFAR-10", "2/255"): "cifar-2", ("CIFAR-10", "8/255"): "cifar-8", ("MNIST", "0.3"): "mnist-0.3",
    ("MNIST", "1.58"): "mnist-l2", ("CIFAR-10", "36/255"): "cifar-l2",
}  # fmt: skip
"""Short names of what rows are about, in the order of `ROWS`."""

Recipe = Literal["paper", "best", "modern"]
RECIPES: tuple[Recipe, ...] = ("paper", "best", "modern")
"""The paper's settings; ours for the same networks; later methods."""

BEST = (
    "mnist-small-0.1",
    "mnist-small-0.3",
    "mnist-large-0.1",
    "cifar-small-2",
    "cifar-large-2",
    "cifar-resnet-2",
    "cifar-small-8",
    "cifar-small-l2",
)
"""Rows that are also trained as well as we can, from `configs/best/`."""

MODERN_FIRST = (
    "mnist-0.3-ibp",
    "cifar-2-mtl-ibp",
    "mnist-0.1-ibp",
    "cifar-8-mtl-ibp",
    "cifar-2-crown-ibp",
    "cifar-2-sabr",
)
_known = {
    f"{problem}-{name}": (problem, name)
    for problem in COMPARED_ROWS
    for name, method in METHODS.items()
    if name != "paper" and problem in method.rows
}
MODERN = {name: _known[name] for name in dict.fromkeys((*MODERN_FIRST, *_known))}
"""Rows of later methods, from `configs/modern/`, in the order in which they are trained: data with eps, and the method."""

SEEDED = tuple(row.name for row in ROWS[:4])
"""Rows that are trained with three seeds, to tell a difference from noise."""
SEEDS = 3


@dataclass(frozen=True)
class PaperSize:
    """A line of the paper's table 1. The row, if there is one, is trained for its robust error and tells our time, too."""

    data: str
    network: str
    hidden: int
    parameters: int
    seconds: int
    """Per epoch."""
    row: str | None


SIZES = (
    PaperSize("MNIST", "small", 4804, 166406, 74, "mnist-small-0.1"),
    PaperSize("CIFAR-10", "small", 6244, 214918, 48, "cifar-small-2"),
    PaperSize("MNIST", "large", 28064, 1974762, 667, "mnist-large-0.1"),
    PaperSize("CIFAR-10", "large", 62464, 2466858, 466, "cifar-large-2"),
    PaperSize("MNIST", "resnet", 82536, 3254562, 2174, None),
    PaperSize("CIFAR-10", "resnet", 107496, 4214850, 1685, "cifar-resnet-2"),
)


def rows_of_group(name: str) -> tuple[str, ...] | None:
    """The rows of `table1` to `table4`, or of `all`, in the order of the campaign; None for any other name."""
    tables = {f"table{number}": {row.name for row in ROWS if row.table == number} for number in (2, 3, 4)}
    tables |= {"table1": {size.row for size in SIZES if size.row is not None}, "all": set(BY_NAME)}
    if name.startswith("table") and name not in tables:
        raise ArgumentError(f"{name}: the paper has the tables table1, table2, table3 and table4")
    return tuple(row.name for row in ROWS if row.name in tables[name]) if name in tables else None
