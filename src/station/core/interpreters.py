"""What runs the code of each runtime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interpreter:
    program: str
    main: str
    """The file that the code of a run goes to."""
    package: str
    """Of Debian, to name where it is missing."""


INTERPRETERS = {
    "python": Interpreter("python3", "main.py", "python3"),
    "node": Interpreter("node", "main.js", "nodejs"),
    "bash": Interpreter("bash", "main.sh", "bash"),
}
"""By runtime: all of `spec.RUNTIMES`."""
