"""Runs a command, and ends all that it started and left: without its defence, a box or a daemon may outlive the test.

`python -m tests.mutants.keeper COMMAND...` exits as the command did.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PDEATHSIG, _SUBREAPER = 1, 36
_END_SECONDS = 20.0


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def below(pid: int) -> set[int]:
    """Its children, theirs, and so on."""
    found: set[int] = set()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text(encoding="ascii").split()):
                found |= {child, *below(child)}
    return found


def _end_all() -> None:
    """As a sub-reaper we are the parent of every orphan, so nothing gets away."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        for pid in below(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def main(command: list[str]) -> int:
    _prctl(_PDEATHSIG, signal.SIGTERM)
    _prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return subprocess.Popen(command).wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
