"""Servers of NATS as operators run them, and what comes between them and a station."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Self

from station.server.nats_child import NatsServer, binary
from station.store.nats.connection import NatsAccess
from tests.observer import Observer

LEFT_OPEN = (
    r"ignore:Exception ignored in.*(StreamWriter|_SelectorTransport|socket):pytest.PytestUnraisableExceptionWarning"
)
"""The client leaves what it opened when a server goes away in the middle of that; the collector closes it."""
USERS = """
authorization { users: [
  { user: all, password: p }
  { user: reader, password: p, permissions: { publish: { allow: ["$JS.API.>"] } } }
] }
"""


@contextmanager
def operators(place: Path, config: str = "") -> Iterator[str]:
    """The address of a server with JetStream and those lines in its configuration."""
    place.mkdir(exist_ok=True)
    (place / "conf").write_text(
        f'host: "127.0.0.1"\nport: -1\nports_file_dir: "{place}"\njetstream {{ store_dir: "{place}/js" }}\n{config}'
    )
    words = ("nice", "-n", "19", binary(None), "-c", str(place / "conf"), "-l", str(place / "log"))
    with subprocess.Popen(words) as server:
        try:
            Observer.until(lambda: any(path.stat().st_size for path in place.glob("*.ports")), "it did not start", 30)
            yield json.loads(next(place.glob("*.ports")).read_bytes())["nats"][0]
        finally:
            server.kill()


@contextmanager
def stopped(server: NatsServer) -> Iterator[None]:
    """It does nothing within, and keeps its connections."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill(server: NatsServer) -> int:
    """Its pid, which is no more."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


class Cable:
    """Between a station and a server: passes everything on, until a test says otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.open = asyncio.Event()
        """Not set: nothing comes through, and nobody is told."""
        self.open.set()
        self.delay_seconds = 0.0
        """Of everything that the server says."""
        self.cut_after: int | None = None
        """So many bytes go to the server yet, and then the connection is cut, once."""
        self.connections = 0
        self._port = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, access: NatsAccess) -> AsyncIterator[tuple[Self, NatsAccess]]:
        """The cable, and where its other end is."""
        host, _, port = access.urls[0].removeprefix("nats://").rpartition(":")
        cable = cls(host, int(port))
        server = await asyncio.start_server(cable._accept, "127.0.0.1", 0)
        here = server.sockets[0].getsockname()[1]
        try:
            yield cable, NatsAccess((f"nats://127.0.0.1:{here}",), user=access.user, password=access.password)
        finally:
            server.close()
            cable.cut()
            await asyncio.gather(*cable._tasks, return_exceptions=True)

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, up_writer, to_server=True))
                    group.create_task(self._pass(up_reader, writer, to_server=False))
            finally:
                up_writer.transport.abort()
        except (OSError, asyncio.CancelledError, BaseExceptionGroup):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool) -> None:
        while data := await reader.read(1 << 16):
            await self.open.wait()
            if to_server and self.cut_after is not None:
                data = data[: self.cut_after]
                self.cut_after -= len(data)
            elif not to_server and self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            writer.write(data)
            await writer.drain()
            if to_server and self.cut_after == 0:
                self.cut_after = None
                break
        raise ConnectionResetError
