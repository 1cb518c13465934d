"""Running file primitives: applets of the guest, each a process of its own that is forgotten when it is done."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from station.core.errors import BoxLost, InternalError
from station.core.wire import DIGEST_BYTES

from .file_errors import check
from .frames import STDERR, STDOUT, ProtocolError, StartRecord
from .process import GuestProcess, Sink
from .session import GuestSession

ANSWER_BYTES = 64 << 20
"""More than any answer that is taken as a whole has; the guest ends an applet that goes on."""
SPARE_SECONDS = 5.0
TIDY_SECONDS = 0.25
"""For an applet to remove its draft, where that has a name."""
PIECE = 1 << 18


@dataclass(frozen=True)
class Command:
    """What to run: a file primitive of the guest."""

    name: str
    args: tuple[str, ...]
    subject: str
    """The sandbox path that errors name."""
    seconds: float
    """The guest ends it then."""
    root: str
    """The sandbox's name for the ROOT in `args`, which may be a path of this machine and is told to nobody."""

    def told(self, stderr: bytes) -> bytes:
        """What it said, as it may be repeated."""
        return stderr.replace(self.args[0].encode(), self.root.encode())


class _Answer:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.kept: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        self._size = 0

    def output(self, stream: int, _offset: int, data: bytes) -> bool:
        self._size += len(data)
        if self._size > ANSWER_BYTES:
            raise ProtocolError("the answer of a file primitive is too long")
        self.kept[stream].append(data)
        return True

    def gap(self, *_: int) -> None:
        raise ProtocolError("the answer of a file primitive has a gap")


def launch(session: GuestSession, command: Command, *, sink: Sink | None = None, stdin: bool = False) -> GuestProcess:
    record = StartRecord(
        argv=(command.name, *command.args),
        applet=True,
        stdin=stdin,
        timeout_seconds=command.seconds,
        output_limit=ANSWER_BYTES if sink else 0,
    )
    return session.start(record, guest_id=session.next_id(), sink=sink)


@contextlib.asynccontextmanager
async def patience(seconds: float, what: str) -> AsyncIterator[None]:
    """The guest ends what takes too long; this is for a guest that does nothing any more. Raises BoxLost."""
    limit = asyncio.timeout(seconds + SPARE_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise BoxLost(f"the guest does not answer: {what}") from error


async def answer_of(session: GuestSession, command: Command, source: Source | None = None) -> bytes:
    """Its whole stdout, after it was fed `source`. Raises the error that its ending means, and what `source` raises:
    it is killed then, like when this is cancelled."""
    answer = _Answer()
    process = launch(session, command, sink=answer, stdin=source is not None)
    try:
        if source is not None:
            await source.feed(process, command)
        async with patience(command.seconds, command.name):
            ended = await process.exit()
    finally:
        process.abandon(TIDY_SECONDS)
    check(ended, command.name, command.subject, command.told(b"".join(answer.kept[STDERR])))
    return b"".join(answer.kept[STDOUT])


class Source:
    """Bytes for an applet's stdin, followed by their digest: without it, what came before changes nothing."""

    def __init__(self, data: bytes | AsyncIterable[bytes], *, sealed: bool = False) -> None:
        """`sealed`: the data ends with its digest, which the guest checks; nothing is hashed on the way there."""
        self._data = data
        self._hash = None if sealed else hashlib.sha256()
        self._tail = b""

    @property
    def sha256(self) -> str:
        """Of all content, once it was fed."""
        return self._tail.hex()

    async def feed(self, process: GuestProcess, command: Command) -> None:
        # An applet that stopped reading has ended, or will: its ending tells why, better than a broken pipe does.
        with contextlib.suppress(BrokenPipeError):
            if isinstance(self._data, bytes):
                await self._write(process, command, self._data)
            else:
                async for data in self._data:
                    await self._write(process, command, data)
            async with patience(command.seconds, command.name):
                if self._hash is not None:
                    self._tail = self._hash.digest()
                    await process.write(self._tail)
                await process.close_stdin()

    async def _write(self, process: GuestProcess, command: Command, data: bytes) -> None:
        # In pieces: hashing a large one whole would hold up everybody else on this loop.
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            if self._hash is not None:
                self._hash.update(piece)
            else:
                self._tail = (self._tail + piece[-DIGEST_BYTES:])[-DIGEST_BYTES:]
            async with patience(command.seconds, command.name):
                await process.write(piece)


class Stream:
    """Stdout of a running applet as it comes, with its stderr kept beside. `close` it, whether its end came or not."""

    def __init__(self, session: GuestSession, command: Command) -> None:
        self._command = command
        self._process = launch(session, command)
        self._early: list[bytes] = []
        self.stderr = bytearray()

    async def next(self) -> bytes:
        """The next bytes of stdout; empty at the end. Raises the error that its ending means."""
        if self._early:
            return self._early.pop(0)
        async with patience(self._command.seconds, self._command.name):
            while (chunk := await self._process.next_chunk()) is not None:
                if chunk.stream == STDERR:
                    self._keep(chunk.data)
                else:
                    return chunk.data
            ended = await self._process.exit()
        self.close()
        check(ended, self._command.name, self._command.subject, self._command.told(bytes(self.stderr)))
        return b""

    async def first_field(self) -> bytes:
        """The first NUL-ended field of stderr. Raises as `next` does if it ends without one."""
        early: list[bytes] = []
        while b"\0" not in self.stderr:
            async with patience(self._command.seconds, self._command.name):
                chunk = await self._process.next_chunk()
            if chunk is None:
                await self.next()
                raise InternalError(f"{self._command.name} ended without a word")
            if chunk.stream == STDERR:
                self._keep(chunk.data)
            else:
                early.append(chunk.data)
        self._early = early
        return bytes(self.stderr.partition(b"\0")[0])

    def close(self) -> None:
        """Kills it unless it has ended, and forgets it. Repeating is no error."""
        self._process.abandon(TIDY_SECONDS)

    def _keep(self, data: bytes) -> None:
        self.stderr += data
        if len(self.stderr) > PIECE:
            raise InternalError(f"{self._command.name} says too much")
