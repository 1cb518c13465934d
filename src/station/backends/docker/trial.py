"""What a box that was made for a look can tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from station.backends.docker.engine import Engine
from station.backends.docker.facts import Trial
from station.core.errors import StationError
from station.core.paths import TMP, WORKSPACE
from station.guest.frames import StartRecord
from station.guest.session import GuestSession

if TYPE_CHECKING:
    from station.backends.docker.box import DockerBox

SECONDS = 20.0
_GVISOR_FILE = b"sentry-meminfo"


async def ask(box: DockerBox) -> Trial:
    """Raises BoxLost where its guest does not answer."""
    session = await GuestSession.connect(box.connect, hello_seconds=SECONDS)
    try:
        can = session.hello.capabilities
        names = await _applet(session, "list", "/", "proc", "", "5000", "")
        tmp, workspace = [await _applet(session, "space", place) for place in (TMP, WORKSPACE)]
    finally:
        await session.aclose()
    return Trial(
        gvisor=_GVISOR_FILE in names,
        containment="pidns" if "pidns" in can else "subreaper",
        seccomp="seccomp" in can,
        filtered="filtered" in can,
        doors_shut="doors_shut" in can,
        separate_uid="separate_uid" in can,
        tmp_bytes=_total(tmp),
        workspace_bytes=_total(workspace),
    )


def _total(space: bytes) -> int | None:
    numbers = space.rstrip(b"\0").split()
    return int(numbers[1]) if len(numbers) == 2 and numbers[1].isdigit() else None


def why_not_held(told: Trial, size_mb: int) -> str:
    """Empty: the workspace of the trial box had its size."""
    if told.workspace_bytes is not None and 0 < told.workspace_bytes <= size_mb << 20:
        return ""
    seen = "no size" if told.workspace_bytes is None else f"{told.workspace_bytes >> 20} MiB"
    return f"a trial box on an image of {size_mb} MiB saw {seen}"


async def _applet(session: GuestSession, *argv: str) -> bytes:
    record = StartRecord(argv=argv, applet=True, timeout_seconds=SECONDS, output_limit=1 << 20)
    process = session.start(record, guest_id=session.next_id())
    async with asyncio.timeout(SECONDS + 5):
        found = b"".join([chunk.data async for chunk in process.chunks()])
        await process.exit()
    process.forget()
    return found


async def has_quota(engine: Engine, name: str) -> bool:
    """Whether volumes can have a size: a local driver without quota refuses to make one, but Podman says yes to it."""
    if engine.is_podman:
        return False
    try:
        await engine.create_volume(name, {}, {"size": "1m"})
        await engine.remove_volume(name)
    except StationError:
        return False
    return True
