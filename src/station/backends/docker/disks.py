"""Ext4 images in the state directory, which volumes of an engine are made of: written, attached, deleted only here."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from station.backends.docker import loops, quota
from station.backends.docker.fence import Fence
from station.backends.docker.quota import SETTING
from station.core.errors import InternalError, StationError, StorageFull, Unavailable
from station.durable import is_full

_TOOLS = ("mkfs.ext4", "debugfs")
_PLACES = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_TOOL_SECONDS = 60.0
_BLANKS_KEPT = 4
_PIECE_BYTES = 1 << 20
_REMEDY = f"{SETTING}: off (for new sandboxes)"
_making = threading.Lock()


@dataclass(frozen=True)
class _Blank:
    """An empty file system: what is not in `pieces` is zero."""

    size: int
    pieces: tuple[tuple[int, bytes], ...]


class Disks:
    """One directory of images, named by sandbox and place. Makes it when the first image is made."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._blanks: OrderedDict[int, _Blank] = OrderedDict()

    def device(self, uid: str, word: str) -> str:
        """The path under which the engine mounts the image, while `attached` is open."""
        return str(self._directory / f"{uid}-{word}.dev")

    def exists(self, uid: str, word: str) -> bool:
        return self._image(uid, word).exists()

    async def make(self, uid: str, sizes: Mapping[str, int]) -> None:
        """An image for each word, of so many MiB for files, whole or not at all; what is there stays as it is.
        Raises StorageFull or Unavailable."""
        for word, size in sizes.items():
            if not self.exists(uid, word):
                try:
                    await asyncio.to_thread(self._make, self._image(uid, word), size)
                except OSError as error:
                    raise _not_made(error) from error

    @asynccontextmanager
    async def attached(self, uid: str, words: tuple[str, ...]) -> AsyncIterator[None]:
        """Within, the engine finds the images of a sandbox; what it has mounted by then stays until it unmounts it.
        Raises InternalError for an image that is gone, Unavailable where there is no loop device."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fence = Fence(self._directory / f"{uid}.lock")
        try:
            await fence.take()
        except OSError as error:
            raise Unavailable(f"the images of sandbox {uid} are in use: {error}") from error
        devices: list[loops.Device] = []
        # A thread cannot be cancelled, and what it opens must be closed.
        attaching = asyncio.ensure_future(asyncio.to_thread(self._attach, uid, words, devices))

        def let_go(_: object) -> None:
            for word in words:
                Path(self.device(uid, word)).unlink(missing_ok=True)
            for device in devices:
                device.close()
            fence.give_back()

        try:
            await _shielded(attaching)
            yield
        finally:
            if attaching.done():
                let_go(attaching)
            else:
                attaching.add_done_callback(let_go)

    async def sweep(self) -> None:
        """Removes the links of a station that was killed: the devices that they name are others' by now."""
        for link in self._directory.glob("*.dev"):
            fence = Fence(self._directory / f"{link.name.partition('-')[0]}.lock")
            with suppress(TimeoutError):
                await fence.take()
                link.unlink(missing_ok=True)
                fence.give_back()

    def remove(self, uid: str, words: tuple[str, ...]) -> None:
        """Repeating is no error."""
        names = [f"{uid}-{word}.{kind}" for word in words for kind in ("img", "new", "dev")]
        for name in (*names, f"{uid}.lock"):
            (self._directory / name).unlink(missing_ok=True)

    def _image(self, uid: str, word: str) -> Path:
        return self._directory / f"{uid}-{word}.img"

    def _attach(self, uid: str, words: tuple[str, ...], devices: list[loops.Device]) -> None:
        for word in words:
            image = self._image(uid, word)
            if not image.exists():
                raise InternalError(
                    f"the {word} of sandbox {uid} was in {image}, and that is gone; put it back, or delete the sandbox",
                    sandbox=uid,
                )
            devices.append(loops.attach(image))
            link = Path(self.device(uid, word))
            link.unlink(missing_ok=True)  # of a station that was killed
            link.symlink_to(devices[-1].path)

    def _make(self, path: Path, size_mb: int) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        blank = self._blank(size_mb)
        new = path.with_suffix(".new")
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb", buffering=0) as file:
                os.ftruncate(fd, blank.size)
                for offset, piece in blank.pieces:
                    _write(fd, offset, piece)
                os.fsync(file)
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _blank(self, size_mb: int) -> _Blank:
        """Made once for each size: copying is ten times as fast as making."""
        with _making:
            found = self._blanks.get(size_mb) or _make_blank(size_mb, self._directory / "blank.new")
            self._blanks[size_mb] = found
            self._blanks.move_to_end(size_mb)
            while len(self._blanks) > _BLANKS_KEPT:
                self._blanks.popitem(last=False)
        return found


def missing() -> str | None:
    """What this process lacks to make and attach images; `None`: try it."""
    if os.geteuid() != 0:
        return "the station is not root, who alone attaches loop devices"
    lacking = [name for name in _TOOLS if shutil.which(name, path=_PLACES) is None]
    return f"{' and '.join(lacking)} not found (apt install e2fsprogs)" if lacking else None


def _make_blank(size_mb: int, path: Path) -> _Blank:
    size = quota.image_bytes(size_mb)
    try:
        with open(path, "wb") as file:
            file.truncate(size)
        _tool("mkfs.ext4", *quota.mkfs_arguments(size_mb), str(path))
        # It is root's, and in the way of whoever lists a workspace.
        _tool("debugfs", "-w", "-R", "rmdir lost+found", str(path))
        with open(path, "rb") as file:
            return _Blank(size, tuple(_pieces(file.fileno(), size)))
    finally:
        path.unlink(missing_ok=True)


def _tool(name: str, *arguments: str) -> None:
    """Raises OSError."""
    program = shutil.which(name, path=_PLACES)
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "not found; apt install e2fsprogs", name)
    try:
        subprocess.run(
            [program, *arguments],
            check=True,
            timeout=_TOOL_SECONDS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": _PLACES, "LC_ALL": "C"},
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()[-200:]
        number = errno.ENOSPC if "No space left" in said else errno.EIO
        raise OSError(number, said or f"ended with {error.returncode}", name) from error
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(errno.ETIMEDOUT, f"no end within {_TOOL_SECONDS:g} s", name) from error


def _pieces(fd: int, size: int) -> list[tuple[int, bytes]]:
    found = []
    offset = 0
    with suppress(OSError):  # ENXIO: no data from here on
        while (offset := os.lseek(fd, offset, os.SEEK_DATA)) < size:
            end = min(os.lseek(fd, offset, os.SEEK_HOLE), offset + _PIECE_BYTES)
            piece = os.pread(fd, end - offset, offset)
            if piece.strip(b"\0"):
                found.append((offset, piece))
            offset = end
    return found


def _write(fd: int, offset: int, piece: bytes) -> None:
    while piece:
        written = os.pwrite(fd, piece, offset)
        piece, offset = piece[written:], offset + written


async def _shielded(attaching: asyncio.Future[None]) -> None:
    try:
        await asyncio.shield(attaching)
    except OSError as error:
        why = f"{error.strerror or error} ({error.filename or 'loop device'})"
        raise Unavailable(
            f"the image of a workspace gets no loop device: {why}; make more of them (max_loop), or end boxes",
            remedy=_REMEDY,
        ) from error


def _not_made(error: OSError) -> StationError:
    if is_full(error):
        return StorageFull(
            f"no room for the image of a workspace on the disk of the state directory; free some, or set {_REMEDY}",
            retryable=True,
            remedy=_REMEDY,
        )
    why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return Unavailable(f"the image of a workspace was not made: {why}; {_REMEDY} does without", remedy=_REMEDY)
