"""autodual verify, autodual export: files of others"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autodual._errors import ArgumentError
from autodual.cli.terminal import TIME_IS_UP, answer

if TYPE_CHECKING:
    from autodual.interchange.verification import Verification

Engine = Literal["all", "ibp", "dual", "crown", "alpha-crown"]
EXIT_CODES = {"unsat": 0, "sat": 1, "unknown": 3, "timeout": TIME_IS_UP}
"""2 is for input that cannot be used, as everywhere."""


def verify(
    network: Annotated[Path, typer.Argument(help="ONNX file with one input and one output")],
    property: Annotated[Path, typer.Argument(help="VNN-LIB file, also one packed by gzip")],
    engine: Annotated[
        Engine, typer.Option(help="how to bound: all tries one after the other, cheapest first, until one decides")
    ] = "all",
    timeout: Annotated[
        float | None, typer.Option(help="seconds after which the answer is timeout; no limit when not given")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    seed: Annotated[int, typer.Option(help="of the search for counterexamples", min=0)] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object with all bounds instead of the competition's words")
    ] = False,
) -> None:
    """Decide a property as in the competition VNN-COMP: prints unsat (it holds), sat and a counterexample, unknown, or timeout.

    unsat and sat are about the exact function of the network, in real numbers; --json says, too, whether the network as it runs in
    float32 is proved. Exit codes: 0 unsat, 1 sat, 2 input that cannot be used, 3 unknown, 4 timeout.
    """
    started = time.monotonic()
    if timeout is not None and not timeout > 0:
        raise ArgumentError(f"--timeout must be more than 0 seconds, got {timeout:g}; leave it out for no limit")
    from autodual._files import to_json
    from autodual.engines import IBP, AlphaCrown, BoundEngine, Crown, Dual
    from autodual.interchange.onnx_file import read_onnx
    from autodual.interchange.onnx_reading import Reference, load_file
    from autodual.interchange.verification import (
        Clock,
        Outcome,
        OutOfTimeError,
        Verification,
        competition_text,
        interrupted,
        report,
    )
    from autodual.interchange.verification import verify as decide
    from autodual.interchange.vnnlib import load_vnnlib
    from autodual.training.setup import make_device

    engines: dict[str, BoundEngine] = {"ibp": IBP(), "dual": Dual(), "crown": Crown(), "alpha-crown": AlphaCrown()}
    chosen = None if engine == "all" else [engines[engine]]
    clock = Clock(timeout, started)
    try:
        with interrupted(clock):
            asked = load_vnnlib(property)
            file = read_onnx(network)
            model = load_file(file)
    except OutOfTimeError:
        note = "the time was over before both files were read, and the network compared with its file"
        found = Verification(Outcome.TIMEOUT, None, (), (note,), clock.seconds)
    else:
        shape = model.input_shape
        found = decide(model.to(make_device(device)), shape, asked, chosen, clock, Reference(file), seed)
    if json:
        print(to_json({"network": network.name, "property": property.name, **report(found)}), end="")
    else:
        print(competition_text(found))
        _tell(found)
    raise typer.Exit(EXIT_CODES[found.outcome.value])


def _tell(found: Verification) -> None:
    """What the word rests on, beside the competition's own output."""
    proofs = [r for case in found.refutations for r in case if r is not None]
    said = f"{found.seconds:.1f} s"
    if found.outcome.value == "unsat" and proofs:
        least = min(proofs, key=lambda r: r.margin - r.slack)
        as_run = "proved as well" if found.unsat_as_run else "not proved"
        said += f"; in real numbers, least margin {least.margin:.3g} (slack {least.slack:.1g}, {least.engine}); as run: {as_run}"
    elif found.outcome.value in ("unknown", "timeout"):
        said += f"; {sum(r.holds for r in proofs)} of {sum(len(case) for case in found.refutations)} disjuncts refuted"
    print(said, file=sys.stderr)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)


def export(
    run: Annotated[Path, typer.Argument(help="run folder with a trained network")],
    onnx: Annotated[Path, typer.Option("--onnx", help="the file to write")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a file that exists")] = False,
) -> None:
    """Write a trained network as an ONNX file, compared with the network before it is kept."""
    if onnx.exists() and not overwrite:
        raise ArgumentError(f"{onnx}: exists already; replace it with --overwrite, or choose another file")
    import torch

    from autodual.data import form_of
    from autodual.interchange import save_onnx
    from autodual.training import load_run
    from autodual.training.setup import table_options

    if not run.is_dir():
        raise ArgumentError(f"{run}: {'is no folder' if run.exists() else 'no such folder'}; export takes a run folder")
    found = load_run(run)
    if found.cascade is not None:
        raise ArgumentError(
            f"{run}: is a cascade of several networks, and an ONNX file holds one; write each with ad.save_onnx(stage, file, example)"
        )
    shape, _ = form_of(found.config.dataset, found.config.data_folder, table_options(found.config))
    save_onnx(found.model, onnx, torch.zeros(1, *shape))
    answer(file=str(onnx))
    print(
        f"{onnx}: written, read again and compared; inputs [batch, {', '.join(map(str, shape))}], in the units of the images"
    )
