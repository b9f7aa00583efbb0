"""The commands together, and what happens when one of them fails."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

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
        _tell_interrupted(sys.stdout)
        raise SystemExit(INTERRUPTED) from None
    finally:
        if signal.getsignal(signal.SIGINT) is _on_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, as Python's own handler does. During an import, in which an exception may get lost and nothing is
    there to tidy up, the process ends at once."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            _tell_interrupted(sys.__stdout__)  # a command may have put another in its place
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _tell_interrupted(out: TextIO | None) -> None:
    if os.environ.get("RANK", "0") == "0":  # `speaks`, whatever could be imported by then
        print("\ninterrupted", file=sys.stderr, flush=True)
        if "--json" in sys.argv:
            print('{"error": "interrupted"}', file=out, flush=True)


def command_line() -> typer.Typer:
    """All commands with their options: what runs, and what the documentation lists."""
    import typer

    from autodual.cli import bench, catalogue, certify, reproduce, train, verify
    from autodual.cli.terminal import autodual, with_json

    app = typer.Typer(callback=autodual, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("train")(train.train)
    app.command("certify")(certify.certify)
    app.command("attack")(certify.attack)
    app.command("verify")(verify.verify)
    app.command("export")(verify.export)
    app.command("report")(train.report)
    app.command("bench")(bench.bench)
    app.command("models")(catalogue.models)
    app.add_typer(catalogue.app, name="data")
    app.add_typer(reproduce.app, name="reproduce")
    for each in (app, catalogue.app, reproduce.app):
        for command in each.registered_commands:
            assert command.callback is not None
            command.callback = with_json(command.callback)
    return app


def _run_command() -> None:
    try:
        app = command_line()
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        message = "the command line needs typer and rich: pip install 'autodual[cli]'"
        print(f"error: {message}", file=sys.stderr)
        if "--json" in sys.argv:
            print(f'{{"error": "{message}"}}')
        raise SystemExit(2) from None
    from autodual.cli.options import UsageError, usage_message
    from autodual.cli.terminal import InterruptedRunError, asked_for, speaks, warnings_as_notes, write_answer

    def fail(message: str, code: int = 2, told: bool = False) -> NoReturn:
        """Ends with one line on standard error, unless that was told already, and an object for a script."""
        if not told:
            print(message, file=sys.stderr)
        if asked_for(sys.argv):
            write_answer(message.strip().removeprefix("error: "))
        raise SystemExit(code) from None

    try:
        with warnings_as_notes():
            code = app(standalone_mode=False, prog_name="autodual")  # so, too, for `python -m autodual`
    except UsageError as error:
        fail(usage_message(error), told=not speaks())  # all processes have the same arguments
    except InterruptedRunError as stopped:
        fail(f"\n{stopped}", 128 + stopped.signal, told=not speaks())  # agreed upon by all
    except AutodualError as error:
        fail(_one_line(str(error)), told=error.told)
    except MemoryError:  # by whatever a file claims to hold
        fail(_one_line(NO_MEMORY))
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(
            error, ValueError
        ):  # io.UnsupportedOperation is no fault of the disk
            fail(_one_line(_in_words(error)))
        if asked_for(sys.argv):
            write_answer(f"{type(error).__name__}: {error}")
        raise  # a mistake of ours keeps its traceback
    if code == INTERRUPTED:  # Ctrl-C, as typer hands it on
        raise KeyboardInterrupt
    raise SystemExit(code)


NO_MEMORY = "there is not enough memory for this; give it less (--limit), or look for a file that claims to be huge"
LONGEST = 2000
"""Letters of a message: what a file holds may be quoted in it, however long that is."""


def _one_line(message: str) -> str:
    line = "".join(letter if letter.isprintable() else " " for letter in message)
    shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} ... ({len(line) - LONGEST:,} letters more)"
    return f"error: {shown}"


def _in_words(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"
