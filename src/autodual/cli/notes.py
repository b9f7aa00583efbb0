"""What the library warns of, as a person sees it: one line each, once, without a line of source."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autodual.train.group import speaks

PACKAGE = str(Path(__file__).parents[1])


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Warnings that our code gives rise to are told by the first process; those of others look as usual."""
    told: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *where: Any, **more: Any) -> None:
            if not filename.startswith(PACKAGE):
                usual(message, category, filename, *where, **more)
                return
            text = " ".join(str(message).split())
            if text not in told and speaks():
                print(f"note: {text}", file=sys.stderr)
            told.add(text)

        warnings.showwarning = show
        yield
