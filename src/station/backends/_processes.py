"""Processes of this machine: a pid means something only together with its start time, and is signalled by pidfd."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_TICKS_FIELD = 19
"""Of /proc/PID/stat after the name: field 22, start time."""
PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True)
class Handle:
    """One process for ever: numbers come back, a number with its start time does not until the machine restarts."""

    pid: int
    start: int
    """Clock ticks since boot."""


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, state first; `None`: there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def handle_of(pid: int) -> Handle | None:
    """`None`: there is no such process."""
    fields = stat_fields(pid)
    return None if fields is None else Handle(pid, int(fields[_TICKS_FIELD]))


def command_line(pid: int) -> list[bytes]:
    """The arguments; empty for a process that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def has_marker(pid: int, marker: str) -> bool:
    """Whether `--box MARKER` stands in the command line, as in those of a box's launcher, bwrap and guest."""
    arguments = command_line(pid)
    return (b"--box", marker.encode()) in pairwise(arguments)


def all_pids() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                yield int(entry.name)


def marked(marker: str) -> list[int]:
    """Pids of the processes that make, watch or are the box of that marker."""
    return [pid for pid in all_pids() if has_marker(pid, marker)]


def descendants(roots: Iterable[int]) -> set[int]:
    """`roots` and all their children's children, by one look at /proc."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        if (fields := stat_fields(pid)) is not None:
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


PAGES_AT_A_LOOK = 1 << 20
"""So many resident pages are told apart for one answer: the kernel walks each, half a microsecond a piece."""


def memory_of(pids: Iterable[int]) -> int:
    """Bytes of memory of these processes, page tables included: their proportional share where it may be read. What
    shares more than 4 GiB is counted without what it shares. For a thread: it may take a second, whatever they did."""
    left, total = PAGES_AT_A_LOOK, 0
    for pid in pids:
        resident, shared = _pages(pid)
        total += _page_tables(pid)
        share = _proportional(pid) if resident <= left else None
        left -= resident if share is not None else 0
        total += (resident - shared) * PAGE if share is None else share
    return total


def _pages(pid: int) -> tuple[int, int]:
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        return int(fields[1]), int(fields[2])
    return 0, 0


def _page_tables(pid: int) -> int:
    return _kibibytes(f"/proc/{pid}/status", "VmPTE:") or 0


def _proportional(pid: int) -> int | None:
    return _kibibytes(f"/proc/{pid}/smaps_rollup", "Pss:")


def _kibibytes(file: str, name: str) -> int | None:
    with suppress(OSError):
        for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def kill_quietly(pid: int, number: int = signal.SIGKILL) -> None:
    """A process that is gone, or that only pretends to be ours, is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class PidWatch:
    """Owns the pidfd of one process: it can be waited for and signalled even if it is no child of ours."""

    def __init__(self, handle: Handle, fd: int) -> None:
        self.handle = handle
        self._fd = fd
        self._gone = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def open(cls, handle: Handle) -> PidWatch | None:
        """`None`: that process is gone; whoever has its number now is another."""
        try:
            fd = os.pidfd_open(handle.pid)
        except ProcessLookupError:
            return None
        if handle_of(handle.pid) != handle:
            os.close(fd)
            return None
        return cls(handle, fd)

    def gone(self) -> bool:
        """Whether it has ended (a zombie has)."""
        if not self._gone and self._fd >= 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            self._gone = bool(poll.poll(0))
        return self._gone

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    async def wait(self) -> None:
        """Returns when the process has ended; raises CancelledError if the watch is closed meanwhile."""
        if self.gone():
            return
        loop = asyncio.get_running_loop()
        if self._fd < 0:
            raise asyncio.CancelledError
        waiter = loop.create_future()
        if not self._waiters:
            self._loop = loop
            loop.add_reader(self._fd, self._wake)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            self._stop_reading()

    def _wake(self) -> None:
        self._gone = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        self._stop_reading()

    def _stop_reading(self) -> None:
        if not self._waiters and self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None

    def close(self) -> None:
        """Lets the process be. Repeating is no error."""
        self.gone()
        for waiter in list(self._waiters):
            waiter.cancel()
        self._waiters.clear()
        self._stop_reading()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def reap(pid: int) -> int | None:
    """The wait status of our child `pid`, without waiting; `None`: it runs on. Raises ChildProcessError if it is no
    child of ours, or was reaped."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return status if done else None


def parent_of(pid: int) -> int | None:
    fields = stat_fields(pid)
    return None if fields is None else int(fields[1])
