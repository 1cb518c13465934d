"""The command `stn`. Only typer and the standard library are loaded before it is known what to do."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs `stn` with the arguments of this program, and exits."""
    _open_standard_descriptors()
    from .app import run_app

    sys.exit(run_app(sys.argv[1:]))


def _open_standard_descriptors() -> None:
    """Who starts us with one of them closed means nothing by it, and else a socket of ours would get its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number that is free
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
