"""Whose call it is: one connection to the station, and the sandboxes that may be reached through it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from station.client._async.client import AsyncClient
from station.client._async.sandbox import AsyncSandbox
from station.client._build import Isolated
from station.core.errors import SandboxNotFound
from station.core.wire import StationView

from .inputs import OpenInput
from .scope import Scope

T = TypeVar("T")
ANSWER_BYTES = 8 * 1024 * 1024
_REMEMBERED = 256


class Caller:
    """What it remembers only spares questions: another one of the same scope, or this one after a restart of any part,
    reaches the same sandboxes.
    """

    def __init__(
        self,
        client: AsyncClient,
        scope: Scope,
        where: Isolated | None = None,
        *,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        self.client = client
        self.scope = scope
        self._where: Isolated = where or {}
        self.answer_bytes = answer_bytes
        """What one answer may be as JSON."""
        self._known: dict[str, AsyncSandbox] = {}
        """By id, those that were found to be ours."""
        self._default: AsyncSandbox | None = None
        self._station: StationView | None = None

    async def station(self) -> StationView:
        """What the operator set, asked once."""
        if self._station is None:
            self._station = await self.client.info()
        return self._station

    def where(self, name: str | None) -> Isolated:
        """Where the sandbox of that name, or a fresh one (`None`), is to run: the operator's choice, not the model's.
        The folder is the default sandbox's alone."""
        where: Isolated = {**self._where}
        if name != self.scope.default:
            where.pop("mount", None)
        return where

    async def open(self, wanted: OpenInput) -> AsyncSandbox:
        """Get or create by name; the view tells whether it was made. Raises what `AsyncClient.open` does."""
        name = self.scope.name_of(wanted.session_key)
        where = self.where(name)
        if wanted.image is not None:
            where["image"] = wanted.image
        sandbox = await self.client.open(
            name,
            runtime=None if wanted.runtime == "linux" else wanted.runtime,
            timeout_seconds=wanted.timeout_seconds,
            temporary=self.scope.is_temporary(name),
            **where,
        )
        return self._remember(sandbox.this_life())

    async def within(
        self, sandbox_id: str | None, work: Callable[[AsyncSandbox], Awaitable[T]], *, opens: bool = True
    ) -> T:
        """`work` in the sandbox of that id, or in the default one, which is made where there is none and `opens`. One
        that was remembered and is gone is looked for again.

        Raises SandboxNotFound where there is none, or it is somebody else's: both look the same.
        """
        sandbox = await self._sandbox(sandbox_id, opens)
        try:
            return await work(sandbox)
        except SandboxNotFound:
            self.forget(sandbox)
        return await work(await self._sandbox(sandbox_id, opens))

    def forget(self, sandbox: AsyncSandbox) -> None:
        """It may be gone. Repeating is no error."""
        self._known.pop(id_of(sandbox), None)
        if self._default is not None and id_of(self._default) == id_of(sandbox):
            self._default = None

    async def _sandbox(self, sandbox_id: str | None, opens: bool) -> AsyncSandbox:
        if sandbox_id is not None:
            return self._known.get(sandbox_id) or self._remember(await self._find(sandbox_id))
        if self._default is not None:
            return self._default
        if opens:
            return await self.open(OpenInput())
        return self._remember((await self._find_default()).this_life())

    async def _find_default(self) -> AsyncSandbox:
        try:
            # By its id: a look by name would tell of other names that are like it.
            return await self.client.get_by_id(self.client.id_of(self.scope.default))
        except SandboxNotFound:
            raise SandboxNotFound("your default sandbox is not open; sandbox_open or sandbox_exec makes it") from None

    async def _find(self, sandbox_id: str) -> AsyncSandbox:
        try:
            sandbox = await self.client.get_by_id(sandbox_id)
        except SandboxNotFound:
            raise _unknown(sandbox_id) from None
        # The API takes ids of another kind too, which mean whatever life the name has.
        if id_of(sandbox) != sandbox_id or not self.scope.owns(sandbox.name):
            raise _unknown(sandbox_id)
        return sandbox

    def _remember(self, sandbox: AsyncSandbox) -> AsyncSandbox:
        while len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[id_of(sandbox)] = sandbox
        if sandbox.name == self.scope.default:
            self._default = sandbox
        return sandbox


def id_of(sandbox: AsyncSandbox) -> str:
    """What the tools call it."""
    return sandbox.view.tool_id


def _unknown(sandbox_id: str) -> SandboxNotFound:
    return SandboxNotFound(
        f"there is no sandbox {sandbox_id[:80]!r}, or it is not yours; call sandbox_open for one, or leave sandbox_id "
        "out to use the default one",
        sandbox_id=sandbox_id[:80],
    )
