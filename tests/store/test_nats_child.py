"""The nats-server of a station's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import nats
import nats.errors
import pytest

from station.backends._processes import stat_fields
from station.core.errors import Unavailable
from station.server import nats_child
from station.server.nats_child import NatsServer, binary
from station.store.nats.connection import NatsAccess, NatsConnection
from station.store.nats.registry import NatsRegistry

from .nats_bed import LEFT_OPEN, kill
from .test_registry import record

pytestmark = pytest.mark.filterwarnings(LEFT_OPEN)
_OWNER = """
import asyncio, sys
from pathlib import Path
from station.server.nats_child import NatsServer, binary

async def main():
    async with NatsServer.running(Path(sys.argv[1]), program=binary(None)) as server:
        print(server.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def owner_of(home: Path) -> tuple[subprocess.Popen[str], int]:
    """A process that has a server, and the pid of that."""
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(home)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


class Impostor:
    """Says that it is a nats-server, and notes what it is told."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = asyncio.Event()
        self.passwords: set[str | None] = set()
        self.connections = 0

    @classmethod
    @asynccontextmanager
    async def on(cls, port: int) -> AsyncIterator[Impostor]:
        made = cls()
        async with asyncio.timeout(30):
            while True:  # whoever had the port may be about to go
                with suppress(OSError):
                    server = await asyncio.start_server(made._talk, "127.0.0.1", port, reuse_address=True)
                    break
                await asyncio.sleep(0.01)
        made.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield made
        finally:
            server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        told = {"server_id": "x", "version": "2.15.1", "proto": 1, "max_payload": 1 << 20, "headers": True}
        writer.write(b"INFO " + json.dumps({**told, "auth_required": True}).encode() + b"\r\n")
        with suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"CONNECT"):
                    self.passwords.add(json.loads(line.removeprefix(b"CONNECT")).get("pass"))
                    self.asked.set()
                elif line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()


def is_alive(pid: int) -> bool:
    """A zombie is not: whose parent has ended too it is there until somebody looks."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] != "Z"


async def gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while is_alive(pid):  # noqa: ASYNC110 - it is nobody's child here
            await asyncio.sleep(0.02)


async def test_it_lets_its_station_in_and_nobody_else(nats_server: NatsServer) -> None:
    access = nats_server.access()
    await (await NatsConnection.open(nats_server.access)).aclose()

    async def quiet(_: Exception) -> None:
        return

    for given in ({}, {"user": "station", "password": "guessed"}, {"token": "x"}):
        with pytest.raises(nats.errors.Error):
            await nats.connect(access.urls[0], allow_reconnect=False, error_cb=quiet, **given)


async def test_what_it_needs_is_this_users_alone_and_in_no_argument(tmp_path: Path) -> None:
    async with NatsServer.running(tmp_path, program=binary(None)) as server:
        place = tmp_path / "nats"
        password = server.access().password
        assert password is not None
        assert len(password) > 30
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        for name in ("server.pid", "lock"):
            assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
        for path in place.rglob("*"):
            assert not path.is_file() or password.encode() not in path.read_bytes(), path
        assert server.pid is not None
        for told in ("cmdline", "environ"):
            assert password.encode() not in Path(f"/proc/{server.pid}/{told}").read_bytes()
        assert password not in repr(server.access())


async def test_it_listens_on_loopback_alone(nats_server: NatsServer) -> None:
    inodes = set()
    for entry in Path(f"/proc/{nats_server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if found := re.match(r"socket:\[(\d+)\]", str(entry.readlink())):
                inodes.add(found[1])
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{nats_server.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.add(fields[1])
    port = int(nats_server.access().urls[0].rpartition(":")[2])
    assert listening == {f"0100007F:{port:04X}"}


async def test_every_write_is_on_the_disk_before_it_is_acknowledged(nats_server: NatsServer) -> None:
    words = Path(f"/proc/{nats_server.pid}/cmdline").read_text().split("\0")
    name = words[words.index("-c") + 1]
    told = Path(name.replace("self", str(nats_server.pid))).read_text()
    assert "sync_interval: always" in told


async def test_one_that_ends_is_started_anew_under_another_password_with_what_it_had(tmp_path: Path) -> None:
    async with NatsServer.running(tmp_path, program=binary(None)) as server:
        connection = await NatsConnection.open(server.access)
        registry = await NatsRegistry.opened(connection, bucket="b")
        made = await registry.create(record())
        passwords = {server.access().password}
        for _ in range(3):
            before = kill(server)
            assert await registry.get(made.uid) == made
            assert server.pid != before
            passwords.add(server.access().password)
        assert len(passwords) == 4
        await connection.aclose()


async def test_whoever_takes_the_port_of_one_that_is_away_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NatsServer.running(tmp_path, program=binary(None)) as server:
        connection = await NatsConnection.open(server.access)
        registry = await NatsRegistry.opened(connection, bucket="b")
        made = await registry.create(record())
        old = server.access()
        # A control that goes back to where it was.
        control = await NatsConnection.open(lambda: replace(old, place=None))
        # It is away until the other one has its port, and somebody has asked for it.
        started, start = asyncio.Event(), server._start

        async def later() -> None:
            await started.wait()
            await start()

        monkeypatch.setattr(server, "_start", later)
        kill(server)
        async with Impostor.on(int(old.urls[0].rpartition(":")[2])) as impostor:
            assert server.access().urls == ()
            reading = asyncio.ensure_future(registry.get(made.uid))
            async with asyncio.timeout(30):
                await impostor.asked.wait()
            started.set()
            assert await reading == made
            assert impostor.passwords == {old.password}, "the control alone"
            assert impostor.connections == 1
            new = server.access()
            assert (new.urls != old.urls, new.password != old.password) == (True, True)
            await control.aclose()
        await connection.aclose()


async def test_a_server_that_ends_while_it_is_connected_to_is_not_believed(tmp_path: Path) -> None:
    """Its port is somebody else's between the look and the connection."""
    async with NatsServer.running(tmp_path, program=binary(None)) as server, Impostor.on(0) as impostor:
        real, asked = server.access(), 0

        def where() -> NatsAccess:
            nonlocal asked
            asked += 1
            # The constructor, and the look before the first try.
            return replace(real, urls=(impostor.url,)) if asked <= 2 else server.access()

        connection = await NatsConnection.open(where)
        registry = await NatsRegistry.opened(connection, bucket="b")
        made = await registry.create(record())
        assert await registry.get(made.uid) == made
        assert impostor.connections == 1
        await connection.aclose()


async def test_it_ends_with_its_station_also_when_that_is_killed(tmp_path: Path) -> None:
    async with NatsServer.running(tmp_path, program=binary(None)) as server:
        pid = server.pid
        assert pid is not None
    assert not is_alive(pid)
    owner, pid = owner_of(tmp_path)
    owner.kill()
    owner.communicate()
    await gone(pid)


async def test_the_next_station_ends_one_that_hears_nothing_and_has_all_it_had(tmp_path: Path) -> None:
    owner, pid = owner_of(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    owner.kill()
    owner.communicate()
    assert is_alive(pid), "the control: a stopped server outlives its station"
    async with NatsServer.running(tmp_path, program=binary(None)) as server:
        await gone(pid)
        await (await NatsConnection.open(server.access)).aclose()


async def test_no_two_servers_ever_have_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the lock and is not the process that was noted is left alone, and so is a pid that means another."""
    monkeypatch.setattr(nats_child, "START_SECONDS", 0.5)
    owner, pid = owner_of(tmp_path)
    try:
        (tmp_path / "nats" / "server.pid").write_text(json.dumps([pid, 1]))
        with pytest.raises(Unavailable, match="must end first"):
            async with NatsServer.running(tmp_path, program=binary(None)):
                pass
        assert is_alive(pid)
    finally:
        owner.kill()
        owner.communicate()
    await gone(pid)


def test_a_program_that_is_not_there_is_told_with_what_brings_one() -> None:
    with pytest.raises(Unavailable, match=r"no nats-server at /nowhere.*station-sandbox\[nats\].*STN_NATS_BIN") as told:
        binary("/nowhere")
    assert not told.value.retryable


@pytest.mark.parametrize(("script", "said"), [("exit 3", "no log"), ("sleep 1000", "no log")])
async def test_a_program_that_is_no_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(nats_child, "START_SECONDS", 0.5)
    program = tmp_path / "fake"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match=f"did not start: .*{said}"):
        async with NatsServer.running(tmp_path, program=str(program)):
            pass


async def test_a_server_that_says_why_it_does_not_start_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "nats" / "jetstream").mkdir(parents=True)
    (tmp_path / "nats" / "jetstream" / "jetstream").write_text("in the way")
    with pytest.raises(Unavailable, match=r"did not start: .*storage directory is not a directory"):
        async with NatsServer.running(tmp_path, program=binary(None)):
            pass
