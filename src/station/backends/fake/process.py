"""What a program in a fake box sees of its world."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from signal import Signals
from typing import Protocol

from station.guest.frames import STDERR, STDOUT

from .clock import Clock, sleep
from .tree import Directory, File, Tree, fail

PIPE_BYTES = 65_536


class Died(BaseException):
    """Ends the process by a signal: what `FakeProcess.die` raises."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stdin:
    """Standard input: end of file at once, unless the process was started with stdin."""

    def __init__(self, changed: Callable[[], None], *, is_open: bool) -> None:
        self._changed = changed
        self._data = bytearray()
        self._ready = asyncio.Event()
        self.read_bytes = 0
        """Bytes that programs have read."""
        self.closed = not is_open
        """End of file was sent, or stdin was never open."""
        self.abandoned = False
        """The reader is gone; what comes is lost."""

    @property
    def received(self) -> int:
        return self.read_bytes + len(self._data)

    @property
    def taken(self) -> int:
        """What a pipe of the usual size would have taken by now."""
        return min(self.received, self.read_bytes + PIPE_BYTES)

    def feed(self, data: bytes) -> None:
        self._data += data
        self._ready.set()

    def close(self) -> None:
        self.closed = True
        self._ready.set()

    def drop_untaken(self) -> None:
        """A new connection sends again what no pipe has taken."""
        if self.received > self.taken:
            del self._data[self.taken - self.read_bytes :]
            self.closed = self.abandoned

    def abandon(self) -> None:
        """Closes the reading end: whoever writes on gets a broken pipe."""
        self.abandoned = self.closed = True
        self._data.clear()
        self._ready.set()
        self._changed()

    async def read(self, limit: int = PIPE_BYTES) -> bytes:
        """At most `limit` bytes, as soon as there are some; empty at end of file."""
        while not self._data and not self.closed:
            self._ready.clear()
            await self._ready.wait()
        return self._shift(limit)

    async def read_all(self) -> bytes:
        """Everything up to end of file."""
        pieces = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def _shift(self, limit: int) -> bytes:
        piece = bytes(self._data[:limit])
        del self._data[:limit]
        self.read_bytes += len(piece)
        if piece:
            self._changed()
        return piece


class Files:
    """The box's files as its programs see them. Paths are text (`os.fsdecode` of the name), relative ones from the
    process's cwd. Failures are OSError, as from the kernel."""

    def __init__(self, tree: Tree, cwd: str) -> None:
        self._tree = tree
        self._cwd = cwd

    def _path(self, path: str) -> bytes:
        return os.fsencode(posixpath.join(self._cwd, path))

    def read_bytes(self, path: str) -> bytes:
        file = self.open(path)
        return file.read(0, file.size)

    def open(self, path: str) -> File:
        """The file itself; it stays the same through renames and removal."""
        node = self._tree.get(self._path(path))
        if isinstance(node, Directory):
            raise fail(errno.EISDIR)
        if not isinstance(node, File):
            raise fail(errno.ENXIO)
        return node

    def create(self, path: str, *, mode: int = 0o644) -> File:
        """An empty file at `path`: a new one, or the old one cut to nothing."""
        place = self._tree.find(self._path(path))
        if isinstance(place.node, File):
            place.node.truncate(0)
            return place.node
        if place.node is not None:
            raise fail(errno.EISDIR)
        file = self._tree.new_file(mode=mode)
        self._tree.add(place, file)
        return file

    def write_bytes(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.append(self.create(path, mode=mode), data)

    def append(self, file: File, data: bytes) -> None:
        self._tree.check_room()
        file.append(data)
        self._tree.touch(file)

    def make_directory(self, path: str) -> None:
        place = self._tree.find(self._path(path))
        if place.node is not None:
            raise fail(errno.EEXIST)
        self._tree.add(place, self._tree.new_directory())

    def make_link(self, path: str, target: str) -> None:
        """A symbolic link at `path`."""
        place = self._tree.find(self._path(path), follow=False)
        if place.node is not None:
            raise fail(errno.EEXIST)
        self._tree.add(place, self._tree.new_link(os.fsencode(target)))

    def make_fifo(self, path: str) -> None:
        """A fifo, to be neither file nor directory; nothing can be read from it."""
        place = self._tree.find(self._path(path), follow=False)
        if place.node is not None:
            raise fail(errno.EEXIST)
        self._tree.add(place, self._tree.new_fifo())

    def remove(self, path: str) -> None:
        place = self._tree.find(self._path(path), follow=False)
        if place.node is None:
            raise fail(errno.ENOENT)
        if isinstance(place.node, Directory):
            raise fail(errno.EISDIR)
        self._tree.unlink(place)

    def exists(self, path: str) -> bool:
        try:
            self._tree.get(self._path(path))
        except OSError:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._tree.get(self._path(path)), Directory)


Sinks = Mapping[int, "File | int | None"]
"""Where the output of a child goes instead: a file, the parent's stream of that number, or nowhere."""


class Running(Protocol):
    """A process of a tree, as its supervisor has it."""

    process: FakeProcess
    task: asyncio.Task[int]

    def signal(self, number: int) -> None: ...

    def ending(self) -> tuple[bool, int]: ...


class Supervisor(Protocol):
    """What a process needs of who runs its tree."""

    tree: Tree
    clock: Clock

    async def write(self, stream: int, data: bytes) -> None: ...

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: Stdin, sinks: Sinks
    ) -> Running: ...


class Child:
    """A process that another one started, in the same tree."""

    def __init__(self, running: Running) -> None:
        self._running = running

    @property
    def pid(self) -> int:
        return self._running.process.pid

    async def wait(self) -> int:
        """Its exit code, or 128 and the number of the signal that ended it."""
        await asyncio.wait({self._running.task})
        kind_signalled, value = self._running.ending()
        return 128 + value if kind_signalled else value

    def kill(self, number: int = Signals.SIGTERM) -> None:
        self._running.signal(number)


class FakeProcess:
    """One process of a fake box, given to its program. Any await may be cancelled: that is a signal arriving."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        pid: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        stdin: Stdin,
        sinks: Sinks | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._sinks = dict(sinks or {})
        self.pid = pid
        self.argv = tuple(argv)
        self.env = dict(env)
        self.cwd = cwd
        self.stdin = stdin
        self.files = Files(supervisor.tree, cwd)
        self.handlers: dict[int, Callable[[], None] | None] = {}

    async def write(self, stream: int, data: bytes) -> None:
        """Writes to stdout (1) or stderr (2). Waits while the host does not take what is there already."""
        sink = self._sinks.get(stream, stream)
        if isinstance(sink, File):
            self.files.append(sink, data)
        elif sink is not None:
            await self._supervisor.write(sink, data)

    async def out(self, text: str) -> None:
        """`text` as UTF-8 on stdout."""
        await self.write(STDOUT, text.encode("utf-8", "surrogateescape"))

    async def err(self, text: str) -> None:
        """`text` as UTF-8 on stderr."""
        await self.write(STDERR, text.encode("utf-8", "surrogateescape"))

    async def sleep(self, seconds: float) -> None:
        """Returns after `seconds` of the box's clock."""
        await sleep(self._supervisor.clock, seconds)

    def on_signal(self, number: int, handler: Callable[[], None] | None) -> None:
        """What a signal does instead of ending the process; `None`: nothing. SIGKILL cannot be handled."""
        if number == Signals.SIGKILL:
            raise fail(errno.EINVAL)
        self.handlers[number] = handler

    def signal_event(self, number: int) -> asyncio.Event:
        """An event that is set when that signal arrives; it ends the process no more."""
        event = asyncio.Event()
        self.on_signal(number, event.set)
        return event

    def die(self, number: int) -> None:
        """Ends this process as if by that signal."""
        raise Died(number)

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None,
        sinks: Sinks | None = None, stdin: Stdin | None = None,
    ) -> Child:  # fmt: skip
        """Starts a program of the box in this process's tree. Raises OSError: ENOENT, EACCES where it cannot start.

        It shares this process's stdin and output but for `stdin` and `sinks`. What still runs when the first process of
        the tree ends is ended with it.
        """
        inherited = {stream: self._sinks.get(stream, stream) for stream in (STDOUT, STDERR)}
        for stream, sink in (sinks or {}).items():
            inherited[stream] = self._sinks.get(sink, sink) if isinstance(sink, int) else sink
        running = self._supervisor.spawn(
            argv,
            env=self.env if env is None else env,
            cwd=self.cwd if cwd is None else cwd,
            stdin=stdin or self.stdin,
            sinks=inherited,
        )
        return Child(running)


Program = Callable[[FakeProcess], Awaitable[int]]
"""A program of a fake box; returns its exit code."""
