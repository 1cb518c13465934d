"""A whole station on the engine of a test, within this process: it can be ended and followed by another at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from station.backends.docker import DockerBackend, DockerSettings
from station.core.principals import LOCAL
from station.core.records import ProcessRecord
from station.core.states import State
from station.core.wire import ExecRequest, OpenRequest, ProcessView
from station.server.settings import SandboxSettings, Settings
from station.server.station import Station

IMAGE = "station-test/busybox"


@asynccontextmanager
async def station_on(url: str, home: Path, **settings: Any) -> AsyncIterator[Station]:
    """`settings` are the backend's."""
    chosen = DockerSettings(**{"image": IMAGE, "runtime": "runc", **settings})

    def make(state: Path, identity: str, _: Settings) -> dict[str, Any]:
        environ = {"DOCKER_HOST": url}
        return {"docker": DockerBackend(state, station_id=identity, settings=chosen, environ=environ)}

    sandbox = SandboxSettings(backend="docker", pool_size=0)
    station = await Station.start(Settings(home=home, sandbox=sandbox), make_backends=make)
    try:
        yield station
    finally:
        await station.aclose()


async def opened(station: Station, name: str = "kept") -> str:
    """Its uid."""
    return (await station.sandboxes.open(OpenRequest(name)))[0].uid


async def start(station: Station, uid: str, line: str) -> ProcessRecord:
    return await station.processes.start(await station.live(uid, LOCAL), ExecRequest(command=line))


async def execute(station: Station, uid: str, line: str, **more: Any) -> ProcessView:
    return await station.processes.exec(await station.live(uid, LOCAL), ExecRequest(command=line, **more))


async def text_of(station: Station, uid: str, process_id: str) -> str:
    """All that it has written, at its end."""
    await station.processes.wait(uid, process_id)
    view = await station.processes.get(uid, process_id, output=True)
    assert view.ending is not None
    assert view.ending.ok, view
    assert view.stdout is not None
    return view.stdout.to_bytes().decode()


async def until_written(station: Station, uid: str, process_id: str) -> None:
    """Something of its output is with the station."""

    async def written() -> bool:
        view = await station.processes.get(uid, process_id, output=True)
        return view.stdout is not None and view.stdout.to_bytes() != b""

    async with asyncio.timeout(30):
        while not await written():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


async def state_of(station: Station, uid: str) -> State:
    return (await station.sandboxes.get(uid)).state


async def until(fits: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not fits():  # noqa: ASYNC110 - an engine wakes nobody here
            await asyncio.sleep(0.02)


async def until_saved(station: Station, uid: str) -> None:
    async with asyncio.timeout(30):
        while await state_of(station, uid) is not State.SAVED:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
