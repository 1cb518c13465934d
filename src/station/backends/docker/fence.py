"""One attached connection for each box, whoever asks: a second one that does not read would block every other."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from station.guest.frames import RESYNC_ZEROS

if TYPE_CHECKING:
    from ._api import AttachedStream

WAIT_SECONDS = 2.0
_PAUSE = 0.01


class Fence:
    """A lock file that its holder's death opens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    async def take(self) -> None:
        """Raises TimeoutError that names the process which has it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        taken = False
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not _try_lock(fd):  # noqa: ASYNC110 - another process's lock wakes nobody here
                    await asyncio.sleep(_PAUSE)
            os.pwrite(fd, b"%-20d\n" % os.getpid(), 0)
            self._fd, taken = fd, True
        except TimeoutError as error:
            holder = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
            raise TimeoutError(f"process {holder} holds the connection to this box") from error
        finally:
            if not taken:
                os.close(fd)

    def give_back(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def forget(self) -> None:
        """The box is gone, and with it what there was to guard."""
        self.give_back()
        self._path.unlink(missing_ok=True)


def _try_lock(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class FencedStream:
    """An attached stream that holds its box's fence until it is closed."""

    def __init__(self, stream: AttachedStream, fence: Fence) -> None:
        self._stream = stream
        self._fence = fence
        self._closed = False

    @property
    def complaints(self) -> str:
        return self._stream.complaints

    async def resynchronise(self) -> None:
        """Ends what an earlier session may have left half said."""
        await self._stream.send(bytes(RESYNC_ZEROS))

    async def receive(self) -> bytes:
        return await self._stream.receive()

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._stream.aclose()
            finally:
                self._fence.give_back()
