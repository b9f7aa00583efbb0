"""autodual bench"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from autodual._errors import ArgumentError
from autodual.cli.options import device_names
from autodual.cli.terminal import InterruptedRunError, Signals, answer, speaks

NETWORKS = ("mnist-small", "cifar-small", "mnist-large", "cifar-large", "cifar-resnet")
"""Names of `autodual.speed.problems.PROBLEMS`, known here without PyTorch; a test compares the two."""
ON_CPU = ("mnist-small", "cifar-small")


def bench(
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"of {', '.join(NETWORKS)}; all on a GPU, {' and '.join(ON_CPU)} on a CPU",
            show_default=False,
            autocompletion=lambda: list(NETWORKS),
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...", autocompletion=device_names)] = "auto",
    k: Annotated[int, typer.Option(help="random projections", min=1)] = 50,
    batch: Annotated[int, typer.Option(help="examples per step", min=1)] = 50,
    seconds: Annotated[
        float, typer.Option(help="to time each thing for, per network; warm-up is not included", min=0)
    ] = 3.0,
    float32: Annotated[bool, typer.Option("--float32", help="also with streams of float32, on a GPU")] = False,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="also exact certificates, of networks whose weights are there")
    ] = False,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK=FILE",
            help="weights to certify, safetensors or a run folder; those of results/ when not given. May be repeated",
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="also what takes most time in a step, and in certificates, with shapes")
    ] = False,
    authors: Annotated[bool, typer.Option(help="beside the authors' convex_adversarial, if it can be imported")] = True,
    data_folder: Annotated[
        Path | None, typer.Option(help="where data sets lie; $AUTODUAL_DATA or the user's cache; random images without")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="FILE.md to write the tables to; FILE.json beside has all figures")
    ] = None,
) -> None:
    """Time training steps and exact certificates of the paper's networks on this machine, beside what the machine can do.

    Bandwidth and arithmetic are counted on one step: bytes that operations of PyTorch and kernels of ours read and write, each
    operand and result once, and the operations of matrix products and convolutions. The ceilings are a large copy and large
    matrix products, measured in the same run.
    """
    if not speaks():
        return
    chosen = _known(networks or [])
    files = _weights(weights or [])
    if files and not certificates:
        raise ArgumentError("--weights is for --certificates; add that")
    if out is not None and out.suffix == ".json":
        raise ArgumentError(f"--out is for the tables, such as {out.with_suffix('.md')}; {out} is written beside")
    import torch

    from autodual.evaluation.processes import StoppedError
    from autodual.runs.folder import recorded_command
    from autodual.speed.measure import describe_machine
    from autodual.speed.problems import AUTHORS, INSTALL, authors_version
    from autodual.speed.trials import Bench
    from autodual.training.setup import make_device

    place = make_device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    theirs = authors_version() if authors else None
    record = {
        "command": recorded_command(sys.argv), "machine": describe_machine(place) | ({} if theirs is None else {AUTHORS: theirs}),
        "settings": {"k": k, "batch": batch, "seconds": seconds}, "networks": {}, "certificates": {}, "notes": [],
    }  # fmt: skip
    with Signals() as signals:
        found = Bench(
            place, k, batch, seconds, theirs is not None, float32, profile, data_folder, _say, signals.stop, record
        )
        if authors and theirs is None:
            found.note(INSTALL)
        if float32 and place.type != "cuda":
            found.note("streams are float32 anyhow where there is no GPU")
        try:
            with found.watching_others():
                usual = NETWORKS if place.type == "cuda" else ON_CPU
                found.measure(chosen, usual, files if certificates else None)
        except StoppedError:
            found.note("stopped as asked: the rest is missing")
            raise InterruptedRunError("stopped as asked", signals.received or 2) from None
        finally:
            _tell(record, out)


def _known(names: list[str]) -> list[str]:
    for name in names:
        if name not in NETWORKS:
            near = difflib.get_close_matches(name, NETWORKS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(NETWORKS)}"
            raise ArgumentError(f"unknown network {name!r}; {hint}")
    return list(dict.fromkeys(names))


def _weights(given: list[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise ArgumentError(f"--weights is NETWORK=FILE, such as cifar-large=runs/cifar-large-2, got {text!r}")
        [name] = _known([name])
        path = Path(file)
        found[name] = path / "model.safetensors" if path.is_dir() else path
        if not found[name].is_file():
            raise ArgumentError(f"--weights {name}: {found[name]}: there is no such file")
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tell(record: dict[str, Any], out: Path | None) -> None:
    from autodual._files import write_json, write_text
    from autodual.speed.trials import markdown

    answer(**record)
    text = markdown(record)
    print(text, end="", flush=True)
    if out is not None:
        write_text(out, text)
        write_json(out.with_suffix(".json"), record)
