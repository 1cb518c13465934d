"""A box on this machine: processes whose first one we know by pid and start time, reached by a unix socket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from station.backends._boxdir import BoxDirectory
from station.backends._cgroups import BoxCgroup
from station.backends._processes import (
    Handle,
    PidWatch,
    descendants,
    handle_of,
    has_marker,
    kill_quietly,
    marked,
    memory_of,
    reap,
)
from station.backends._streams import SocketStream
from station.backends.base import Layout
from station.core.capabilities import Capabilities
from station.core.codec import from_plain
from station.core.errors import BoxLost, InternalError
from station.core.records import BoxRef

END_SECONDS = 10.0
POLITE_SECONDS = 3.0
PATIENCE_SECONDS = 5.0
_SHORT, _LONG = 0.0005, 0.02


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def ref_of(backend: str, box_id: str, first: Handle | None) -> BoxRef:
    """The reference of a box; of one whose first process is not known yet, the data is empty."""
    data: dict[str, Any] = {}
    if first is not None:
        data = {"pid": first.pid, "start": first.start, "boot": boot_id()}
    return BoxRef(backend, box_id, data)


def first_process(ref: BoxRef, directory: BoxDirectory, marker: str) -> Handle | None:
    """The live first process of a box: from its record, else from what bwrap has written; `None`: it is gone."""
    data = ref.data
    if "pid" in data:
        handle = Handle(int(data["pid"]), int(data["start"]))
        alive = data.get("boot") == boot_id() and handle_of(handle.pid) == handle
        return handle if alive else None
    pid = directory.child_pid()
    return handle_of(pid) if pid is not None and has_marker(pid, marker) else None


class Remains:
    """All that can be left of a box, also of a half-made one; `end` leaves nothing."""

    def __init__(
        self,
        directory: BoxDirectory,
        marker: str,
        cgroup: BoxCgroup,
        *,
        remove_files: Callable[[], Awaitable[None]],
        polite: bool,
    ) -> None:
        self.directory = directory
        self.marker = marker
        self.cgroup = cgroup
        self.polite = polite
        """Whether the first process ends all others on TERM and must be given the time: without a PID namespace."""
        self.remove_files = remove_files
        """Of what lies elsewhere than in the directory."""
        self.child: int | None = None
        """Our own child, to be reaped: bwrap's monitor, or on `host` the guest."""
        self.child_status: int | None = None

    def reap(self) -> bool:
        """Whether no child of ours is left to reap."""
        if self.child is None:
            return True
        try:
            status = reap(self.child)
        except ChildProcessError:  # adopted, so another's child; that one reaps it
            if has_marker(self.child, self.marker):
                return False
            self.child = None
            return True
        if status is not None:
            self.child, self.child_status = None, status
        return self.child is None

    async def end(self, watch: PidWatch | None) -> None:
        """Ends every process (in 10 s), then removes cgroups (in 5 s), files and directory. Raises InternalError for
        what stays."""
        box_id = self.directory.box_id
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._end_processes(watch)
        except TimeoutError as error:
            left = sorted({*await self._marked(), *self.cgroup.pids()})
            if left:  # none: they were gone just as the time was up
                raise InternalError(f"box {box_id} does not end; left are pids {left}", pids=left) from error
        try:
            await self.cgroup.remove()
        except TimeoutError as error:
            left = sorted(self.cgroup.pids())
            raise InternalError(f"the cgroup of box {box_id} stays; left are pids {left}", pids=left) from error
        await self.remove_files()
        try:
            self.directory.remove()
        except OSError as error:
            raise InternalError(f"the directory of box {box_id} stays: {error}") from error

    async def _end_processes(self, watch: PidWatch | None) -> None:
        others: set[int] = set()
        if self.polite:
            others = descendants(await self._marked())
        if watch is not None:
            if self.polite and not watch.gone():
                others = await self._end_politely(watch)
            watch.kill()
            await watch.wait()
        for pid in others:
            kill_quietly(pid)
        pause = _SHORT
        # The lock does not tell of bwrap's monitor, which closes it; a monitor that we do not know is looked for.
        while not (self.reap() and self.directory.free() and (watch is not None or not await self._marked())):
            if pause >= _LONG or watch is None:
                # Not gone by itself: a launcher or monitor that waits for a child that never came.
                for pid in await self._marked():
                    kill_quietly(pid)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONG)

    async def _marked(self) -> list[int]:
        """In a thread: a process's command line lies in its own memory, whose lock any code of any box may hold."""
        return await asyncio.to_thread(marked, self.marker)

    async def _end_politely(self, watch: PidWatch) -> set[int]:
        """Asks the first process to end the trees it keeps. What was below it and may outlive it is returned."""
        before = descendants([watch.handle.pid]) - {watch.handle.pid}
        handles = {handle_of(pid) for pid in before}
        watch.kill(signal.SIGTERM)
        try:
            async with asyncio.timeout(POLITE_SECONDS):
                await watch.wait()
        except TimeoutError:
            before |= descendants([watch.handle.pid]) - {watch.handle.pid}
            return before
        return {handle.pid for handle in handles if handle is not None and handle_of(handle.pid) == handle}


class LocalBox:
    """See `station.backends.base.Box` and `Measurable`. Made by a backend, which lets go of it by `let_go`."""

    patience_seconds = PATIENCE_SECONDS

    def __init__(
        self,
        ref: BoxRef,
        watch: PidWatch,
        remains: Remains,
        *,
        facts: dict[str, Any],
        forget: Callable[[LocalBox], None],
    ) -> None:
        self.ref = ref
        self.layout = from_plain(Layout, facts["layout"])
        self.capabilities = from_plain(Capabilities, facts["capabilities"])
        self._watch = watch
        self._remains = remains
        self._forget = forget
        self._destroying = asyncio.Lock()
        self._destroyed = False

    async def connect(self) -> SocketStream:
        if self._watch.gone():
            raise BoxLost(f"box {self.ref.box_id} is gone: {self._why()}", box_id=self.ref.box_id)
        return await SocketStream.over(self._remains.directory.connect())

    async def ended(self) -> str:
        await self._watch.wait()
        return self._why()

    async def destroy(self) -> None:
        async with self._destroying:
            if not self._destroyed:
                await self._remains.end(self._watch)
                self._destroyed = True
                self.let_go()

    def let_go(self) -> None:
        """Closes what this process holds of the box, not the box. Repeating is no error."""
        self._remains.reap()
        self._watch.close()
        self._forget(self)

    async def oom_kills(self) -> int | None:
        return self._remains.cgroup.oom_kills()

    async def memory_bytes(self) -> int:
        """Of the cgroup where there is one, else the sum of the processes: then files in memory do not count."""
        counted = self._remains.cgroup.memory_bytes()
        if counted is not None:
            return counted
        # In a thread: what is read waits for locks that the code in the box may hold.
        return await asyncio.to_thread(lambda: memory_of(descendants([self._watch.handle.pid])))

    def _why(self) -> str:
        if self._destroyed:
            return "it was destroyed"
        if self._remains.cgroup.oom_kills():
            return "the kernel ended its guest, or processes of it, for memory"
        self._remains.reap()
        status = self._remains.child_status
        if status is None:
            return "its guest has ended"
        code = os.waitstatus_to_exitcode(status)
        number = -code if code < 0 else code - 128
        if code < 0 or code > 128:
            return f"its guest was ended by signal {number}"
        return f"its guest has ended with {code}"
