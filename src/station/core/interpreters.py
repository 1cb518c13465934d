"""What runs the code of each runtime, and a line of shell."""

from __future__ import annotations

import posixpath
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


def shell_argv(shell: str) -> tuple[str, ...]:
    """The shell up to `-c`, without start-up files."""
    if posixpath.basename(shell) == "bash":
        return (shell, "--noprofile", "--norc", "-c")
    return (shell, "-c")
