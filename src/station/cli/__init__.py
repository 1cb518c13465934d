"""The command `stn`. Only typer and the standard library are loaded before it is known what to do."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs `stn` with the arguments of this program, and exits."""
    from .app import run_app

    sys.exit(run_app(sys.argv[1:]))
