"""The commands together, and what happens when one of them fails."""

from __future__ import annotations

import sys

from autodual._errors import AutodualError


def main() -> None:
    """Bad input is one line and exit code 2; a run that was asked to stop exits as its signal says."""
    try:
        import typer
    except ImportError:
        print("error: the command line needs typer and rich: pip install 'autodual[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    from autodual.cli import attack, certify, data, report, train
    from autodual.cli.signals import InterruptedRunError

    app = typer.Typer(
        help="Neural networks whose robustness is proved: train, certify, attack, and look.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command("train")(train.train)
    app.command("certify")(certify.certify)
    app.command("attack")(attack.attack)
    app.command("report")(report.report)
    app.add_typer(data.app, name="data")
    try:
        app()
    except InterruptedRunError as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        raise SystemExit(128 + stopped.signal) from None
    except AutodualError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
