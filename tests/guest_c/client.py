"""A guest under test and a blocking client of it. Every wait has a deadline; nothing sleeps."""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.guest_c import wire
from tests.guest_c.wire import Ending, Frame, Wire

DEADLINE = 20.0
CREDIT = 1 << 20
NOBODY = 65534
USER = NOBODY if os.getuid() == 0 else None
"""bubblewrap must never run as root, and a process limit does not bind root."""


@dataclass
class Output:
    """What one process has sent so far."""

    data: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    at: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    ending: Ending | None = None
    pid: int | None = None
    stdin_taken: int = 0
    stdin_closed: bool = False

    def text(self) -> tuple[str, str]:
        return self.data[1].decode(), self.data[2].decode()


class Client:
    """One session on one connection. `automatic` gives back credit and acknowledges as output comes."""

    def __init__(
        self,
        path: Path,
        *,
        credit: int = CREDIT,
        wanted: dict[int, tuple[int, int]] | None = None,
        automatic: bool = True,
    ):
        self.wire = Wire()
        self.automatic = automatic
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(str(path))
        self.outputs: dict[int, Output] = {}
        for ident, offsets in (wanted or {}).items():
            self.output(ident).at = {1: offsets[0], 2: offsets[1]}
        self.errors: list[tuple[int, int]] = []
        self._frames: deque[Frame] = deque()
        self.socket.sendall(self.wire.hello(credit, wanted))
        self.greeting = self.expect(wire.HELLO_ACK).payload
        self.capabilities: int
        self.last_id: int
        self.count: int
        self.capabilities, self.last_id, self.count = struct.unpack_from("<III", self.greeting, 20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def output(self, ident: int) -> Output:
        return self.outputs.setdefault(ident, Output())

    def processes(self) -> dict[int, tuple[int, ...]]:
        """From the greeting: id to (state, pid, stdin_taken, stdout_from, stdout_to, stderr_from, stderr_to)."""
        entries = (struct.unpack_from("<IIIQQQQQ", self.greeting, 32 + 48 * n) for n in range(self.count))
        return {entry[0]: entry[1:] for entry in entries}

    def send(self, kind: int, ident: int = 0, payload: bytes = b"") -> None:
        self.socket.sendall(self.wire.frame(kind, ident, payload))

    def next(self, timeout: float = DEADLINE) -> Frame:
        deadline = time.monotonic() + timeout
        while not self._frames:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise TimeoutError("no frame came")
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the guest has closed")
            self._frames.extend(self.wire.feed(data))
        frame = self._frames.popleft()
        self._take(frame)
        return frame

    def expect(self, kind: int, ident: int | None = None, timeout: float = DEADLINE) -> Frame:
        deadline = time.monotonic() + timeout
        while True:
            frame = self.next(deadline - time.monotonic())
            if frame.kind == kind and ident in (None, frame.ident):
                return frame

    def silence(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes: the one wait that must last."""
        try:
            self.next(seconds)
        except TimeoutError:
            return True
        return False

    def _take(self, frame: Frame) -> None:
        output = self.output(frame.ident)
        if frame.kind == wire.OUTPUT:
            stream, offset = struct.unpack_from("<IQ", frame.payload)
            assert offset == output.at[stream], "output must be gapless unless a GAP says so"
            output.data[stream] += frame.payload[12:]
            output.at[stream] = offset + len(frame.payload) - 12
            if self.automatic:
                self.send(wire.CREDIT, 0, struct.pack("<I", len(frame.payload)))
                self.send(wire.ACK, frame.ident, struct.pack("<IQ", stream, output.at[stream]))
        elif frame.kind == wire.GAP:
            stream, start, stop = struct.unpack("<IQQ", frame.payload)
            assert start == output.at[stream]
            assert stop > start
            output.gaps.append((stream, start, stop))
            output.at[stream] = stop
        elif frame.kind == wire.EXIT:
            output.ending = Ending.parse(frame.payload)
            assert (output.ending.stdout_total, output.ending.stderr_total) == (output.at[1], output.at[2])
        elif frame.kind == wire.STARTED:
            (output.pid,) = struct.unpack("<I", frame.payload)
        elif frame.kind == wire.STDIN_ACK:
            (output.stdin_taken,) = struct.unpack("<Q", frame.payload)
        elif frame.kind == wire.STDIN_CLOSED:
            output.stdin_closed = True
        elif frame.kind == wire.ERROR:
            self.errors.append((frame.ident, struct.unpack_from("<I", frame.payload)[0]))

    def start(self, argv: list[str | bytes], *, ident: int | None = None, **options: Any) -> int:
        self.last_id = ident or self.last_id + 1
        data = wire.record(argv, **options)
        parts = [data[at : at + 65536] for at in range(0, len(data), 65536)]
        for part in parts[:-1]:
            self.send(wire.START_PART, self.last_id, part)
        self.send(wire.START, self.last_id, parts[-1])
        return self.last_id

    def wait(self, ident: int, timeout: float = DEADLINE) -> Output:
        if self.output(ident).ending is None:
            self.expect(wire.EXIT, ident, timeout)
        return self.output(ident)

    def run(self, argv: list[str | bytes], *, timeout: float = DEADLINE, **options: Any) -> Output:
        ident = self.start(argv, **options)
        output = self.wait(ident, timeout)
        self.send(wire.FORGET, ident)
        return output

    def feed(self, ident: int, data: bytes, *, finish: bool = True) -> None:
        """Sends all of `data` within the window, reading what comes meanwhile."""
        sent = 0
        output = self.output(ident)
        while sent < len(data) and not output.stdin_closed and output.ending is None:
            room = 262144 - (sent - output.stdin_taken)
            if room == 0:
                self.next()
                continue
            chunk = data[sent : sent + min(room, 65536)]
            self.send(wire.STDIN, ident, chunk)
            sent += len(chunk)
        if finish:
            self.send(wire.STDIN, ident)

    def applet(self, *argv: str | bytes, stdin: bytes | None = None, **options: Any) -> Output:
        ident = self.start(list(argv), applet=True, stdin=stdin is not None, **options)
        if stdin is not None:
            self.feed(ident, stdin)
        output = self.wait(ident)
        self.send(wire.FORGET, ident)
        return output

    def shell(self, script: str, *arguments: str, **options: Any) -> Output:
        return self.run(["/bin/sh", "-c", script, "sh", *arguments], **options)


BWRAP = (
    "--unshare-all --unshare-user --disable-userns --as-pid-1 --new-session --cap-drop ALL "
    "--cap-add CAP_SYS_ADMIN --cap-add CAP_SETPCAP --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib "
    "--symlink usr/lib64 /lib64 --symlink usr/sbin /sbin --proc /proc --dev /dev --tmpfs /tmp"
).split()


class Guest:
    """A running guest: in bubblewrap as an unprivileged user, or directly on this machine."""

    def __init__(
        self,
        binary: Path,
        directory: Path,
        *,
        boxed: bool,
        options: tuple[str, ...] = (),
        user: int | None = USER,
        nofile: int = 1024,
    ):
        self.path = directory / "box.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(8)
        fd = listener.fileno()
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        self.root = "/workspace" if boxed else str(self.workspace)
        serve = ["serve", "--fd", str(fd), "--box", "test", *options]
        command = [str(binary), *serve]
        if boxed:
            binds = ["--ro-bind", str(binary), "/.stn/guest", "--bind", str(self.workspace), "/workspace"]
            command = ["bwrap", *BWRAP, *binds, "/.stn/guest", *serve]
        if user is not None:
            os.chown(self.workspace, user, user)
            os.chown(self.path, user, user)
        self.process = subprocess.Popen(
            ["prlimit", f"--nofile={nofile}:{nofile}", *command],
            pass_fds=[fd],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            start_new_session=True,
            executable=shutil.which("prlimit"),
        )
        listener.close()

    def connect(self, **options: Any) -> Client:
        return Client(self.path, **options)

    def pid(self) -> int:
        """Of the guest itself: bubblewrap's only child, or the process we started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        comm = Path(f"/proc/{self.process.pid}/comm").read_text()
        return int(children[0]) if comm.startswith("bwrap") else self.process.pid

    def stop(self) -> None:
        """As a worker does: TERM to the guest itself."""
        if self.process.poll() is None:
            os.kill(self.pid(), 15)
        try:
            self.process.wait(DEADLINE)
        finally:
            self.process.kill()
            self.process.wait(DEADLINE)
