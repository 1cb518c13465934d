"""Everything on one connection; and `run`, `map`, `imap` by themselves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack

from station.client._address import remote
from station.client._build import (
    Call,
    Data,
    Isolated,
    RunOptions,
    Snippet,
    check_many,
    check_sandbox_id,
    named,
    open_request,
    run_request,
    run_result,
    url,
)
from station.client._build import snippet as own_settings
from station.client._io_async import INTERRUPTED, each, last_act, to_thread
from station.client._progress import Bar
from station.client._start import holder, wait_stopped
from station.client.results import RunResult
from station.core.capabilities import Isolation
from station.core.codec import from_plain
from station.core.errors import StationError
from station.core.upkeep import PruneView, UsageView
from station.core.wire import MAX_TIMEOUT_SECONDS, Diagnosis, RunRequest, SandboxView, StationView

from .access import AsyncDeployments, AsyncKeys
from .connection import AsyncConnection
from .pulling import OPEN_SECONDS, PULL_SECONDS, request_shown
from .sandbox import AsyncSandbox, delete_at, get_view, list_views, open_view, view_at
from .stored import AsyncStoredFiles

_CANCEL_SECONDS = 5.0
_UPKEEP_SECONDS = 3600.0


class AsyncClient:
    """One connection for many calls, from any number of tasks. `async with` closes it; nothing else ends by that."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        start: bool = True,
        any_version: bool = False,
        url: str | None = None,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        acts_for: str | None = None,
    ) -> None:
        """See `station.aconnect`. `acts_for`: on the socket, the id of a deployment that all calls are made for."""
        place = None if url is None else remote(url, token, ca_file)
        self._connection = AsyncConnection(home, start=start, any_version=any_version, remote=place, acts_for=acts_for)
        self.files = AsyncStoredFiles(self._connection)
        """The station's file store."""
        self.keys = AsyncKeys(self._connection)
        """Its API keys, for its operator."""
        self.deployments = AsyncDeployments(self._connection)
        """Those who use it beside its operator."""

    @property
    def home(self) -> str:
        """The state directory of the station."""
        return os.fspath(self._connection.home)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection only. Repeating is no error."""
        await self._connection.aclose()

    async def run(
        self,
        code: str,
        *,
        runtime: str = "python",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        stdin: Data | None = None,
        files: Mapping[str, Data] | None = None,
        artifacts: Sequence[str] = (),
        timeout_seconds: float | None = None,
        output_limit_bytes: int | None = None,
        output_kept_bytes: int | None = None,
        end_when_left: bool = False,
        progress: bool | None = None,
        **where: Unpack[Isolated],
    ) -> RunResult:
        """Runs code in a fresh box, which is gone afterwards. See `station.run`."""
        options = dict(
            where,
            runtime=runtime,
            args=args,
            env=env,
            stdin=stdin,
            files=files,
            artifacts=artifacts,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            output_kept_bytes=output_kept_bytes,
            end_when_left=end_when_left,
        )
        return run_result(await self._answer(run_request(code, options), progress))

    async def map(
        self,
        snippets: Iterable[str | Snippet],
        *,
        concurrency: int | None = None,
        progress: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> list[RunResult]:
        """Many snippets, each in a fresh box of its own, results in the order of the snippets. See `station.map`."""
        check_many(snippets, concurrency)
        known = list(snippets)
        results: list[RunResult | None] = [None] * len(known)
        async for index, result in self.imap(known, concurrency=concurrency, progress=progress, **options):
            results[index] = result
        return [result for result in results if result is not None]

    async def imap(
        self,
        snippets: Iterable[str | Snippet],
        *,
        concurrency: int | None = None,
        progress: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncIterator[tuple[int, RunResult]]:
        """As `map`: (index, result) of each as it ends. `snippets` may be endless: they are taken as there is room."""
        going: set[str] = set()

        async def one(snippet: str | Snippet) -> RunResult:
            merged: dict[str, Any] = {**options}
            try:
                merged |= own_settings(snippet)
                code = merged.pop("code")
                request = run_request(code, merged)
                going.add(str(request.id))
                try:
                    return run_result(await self._answer(request, False))
                finally:
                    going.discard(str(request.id))
            except StationError as error:
                # One that cannot run must not lose the others.
                return RunResult.failed(error, str(merged.get("runtime") or "python"))

        async def abort() -> None:
            for prc in list(going):
                await self._cancel(prc)

        at_once = check_many(snippets, concurrency)
        total = len(snippets) if isinstance(snippets, Sequence) else None
        with Bar("running", total, shown=progress) as bar:
            async for index, result in each(one, snippets, at_once, abort):
                bar.advance()
                yield index, result

    async def open(
        self,
        name: str = "default",
        *,
        runtime: str | None = None,
        timeout_seconds: float | None = None,
        temporary: bool = False,
        progress: bool | None = None,
        **where: Unpack[Isolated],
    ) -> AsyncSandbox:
        """As `AsyncSandbox.open`, on this connection."""
        request = open_request(name, where, runtime=runtime, timeout_seconds=timeout_seconds, temporary=temporary)
        return AsyncSandbox(self._connection, await open_view(self._connection, request, progress))

    async def check(self, *, runtime: str | None = None, **where: Unpack[Isolated]) -> Isolation:
        """How a new sandbox would be isolated. Makes nothing, but may pull its image; raises as `open` would where it
        would be refused: a backend that does not work here, an image that is missing, a limit that cannot be kept."""
        request = open_request("check", where, runtime=runtime, timeout_seconds=None, temporary=False)
        call = Call("POST", url("sandboxes", "check"), request, replay=True, read_seconds=OPEN_SECONDS)
        return from_plain(Isolation, await self._connection.request(call))

    async def get(self, name: str = "default") -> AsyncSandbox:
        """As `AsyncSandbox.get`, on this connection."""
        return AsyncSandbox(self._connection, await get_view(self._connection, name))

    async def get_by_id(self, sandbox_id: str) -> AsyncSandbox:
        """An existing sandbox by its `id`, or by the `tool_id` of its present life; makes and wakes nothing.

        By a tool id, everything done through the answer is done to that life alone: once the sandbox was deleted it
        raises SandboxNotFound, also where the name was opened again. Raises SandboxNotFound.
        """
        view = await view_at(self._connection, check_sandbox_id(sandbox_id))
        return AsyncSandbox(self._connection, view, address=sandbox_id)

    async def delete(self, name: str, *, keep_files: bool = False, unless_busy: bool = False) -> None:
        """Ends the sandbox of that name for good; one that is not there is no error.

        `keep_files`: ends its processes and its box alone; the next use finds the files. `unless_busy`: raises Busy,
        and changes nothing, where a command runs in it or somebody else's call is under way.
        """
        await delete_at(self._connection, self.id_of(name), keep_files=keep_files, unless_busy=unless_busy)

    async def info(self) -> StationView:
        """What the station says of itself."""
        return from_plain(StationView, await self._connection.request(Call("GET", url("station"), replay=True)))

    async def doctor(self) -> Diagnosis:
        """What each backend can truly do on this machine, the host audit, and who may be served; remedies with it."""
        answer = await self._connection.request(Call("GET", url("doctor"), replay=True, read_seconds=120))
        return from_plain(Diagnosis, answer)

    async def list(self, *, everybodys: bool = False) -> list[SandboxView]:
        """The caller's sandboxes, by name. `everybodys`: those of deployments too (`view.deployment`); for the operator
        alone, who reaches each by its id."""
        return await list_views(self._connection, everybodys=everybodys)

    def id_of(self, name: str) -> str:
        """The id that the caller's sandbox of that name has, or would have. Raises InvalidInput for what is no name."""
        return named(name, self._connection.deployment)

    async def usage(self) -> UsageView:
        """What takes room in the state directory of the station; it looks at every file."""
        answer = await self._connection.request(Call("GET", url("usage"), replay=True, read_seconds=_UPKEEP_SECONDS))
        return from_plain(UsageView, answer)

    async def prune(self, *, dry_run: bool = False) -> PruneView:
        """Removes what nobody can ask for any more; `dry_run` only tells what would go."""
        path = url("prune", dry_run=dry_run)
        call = Call("POST", path, content=b"", replay=True, read_seconds=_UPKEEP_SECONDS)
        return from_plain(PruneView, await self._connection.request(call))

    async def stop(self) -> None:
        """Ends the station: what runs in sandboxes goes on, and the next station takes it over. Ended on return."""
        home = self._connection.home
        pid = await to_thread(holder, home)
        await self._connection.request(Call("POST", url("station", "stop"), content=b""))
        await to_thread(wait_stopped, home, pid)

    async def run_raw(self, code: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The station's own answer to a run, as JSON data; `options` as for `run`."""
        return await self._answer(run_request(code, options), False)

    async def _answer(self, request: RunRequest, progress: bool | None) -> dict[str, Any]:
        seconds = (request.timeout_seconds or MAX_TIMEOUT_SECONDS) + PULL_SECONDS
        # A box that is gone takes along what a first try did, so the repeat may run; on the caller's folder it may not.
        call = Call("POST", url("runs"), request, replay=request.mount is None, read_seconds=seconds)
        try:
            answer: dict[str, Any] = await request_shown(self._connection, call, request.image, progress)
        except INTERRUPTED:
            await last_act(self._cancel, str(request.id), _CANCEL_SECONDS)
            raise
        return answer

    async def _cancel(self, prc: str) -> None:
        with suppress(StationError):
            await self._connection.request(Call("DELETE", url("runs", prc), replay=True))


def aconnect(
    home: str | os.PathLike[str] | None = None,
    *,
    start: bool = True,
    url: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> AsyncClient:
    """One connection for many calls: `async with station.aconnect() as client:`. Nothing is sent before the first call.

    `home`: the state directory, else STN_HOME. `start=False` raises StationUnreachable where no station runs. `url`:
    a station on TCP instead (`https://…`, or `http://` on this machine), with `token`, else STN_TOKEN: an API key, a
    deployment's identity token, or the operator's own. `ca_file`: PEM file of the authorities that are trusted there,
    else STN_CA_FILE, else this machine's.
    """
    return AsyncClient(home, start=start, url=url, token=token, ca_file=ca_file)


async def arun(
    code: str,
    *,
    runtime: str = "python",
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdin: Data | None = None,
    files: Mapping[str, Data] | None = None,
    artifacts: Sequence[str] = (),
    timeout_seconds: float | None = None,
    output_limit_bytes: int | None = None,
    output_kept_bytes: int | None = None,
    end_when_left: bool = False,
    progress: bool | None = None,
    home: str | os.PathLike[str] | None = None,
    **where: Unpack[Isolated],
) -> RunResult:
    """Runs code in a fresh box, which is gone afterwards.

    `runtime`: python, node or bash. `files`: content by path (relative: below /workspace). `artifacts`: names or glob
    patterns of files to bring back. `timeout_seconds`: `None` is the station's, 120 unless set. `output_kept_bytes`: of
    a longer stream the first and the last half of so many are in the result; `None` is 1 MiB, at most 16. `where`:
    backend, image, network (`none`, `public` or an allow list; unset: none, or what the operator gives on docker),
    limits, best_effort, mount (`DIR` or `DIR:ro`). `end_when_left`: it is cancelled once nobody has waited for it for
    10 s, as when this program was killed; else it goes on to its time limit. `progress`: `None` shows how far an image
    is that has to be pulled first where standard error is a terminal.

    Any end of the program is a result (`check()` raises for a bad one); what is raised is a failure of Station:
    InvalidInput, CannotEnforce for a limit that cannot be kept here, BackendUnavailable, StationUnreachable.
    """
    async with AsyncClient(home) as client:
        return await client.run(
            code,
            runtime=runtime,
            args=args,
            env=env,
            stdin=stdin,
            files=files,
            artifacts=artifacts,
            timeout_seconds=timeout_seconds,
            output_limit_bytes=output_limit_bytes,
            output_kept_bytes=output_kept_bytes,
            end_when_left=end_when_left,
            progress=progress,
            **where,
        )


async def amap(
    snippets: Iterable[str | Snippet],
    *,
    concurrency: int | None = None,
    progress: bool | None = None,
    home: str | os.PathLike[str] | None = None,
    **options: Unpack[RunOptions],
) -> list[RunResult]:
    """Many snippets, each in a fresh box of its own; results in the order of the snippets.

    A snippet is code, or a dict with `code` and settings of its own; `options` are those of `run`, for all. At most
    `concurrency` at once (`None`: two a processor, at most 32). `progress`: `None` shows a bar where standard error is
    a terminal. One that Station could not run does not lose the others: its result has `error` and no exit code.
    """
    async with AsyncClient(home) as client:
        return await client.map(snippets, concurrency=concurrency, progress=progress, **options)


async def aimap(
    snippets: Iterable[str | Snippet],
    *,
    concurrency: int | None = None,
    progress: bool | None = None,
    home: str | os.PathLike[str] | None = None,
    **options: Unpack[RunOptions],
) -> AsyncIterator[tuple[int, RunResult]]:
    """As `amap`, but (index, result) of each as it ends, and `snippets` may be endless."""
    async with AsyncClient(home) as client:
        async for item in client.imap(snippets, concurrency=concurrency, progress=progress, **options):
            yield item
