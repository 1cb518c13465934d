"""Processes of a sandbox: handles that can be left and found again by id."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from station.client._build import Call, Data, check_process_id, process_id, to_bytes, url
from station.client.results import Chunk, Decoder, ExecResult
from station.core.codec import from_plain
from station.core.errors import StationUnreachable
from station.core.wire import ExecRequest, OutputEvent, ProcessView, SignalRequest

from .connection import AsyncConnection

OnOutput = Callable[[Chunk], object]
_WAIT_SECONDS = 30.0
_STALLS = 5


class AsyncProcess:
    """A started command. It goes on whether or not somebody holds this, and outlives a restart of the station."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str, view: ProcessView) -> None:
        self._connection = connection
        self._path = ("sandboxes", sandbox_id, "processes", view.id)
        self.id = view.id
        self.view = view
        """What was last seen of it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.view.status}>"

    async def info(self, *, output: bool = False) -> ProcessView:
        """What is known of it now; with `output`, its output as far as it is kept.

        Raises ProcessNotFound once it was forgotten.
        """
        self.view = await self._get(wait=None, output=output)
        return self.view

    async def wait(self, timeout_seconds: float | None = None) -> ExecResult:
        """How it ended, with its output. Raises TimeoutError where it still runs after `timeout_seconds`."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = _WAIT_SECONDS if deadline is None else max(0.0, min(_WAIT_SECONDS, deadline - time.monotonic()))
            self.view = await self._get(wait=left, output=True)
            if self.view.state == "ended":
                return ExecResult.of(self.view)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} still runs after {timeout_seconds:g} s")

    async def output(
        self, *, after_stdout: int = 0, after_stderr: int = 0, follow: bool = True
    ) -> AsyncIterator[Chunk]:
        """Output from these offsets on, until the process ends (`follow=False`: what there is now).

        Each byte comes once and in order, also over a restart of the station; where bytes are gone for good, a chunk
        says how many. After the end `view` is final.
        """
        after = {"stdout": after_stdout, "stderr": after_stderr}
        decoder, stalls = Decoder(), 0
        while stalls <= _STALLS:
            seen = dict(after)
            try:
                async for event in self._events(after, follow):
                    if event.event == "end":
                        self.view = event.process or self.view
                        return
                    if (chunk := _chunk(event, after, decoder)) is not None:
                        yield chunk
            except StationUnreachable:
                # The station died in the middle; another takes the process over and goes on from our offsets.
                if stalls == _STALLS:
                    raise
            else:
                if not follow:
                    return
            stalls = stalls + 1 if seen == after else 0
        raise StationUnreachable(f"the output of {self.id} ended without saying how the process did")

    async def write(self, data: Data) -> int:
        """Sends input to a process that was started with `stdin_open`; returns the bytes taken.

        Raises Conflict where its input is closed.
        """
        call = Call("POST", url(*self._path, "stdin"), content=to_bytes(data), read_seconds=3600)
        return int((await self._connection.request(call))["taken"])

    async def close_stdin(self) -> None:
        """End of file for the process. Repeating is no error."""
        await self._connection.request(Call("POST", url(*self._path, "stdin", eof=True), content=b"", replay=True))

    async def signal(self, signal: int | str) -> None:
        """Sends a signal, by number or name, to the process and everything it started."""
        await self._connection.request(Call("POST", url(*self._path, "signal"), SignalRequest(signal)))

    async def cancel(self) -> None:
        """TERM to the whole tree, KILL after one second; it ends as `cancelled`."""
        await self._connection.request(
            Call("POST", url(*self._path, "signal"), SignalRequest(cancel=True), replay=True)
        )

    async def kill(self) -> None:
        """KILL to the whole tree."""
        await self._connection.request(Call("POST", url(*self._path, "signal"), SignalRequest("KILL"), replay=True))

    async def _get(self, *, wait: float | None, output: bool) -> ProcessView:
        query = {"wait": None if wait is None else f"{wait:g}", "output": output}
        call = Call("GET", url(*self._path, **query), replay=True, read_seconds=60 + (wait or 0))
        return from_plain(ProcessView, await self._connection.request(call))

    async def _events(self, after: dict[str, int], follow: bool) -> AsyncIterator[OutputEvent]:
        path = url(*self._path, "output", follow=follow, after_stdout=after["stdout"], after_stderr=after["stderr"])
        # A keepalive comes every 10 s: silence for longer is a broken connection.
        async with self._connection.stream(Call("GET", path, replay=True, read_seconds=35)) as response:
            async for line in response.aiter_lines():
                if line:
                    yield from_plain(OutputEvent, json.loads(line))


class AsyncProcesses:
    """The processes of one sandbox."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str) -> None:
        self._connection = connection
        self._path = ("sandboxes", sandbox_id, "processes")

    @staticmethod
    def new_id() -> str:
        """An id that no process has: for `exec(process_id=...)`, so that another task or program can `get` it."""
        return process_id()

    async def list(self) -> list[ProcessView]:
        """Those that run and those that ended and are still kept, oldest first."""
        answer = await self._connection.request(Call("GET", url(*self._path), replay=True))
        return [from_plain(ProcessView, item) for item in answer["processes"]]

    async def get(self, process_id: str) -> AsyncProcess:
        """A handle of a process that somebody started. Raises ProcessNotFound."""
        path = url(*self._path, check_process_id(process_id))
        answer = await self._connection.request(Call("GET", path, replay=True))
        return AsyncProcess(self._connection, self._path[1], from_plain(ProcessView, answer))

    async def start(self, request: ExecRequest) -> AsyncProcess:
        """Used by `start` of the sandbox; sent again after a broken connection, it joins what the first one started."""
        answer = await self._connection.request(Call("POST", url(*self._path), request, replay=request.id is not None))
        return AsyncProcess(self._connection, self._path[1], from_plain(ProcessView, answer))


def _chunk(event: OutputEvent, after: dict[str, int], decoder: Decoder) -> Chunk | None:
    stream: Any = event.stream
    if event.event == "gap":
        missing, after[stream] = event.to - event.offset, event.to
        return Chunk(stream, event.to, b"", missing_bytes=missing)
    if event.event != "data" or event.content is None:
        return None
    data = event.content.to_bytes()
    # A station that was joined again may begin a little earlier than asked.
    data = data[max(0, after[stream] - event.offset) :]
    if not data:
        return None
    offset = max(event.offset, after[stream])
    after[stream] = offset + len(data)
    return Chunk(stream, offset, data, decoder.decode(stream, data))
