"""Starts a station in the background where none listens."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import select
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from station.core.errors import StationUnreachable
from station.core.wire import LOCK, LOG, SOCKET

from ._home import SocketAddress

START_BOUND_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_ROOM_BYTES = 64 * 1024
_PREFIX = re.compile(r"^(?:stn: |\d{4}-\d\d-\d\dT[\d:.]+Z [a-z]+ [\w.]+: )")
"""Of a line of the log: when, how bad, which part."""
_log = logging.getLogger(__name__)


def listens(home: Path) -> bool:
    """Whether a station accepts connections on the socket of `home` now."""
    with closing(SocketAddress(home)) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(address.path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError as error:
            raise StationUnreachable(
                f"the socket of the station cannot be used: {error.strerror}; check who owns {home / SOCKET}",
                home=os.fspath(home),
            ) from error
        return True


def ensure_station(home: Path) -> bool:
    """A station listens when this returns; True: this call started it.

    Of many callers at once, in any number of programs, one starts it and the rest wait. Raises StationUnreachable, with
    the last lines of its log, where it ended or was not ready within 60 seconds.
    """
    if listens(home):
        return False
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = home.stat()
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
            home.chmod(0o700)
    except OSError as error:
        raise StationUnreachable(
            f"the state directory {home} cannot be made: {error.strerror}; set STN_HOME to a directory of yours",
            retryable=False,
            home=os.fspath(home),
        ) from error
    # Before anything is written there, the log above all: who owns the directory can make any name in it a link.
    if found.st_uid != os.geteuid():
        raise StationUnreachable(
            f"the state directory {home} belongs to the user with uid {found.st_uid}, this is uid {os.geteuid()}; set "
            "STN_HOME to a directory of yours",
            retryable=False,
            home=os.fspath(home),
        )
    with _start_lock(home):
        if wait_ended(home):
            _start(home)
            return True
        return False


def wait_ended(home: Path) -> bool:
    """True as soon as no station has `home`; False where one listens. Raises StationUnreachable after 60 seconds.

    One that was told to stop listens no more, but holds its lock until its last box is let go; one that begins holds it
    before it listens.
    """
    deadline = time.monotonic() + START_BOUND_SECONDS
    while not listens(home):
        if _is_free(home / LOCK):
            return True
        if time.monotonic() > deadline:
            raise StationUnreachable(f"a station holds {home / LOCK} and does not answer", home=os.fspath(home))
        time.sleep(_LOOK_SECONDS)
    return False


def holder(home: Path) -> str:
    """The pid of the station that has `home`, or of the last that had it; empty: there never was one."""
    lock = home / LOCK
    return lock.read_text(encoding="ascii").strip() if lock.exists() else ""


def wait_stopped(home: Path, pid: str) -> None:
    """Returns when the station `pid` has let go of `home`. Raises StationUnreachable after 60 seconds."""
    deadline = time.monotonic() + START_BOUND_SECONDS
    while not _is_free(home / LOCK) and holder(home) == pid:
        if time.monotonic() > deadline:
            raise StationUnreachable(f"station {pid} was told to stop and has not ended", home=os.fspath(home))
        time.sleep(_LOOK_SECONDS)


def _is_free(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _start_lock(home: Path) -> Iterator[None]:
    # Whoever holds it is bounded by START_BOUND_SECONDS, and a dead holder lets go of it: so is this wait.
    try:
        descriptor = os.open(home / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StationUnreachable(
            f"the state directory {home} cannot be used: {error.strerror}; set STN_HOME to a directory of yours",
            retryable=False,
            home=os.fspath(home),
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _start(home: Path) -> None:
    log = home / LOG
    before = log.stat().st_size if log.exists() else 0
    reader, writer = os.pipe()
    try:
        try:
            _spawn(home, log, writer)
        finally:
            os.close(writer)
        if not _wait_ready(reader):
            raise StationUnreachable(
                f"the station could not be started: {_last_words(log, before)}",
                home=os.fspath(home),
                log=os.fspath(log),
            )
    finally:
        os.close(reader)
    _log.info("started a station for %s", home)


def _spawn(home: Path, log: Path, ready: int) -> None:
    # -P: a folder named `station` where the caller stands must not be taken for this package.
    command = [sys.executable, "-P", "-m", "station", "serve", "--background", "--ready-fd", str(ready)]
    with log.open("ab") as sink:
        launcher = subprocess.Popen(
            [*command, "--home", os.fspath(home)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            pass_fds=[ready],
            start_new_session=True,
            cwd="/",
        )
        # `serve --background` forks at once and its first process ends: the station is nobody's child.
        launcher.wait(timeout=START_BOUND_SECONDS)


def _wait_ready(reader: int) -> bool:
    """True once a byte came; False at end of file (the station ended) or when the time is up."""
    deadline = time.monotonic() + START_BOUND_SECONDS
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if poller.poll(left * 1000):
            return bool(os.read(reader, 64))
    return False


def _last_words(log: Path, before: int) -> str:
    with log.open("rb") as file:
        file.seek(max(before, log.stat().st_size - 4000))
        text = file.read().decode(errors="replace")
    # Whoever tells this begins with the name of the program too.
    lines = [_PREFIX.sub("", line) for line in text.splitlines() if line.strip()]
    if not lines and shutil.disk_usage(log.parent).free < _ROOM_BYTES:
        return f"the disk of {log.parent} is full"
    if not lines:
        return f"it ended without a word, or was not ready in {START_BOUND_SECONDS:g} s (its log is {log})"
    return "\n  " + "\n  ".join(lines[-8:]) + f"\n(its log is {log})"
