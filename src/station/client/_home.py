"""Where the state directory is, and a short name for the socket in it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from station.core.wire import SOCKET

# sun_path of sockaddr_un has 108 bytes, one of them the NUL.
_MAX_SOCKET_PATH = 107


def find_home(home: str | os.PathLike[str] | None = None) -> Path:
    """The state directory, absolute: `home`, else STN_HOME, else station below XDG_STATE_HOME or ~/.local/state.

    An empty variable counts as unset. Nothing is created.
    """
    chosen = os.fspath(home) if home is not None else os.environ.get("STN_HOME") or _default()
    return Path(chosen).expanduser().absolute()


def _default() -> str:
    base = os.environ.get("XDG_STATE_HOME") or ""
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.local/state"), "station")


class SocketAddress:
    """A name for `<home>/station.sock` that fits into a socket address, however long the home is.

    A long one is reached through a descriptor of its directory, which `close` gives back; until then `path` holds.
    """

    def __init__(self, home: Path) -> None:
        self._directory: int | None = None
        self.path = os.fspath(home / SOCKET)
        if len(os.fsencode(self.path)) > _MAX_SOCKET_PATH:
            with suppress(FileNotFoundError, NotADirectoryError):
                self._directory = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            # Of a home that is not there: a name that is not there either.
            self.path = f"/proc/self/fd/{-1 if self._directory is None else self._directory}/{SOCKET}"

    def close(self) -> None:
        """Repeating is no error."""
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None
