"""The calls of the adapters: each is one of the SDK, with the names and errors of the seed."""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from station.client._async.client import AsyncClient
from station.client._async.sandbox import AsyncSandbox
from station.core import errors
from station.core.capabilities import LimitReport
from station.core.ids import new_id
from station.core.paths import HOME_WORKSPACE, WORKSPACE, resolve
from station.core.wire import DEFAULT_TIMEOUT_SECONDS, SandboxView

from .errors import Code, SandboxError, invalid, invalid_state, translated
from .plan import Plan, tenant, whole
from .root import prepare
from .start import connect, verify
from .values import Capabilities, CommandRun, FileContent, FileEntry, FileList, Sandbox, entry_of, run_of

DEFAULT_TIMEOUT_MS = int(DEFAULT_TIMEOUT_SECONDS * 1000)
MAX_COMMAND_BYTES = 65_536
MAX_CWD_BYTES = 4096
MAX_LIST = 1000
_MOST = 1 << 62
_ID = re.compile(r"ws_[0-9A-HJKMNP-TV-Z]{26}")


class Adapter:
    """Workspaces of one root. All calls raise SandboxError; the first of them does what `ready` does."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._client: AsyncClient | None = None
        self._limits: Mapping[str, LimitReport] = {}
        self._failure: SandboxError | None = None
        self._closed = False
        self._turn = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def capabilities(self) -> Capabilities:
        """Terminals and services are not there yet."""
        return Capabilities(
            filesystem=True,
            commands=True,
            files=True,
            services=False,
            pty=False,
            isolated=self._plan.isolated,
            network_restricted=self._plan.network_restricted,
        )

    @property
    def limits(self) -> Mapping[str, LimitReport]:
        """Of each limit whether it holds here, and by what; empty before `ready`."""
        return self._limits

    async def __aenter__(self) -> Self:
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    # ── the adapter itself ──────────────────────────────────────────────────────────────────────────────────────

    async def ready(self) -> None:
        """Workspaces can be made when this returns. Raises SandboxError that names the requirement that is missing;
        nothing is held then, and every other call is refused alike until this has succeeded."""
        async with self._turn:
            self._check_open()
            await self._begin()

    async def bind_tenant(self, tenant_id: str | None = None) -> None:
        """Raises SandboxError (`invalid_state`) unless that is whose adapter and root this is."""
        if tenant(tenant_id) != self._plan.tenant_id:
            raise invalid_state("this adapter was made for another tenant, or for none")
        await asyncio.to_thread(prepare, self._plan.root, tenant_id)

    async def close(self) -> None:
        """No call is taken from now on; what runs in workspaces goes on. Repeating is no error."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # ── workspaces ──────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self) -> Sandbox:
        """A new workspace, ready for commands. Raises SandboxError: `capacity` where there are `max_environments`."""
        client = await self._connected()
        with translated():
            found = await client.open(new_id("ws", time.time()), **self._plan.where)
        return self._of(found.view)

    async def list(self) -> list[Sandbox]:
        """All of them, oldest first; those too that are quarantined."""
        client = await self._connected()
        with translated():
            views = await client.list()
        return [self._of(view) for view in views if _ID.fullmatch(view.name) and self._is_ours(view)]

    async def get(self, sandbox_id: str) -> Sandbox:
        """Raises SandboxError: `not_found`, or `invalid_state` with the reason for one that is quarantined."""
        return self._of((await self._sandbox(sandbox_id)).view)

    async def destroy(self, sandbox_id: str, *, force: bool = False) -> None:
        """The workspace and its files are gone. Raises SandboxError: `busy`, and nothing has changed, while a command
        runs in it, unless `force`."""
        client = await self._connected()
        with translated():
            with suppress(errors.SandboxFailed):  # damaged: to be rid of it is all that is left
                await client.get(_checked(sandbox_id))
            await client.delete(sandbox_id, unless_busy=not force)

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────

    async def exec(
        self, sandbox_id: str, command: str, *, cwd: str | None = None, timeout_ms: int | None = None
    ) -> CommandRun:
        """Starts a line of shell and returns at once; `command` tells what becomes of it.

        `cwd`: a directory in the workspace, home or /tmp; `None` is the workspace. `timeout_ms`: `None` is 120,000, or
        `max_timeout_ms` where that is less. Raises SandboxError: `invalid_input`, `capacity` where `max_concurrent`
        run.
        """
        _check_command(command)
        bound = self._plan.bounds.max_timeout_ms
        if timeout_ms is not None:
            whole("timeout_ms", timeout_ms, bound, least=1000)
        sandbox = await self._sandbox(sandbox_id)
        where = await self._directory(sandbox, cwd)
        shell = self._plan.shell
        with translated():
            process = await sandbox.start(
                command if shell is None else [*shell, command],
                cwd=where,
                env=self._plan.env,
                timeout_seconds=(timeout_ms or min(DEFAULT_TIMEOUT_MS, bound)) / 1000,
            )
            # One that is over already is told with its output: its end is told too.
            view = await process.info(output=True) if process.view.state == "ended" else process.view
        return run_of(view, sandbox_id, most=self._plan.bounds.max_output_bytes)

    async def command(self, sandbox_id: str, run_id: str) -> CommandRun:
        """What is known of it now, with its output so far. Raises SandboxError: `not_found`, also once it is beyond
        the history."""
        sandbox = await self._sandbox(sandbox_id)
        with translated():
            process = await sandbox.processes.get(run_id)
            view = await process.info(output=True)
        return run_of(view, sandbox_id, most=self._plan.bounds.max_output_bytes)

    async def cancel(self, sandbox_id: str, run_id: str) -> CommandRun:
        """Ends it with all that it started, TERM first and KILL after a second, and returns when nothing of it is
        left. One that has ended is no error."""
        sandbox = await self._sandbox(sandbox_id)
        with translated():
            process = await sandbox.processes.get(run_id)
            await process.cancel()
            await process.wait()
        return run_of(process.view, sandbox_id, most=self._plan.bounds.max_output_bytes)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_files(self, sandbox_id: str, path: str = ".", *, offset: int = 0, limit: int = 100) -> FileList:
        """The names in one folder, sorted, without what is below them. No snapshot: pages show what is there then."""
        whole("offset", offset, _MOST, least=0)
        whole("limit", limit, MAX_LIST)
        sandbox = await self._sandbox(sandbox_id)
        found: list[FileEntry] = []
        seen, after, end = 0, None, offset + limit
        with translated(of_file=True):
            while True:
                page = await sandbox.files.page(path, limit=min(10_000, end + 1 - seen), after=after)
                found += [entry_of(item) for item in page.entries[max(0, offset - seen) : end - seen]]
                seen, after = seen + len(page.entries), page.next
                if after is None or seen > end:
                    return FileList(tuple(found), end if seen > end else None)

    async def read_file(self, sandbox_id: str, path: str, *, offset: int = 0, length: int | None = None) -> FileContent:
        """A piece of a regular file; `length`: `None` is `max_file_bytes`, which is the most. At the end of the file it
        is empty. Raises SandboxError: `invalid_input` beyond the end, or for what is no regular file."""
        most = self._plan.bounds.max_file_bytes
        whole("offset", offset, _MOST, least=0)
        wanted = most if length is None else whole("length", length, most)
        sandbox = await self._sandbox(sandbox_id)
        with translated(of_file=True):
            found = await sandbox.files.stat(path)
            if found.type != "file":
                raise invalid(f"{path} is no regular file")
            if offset > found.size:
                raise invalid(f"{path} has {found.size} bytes; offset {offset} is beyond its end")
            data = await sandbox.files.read(path, offset=offset, length=min(wanted, found.size - offset))
        place = entry_of(found).path
        return FileContent(place, b64encode(data).decode(), len(data), found.size, offset + len(data))

    async def write_file(self, sandbox_id: str, path: str, *, base64: str, create_parents: bool = False) -> FileEntry:
        """Replaces the file in one step. Raises SandboxError: `not_found` without the folder that it is in, unless
        `create_parents`; `invalid_input`, with the status 413, over `max_file_bytes`."""
        data = _decoded(base64, self._plan.bounds.max_file_bytes)
        sandbox = await self._sandbox(sandbox_id)
        with translated(of_file=True):
            return entry_of((await sandbox.files.write(path, data, parents=create_parents)).entry)

    async def remove_file(self, sandbox_id: str, path: str, *, recursive: bool = False) -> None:
        """A file, a link itself, or a folder; one with anything in it needs `recursive`."""
        sandbox = await self._sandbox(sandbox_id)
        with translated(of_file=True):
            if not await sandbox.files.remove(path, recursive=recursive):
                raise SandboxError(Code.NOT_FOUND, f"{path} does not exist")

    # ── within ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError(Code.UNAVAILABLE, "this adapter is closed")

    async def _begin(self) -> None:
        self._failure = None
        try:
            if self._client is None:
                self._client, isolation = await connect(self._plan)
            else:
                isolation = await verify(self._client, self._plan)
        except SandboxError as error:
            self._failure = error
            raise
        self._limits = isolation.limits

    async def _connected(self) -> AsyncClient:
        self._check_open()
        if self._client is None or self._failure is not None:
            async with self._turn:
                self._check_open()
                if self._failure is not None:
                    raise self._failure.again()
                if self._client is None:
                    await self._begin()
        assert self._client is not None, "begun above"
        return self._client

    async def _sandbox(self, sandbox_id: str) -> AsyncSandbox:
        client = await self._connected()
        with translated():
            found = await client.get(_checked(sandbox_id))
        view = found.view
        if view.state == "failed":
            raise invalid_state(f"{sandbox_id} is quarantined: {view.reason}")
        if not self._is_ours(view):
            raise invalid_state(f"{sandbox_id} is a workspace of the backend {view.isolation.backend}")
        if view.changed is not None:
            raise invalid_state(
                f"{sandbox_id} is quarantined: {view.changed}. Set the option of the adapter back, or destroy it"
            )
        if self._plan.network is not None and view.isolation.network != self._plan.network:
            raise invalid_state(
                f"{sandbox_id} is quarantined: it has the network {view.isolation.network!r}, and this adapter is for "
                f"{self._plan.network!r}. Set the option back, or destroy it"
            )
        return found

    async def _directory(self, sandbox: AsyncSandbox, cwd: str | None) -> str:
        """Where a command starts: looked at first, so that a bad one is refused by name before anything runs."""
        workspace = HOME_WORKSPACE if self._plan.isolated else WORKSPACE
        if cwd is None:
            return workspace
        if len(cwd.encode(errors="replace")) > MAX_CWD_BYTES or not cwd.isprintable():
            raise invalid(f"cwd must be a path of at most {MAX_CWD_BYTES} bytes, without control characters")
        with translated(of_file=True):
            try:
                place = resolve(cwd)
                found = await sandbox.files.stat(place.absolute)
            except errors.FileNotFound as error:
                raise invalid(f"cwd {cwd} does not exist") from error
        if found.type != "dir":
            raise invalid(f"cwd {cwd} is no directory")
        if place.root != WORKSPACE:
            return place.absolute
        return workspace if place.is_root else f"{workspace}/{place.relative}"

    def _is_ours(self, view: SandboxView) -> bool:
        # Of a damaged record the backend is unknown.
        return view.isolation.backend == self._plan.backend or view.state == "failed"

    def _of(self, view: SandboxView) -> Sandbox:
        return Sandbox(view.name, view.created_at, self._plan.name)


def _checked(sandbox_id: object) -> str:
    """`sandbox_id` itself. Raises SandboxError (`not_found`) for what cannot be one."""
    if not isinstance(sandbox_id, str) or not _ID.fullmatch(sandbox_id):
        raise SandboxError(Code.NOT_FOUND, "there is no such workspace")
    return sandbox_id


def _check_command(command: object) -> None:
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise invalid("a command must be text, not blank, without NUL")
    if len(command.encode(errors="replace")) > MAX_COMMAND_BYTES:
        raise invalid(f"a command has at most {MAX_COMMAND_BYTES} bytes of UTF-8; use a file for more")


def _decoded(text: object, most: int) -> bytes:
    """Raises SandboxError for what is no padded base64, or more than `most` bytes."""
    if not isinstance(text, str):
        raise invalid("base64 must be text")
    if len(text) > (most + 2) // 3 * 4:
        raise SandboxError(Code.INVALID_INPUT, f"one call writes at most {most} bytes", status=413)
    try:
        data = b64decode(text, validate=True)
    except ValueError as error:
        raise invalid("base64 must be padded base64, without line breaks") from error
    if b64encode(data).decode() != text:
        raise invalid("base64 has bits after its end that mean nothing")
    if len(data) > most:
        raise SandboxError(Code.INVALID_INPUT, f"one call writes at most {most} bytes", status=413)
    return data
