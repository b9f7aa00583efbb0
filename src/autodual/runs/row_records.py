"""What is kept of a reproduced row: its evaluation.json as frozen dataclasses, whose fields stand in the order of the file."""

from __future__ import annotations

from dataclasses import dataclass

from autodual.runs.records import AttackFigures, CascadeErrors, StageCounts, flat, optional

EVALUATION = "evaluation.json"
CERTIFICATES = "certificates.npz"
WEIGHTS = "model.safetensors"


def _same(one: float, other: float) -> bool:
    """Equal but for the last digits."""
    return abs(one - other) < 1e-9


@dataclass(frozen=True, kw_only=True)
class EngineFigures:
    """What one engine certifies; only `engine` and `not_run` where it was too large for the machine."""

    images: int | None = optional()
    tried: int | None = optional()
    """How many of these images were tried, if not all: the attack has broken the others, so that they cannot be certified."""
    certified: int | None = optional()
    certified_as_run: int | None = optional()
    robust_error: float | None = optional()
    """None where only images that were still open count."""
    robust_error_as_run: float | None = optional()
    engine: str
    seconds: float | None = optional()
    device: str | None = optional()
    not_run: str | None = optional()

    def __post_init__(self) -> None:
        pairs = ((self.certified, self.robust_error), (self.certified_as_run, self.robust_error_as_run))
        for certified, error in pairs:
            if (
                self.images
                and certified is not None
                and error is not None
                and not _same(1 - certified / self.images, error)
            ):
                raise ValueError("has an error that its counts do not give")


@dataclass(frozen=True, kw_only=True)
class NetworkFigures:
    """What a single network is worth. An image is certified by the best if one of the engines certifies it."""

    pgd_error: float
    pgd_error_exact: float
    pgd_steps: int
    engines: dict[str, EngineFigures]
    error: float
    collapsed: str | None
    robust_error: float
    robust_error_as_run: float
    certified_best: int | None = optional()
    certified_best_as_run: int | None = optional()
    robust_error_best: float | None = optional()
    robust_error_best_as_run: float | None = optional()

    def __post_init__(self) -> None:
        errors = (self.error, self.pgd_error, self.pgd_error_exact, self.robust_error, self.robust_error_as_run)
        best = (self.robust_error_best, self.robust_error_best_as_run)
        if not all(each is None or 0 <= each <= 1 for each in (*errors, *best)):
            raise ValueError("has an error that is no part of 1")
        whole = [each.robust_error for each in self.engines.values() if each.robust_error is not None]
        if whole and not any(_same(each, self.robust_error) for each in whole):
            raise ValueError("has a robust error that no engine found")
        proved = [each for each in (self.robust_error, self.robust_error_best) if each is not None]
        if min(proved) < self.pgd_error_exact - 1e-9:
            raise ValueError("has fewer errors that are left open than those that the attack found")

    @property
    def least_robust_errors(self) -> tuple[float, float]:
        """Robust error, and that as run: of the best of the engines, or of the row's own while others are still to come."""
        if self.robust_error_best is None or self.robust_error_best_as_run is None:
            return self.robust_error, self.robust_error_as_run
        return self.robust_error_best, self.robust_error_best_as_run

    def __str__(self) -> str:
        """The figures in a line."""
        best = "" if self.robust_error_best is None else f", best of the engines {self.robust_error_best:.2%}"
        return (
            f"robust error {self.robust_error:.2%} (as run {self.robust_error_as_run:.2%}){best}, PGD error {self.pgd_error:.2%}, "
            f"error {self.error:.2%}"
        )


@dataclass(frozen=True)
class Choice:
    """The sound combination of a cascade's stages that is best on images which are not tested on."""

    chosen: str
    thresholds: tuple[float | None, ...]
    """None stands for infinity, which JSON does not know."""
    error_on_fitting: dict[str, float]


@dataclass(frozen=True)
class BestSound(Choice):
    """What the chosen combination reaches on the test images."""

    error: float
    sound_certified_error: float
    sound_certified_error_as_run: float
    chosen_on: str


@dataclass(frozen=True, kw_only=True)
class CascadeFigures:
    """What a cascade is worth; see `CascadeSummary`."""

    kind: str
    stages: tuple[StageCounts, ...]
    errors: CascadeErrors = flat()
    no_wrong_certificate: float
    collapsed: str | None
    cascade_engine: str
    best_sound: BestSound | None = optional()
    attack: AttackFigures | None = flat(optional=True)

    @property
    def error(self) -> float:
        return self.errors.error

    def __str__(self) -> str:
        """The figures in a line."""
        attacked = "" if self.attack is None else f", attacked {self.attack.attacked_error:.2%}"
        sound = self.best_sound
        best = "" if sound is None else f", best sound combination {sound.sound_certified_error:.2%}"
        return (
            f"stage-certified error {self.errors.stage_certified_error:.2%}{attacked}, soundly certified "
            f"{self.errors.sound_certified_error:.2%}{best}, error {self.error:.2%}"
        )


RowFigures = NetworkFigures | CascadeFigures


@dataclass(frozen=True)
class WeightsRecord:
    """Which weights were certified: by the digests of their files, and in a file where there is room for it."""

    chosen: str
    epoch: int
    eps: float | None
    rounded_to: str
    kept: bool
    bytes: int
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class TrainingRecord:
    """Speed and place of a training."""

    epochs: int
    stages: int
    seconds_per_epoch: float | None
    """The median of whole epochs after the first, in which kernels are compiled."""
    side_by_side: int
    seconds: dict[str, float]
    autodual: str
    torch: str
    python: str
    device: str
    started: str


@dataclass(frozen=True, kw_only=True)
class RowRecord:
    """The evaluation of a row, perhaps still without some engines."""

    row: str
    recipe: str
    seed: int
    complete: bool
    split: str
    examples: int
    perturbation: str
    norm: str
    eps: float
    dtype: str
    cascade: bool
    figures: RowFigures = flat()
    weights: WeightsRecord
    training: TrainingRecord
