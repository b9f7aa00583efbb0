"""The commands together, and what happens when one of them fails."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from autodual._errors import AutodualError

if TYPE_CHECKING:
    import typer

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C, as shells expect it."""


def main() -> None:
    """Runs a command. Bad input is one line and exit code 2; a run that was asked to stop exits as its signal says."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_ctrl_c)
    try:
        _run_command()
    except KeyboardInterrupt:
        _tell_interrupted()
        raise SystemExit(INTERRUPTED) from None
    finally:
        if signal.getsignal(signal.SIGINT) is _on_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, as Python's own handler does. During an import, in which an exception may get lost and nothing is
    there to tidy up, the process ends at once."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            _tell_interrupted()
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _tell_interrupted() -> None:
    if os.environ.get("RANK", "0") == "0":  # `speaks`, whatever could be imported by then
        print("\ninterrupted", file=sys.stderr, flush=True)


def command_line() -> typer.Typer:
    """All commands with their options: what runs, and what the documentation lists."""
    import typer

    from autodual.cli import bench, certify, data, export, reproduce, train, verify

    app = typer.Typer(
        help="Neural networks whose robustness is proved: train, certify, attack, look, and measure.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command("train")(train.train)
    app.command("certify")(certify.certify)
    app.command("attack")(certify.attack)
    app.command("verify")(verify.verify)
    app.command("export")(export.export)
    app.command("report")(train.report)
    app.command("bench")(bench.bench)
    app.add_typer(data.app, name="data")
    app.add_typer(reproduce.app, name="reproduce")
    return app


def _run_command() -> None:
    try:
        app = command_line()
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        print("error: the command line needs typer and rich: pip install 'autodual[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    from autodual.cli.options import UsageError, usage_message
    from autodual.cli.terminal import InterruptedRunError, speaks, warnings_as_notes

    try:
        with warnings_as_notes():
            code = app(standalone_mode=False)
    except UsageError as error:  # all processes have the same arguments
        if speaks():
            print(usage_message(error), file=sys.stderr)
        raise SystemExit(2) from None
    except InterruptedRunError as stopped:  # agreed upon by all
        if speaks():
            print(f"\n{stopped}", file=sys.stderr)
        raise SystemExit(128 + stopped.signal) from None
    except AutodualError as error:
        if error.told:
            raise SystemExit(2) from None
        _fail(str(error))
    except OSError as error:
        if isinstance(error, ValueError):  # io.UnsupportedOperation: a mistake of ours, not of the disk
            raise
        _fail(_in_words(error))
    except MemoryError:  # by whatever a file claims to hold
        _fail("there is not enough memory for this; give it less (--limit), or look for a file that claims to be huge")
    if code == INTERRUPTED:  # Ctrl-C, as typer hands it on
        raise KeyboardInterrupt
    raise SystemExit(code)


LONGEST = 2000
"""Letters of a message: what a file holds may be quoted in it, however long that is."""


def _fail(message: str) -> NoReturn:
    line = "".join(letter if letter.isprintable() else " " for letter in message)
    shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} ... ({len(line) - LONGEST:,} letters more)"
    print(f"error: {shown}", file=sys.stderr)
    raise SystemExit(2) from None


def _in_words(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"
