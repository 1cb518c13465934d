"""The state directory: ours alone, and of one station at a time."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

from station.core.errors import Busy, Refused, Unavailable
from station.core.wire import LOCK, SOCKET


def prepare(home: Path) -> None:
    """Makes it, for this user alone. Raises Refused where it is another user's, Unavailable where it cannot be made."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = home.stat()
        if found.st_uid != os.geteuid():
            raise Refused(
                f"the state directory {home} belongs to the user with uid {found.st_uid}, this is uid {os.geteuid()}; "
                "choose another with --home or STN_HOME",
                home=str(home),
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            home.chmod(0o700)
    except OSError as error:
        raise Unavailable(f"the state directory {home} cannot be used: {error.strerror}", retryable=False) from error


class Lock:
    """Held as long as the station lives; the kernel lets go of it with the process, however that ends. No child
    inherits it."""

    def __init__(self, home: Path) -> None:
        """Raises Busy, at once, that names the process of the station that has it."""
        self._path = home / LOCK
        self._fd = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._fd, 32).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise Busy(
                f"a station runs already for {home}: process {holder or 'unknown'}. `stn stop` ends it",
                pid=int(holder) if holder.isdigit() else None,
                home=str(home),
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def holds(self) -> bool:
        """False where somebody has removed the directory, or the lock in it: another station may have the name now."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        os.close(self._fd)


def bind(home: Path) -> socket.socket:
    """The station's socket, mode 0600, listening. The caller holds the lock, so one that is there is of a dead
    station."""
    directory = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = os.umask(0o177)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        (home / SOCKET).unlink(missing_ok=True)
        # By descriptor: the path of the home may be longer than a socket address.
        sock.bind(f"/proc/self/fd/{directory}/{SOCKET}")
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise Unavailable(f"the socket {home / SOCKET} cannot be made: {error.strerror}", retryable=False) from error
    finally:
        os.umask(before)
        os.close(directory)
    return sock
