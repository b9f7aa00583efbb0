"""Command-line options from a record's fields: types, names and help are written once, in the record. And what shells complete."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer

from autodual._errors import ArgumentError
from autodual.cli.terminal import speaks, with_parameters
from autodual.runs.config import EPS_START, PARTS, OptionError, TrainConfig, is_per_feature, parse_fraction

TARGET = (
    "dataset", "data_folder", "model", "normalise", "per_channel", "norm", "eps", "clip", "device", "label_column", "test_dataset",
    "split_seed",
)  # fmt: skip
"""What `certify` and `attack` may change about a run, or must know about bare weights."""
ALIASES = {"dataset": ("--data",)}

DEFAULTS = "the defaults"

UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)
"""Any mistake in the arguments; click's class, or that of typer's own copy of click."""

DROPPED = (
    "is dropped: only l-infinity balls are clipped. A ball that is not clipped holds more, so what is proved for it is proved "
    "for the clipped one, too."
)


def with_config_options(
    *names: str, record: type = TrainConfig, into: str = "changes"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a parameter `into` gets these fields of a record as options, or all; those given arrive there by name.

    A field of a config that may be None has a second option, --no-FIELD, which says so: the config may have set it.
    """
    chosen, of_config = [f for f in fields(record) if not names or f.name in names], record is TrainConfig
    hints = get_type_hints(record)
    removable = [f.name for f in chosen if of_config and type(None) in get_args(hints[f.name])]
    extra = []
    for f in chosen:
        default = None if of_config and names else f.default  # that of the run, which may be another
        extra.append(_parameter(f.name, hints[f.name], default, f.metadata["help"]))
        extra += [_removal(f.name)] if f.name in removable else []

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**arguments: Any) -> None:
            changes = {f.name: arguments.pop(f.name) for f in chosen}
            given = {k: v for k, v in changes.items() if v is not None}
            removed = [name for name in removable if arguments.pop(f"no_{name}")]
            for name in removed:
                if name in given:
                    raise ArgumentError(f"{_flag(name)} and --no-{_flag(name)[2:]} exclude each other")
            command(**arguments, **{into: given | dict.fromkeys(removed)})

        return with_parameters(wrapped, command, extra, without=into)

    return decorate


def merged(before: Mapping[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns the options as they were, with those of the command line over them.

    A clip that came with another norm is dropped, aloud; a first eps that came with a larger eps is cut; epochs that came where a
    part of the training is given now are dropped.
    """
    options = {**before, **changes}
    for part, epochs in PARTS.items():
        if part in changes and changes.get(epochs) is not None:
            raise ArgumentError(f"{_flag(part)} and {_flag(epochs)} exclude each other")
        if part in changes:
            options.pop(epochs, None)  # of the config, which would win over the flag
    start, size = options.get("eps_start"), changes.get("eps")
    if is_per_feature(size):
        options.pop("feature_eps", None)  # of the config, in whose place it comes
    if "eps_start" not in changes and isinstance(start, float) and isinstance(size, float):
        options["eps_start"] = min(start, max(size, EPS_START))
    clip = options.get("clip")
    if clip is None or "clip" in changes or changes.get("norm", "linf") == "linf":
        return options
    if speaks():
        print(f"note: clip {clip} {DROPPED}", file=sys.stderr)
    return options | {"clip": None}


def checked(before: Any, changes: dict[str, Any], place: str) -> TrainConfig:
    """The config of options as they were at `place` and those of the command line over them; blames whoever said what is wrong."""
    if not isinstance(before, Mapping):
        return TrainConfig.from_mapping(before, place)  # refuses it
    try:
        return TrainConfig.from_mapping(merged(before, changes), place)
    except OptionError as error:
        if error.option in changes:
            raise ArgumentError(f"{_flag(error.option)}{error.wrong}") from None
        TrainConfig.from_mapping(before, place)  # refuses what is wrong by itself
        raise ArgumentError(f"{', '.join(map(_flag, changes))} with {place}: {error.option}{error.wrong}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _removal(name: str) -> inspect.Parameter:
    """The option --no-NAME."""
    option = typer.Option(f"--no-{_flag(name)[2:]}", help=f"unset {_flag(name)}, whatever the config says")
    return inspect.Parameter(
        f"no_{name}", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )


def _parameter(name: str, hint: Any, default: Any, text: str) -> inspect.Parameter:
    value = f"{default:.4g}" if isinstance(default, float) else default
    shown = "" if default is None else f" [default: {value}]"
    names = _flag(name) if hint is not bool else f"{_flag(name)}/--no-{_flag(name)[2:]}"
    kinds = get_args(hint) or (hint,)
    convert: Callable[[Any], Any] | None = None
    shape = None
    if float in kinds:
        hint, convert, shape = str, _number, "NUMBER"
    elif tuple[float, ...] in kinds:
        hint, convert, shape = str, _numbers, "NUMBER,NUMBER..."
    elif tuple[float, float] in kinds:
        hint, convert, shape = tuple[str, str], _two_numbers, "LOW HIGH"
    if name == "eps":
        convert, shape = _size, "NUMBER|COLUMN=NUMBER,..."
    option = typer.Option(
        names,
        *ALIASES.get(name, ()),
        help=text + shown,
        show_default=False,
        callback=convert,
        metavar=shape,
        autocompletion=COMPLETED.get(name),
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint | None, option]
    )


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    number = _parsed(text)
    if number is None:
        raise typer.BadParameter(f"expected a number, such as 0.1 or 2/255, got {text!r}")
    return number


def _size(text: str | None) -> float | str | None:
    return text if is_per_feature(text) else _number(text)


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    found = [number for number in map(_parsed, text.split(",")) if number is not None]
    if len(found) < text.count(",") + 1:
        raise typer.BadParameter(f"expected numbers with commas between them, such as 120,140 or 3/4,7/8, got {text!r}")
    return tuple(found)


def _two_numbers(texts: tuple[str, str] | None) -> tuple[float, float] | None:
    if texts is None:
        return None
    low, high = map(_parsed, texts)
    if low is None or high is None:
        raise typer.BadParameter(f"expected two numbers, such as 0 1, got {texts[0]!r} and {texts[1]!r}")
    return low, high


def _parsed(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return parse_fraction(text)


def usage_message(error: typer.BadParameter) -> str:
    """Tells a mistake in the arguments in one line. The help, which a command without arguments raises as an error, stays as it is."""
    text = error.format_message()
    near = getattr(error, "possibilities", None)  # of an option that does not exist, best first
    if near:
        return f"error: {error.message}; did you mean {near[0]}?"
    return text if text == (error.ctx and error.ctx.get_help()) else f"error: {' '.join(text.split())}"


# What the shell completes beside commands and options: names that are known without PyTorch, and files of ours in the working folder.
#
# A function returns all that could stand there, of which typer keeps what begins as the word does; without any, shells complete files.

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")
"""Names of `autodual.data.known.KNOWN`, known here without PyTorch; a test compares the two."""
MODELS = ("small", "large", "resnet", "wide:1", "deep:1", "cnn5", "cnn7", "digits")
DEVICES = ("auto", "cpu", "cuda")


def dataset_names() -> list[str]:
    return list(DATASETS)


def model_names() -> list[str]:
    return list(MODELS)


def device_names() -> list[str]:
    return list(DEVICES)


def run_folders(incomplete: str) -> list[str]:
    """Folders with a config, up to two levels below what is typed."""
    return [str(file.parent) for file in _below(incomplete, "config.yaml") if str(file.parent) != "."]


def targets(incomplete: str) -> list[str]:
    """Run folders, and weights."""
    return run_folders(incomplete) + [str(file) for file in _below(incomplete, "*.safetensors")]


def configs(incomplete: str) -> list[str]:
    """YAML files up to two levels below what is typed, but for those that runs keep."""
    return [str(file) for file in _below(incomplete, "*.yaml") if file.name != "config.yaml"]


def row_names() -> list[str]:
    """Rows of the paper's tables, and names for several of them."""
    from autodual.reproduce.rows import BY_NAME, MODERN

    return [*BY_NAME, *MODERN, "table1", "table2", "table3", "table4", "all"]


def _below(incomplete: str, pattern: str) -> Iterator[Path]:
    """Files that match, in the folder that the word names so far and in those up to two levels below it."""
    place = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    for depth in ("", "*/", "*/*/"):
        yield from sorted(path for path in place.glob(depth + pattern) if path.is_file())


COMPLETED = {"dataset": dataset_names, "model": model_names, "device": device_names}
"""By the name of an option."""
