from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from station.backends.fake import FakeBackend, FakeStore, Faults
from station.server.access.guard import local
from station.server.api.app import build_app
from station.server.settings import SandboxSettings, Settings
from station.server.station import Station

from . import described
from .served import listening, serve

__all__ = ["Api", "Machine", "listening", "serve", "until"]


async def until(fits: Callable[[], Awaitable[bool]]) -> None:
    """Returns when it fits; looks again whenever the loop comes round, for at most 30 seconds."""
    async with asyncio.timeout(30):
        while not await fits():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Machine:
    """What outlives a station: a state directory and the boxes of a fake backend."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = FakeStore()
        self.faults = Faults()
        self.later = 0.0
        """Seconds that the station's clocks are ahead."""
        self.settings = Settings(home=home, sandbox=SandboxSettings(backend="fake", pool_size=0))

    def backend(self, home: Path, identity: str, _settings: Settings) -> dict[str, Any]:
        return {"fake": FakeBackend(home, station_id=identity, store=self.store, faults=self.faults)}

    @asynccontextmanager
    async def station(self) -> AsyncIterator[Station]:
        station = await Station.start(
            self.settings, make_backends=self.backend, now=lambda: time.time() + self.later, clock=lambda: self.later
        )
        try:
            yield station
        finally:
            await station.aclose()

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        async with self.station() as station:
            transport = httpx2.ASGITransport(app=local(build_app(station), station.access), raise_app_exceptions=False)
            hooks = {"response": [_as_described]}
            async with httpx2.AsyncClient(transport=transport, base_url="http://station", event_hooks=hooks) as client:
                yield Api(station, client)


async def _as_described(answer: httpx2.Response) -> None:
    """Every answer in these tests is one that the description of the API promises."""
    await answer.aread()
    request = answer.request
    assert described.fault(request.method, request.url.path, answer.status_code, answer) is None


class Api:
    def __init__(self, station: Station, client: httpx2.AsyncClient) -> None:
        self.station = station
        self.client = client

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx2.Response:
        if body is not None:
            more["json"] = body
        return await self.client.request(method, "/api/v1" + path, **more)

    async def state(self, uid: str) -> str:
        return str((await self.call("GET", f"/sandboxes/{uid}")).json()["state"])

    async def open(self, name: str = "a", **fields: Any) -> str:
        answer = await self.call("POST", "/sandboxes", {"name": name, **fields})
        assert answer.is_success, answer.text
        return str(answer.json()["id"])


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path)
    yield made
    await made.store.aclose()


@pytest.fixture
async def api(machine: Machine) -> AsyncIterator[Api]:
    async with machine.api() as made:
        yield made
