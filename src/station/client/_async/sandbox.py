"""A sandbox by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from station.client._build import Call, Command, Data, Isolated, exec_request, open_request, process_id, url
from station.client._io_async import INTERRUPTED, last_act
from station.client.results import ExecResult
from station.core.capabilities import Isolation
from station.core.codec import from_plain
from station.core.errors import SandboxNotFound
from station.core.ids import check_name, uid_of
from station.core.records import Owner
from station.core.suggest import near_name
from station.core.wire import DEFAULT_TIMEOUT_SECONDS, ExecRequest, ProcessView, SandboxView, SignalRequest

from .connection import AsyncConnection, owned
from .files import AsyncFiles
from .processes import AsyncProcess, AsyncProcesses, OnOutput

_CANCEL_SECONDS = 5.0


class AsyncSandbox:
    """A place with files and processes that stays until it is deleted; this object is a client's view of it.

    Made by `open` and `get`. `close`, or leaving the `async with`, ends the connection only.
    """

    def __init__(self, connection: AsyncConnection, view: SandboxView, *, owned: bool = False) -> None:
        self._connection = connection
        self._owned = owned
        self.view = view
        """What was last seen of it; `info()` looks again."""
        self.files = AsyncFiles(connection, view.id)
        self.processes = AsyncProcesses(connection, view.id)

    @classmethod
    async def open(
        cls,
        name: str = "default",
        *,
        runtime: str | None = None,
        home: str | os.PathLike[str] | None = None,
        **where: Unpack[Isolated],
    ) -> AsyncSandbox:
        """The sandbox of that name: as it is where there is one, else a new one. Ready for commands on return.

        A named option that differs from the existing one's raises Conflict; a limit or network that cannot be kept here
        raises CannotEnforce unless `best_effort`; a backend that does not work here raises BackendUnavailable.
        """
        async with owned(AsyncConnection(home)) as connection:
            return cls(connection, await open_view(connection, name, runtime, where), owned=True)

    @classmethod
    async def get(cls, name: str = "default", *, home: str | os.PathLike[str] | None = None) -> AsyncSandbox:
        """An existing sandbox. Raises SandboxNotFound; makes and wakes nothing."""
        async with owned(AsyncConnection(home)) as connection:
            return cls(connection, await get_view(connection, name), owned=True)

    @classmethod
    async def list(cls, *, home: str | os.PathLike[str] | None = None) -> list[SandboxView]:
        """All of them, by name."""
        connection = AsyncConnection(home)
        try:
            return await list_views(connection)
        finally:
            await connection.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.view.state} on {self.isolation.backend}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def id(self) -> str:
        """As in the paths of the HTTP API."""
        return self.view.id

    @property
    def workdir(self) -> str:
        return self.view.workdir

    @property
    def isolation(self) -> Isolation:
        """How code in it is really isolated, as the station last told."""
        return self.view.isolation

    async def exec(
        self,
        command: Command,
        *,
        cwd: str = "/workspace",
        env: Mapping[str, str] | None = None,
        stdin: Data | None = None,
        timeout_seconds: float | None = None,
        output_limit_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Runs a command to its end. A string is a line for the shell, a list an argv.

        Any end of the command is a result (`check()` raises for a bad one); what is raised is a failure of Station.
        `timeout_seconds`: `None` is 120. `stdin`: `None` is /dev/null. `on_output` gets each chunk as it comes, all of
        it, however long. A broken connection is mended and the command joined, never run twice. An interrupt
        (Ctrl-C, a cancelled task) cancels the command.
        """
        request = exec_request(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            id=process_id(),
        )
        try:
            if on_output is None:
                return await self._exec(request)
            process = await self.processes.start(request)
            async for chunk in process.output():
                on_output(chunk)
            return await process.wait()
        except INTERRUPTED:
            await last_act(self._cancel, str(request.id), _CANCEL_SECONDS)
            raise

    async def start(
        self,
        command: Command,
        *,
        cwd: str = "/workspace",
        env: Mapping[str, str] | None = None,
        stdin: Data | None = None,
        stdin_open: bool = False,
        timeout_seconds: float | None = None,
        output_limit_bytes: int | None = None,
    ) -> AsyncProcess:
        """Starts a command and returns at once, with a handle. It goes on when this program ends.

        `stdin_open` keeps its input open for `write`. `timeout_seconds`: `None` is no bound.
        """
        request = exec_request(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdin_open=stdin_open,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            id=process_id(),
        )
        return await self.processes.start(request)

    async def info(self) -> SandboxView:
        """What is known of it now; `view` too. Raises SandboxNotFound once it was deleted."""
        self.view = await get_view(self._connection, self.name)
        return self.view

    async def delete(self) -> None:
        """Ends it, with its processes and files, for good. Repeating is no error."""
        await delete_by_name(self._connection, self.name)

    async def close(self) -> None:
        """Ends this client's connection only. Repeating is no error."""
        if self._owned:
            await self._connection.aclose()

    async def _exec(self, request: ExecRequest) -> ExecResult:
        # The bound belongs to the guest; this margin is for making or waking the box.
        seconds = (request.timeout_seconds or 0) + 90
        call = Call("POST", url("sandboxes", self.id, "exec"), request, replay=True, read_seconds=seconds)
        return ExecResult.of(from_plain(ProcessView, await self._connection.request(call)))

    async def _cancel(self, prc: str) -> None:
        call = Call("POST", url("sandboxes", self.id, "processes", prc, "signal"), SignalRequest(cancel=True))
        await self._connection.request(call)


async def open_view(connection: AsyncConnection, name: str, runtime: str | None, where: Any) -> SandboxView:
    """The view that POST /sandboxes answers with."""
    request = open_request(check_name(name), runtime, where)
    answer = await connection.request(Call("POST", url("sandboxes"), request, replay=True, read_seconds=120))
    return from_plain(SandboxView, answer)


async def get_view(connection: AsyncConnection, name: str) -> SandboxView:
    """Raises SandboxNotFound, which names it and one that may have been meant."""
    path = url("sandboxes", uid_of(Owner.deployment, check_name(name)))
    try:
        return from_plain(SandboxView, await connection.request(Call("GET", path, replay=True)))
    except SandboxNotFound as error:
        near = near_name(name, [view.name for view in await list_views(connection)])
        raise SandboxNotFound(f"there is no sandbox {name!r}{near}", **error.detail) from None


async def list_views(connection: AsyncConnection) -> list[SandboxView]:
    """All sandboxes, by name."""
    answer = await connection.request(Call("GET", url("sandboxes"), replay=True))
    return sorted((from_plain(SandboxView, item) for item in answer["sandboxes"]), key=lambda view: view.name)


async def delete_by_name(connection: AsyncConnection, name: str) -> None:
    """One that is not there is no error."""
    path = url("sandboxes", uid_of(Owner.deployment, check_name(name)))
    await connection.request(Call("DELETE", path, replay=True, read_seconds=120))
