"""A box that is a container of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from station.backends._cgroups import BoxCgroup
from station.backends.base import Layout
from station.backends.docker.engine import Engine
from station.backends.docker.fence import Fence, FencedStream
from station.backends.docker.helpers import remove
from station.core.capabilities import Capabilities
from station.core.codec import from_plain
from station.core.errors import BoxLost, NotFound, StationError, Unavailable
from station.core.records import BoxRef
from station.guest.session import HostAway
from station.machine import candidates

PATIENCE_SECONDS = 60.0
"""For an engine that says the container runs, and does not attach. How long it may be away has no bound: with
live-restore its containers run on meanwhile."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_OUT_OF_MEMORY = "the kernel ended its guest, or processes of it, for memory"


class DockerBox:
    """See `station.backends.base.Box` and `Measurable`. Made by a backend, which lets go of it by `let_go`."""

    patience_seconds = PATIENCE_SECONDS

    def __init__(
        self,
        ref: BoxRef,
        engine: Engine,
        fence: Fence,
        *,
        facts: Mapping[str, Any],
        forget: Callable[[DockerBox], None],
        first: FencedStream | None = None,
    ) -> None:
        """`first`: the stream that was attached before the container started, for the first `connect`."""
        self.ref = ref
        self.layout = from_plain(Layout, facts["layout"])
        self.capabilities = from_plain(Capabilities, facts["capabilities"])
        self._engine = engine
        self._fence = fence
        self._forget = forget
        self._first = first
        self._stream = first
        self._destroying = asyncio.Lock()
        self._destroyed = False
        self._was_away = False
        """Whether the engine could not be asked, since it was last known that the box runs."""
        self._cgroup: BoxCgroup | None = None

    @property
    def container(self) -> str:
        return str(self.ref.data["container"])

    async def connect(self) -> FencedStream:
        """Whoever has the stream of this box object loses it. Raises BoxLost if the box is gone. After a lost stream
        HostAway where the engine cannot be asked and another OSError where it does not attach, which tell a session to
        go on trying; for a first one Unavailable: nothing is known to be wrong with the box."""
        try:
            return await self._connect()
        except OSError as error:
            if self._stream is not None:
                raise
            raise Unavailable(f"box {self.ref.box_id} cannot be reached now: {error}") from error

    async def _connect(self) -> FencedStream:
        if self._destroyed:
            raise BoxLost(f"box {self.ref.box_id} is gone: it was destroyed", box_id=self.ref.box_id)
        if (first := self._first) is not None:
            self._first = None
            return first
        if self._stream is not None:
            await self._stream.aclose()
        try:
            found = await self._engine.inspect(self.container)
        except StationError as error:
            self._was_away = True
            raise HostAway(error.message) from error
        if found is None or not is_running(found):
            raise BoxLost(f"box {self.ref.box_id} is gone: {self._why(found)}", box_id=self.ref.box_id)
        self._was_away = False
        self._stream = await attach(self._engine, self._fence, self.container)
        await self._stream.resynchronise()
        return self._stream

    async def ended(self) -> str:
        """An engine that is away tells nothing, so the wait goes on until it is back."""
        pause = _FIRST_PAUSE
        while not self._destroyed:
            try:
                await self._engine.wait(self.container)
                found = await self._engine.inspect(self.container)
            except NotFound:
                found = None
            except StationError:
                self._was_away = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if found is None or not is_running(found):
                return self._why(found)
            # It runs, whatever the engine said: its wait ends when the engine does.
            self._was_away = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return self._why(None)

    async def destroy(self) -> None:
        async with self._destroying:
            if not self._destroyed:
                await self._close_stream()
                await remove(self._engine, self.container)
                self._destroyed = True
                self._fence.forget()
                self._forget(self)

    async def let_go(self) -> None:
        """Closes what this process holds of the box, not the box. Repeating is no error."""
        await self._close_stream()
        self._forget(self)

    async def oom_kills(self) -> int | None:
        """`None` for an engine elsewhere: it does not tell (`State.OOMKilled` is about the guest alone)."""
        cgroup = await self._local_cgroup()
        return cgroup.oom_kills() if cgroup is not None else None

    async def memory_bytes(self) -> int:
        cgroup = await self._local_cgroup()
        counted = cgroup.memory_bytes() if cgroup is not None else None
        return counted if counted is not None else await self._engine.memory_bytes(self.container)

    async def _local_cgroup(self) -> BoxCgroup | None:
        if self._cgroup is None and self._engine.address.local:
            found = await self._engine.inspect(self.container)
            pid = (found or {}).get("State", {}).get("Pid")
            self._cgroup = cgroup_of(pid, self.container) if isinstance(pid, int) and pid > 0 else None
        return self._cgroup

    async def _close_stream(self) -> None:
        stream, self._stream, self._first = self._stream, None, None
        if stream is not None:
            await stream.aclose()

    def _why(self, found: Mapping[str, Any] | None) -> str:
        if self._destroyed:
            return "it was destroyed"
        if found is None:
            return "its container was removed"
        said = self._stream.complaints if self._stream is not None else ""
        why = why_ended(found, said)
        return f"the engine was away or restarted, and the box ended meanwhile: {why}" if self._was_away else why


async def attach(engine: Engine, fence: Fence, container: str) -> FencedStream:
    """Raises OSError: another process has the box, or the engine is away or does not attach in time."""
    await fence.take()
    stream = None
    try:
        stream = FencedStream(await engine.attach(container), fence)
    except TimeoutError as error:
        raise TimeoutError("the engine does not attach: something attached to the container does not read") from error
    except StationError as error:
        raise ConnectionError(error.message) from error
    finally:
        if stream is None:
            fence.give_back()
    return stream


def is_running(found: Mapping[str, Any]) -> bool:
    return (found.get("State") or {}).get("Running") is True


def why_ended(found: Mapping[str, Any], said: str = "") -> str:
    """From an inspected container that does not run."""
    state = found.get("State") or {}
    if state.get("OOMKilled") is True:
        return _OUT_OF_MEMORY
    code = state.get("ExitCode")
    if state.get("Status") == "created":
        return "its container was never started"
    if not isinstance(code, int):
        return "its guest has ended"
    if code > 128:
        return f"its guest was ended by signal {code - 128}" if code < 193 else "nobody saw how its guest ended"
    return f"its guest has ended with {code}" + (f": {said[:200]}" if said else "")


def cgroup_of(pid: int, container: str) -> BoxCgroup | None:
    """Of an engine on this very machine; `None` where that pid is not the container's here."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    places = [p.path for p in candidates(mountinfo, text) if "memory" in p.controllers and container in str(p.path)]
    return BoxCgroup(places) if places else None
