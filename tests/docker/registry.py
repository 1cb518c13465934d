"""A registry of the tests' own that asks for a name and a password, and a gate before it."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import ctypes.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine import Engine

READY_SECONDS = 20.0
PROGRAM = "docker-registry"
_CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {place}/data}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}", secret: of-tests}}
auth: {{htpasswd: {{realm: tests, path: {place}/htpasswd}}}}
"""


def unavailable() -> str | None:
    """Why there can be none here; `None` where there can."""
    return None if shutil.which(PROGRAM) else "needs docker-registry (apt-get install docker-registry)"


@dataclass
class Registry:
    port: int
    place: Path
    user: str = "reader"
    password: str = field(default_factory=lambda: f"pw-{secrets.token_hex(8)}")

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.port}"

    def auth(self, **more: str) -> dict[str, str]:
        """As `sandbox.registry_auth`."""
        return {"username": self.user, "password": self.password, "server_address": self.server, **more}

    def push(self, engine: Engine, source: str, name: str) -> str:
        """Under that name here; the digest. The engine has only `source` afterwards."""
        target = f"{self.server}/{name}"
        packed = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        config = self.place / "pusher"
        config.mkdir(exist_ok=True)
        (config / "config.json").write_text(json.dumps({"auths": {self.server: {"auth": packed}}}))
        engine.docker("tag", source, target)
        try:
            said = engine.docker("--config", str(config), "push", target)
        finally:
            engine.docker("rmi", target)
        return said.rpartition("digest: ")[2].split()[0]

    def remove_from(self, engine: Engine) -> None:
        """All names of this registry, and of gates before it, that the engine has learned."""
        known = engine.docker("images", "--digests", "--format", "{{.Repository}} {{.Tag}} {{.Digest}}").splitlines()
        for repository, tag, digest in (line.split() for line in known if line.startswith("127.0.0.1:")):
            name = f"{repository}@{digest}" if tag == "<none>" else f"{repository}:{tag}"
            engine.docker("rmi", name, check=False)


@contextmanager
def registry(place: Path) -> Iterator[Registry]:
    """On a free port of loopback, which engines speak plain HTTP to."""
    made = Registry(free_port(), place)
    (place / "htpasswd").write_text(f"{made.user}:{bcrypt(made.password)}\n", encoding="ascii")
    (place / "config.yml").write_text(_CONFIG.format(place=place, port=made.port), encoding="utf-8")
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", PROGRAM, "serve", place / "config.yml"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
    try:
        end = time.monotonic() + READY_SECONDS
        while not _answers(made):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the registry is not ready: {(place / 'log').read_text()[-500:]}")
            time.sleep(0.05)
        yield made
    finally:
        process.kill()
        process.wait()


def _answers(made: Registry) -> bool:
    try:
        with urllib.request.urlopen(f"http://{made.server}/v2/", timeout=5):
            raise RuntimeError("the registry asks for no password: these tests would prove nothing")
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 401
    except OSError:
        return False


def bcrypt(password: str) -> str:
    """As htpasswd files have it, by the system's own library: Python has none."""
    library = ctypes.CDLL(ctypes.util.find_library("crypt") or "libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    salt = f"$2b$05${secrets.token_hex(11)[:21]}u"
    found: bytes | None = library.crypt(password.encode(), salt.encode())
    if not found or not found.startswith(b"$2b$"):
        raise RuntimeError("the system's libcrypt knows no bcrypt")
    return found.decode()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Gate:
    """A port before a registry that lets answers through up to a size, and the rest once it is opened."""

    def __init__(self, upstream: int, let_bytes: int) -> None:
        self._upstream = upstream
        self._let = let_bytes
        self._open = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        """That have been made."""
        self.blobs: list[str] = []
        """Asked for, as often as they were."""
        self.authorized = 0
        """Requests that brought credentials."""
        self.held = asyncio.Event()
        """Some answer waits for the gate."""
        self.left = asyncio.Event()
        """Whoever waited before the gate has gone."""

    @classmethod
    @asynccontextmanager
    async def before(cls, upstream: int, let_bytes: int = 1 << 40) -> AsyncIterator[Gate]:
        gate = cls(upstream, let_bytes)
        gate._server = await asyncio.start_server(gate._accept, "127.0.0.1", 0)
        gate.port = gate._server.sockets[0].getsockname()[1]
        try:
            yield gate
        finally:
            gate._server.close()
            for task in list(gate._tasks):
                task.cancel()
            await asyncio.gather(*gate._tasks, return_exceptions=True)

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self.connections += 1
        ends = [writer.transport]
        halves: list[asyncio.Task[None]] = []
        held_here = asyncio.Event()
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
            ends.append(up_writer.transport)
            halves.append(asyncio.create_task(self._ask(reader, up_writer)))
            halves.append(asyncio.create_task(self._answer(up_reader, writer, held_here)))
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            # An engine has several connections and drops some: only this one's answer was waited for.
            if halves[0].done() and held_here.is_set() and not self._open.is_set():
                self.left.set()
        except (asyncio.CancelledError, OSError):
            pass  # the gate is taken away, or the registry has gone
        finally:
            for end in ends:
                end.abort()
            for half in halves:
                half.cancel()
            self._tasks.discard(task)
        await asyncio.gather(*halves, return_exceptions=True)

    async def _ask(self, reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                line = data.split(b"\r\n", 1)[0].decode(errors="replace")
                if line.startswith("GET ") and "/blobs/" in line:
                    self.blobs.append(line.split()[1])
                self.authorized += data.lower().count(b"\r\nauthorization: basic")
                up_writer.write(data)
                await up_writer.drain()

    async def _answer(
        self, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held_here: asyncio.Event
    ) -> None:
        passed = 0
        with suppress(OSError):
            while data := await up_reader.read(1 << 16):
                if passed + len(data) > self._let and not self._open.is_set():
                    held_here.set()
                    self.held.set()
                    await self._open.wait()
                passed += len(data)
                writer.write(data)
                await writer.drain()


@contextmanager
def gate_in_a_thread(upstream: int, let_bytes: int) -> Iterator[tuple[str, threading.Event]]:
    """For tests without an event loop: the gate's address, and what opens it."""
    address: list[str] = []
    ready, opened, done = threading.Event(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with Gate.before(upstream, let_bytes) as gate:
            address.append(gate.server)
            ready.set()
            await asyncio.to_thread(opened.wait)
            gate.open()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        ready.wait(10)
        yield address[0], opened
    finally:
        opened.set()
        done.set()
        thread.join()
