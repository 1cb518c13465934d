"""Runs a station: `run` returns when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from station.core.errors import StationError
from station.core.wire import SOCKET
from station.worker.tasks import Tasks

from . import home as homes
from .app import build_app
from .logs import set_up
from .settings import Settings, load
from .station import MakeBackends, Station, backends_of

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 15.0
GRACEFUL_SECONDS = 5
EXIT_FAILED = 125


def run(
    home: Path,
    *,
    background: bool = False,
    ready_fd: int | None = None,
    make_backends: MakeBackends = backends_of,
) -> int:
    """Serves the state directory until it is told to stop, and returns the exit code.

    Where a station has the directory already, or its settings or the directory cannot be used, that is said on
    stderr at once and the code is 125. In the background (the caller has left its terminal and parent) the log is a
    file, and the station ends when it is idle. A byte is written to `ready_fd` as soon as requests are answered;
    where that never happens it is closed without one.
    """
    try:
        settings = load(home)
        homes.prepare(settings.home)
        lock = homes.Lock(settings.home)
        handler = set_up(settings.home, background=background, megabytes=settings.log_megabytes)
    except (StationError, OSError) as error:
        sys.stderr.write(f"stn: {error}\n")
        return EXIT_FAILED
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings, background, ready_fd, make_backends))
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
        lock.release()


async def _serve(settings: Settings, background: bool, ready_fd: int | None, make_backends: MakeBackends) -> int:
    try:
        station = await Station.start(settings, make_backends=make_backends)
    except (StationError, OSError) as error:
        log.error("the station could not start: %s", error)
        return EXIT_FAILED
    try:
        sock = homes.bind(settings.home)
        try:
            await _answer(station, sock, ready=_ready(ready_fd), end_when_idle=background)
        finally:
            sock.close()
            (settings.home / SOCKET).unlink(missing_ok=True)
    except StationError as error:
        log.error("the station cannot go on: %s", error)
        return EXIT_FAILED
    finally:
        await station.aclose()
    log.info("the station has ended; kept sandboxes live on")
    return 0


async def _answer(station: Station, sock: socket.socket, *, ready: Callable[[], None], end_when_idle: bool) -> None:
    server = Server(station, ready)
    station.request_stop = server.stop
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, server.stop)
    async with Tasks() as tasks:
        tasks.start(_keep_house(station, server, end_when_idle), name="housekeeping")
        await server.serve(sockets=[sock])


async def _keep_house(station: Station, server: Server, end_when_idle: bool) -> None:
    while True:
        await asyncio.sleep(HOUSEKEEPING_SECONDS)
        await station.housekeeping()
        if end_when_idle and station.is_idle():
            log.info("nobody needs this station: no live box, no request for %g minutes", station.settings.idle_minutes)
            server.stop()


class Server(uvicorn.Server):
    """uvicorn, told to stop by us alone: its own signal handling would end the process before boxes are let go."""

    def __init__(self, station: Station, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                build_app(station),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                # Above what clients keep: a client must be the one to drop an idle connection.
                timeout_keep_alive=30,
                timeout_graceful_shutdown=GRACEFUL_SECONDS,
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Requests that run are finished, for at most 5 s; asked twice, they are not."""
        self.force_exit = self.should_exit
        self.should_exit = True


def _ready(fd: int | None) -> Callable[[], None]:
    def tell() -> None:
        if fd is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(fd, b"\n")
            os.close(fd)

    return tell


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
