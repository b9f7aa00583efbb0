"""What a run is made of: one flat, typed record whose fields have the help and the rules of the command line; and its YAML file."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from autodual._errors import ArgumentError
from autodual._files import read_content

NormName = Literal["linf", "l2"]
TrainingEngine = Literal["projected", "dual", "ibp", "crown-ibp", "none"]
EstimatorName = Literal["quiet-gradient", "median", "geometric-mean", "maximum-likelihood"]
OptimiserName = Literal["adam", "sgd", "adamw", "radam"]
CascadeKind = Literal["paper", "routed", "sum"]
Mix = Literal["losses", "scores", "geometric"]
MixedWith = Literal["natural", "adversarial"]
BatchStatistics = Literal["clean", "adversarial"]
Initialisation = Literal["default", "intervals"]
EpsSchedule = Literal["linear", "smooth"]
Averaging = Literal["none", "ema", "swa"]
CropFill = Literal["black", "edge"]
Proving = Literal["dual", "crown", "ibp", "crown-ibp", "crown-zero", "best-ibp", "best", "best-everywhere", "alpha"]
"""Engines that prove, by the names that `evaluation.judge` gives them."""

EPS_START = 0.01
LARGEST: dict[NormName, float] = {"linf": 1, "l2": 1000}
"""Sizes beyond which a ball holds every image, or, where that depends on the number of pixels, every image of a sane size."""


class OptionError(ArgumentError):
    """An option has a value that it cannot have."""

    option = ""
    wrong = ""
    """What is wrong with it: the rest of a sentence that begins with the option."""

    @classmethod
    def about(cls, option: str, wrong: str, source: str = "") -> OptionError:
        error = cls(f"{source}{option}{wrong}")
        error.option, error.wrong = option, wrong
        return error


Rule = tuple[Callable[[Any], bool], str]
"""Whether a number is one that an option can have, and what it must do to be one."""
NOT_NEGATIVE: Rule = (lambda v: v >= 0, "not be negative")
AT_LEAST_ONE: Rule = (lambda v: v >= 1, "be at least 1")
POSITIVE: Rule = (lambda v: v > 0, "be positive")
UP_TO_ONE: Rule = (lambda v: 0 <= v <= 1, "lie between 0 and 1")
BELOW_ONE: Rule = (lambda v: 0 <= v < 1, "lie between 0 and 1, and below 1")


def option(default: Any, text: str, *rules: Rule) -> Any:
    """A field with its help, and the rules for its values."""
    return field(default=default, metadata={"help": text, "rules": rules})


class _UnsetNumber(float):
    """A default that depends on other options."""


class _UnsetWord(str):
    """A default that depends on other options."""

    __slots__ = ()


TABLES = (".csv", ".tsv")
TABLE_MODEL = "mlp:64,64"
OTHERS = "*"
"""Stands for all columns that are not named."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the result of a run."""

    dataset: str = option(
        "digits", "digits, mnist, fashion-mnist, cifar10, or a PATH: class folders, .npz, .csv, file.py:factory"
    )
    data_folder: str | None = option(None, "where data sets lie; $AUTODUAL_DATA or the user's cache when not given")
    model: str = option(
        _UnsetWord("small"),
        "small, large, resnet, wide:K, deep:K, cnn5, cnn7, cnn5:FILTERS, cnn7:FILTERS, digits, mlp:64,64 (the default for tables), "
        "or file.py:factory, called as "
        "factory(shape, classes)",
    )
    normalise: bool = option(
        False,
        "subtract the mean of the images trained on and divide by their deviation, per channel (of tables, per column), as the "
        "network's first layer; for cifar10 by the paper's constants",
    )
    per_channel: bool = option(
        False,
        "normalise cifar10 by the constants of newer papers, with a deviation for each channel: 0.2023, 0.1994, 0.2010",
    )
    initialisation: Initialisation = option(
        "default",
        "how weights begin: default, or intervals, which keeps interval bounds from growing (Shi et al. 2021)",
    )
    norm: NormName = option("linf", "norm of the perturbation")
    eps: float = option(
        _UnsetNumber(0.1),
        "size of the perturbation, in the units of images in [0, 1]; a fraction such as 2/255 will do. Of tables, in the units of "
        "the columns: age=2,income=100 (others do not move; *=1 for them), a list in their order, or an .npz with an array eps",
    )
    clip: tuple[float, float] | None = option(None, "range that perturbed images stay in (l-infinity only)")
    engine: TrainingEngine = option(
        "projected",
        "bound to train with: projected, dual (exact), ibp, crown-ibp (one backward pass over interval bounds), or none for "
        "standard training",
    )
    k: int = option(50, "random projections", AT_LEAST_ONE)
    per_term: bool = option(False, "one stream of projections per term, as in the paper, instead of one for all")
    estimator: EstimatorName = option("quiet-gradient", "how a norm is read off its projections")
    adversarial: bool = option(False, "train on PGD examples instead of bounds (needs engine none)")
    epochs: int = option(60, "passes over the training data", AT_LEAST_ONE)
    batch: int = option(50, "examples per step", AT_LEAST_ONE)
    optimiser: OptimiserName = option("adam", "adam, sgd, adamw or radam")
    lr: float = option(1e-3, "learning rate", POSITIVE)
    momentum: float = option(0.9, "momentum of sgd", BELOW_ONE)
    weight_decay: float = option(0.0, "weight decay", NOT_NEGATIVE)
    clip_gradients: float | None = option(None, "largest norm of the gradient; no limit when not given", POSITIVE)
    eps_start: float = option(
        EPS_START,
        "first size of the perturbation; grows linearly, epoch by epoch. The default is cut to eps",
        NOT_NEGATIVE,
    )
    eps_part: float = option(1 / 3, "part of the training until eps is reached, between 0 and 1")
    eps_epochs: int | None = option(None, "epochs until eps is reached; wins over eps_part", NOT_NEGATIVE)
    eps_schedule: EpsSchedule = option(
        "linear",
        "linear, epoch by epoch; or smooth, step by step from 0: a power of 4 for a quarter of the way, then a line",
    )
    warm_up: int = option(0, "epochs without perturbation before eps grows", NOT_NEGATIVE)
    train_eps_factor: float = option(1.0, "training goes up to so many times eps", POSITIVE)
    lr_part: float = option(1 / 2, "part of the training with a constant learning rate, between 0 and 1")
    lr_epochs: int | None = option(None, "epochs of constant learning rate; wins over lr_part", NOT_NEGATIVE)
    lr_halve_part: float = option(1 / 6, "part of the training between halvings after that; 0 for none")
    lr_halve_every: int | None = option(
        None, "epochs between halvings; 0 for none; wins over lr_halve_part", NOT_NEGATIVE
    )
    lr_milestones: tuple[float, ...] | None = option(
        None,
        "epochs from which on the learning rate is multiplied by lr_factor, or parts of the training below 1; instead of halvings",
    )
    lr_factor: float = option(0.2, "factor of the learning rate at each of lr_milestones", POSITIVE)
    robust_weight: float = option(1.0, "weight of the robust loss; the rest goes to the usual loss", UP_TO_ONE)
    robust_weight_start: float | None = option(
        None, "weight of the robust loss at eps 0, from which it follows eps; constant when not given", UP_TO_ONE
    )
    mix: Mix = option(
        "losses", "how the weight mixes: losses (MTL-IBP), scores (CC-IBP), or geometric: powers of losses (Exp-IBP)"
    )
    mix_with: MixedWith = option("natural", "the usual loss that is mixed in: of natural or adversarial examples")
    box_part: float = option(
        1.0,
        "radius of the box that is bounded, as a part of eps, around an adversarial point (SABR); 1: the whole ball",
        POSITIVE,
        UP_TO_ONE,
    )
    crown_weight: float = option(1.0, "of crown-ibp: weight of its bounds; the rest goes to interval bounds", UP_TO_ONE)
    crown_weight_start: float | None = option(
        None, "crown_weight at eps 0, from which it follows eps; constant when not given", UP_TO_ONE
    )
    attack_steps: int | None = option(
        None,
        "gradient steps of the attack in training, from a random point; when not given, 10 with sizes of their own, from x",
        NOT_NEGATIVE,
    )
    attack_step_size: float = option(
        0.25, "size of steps of the attack in training, as a part of its radius; may exceed 1", POSITIVE
    )
    attack_restarts: int = option(1, "random starts of the attack in training; the worst point counts", AT_LEAST_ONE)
    attack_eps_factor: float = option(
        1.0, "radius of the attack in training, as a multiple of the size that is trained against", POSITIVE
    )
    attack_half: bool = option(False, "compute the attack in training in bfloat16")
    batch_statistics: BatchStatistics = option(
        "clean",
        "batch normalisation, in bounds and losses of a step, uses statistics of the clean or the adversarial batch",
    )
    regularise: float = option(
        0.0,
        "weight of two terms, for tight and for balanced interval bounds, that fade out as eps grows (Shi et al. 2021)",
        NOT_NEGATIVE,
    )
    l1: float = option(0.0, "weight of the sum of all absolute weights of convolutions and linear layers", NOT_NEGATIVE)
    average: Averaging = option(
        "none",
        "weights that count: none (the last), ema (moving average over steps), or swa (mean of the last average_epochs)",
    )
    average_decay: float = option(0.999, "part of the average that ema keeps in a step", BELOW_ONE)
    average_epochs: int = option(10, "last epochs that swa averages over", AT_LEAST_ONE)
    precise_statistics: bool = option(
        False,
        "before weights are judged or kept, take the statistics of batch normalisation from all training data again",
    )
    crop: int = option(0, "random crops after padding by so many pixels", NOT_NEGATIVE)
    crop_fill: CropFill = option("black", "pixels that are padded: black, or those of the nearest edge")
    flip: bool = option(False, "random horizontal flips")
    validation: float = option(
        0.0, "part of the training data held out to choose the checkpoint; 0: the last epoch counts"
    )
    evaluate_every: int = option(
        10, "epochs between exact evaluations on held-out data (training data when none is held out)", NOT_NEGATIVE
    )
    evaluate_examples: int = option(500, "examples of such an evaluation", AT_LEAST_ONE)
    evaluate_engine: Proving = option(
        "dual",
        "bound that evaluations, and `certify` where it is told no other, prove with: dual, crown, ibp, crown-ibp, crown-zero; "
        "best-ibp, the best of those over interval bounds, for networks that were trained with these; best, best-everywhere, alpha",
    )
    limit_train: int | None = option(None, "use only the first so many training examples", AT_LEAST_ONE)
    limit_test: int | None = option(None, "use only the first so many test examples", AT_LEAST_ONE)
    cascade: int = option(1, "stages of a cascade; 1 for a single network", AT_LEAST_ONE)
    cascade_kind: CascadeKind = option("paper", "paper (stage certificates), routed (thresholds), or sum (of logits)")
    seed: int = option(0, "seed of everything random", NOT_NEGATIVE)
    device: str = option("auto", "auto, cpu, cuda, cuda:1 ...")
    tensorboard: bool = option(False, "also write what is measured as TensorBoard events")
    half_weights: bool = option(
        False,
        "round trained weights to float16, which halves their file; the rounded network is the one that is certified",
    )
    label_column: str | None = option(
        None, "of a table: the column with the labels, by name or number (1: the first, -1: the last)"
    )
    test_dataset: str | None = option(
        None, "of a table: a second .csv to test on; a fifth of each class when not given"
    )
    split_seed: int = option(0, "of a table: seed that draws the fifth of each class to test on", NOT_NEGATIVE)
    feature_eps: str | None = option(
        None, "how far each feature may move at eps 1; an eps per feature is kept here, and eps, then 1, multiplies it"
    )
    skip_curve: bool = option(
        False,
        "no curve over eps and no certified radii in the evaluation, most of whose time they take; a later --resume "
        "--no-skip-curve adds them",
    )

    def __post_init__(self) -> None:
        hints = get_type_hints(TrainConfig)
        _fill_in(self)
        for each in fields(self):
            object.__setattr__(self, each.name, _fitted(each.name, getattr(self, each.name), hints[each.name]))
        _check_values(self)

    @property
    def tabular(self) -> bool:
        """Whether the data are surely no images: values may then be of any size."""
        table = Path(self.dataset).suffix.lower() in TABLES
        return table or self.label_column is not None or self.feature_eps is not None

    def to_mapping(self) -> dict[str, Any]:
        """The fields as plain values, for YAML and JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "config") -> TrainConfig:
        """A config from values by name. Refuses names that it does not know, and suggests the nearest one."""
        if not isinstance(values, Mapping):
            raise ArgumentError(f"{source}: expected options by name, got {type(values).__name__}")
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
                raise ArgumentError(f"{source}: unknown option {name!r}{hint}")
        try:
            return cls(**values)
        except OptionError as error:
            raise OptionError.about(error.option, error.wrong, f"{source}: ") from None

    def with_changes(self, **changes: Any) -> TrainConfig:
        """Another config, with some fields changed, and checked like any other."""
        return replace(self, **changes)


def _fill_in(c: TrainConfig) -> None:
    """Settles what several options say together: an eps per feature goes where it is kept; defaults that depend on the data."""

    def put(name: str, value: Any) -> None:
        object.__setattr__(c, name, value)

    if isinstance(c.label_column, int) and not isinstance(c.label_column, bool) and abs(c.label_column) < 10**6:
        put("label_column", str(c.label_column))
    if _number(c.eps) is None and (isinstance(c.eps, Mapping | list | tuple) or is_per_feature(c.eps)):
        if c.feature_eps is not None:
            raise OptionError.about("eps", " is given for each feature twice, as eps and as feature_eps; give it once")
        put("feature_eps", per_feature("eps", c.eps))
        put("eps", 1.0)
    elif c.feature_eps is not None:
        put("feature_eps", per_feature("feature_eps", c.feature_eps))
        put("eps", 1.0 if isinstance(c.eps, _UnsetNumber) else c.eps)
    if isinstance(c.model, _UnsetWord):
        table = isinstance(c.dataset, str) and Path(c.dataset).suffix.lower() in TABLES
        put("model", TABLE_MODEL if table else str(c.model))


def is_per_feature(text: object) -> bool:
    """Whether a text is an eps for each feature, right or wrong: names, a list, JSON or a file."""
    return isinstance(text, str) and (text.endswith(".npz") or any(mark in text for mark in "=,[{"))


def per_feature(option: str, value: Any) -> str:
    """An eps for each feature as it is kept: the name of an .npz file, or JSON, a list or an object by the names of columns."""
    if isinstance(value, str) and value.endswith(".npz"):
        return value
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except ValueError:
            raise OptionError.about(option, f" is no JSON: {value[:100]!r}") from None
    elif isinstance(value, str):
        pairs = [part.rpartition("=") for part in value.split(",")]
        named = [bool(equals) for _, equals, _ in pairs]
        if any(named) and not all(named):
            raise OptionError.about(
                option, f" names some columns and others not: {value[:100]!r}; write age=2,income=100"
            )
        value = {name.strip(): size for name, _, size in pairs} if all(named) else [size for _, _, size in pairs]
        if len(value) != len(pairs):
            raise OptionError.about(option, " names a column twice")
    items = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value, 1)) if _is_list(value) else []
    sizes = [_size(size) for _, size in items]
    for (name, size), number in zip(items, sizes, strict=True):
        if number is None or number < 0:
            raise OptionError.about(option, f" of {name!r} must be a finite number, not negative, got {size!r}")
    if not any(sizes):
        raise OptionError.about(
            option, " must be positive for one feature at least: there is nothing to be robust against"
        )
    kept = json.dumps(
        {str(name): size for (name, _), size in zip(items, sizes, strict=True)} if isinstance(value, Mapping) else sizes
    )
    if len(kept) > LONGEST_EPS:
        raise OptionError.about(
            option, f" has {len(items)} numbers, more than a config should hold; save them as an .npz, array eps"
        )
    return kept


LONGEST_EPS = 4000
"""Letters of an eps per feature; `read_yaml` refuses longer ones."""


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _size(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = parse_fraction(value)
    return _number(value)


def _fitted(name: str, value: Any, hint: Any) -> Any:
    """Returns the value as the type that the option has, or refuses it. Numbers may be whole, or fractions such as "2/255"."""
    for choice in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        origin = get_origin(choice)
        if choice is type(None) and value is None:
            return None
        if origin is Literal and value in get_args(choice) and not isinstance(value, bool):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            numbers = [number for number in map(_number, value) if number is not None]
            several = get_args(choice)[-1] is Ellipsis
            if len(numbers) == len(value) > 0 and (several or len(value) == 2):
                return tuple(numbers)
        if choice is float and (number := _number(value)) is not None:
            return number
        if choice is str and isinstance(value, str) and value.strip() and "\0" not in value:
            return value
        if choice in (int, bool) and type(value) is choice:
            return value
    is_word = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+e[-+]?\d+", value, re.IGNORECASE)
    advice = "; YAML takes this for a word: write it with a point and a signed exponent, as 1.0e-3" if is_word else ""
    raise OptionError.about(name, f" must be {_describe(hint)}, got {value!r}{advice}")


def parse_fraction(text: str) -> float | None:
    """A/B, such as 2/255, as a number; None if the text is something else."""
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else None
    except (ValueError, ZeroDivisionError):
        return None


def _number(value: Any) -> float | None:
    """The value as a finite float; None if it is none."""
    found = parse_fraction(value) if isinstance(value, str) else value
    fine = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= sys.float_info.max
    return float(found) if fine else None  # type: ignore[arg-type]  # `fine` says so


TYPES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a word", type(None): "nothing"}


def _describe(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(a) for a in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return "a list of finite numbers" if get_args(hint)[-1] is Ellipsis else "two finite numbers"
    return TYPES.get(hint, str(hint))


PARTS = {"eps_part": "eps_epochs", "lr_part": "lr_epochs", "lr_halve_part": "lr_halve_every"}
"""Parts of the training, and what says the same in epochs and wins where it is given."""


OF_BOUNDS: dict[str, object] = {
    "mix": "losses", "mix_with": "natural", "box_part": 1.0, "regularise": 0.0, "robust_weight_start": None
}  # fmt: skip
"""Options that say something about bounds, and what they are when nothing is said."""


def attacks(config: TrainConfig) -> bool:
    """Whether training searches for adversarial examples."""
    return config.adversarial or config.mix_with == "adversarial" or config.box_part < 1


LARGEST_FLOAT, TINY = 1e30, 1e-300
"""Options beyond the first would overflow in float32, even where they are multiplied by a thousand million."""


def _check_values(c: TrainConfig) -> None:
    """Refuse values that an option cannot have: (option, whether it is fine, what is wrong with it)."""
    rules: list[tuple[str, bool, str]] = [
        *((name, v < 2**32, f" must be below 2**32, got {v}") for name, v in asdict(c).items() if isinstance(v, int)),
        *((name, not isinstance(v, float) or abs(v) <= LARGEST_FLOAT, f" must be at most {LARGEST_FLOAT:g}, got {v}: networks "
           f"compute in float32") for name, value in asdict(c).items() for v in (value if isinstance(value, tuple) else (value,))),
        ("lr_factor", math.log(max(c.lr, TINY)) + len(c.lr_milestones or ()) * math.log(max(c.lr_factor, TINY))
         <= math.log(LARGEST_FLOAT), f" at {len(c.lr_milestones or ())} milestones makes the learning rate larger than "
         f"{LARGEST_FLOAT:g}, got {c.lr_factor}"),
        *((each.name, v is None or fine(v), f" must {words}, got {v}")
          for each in fields(c) for v in (getattr(c, each.name),) for fine, words in each.metadata["rules"]),
        ("eps", c.eps > 0, f" must be positive, got {c.eps}: at 0 there is nothing to be robust against"),
        ("eps", c.tabular or c.eps <= LARGEST[c.norm], f" must be at most {LARGEST[c.norm]} for norm {c.norm}, got {c.eps}: images "
         "have values between 0 and 1; for 8 of 255 grey levels, write 8/255; for data that are no images, write *=8"),
        ("feature_eps", c.feature_eps is None or c.norm == "linf", " is for norm linf: an l2 ball has one size"),
        ("feature_eps", c.feature_eps is None or c.cascade == 1, " is for a single network, not for a cascade"),
        ("crop", c.crop == 0 or not c.tabular, " is for images"),
        ("flip", not c.flip or not c.tabular, " is for images"),
        ("eps_start", c.eps_start <= max(c.eps, EPS_START), f" must not be larger than eps, which is {c.eps}, got {c.eps_start}"),
        *((name, 0 <= getattr(c, name) <= 1, f" must be a part of the training, between 0 and 1, got {getattr(c, name)}; for epochs, "
           f"use {instead}") for name, instead in PARTS.items()),
        ("crop", c.crop <= 1000, f" must be at most 1000 pixels, got {c.crop}"),
        ("lr_milestones", c.lr_milestones is None or (min(c.lr_milestones) > 0 and [*c.lr_milestones] == sorted(c.lr_milestones)),
         f" must be positive and ascending, got {c.lr_milestones}"),
        ("validation", 0 <= c.validation < 1, f" must be a part of the data, 0 <= validation < 1, got {c.validation}"),
        ("validation", c.validation == 0 or c.evaluate_every > 0 or c.cascade > 1,
         ": held-out data is of no use with evaluate_every 0"),
        ("clip", c.clip is None or c.clip[0] < c.clip[1], f" must be low < high, got {c.clip}"),
        ("clip", c.clip is None or c.tabular or (c.clip[0] <= 0 and c.clip[1] >= 1),
         f" must hold the images themselves, whose values lie between 0 and 1, got {c.clip}"),
        ("clip", c.clip is None or c.norm == "linf", " is for norm linf; an l2 ball is not clipped"),
        ("adversarial", not c.adversarial or c.engine == "none", " training uses no bounds: set engine to none"),
        *((name, v == usual or c.engine != "none", f" is about bounds, and engine is none: choose one, or leave {name} at {usual}")
          for name, usual in OF_BOUNDS.items() for v in (getattr(c, name),)),
        *((name, getattr(c, name) == usual or c.engine == "crown-ibp", f" is for engine crown-ibp, not {c.engine}")
          for name, usual in (("crown_weight", 1.0), ("crown_weight_start", None))),
        ("box_part", c.box_part == 1 or c.norm == "linf", f" is for norm linf, got {c.box_part} with norm {c.norm}"),
        ("batch_statistics", c.batch_statistics == "clean" or attacks(c),
         " of adversarial examples need an attack: set mix_with to adversarial, or box_part below 1"),
        ("train_eps_factor", c.tabular or c.train_eps_factor * c.eps <= LARGEST[c.norm],
         f" times eps must be at most {LARGEST[c.norm]} for norm {c.norm}, got {c.train_eps_factor} times {c.eps}"),
        ("evaluate_engine", c.evaluate_engine == "dual" or c.cascade == 1,
         f" is for a single network: stages of a cascade are certified by dual, got {c.evaluate_engine}; set it to dual"),
        ("warm_up", c.warm_up < c.epochs or c.warm_up == 0, f" must leave epochs to train in, got {c.warm_up} of {c.epochs}"),
    ]  # fmt: skip
    for name, fine, wrong in rules:
        if not fine:
            raise OptionError.about(name, wrong)


CONFIG_LIMIT = 100_000
"""Bytes of a config; those of published runs have about 1,000."""
YAML_DEPTH = 8
"""Levels of a config; a clip is on the second."""


def read_yaml(path: Path) -> Any:
    """What a config file of any origin says; a name that it gives twice is refused, since only one of the two can be meant."""
    yaml, content = _yaml(), read_content(path, CONFIG_LIMIT)
    try:
        text = content.decode("utf-8")
        _check_yaml(yaml, text, path)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        values = None if node is None else loader.construct_document(node)
    except ArgumentError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist
        raise ArgumentError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except (ArithmeticError, LookupError, AttributeError, TypeError, RecursionError):
        # A value that its tag does not fit.
        raise ArgumentError(f"{path}: is not YAML: a value in it has the wrong type, or is too large") from None
    lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines:
            where = f"line {line}" if lines[name] == line else f"lines {lines[name]} and {line}"
            raise ArgumentError(f"{path}: {name} is given twice, in {where}; keep one")
        lines[name] = line
    return values


def _check_yaml(yaml: Any, text: str, path: Path) -> None:
    """Refuse what takes forever to build: values inside values inside values, names for whole lists, and endless numbers."""
    depth, names = 0, set()
    for event in yaml.parse(text, yaml.SafeLoader):
        where = f"{path}: line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > YAML_DEPTH:
                raise ArgumentError(
                    f"{where} puts values inside one another {depth} levels deep; a config is a list of options"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent):
            names |= {event.anchor} - {None}
            if len(event.value) > (64 if re.fullmatch(r"[-+\da-fA-FxXo_:.]+", event.value) else 4096):
                raise ArgumentError(f"{where} has a value of {len(event.value):,} letters; no option is that long")
        elif isinstance(event, yaml.AliasEvent) and event.anchor not in names:
            raise ArgumentError(f"{where} repeats *{event.anchor}, which is no single value; write it out")


def dump_yaml(values: dict[str, Any]) -> str:
    return str(_yaml().safe_dump(values, sort_keys=False))


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ArgumentError("configs are YAML, which needs pyyaml: pip install 'autodual[cli]'") from None
    return yaml
