"""autodual export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodual._errors import ArgumentError
from autodual.cli.answers import answer


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
