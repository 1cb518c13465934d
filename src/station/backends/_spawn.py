"""Starting the first program of a box: no thread, no shell, and exactly the descriptors that it needs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack

from station.backends._boxdir import BoxDirectory

LISTEN_FD, INFO_FD, LOCK_FD = 3, 4, 5
LAST_FD = LOCK_FD
"""Fixed numbers, so that a command line can be made before anything is open."""
_ABOVE = 10


def spawn(directory: BoxDirectory, argv: Sequence[str]) -> int:
    """Starts `argv` with the box's socket, info file and lock as those numbers, its log as stderr and no environment.

    Returns the pid of our child, which the caller reaps. Raises OSError if it could not be started; nothing runs then.
    """
    with ExitStack() as held:
        sock = held.enter_context(directory.listen())
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        held.callback(os.close, null)
        log = directory.open_new("log")
        held.callback(os.close, log)
        info = directory.open_new("info.json")
        held.callback(os.close, info)
        lock = directory.lock()
        held.callback(os.close, lock)
        wanted = {0: null, 1: null, 2: log, LISTEN_FD: sock.fileno(), INFO_FD: info, LOCK_FD: lock}
        actions: list[tuple[int, int, int]] = []
        for number, fd in wanted.items():
            # First out of the way of the numbers, so that no dup2 closes one that comes later.
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
            held.callback(os.close, high)
            actions.append((os.POSIX_SPAWN_DUP2, high, number))
        return os.posix_spawn(argv[0], list(argv), {}, file_actions=actions)
