"""Runs a station: `run` returns when it has ended."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

import station as package
from station.core.errors import StationError, Unavailable
from station.core.wire import SOCKET
from station.worker.tasks import Tasks

from . import environment
from . import home as homes
from .access import operator_token as token
from .access.guard import Guard, local
from .api.app import build_app
from .loading import load
from .logs import set_up
from .net import listen
from .net.bodies import Bodies
from .net.faces import Faces, Loader
from .net.http import GRACEFUL_SECONDS, Server
from .net.tls import Tls
from .notify import READY, STOPPING, Manager
from .settings import Settings
from .station import MakeBackends, Station, backends_of

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 15.0
EXIT_FAILED = 125


@dataclass(frozen=True)
class Options:
    """How a station is run, beside its settings."""

    background: bool = False
    """The caller has left its terminal and parent. The log is a file, and the station ends when it is idle."""
    ready_fd: int | None = None
    """A byte is written there as soon as requests are answered; where that never happens it is closed without one."""
    listen: str | None = None
    """Before the setting of that name."""
    config: Path | None = None
    """Read in place of the `station.yaml` of the state directory."""
    directory: Path | None = None
    """Whose `.env` is read. `None`: no folder's but the state directory's own."""
    json: bool = False
    """Standard output gets one line: `Listening` once requests are answered, or the error."""
    faces: Mapping[str, Loader] = field(default_factory=dict)
    """By path."""
    make_backends: MakeBackends = backends_of


@dataclass(frozen=True)
class _Tcp:
    sock: socket.socket
    address: listen.Address
    token: token.Token
    tls: Tls | None
    hosts: frozenset[str]
    """Beside those of loopback."""

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.address.reached_as(self.hosts)}"

    def refresh(self) -> None:
        if self.tls is not None:
            self.tls.refresh()


@dataclass(frozen=True)
class _Held:
    """What a station has before it starts. Whoever made it gives it back."""

    lock: homes.Lock
    tcp: _Tcp | None
    manager: Manager


def run(home: Path, options: Options | None = None) -> int:
    """Serves the state directory until it is told to stop, and returns the exit code.

    Where a station has the directory already, or its settings, its address or the directory cannot be used, that is
    said on stderr at once, nothing has started, and the code is 125.
    """
    options = options or Options()
    given = token.take()
    manager = Manager()
    with ExitStack() as held:
        try:
            found = environment.gather(os.environ, home, options.directory)
            given = given or found.values.get(token.VARIABLE)
            settings = load(home, found.values, config=options.config, sources=found.sources)
            if options.listen:
                settings = dataclasses.replace(settings, listen=options.listen)
            homes.prepare(settings.home)
            lock = homes.Lock(settings.home)
            held.callback(lock.release)
            handler = set_up(
                settings.home,
                background=options.background,
                megabytes=settings.log_megabytes,
                form=settings.log_format,
            )
            held.callback(_take_down, handler)
            tcp = _listen(settings, given, held)
        except (StationError, OSError) as error:
            sys.stderr.write(f"stn: {error}\n")
            return _failed(error, options)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, _Held(lock, tcp, manager), options))
    raise AssertionError("nothing above swallows an error")


def _listen(settings: Settings, given: str | None, held: ExitStack) -> _Tcp | None:
    """Before anything is started: a port that is taken must leave nothing behind."""
    listen.forget(settings.home)
    if settings.listen is None:
        return None
    files = settings.tls
    tls = Tls(Path(files.certificate), Path(files.key)) if files.certificate and files.key else None
    sock, address = listen.bind(listen.parse(settings.listen))
    held.callback(sock.close)
    hosts = {*settings.hosts, *(tls.names if tls else ()), *address.names}
    return _Tcp(sock, address, token.operator_token(settings.home, given), tls, frozenset(hosts))


def _take_down(handler: logging.Handler) -> None:
    logging.getLogger().removeHandler(handler)
    handler.close()


def _failed(error: Exception, options: Options) -> int:
    if options.json:
        known = error if isinstance(error, StationError) else Unavailable(str(error), retryable=False)
        _print(json.dumps(known.to_body(), default=str))
    return EXIT_FAILED


def _print(line: str) -> None:
    with suppress(OSError):  # who wanted it has gone
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


async def _serve(settings: Settings, held: _Held, options: Options) -> int:
    try:
        station = await Station.start(settings, make_backends=options.make_backends)
    except (StationError, OSError) as error:
        log.error("the station could not start: %s", error)
        return _failed(error, options)
    try:
        sock = homes.bind(settings.home)
        try:
            await _answer(station, sock, held, options)
        finally:
            sock.close()
            (settings.home / SOCKET).unlink(missing_ok=True)
            listen.forget(settings.home)
    except StationError as error:
        log.error("the station cannot go on: %s", error)
        return _failed(error, options)
    finally:
        await station.aclose()
    log.info("the station has ended; kept sandboxes live on")
    return 0


async def _answer(station: Station, sock: socket.socket, held: _Held, options: Options) -> None:
    loop, tcp = asyncio.get_running_loop(), held.tcp
    async with Tasks() as tasks, Faces(station.settings.home, options.faces) as faces, asyncio.TaskGroup() as group:
        app = build_app(station, faces)
        servers = [Server(local(app, station.access), sock)]
        if tcp is not None:
            bounded = Bodies(app, speaks_rpc=faces.has)
            station.access.open_tcp(tcp.url, tcp.token.secret)
            guard = Guard(bounded, hosts=tcp.hosts, access=station.access, speaks_rpc=faces.has)
            servers.append(Server(guard, tcp.sock, tcp.tls.context if tcp.tls else None))
        stop = _Stop(servers, faces)
        station.request_stop = stop.ask
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, stop.ask)
        tasks.start(_keep_house(station, held, stop, end_when_idle=options.background), name="housekeeping")
        for server in servers:
            group.create_task(server.run_until_stopped())
            await server.listening.wait()
        _tell(station.settings.home, tcp, options)
        held.manager.tell(READY)
        await stop.asked.wait()
        held.manager.tell(STOPPING)
        begun = loop.time()
        # First, while requests are answered: faces are clients of this station, and finish their calls.
        await faces.aclose()
        for server in servers:
            server.stop(GRACEFUL_SECONDS - (loop.time() - begun))


class _Stop:
    """The end of a station, asked for."""

    def __init__(self, servers: list[Server], faces: Faces) -> None:
        self._servers = servers
        self._faces = faces
        self.asked = asyncio.Event()

    def ask(self) -> None:
        """Requests that run are finished, for about 5 s; asked twice, they are not."""
        if self.asked.is_set():
            self._faces.hurry()
            for server in self._servers:
                server.hurry()
        self.asked.set()


def _tell(home: Path, tcp: _Tcp | None, options: Options) -> None:
    file = tcp.token.file if tcp else None
    told = listen.Listening(
        url=tcp.url if tcp else None,
        token_file=str(file) if file else None,
        socket=str(home / SOCKET),
        pid=os.getpid(),
        version=package.__version__,
    )
    try:
        told.write(home)
    except OSError as error:  # a full disk: what is there is served all the same
        log.error("%s cannot be written: %s", home / listen.FILE, error.strerror)
    if tcp:
        log.info("listening on %s, token %s", told.url, f"in {file}" if file else f"from {token.VARIABLE}")
    if options.json:
        _print(told.line())
    if options.ready_fd is not None:
        with suppress(BrokenPipeError):
            os.write(options.ready_fd, b"\n")
        os.close(options.ready_fd)


async def _keep_house(station: Station, held: _Held, stop: _Stop, *, end_when_idle: bool) -> None:
    cleanup = station.settings.sandbox.cleanup_interval_minutes * 60
    while True:
        await asyncio.sleep(min(HOUSEKEEPING_SECONDS, max(1.0, cleanup)))
        try:
            await _look_after(station, held, stop)
        except StationError as error:  # a store that is away; the next turn comes
            log.warning("the housekeeping was not finished: %s", error)
        if end_when_idle and station.is_idle() and not stop.asked.is_set():
            log.info("nobody needs this station: no live box, no request for %g minutes", station.settings.idle_minutes)
            stop.ask()


async def _look_after(station: Station, held: _Held, stop: _Stop) -> None:
    if not held.lock.holds() and not stop.asked.is_set():
        log.error("the state directory is gone, and with it every file: all sandboxes end, and this station")
        try:
            await station.delete_all()
        finally:
            stop.ask()
        return
    if held.tcp is not None:
        held.tcp.refresh()
    await station.housekeeping()
