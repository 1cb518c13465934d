"""A sandbox by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self, Unpack

from station.client._build import Call, Command, Data, Isolated, exec_request, named, open_request, url
from station.client._build import process_id as new_process_id
from station.client._io_async import INTERRUPTED, last_act
from station.client.results import ExecResult
from station.core.capabilities import Isolation
from station.core.codec import from_plain
from station.core.errors import SandboxNotFound
from station.core.suggest import near_name
from station.core.wire import ExecRequest, OpenRequest, ProcessView, SandboxView, SignalRequest

from .connection import AsyncConnection, owned
from .files import AsyncFiles
from .processes import AsyncProcess, AsyncProcesses, OnOutput
from .pulling import OPEN_SECONDS, request_shown

_CANCEL_SECONDS = 5.0


class AsyncSandbox:
    """A place with files and processes that stays until it is deleted; this object is a client's view of it.

    Made by `open`, `get` and `AsyncClient.get_by_id`. `close`, or leaving the `async with`, ends the connection only.
    """

    def __init__(
        self, connection: AsyncConnection, view: SandboxView, *, address: str | None = None, owned: bool = False
    ) -> None:
        """`address`: the id that its calls go to; `None`: that of its name, whichever life of it."""
        self._connection = connection
        self._owned = owned
        self._address = address or view.id
        self.view = view
        """What was last seen of it; `info()` looks again."""
        self.files = AsyncFiles(connection, self._address)
        self.processes = AsyncProcesses(connection, self._address)

    @classmethod
    async def open(
        cls,
        name: str = "default",
        *,
        runtime: str | None = None,
        timeout_seconds: float | None = None,
        temporary: bool = False,
        progress: bool | None = None,
        home: str | os.PathLike[str] | None = None,
        **where: Unpack[Isolated],
    ) -> AsyncSandbox:
        """The sandbox of that name: as it is where there is one, else a new one. Ready for commands on return.

        `timeout_seconds`: of an `exec` in it that names none; `None`: the station's. `temporary`: a new one is removed
        with its files once nobody has used it for a while (`view.remove_at`, which moves on with each use). `progress`:
        `None` shows how far an image is that has to be pulled first where standard error is a terminal.

        A named option that differs from the existing one's raises Conflict; a limit or network that cannot be kept here
        raises CannotEnforce unless `best_effort`; a backend that does not work here raises BackendUnavailable.
        """
        request = open_request(name, where, runtime=runtime, timeout_seconds=timeout_seconds, temporary=temporary)
        async with owned(AsyncConnection(home)) as connection:
            return cls(connection, await open_view(connection, request, progress), owned=True)

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
        """As in the paths of the HTTP API; the same for every life of the name (`view.tool_id` is not)."""
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
        process_id: str | None = None,
        end_when_left: bool = False,
    ) -> ExecResult:
        """Runs a command to its end. A string is a line for the shell, a list an argv.

        Any end of the command is a result (`check()` raises for a bad one); what is raised is a failure of Station.
        `timeout_seconds`: `None` is the sandbox's (`view.timeout_seconds`). `stdin`: `None` is /dev/null. `on_output`
        gets each chunk as it comes, all of it, however long. `process_id`: of the caller's choice
        (`processes.new_id()`), so that others can find the command while it runs; one that ran already is joined.

        A broken connection is mended and the command joined, never run twice. An interrupt (Ctrl-C, a cancelled task)
        cancels the command. Where this program is killed, the command runs on to its time limit and can be joined; with
        `end_when_left` it is cancelled once nobody has waited for it for 10 s.
        """
        request = exec_request(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            id=process_id or new_process_id(),
            end_when_left=end_when_left,
        )
        try:
            if on_output is None:
                return await self._exec(request)
            # To a started process `None` is no bound.
            bounded = replace(request, timeout_seconds=timeout_seconds or self.view.timeout_seconds)
            process = await self.processes.start(bounded)
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
            id=new_process_id(),
        )
        return await self.processes.start(request)

    def this_life(self) -> AsyncSandbox:
        """The same, but what is done through it is done to the life that was last seen alone: once the sandbox was
        deleted it raises SandboxNotFound, also where the name was opened again. For as long as this one is open."""
        return AsyncSandbox(self._connection, self.view, address=self.view.tool_id)

    async def info(self) -> SandboxView:
        """What is known of it now; `view` too. Raises SandboxNotFound once it was deleted."""
        if self._address == self.view.id:
            self.view = await get_view(self._connection, self.name)
        else:
            self.view = await view_at(self._connection, self._address)
        return self.view

    async def delete(self, *, keep_files: bool = False, unless_busy: bool = False) -> None:
        """Ends it, with its processes and files, for good. Repeating is no error.

        `keep_files`: ends the processes and the box alone; the next use finds the files. `unless_busy`: raises Busy,
        and changes nothing, where a command runs in it or somebody else's call is under way.
        """
        await delete_at(self._connection, self._address, keep_files=keep_files, unless_busy=unless_busy)

    async def close(self) -> None:
        """Ends this client's connection only. Repeating is no error."""
        if self._owned:
            await self._connection.aclose()

    async def _exec(self, request: ExecRequest) -> ExecResult:
        # The bound belongs to the guest; this margin is for making or waking the box.
        seconds = (request.timeout_seconds or self.view.timeout_seconds) + 90
        call = Call("POST", url("sandboxes", self._address, "exec"), request, replay=True, read_seconds=seconds)
        return ExecResult.of(from_plain(ProcessView, await self._connection.request(call)))

    async def _cancel(self, prc: str) -> None:
        path = url("sandboxes", self._address, "processes", prc, "signal")
        await self._connection.request(Call("POST", path, SignalRequest(cancel=True), replay=True))


async def open_view(connection: AsyncConnection, request: OpenRequest, progress: bool | None = False) -> SandboxView:
    """The view that POST /sandboxes answers with."""
    call = Call("POST", url("sandboxes"), request, replay=True, read_seconds=OPEN_SECONDS)
    return from_plain(SandboxView, await request_shown(connection, call, request.image, progress))


async def get_view(connection: AsyncConnection, name: str) -> SandboxView:
    """Raises SandboxNotFound, which names it and one that may have been meant."""
    address = named(name, connection.deployment)
    try:
        return await view_at(connection, address)
    except SandboxNotFound as error:
        near = near_name(name, [view.name for view in await list_views(connection)])
        raise SandboxNotFound(f"there is no sandbox {name!r}{near}", **error.detail) from None


async def view_at(connection: AsyncConnection, address: str) -> SandboxView:
    """The view of a sandbox by one of its ids. Raises SandboxNotFound."""
    return from_plain(SandboxView, await connection.request(Call("GET", url("sandboxes", address), replay=True)))


async def list_views(connection: AsyncConnection, *, everybodys: bool = False) -> list[SandboxView]:
    """The caller's sandboxes, by name; `everybodys`: those of deployments too."""
    answer = await connection.request(Call("GET", url("sandboxes", all=everybodys or None), replay=True))
    return sorted((from_plain(SandboxView, item) for item in answer["sandboxes"]), key=lambda view: view.name)


async def delete_at(connection: AsyncConnection, address: str, *, keep_files: bool, unless_busy: bool = False) -> None:
    """By one of its ids. One that is not there is no error."""
    path = url("sandboxes", address, keep_files=keep_files or None, unless_busy=unless_busy or None)
    await connection.request(Call("DELETE", path, replay=True, read_seconds=120))
