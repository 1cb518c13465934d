"""Containers that never become boxes: to look into an image, and to put the guest where boxes find it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from station.backends.base import Labels
from station.backends.docker import seccomp
from station.backends.docker.config import (
    GUEST,
    GUEST_PLACE,
    Image,
    Runtime,
    container_name,
    ownership,
)
from station.backends.docker.engine import Engine
from station.core.errors import BackendUnavailable, Conflict, NotFound, StationError, Unavailable
from station.guest.binary import GUEST_VERSION

log = logging.getLogger(__name__)

REMOVE_SECONDS = 30.0
INSTALL_SECONDS = 30.0
_INSTALLER = "stn-guest-installer"
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_PASSING = ("resource_conflict", "engine_error", "nonsense")


async def remove(engine: Engine, container: str) -> None:
    """Until it is gone. A refusal that may pass is tried again, and logged; raises Unavailable with the last one if it
    is not gone within `REMOVE_SECONDS`."""

    async def once() -> StationError | None:
        try:
            await engine.remove(container)
        except NotFound:
            if await engine.inspect(container) is not None:
                return Conflict("the engine says that there is none, and tells about it")
        return None

    await _until_gone(once, f"the container {container[:12]}")


async def remove_volume(engine: Engine, name: str) -> None:
    """As `remove`: a container that has it may be going just now."""

    async def once() -> StationError | None:
        await engine.remove_volume(name)
        return None

    await _until_gone(once, f"the volume {name}")


async def _until_gone(once: Callable[[], Awaitable[StationError | None]], what: str) -> None:
    pause = _FIRST_PAUSE
    last: StationError | None = None
    try:
        async with asyncio.timeout(REMOVE_SECONDS):
            while (refused := await _refusal(once)) is not None:
                last = refused
                if pause == _LONGEST_PAUSE:
                    log.warning("%s is not removed yet: %s", what, last.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError as error:
        why = f": {last.message}" if last is not None else ""
        sentence = f"the engine did not remove {what} within {REMOVE_SECONDS:g} s{why}"
        raise Unavailable(sentence, engine="engine_error") from error


async def _refusal(once: Callable[[], Awaitable[StationError | None]]) -> StationError | None:
    """Of one try. `None`: it is gone. Raises what will not pass, and an absent engine's error."""
    try:
        return await once()
    except (Conflict, Unavailable) as error:
        # Another removes it just now, or something still holds its file system.
        if error.detail.get("engine") not in _PASSING:
            raise
        return error


class Helpers:
    """Makes what boxes need before they can be made, once; callers of the same thing wait for the first."""

    def __init__(self, engine: Engine, station: str, guest: Path) -> None:
        self._engine = engine
        self._station = station
        self._guest = guest.read_bytes()
        self._digest = hashlib.sha256(self._guest).hexdigest()
        self._shells: dict[str, str] = {}
        self._installed = False
        self._busy: dict[str, asyncio.Lock] = {}
        self._installing = asyncio.Lock()

    @property
    def volume(self) -> str:
        """By content: a later station, of this machine or another, finds the guest there."""
        return f"stn-guest-{GUEST_VERSION}-{self._digest[:12]}"

    async def shell_of(self, image: Image, runtime: Runtime) -> str:
        """The guest's volume is in order when this returns, and the image's shell is known: bash, else sh. An image
        that an engine is slow to look into holds up nobody who wants another one."""
        async with self._busy.setdefault(image.id, asyncio.Lock()):
            if not self._installed or image.id not in self._shells:
                await self._engine.create_volume(self.volume, self._labels())
                if not await self._look(image):
                    async with self._installing:
                        await self._install(image, runtime)
                self._installed = True
            return self._shells[image.id]

    def doubt(self) -> None:
        """The next box is made only after another look: its container did not find the guest."""
        self._installed = False

    async def _look(self, image: Image) -> bool:
        """Learns the image's shell. Whether the guest is in its volume, whole."""
        async with self._container(image, {"HostConfig": self._host(read_only=True)}) as container:
            shells = (self._engine.has_file(container, path) for path in _SHELLS)
            found = await asyncio.gather(*shells)
            content = await self._engine.read_file(container, GUEST)
        there = [path for path, has in zip(_SHELLS, found, strict=True) if has]
        self._shells[image.id] = next(iter(there), "/bin/sh")
        return content is not None and hashlib.sha256(content).hexdigest() == self._digest

    async def _install(self, image: Image, runtime: Runtime) -> None:
        config = {
            "Entrypoint": [f"/{_INSTALLER}"],
            "Cmd": ["install", GUEST_PLACE],
            "HostConfig": {**self._host(read_only=False), "Runtime": runtime.name},
        }
        async with self._container(image, config) as container:
            await self._engine.write_file(container, "/", _INSTALLER, self._guest, mode=0o755)
            await self._engine.start(container)
            await self._engine.wait(container, seconds=INSTALL_SECONDS)
        if not await self._look(image):
            raise BackendUnavailable(
                f"the guest could not be put into the engine's volume {self.volume}; "
                f"remove it (docker volume rm {self.volume}) and try again",
                remedy=f"docker volume rm {self.volume}",
            )

    def _labels(self) -> dict[str, str]:
        return {"station.guest": GUEST_VERSION, "station.sha256": self._digest}

    def _host(self, *, read_only: bool) -> dict[str, Any]:
        mount = {"Type": "volume", "Source": self.volume, "Target": GUEST_PLACE, "ReadOnly": read_only}
        return {"Mounts": [{**mount, "VolumeOptions": {"NoCopy": True}}]}

    @asynccontextmanager
    async def _container(self, image: Image, more: Mapping[str, Any]) -> AsyncIterator[str]:
        """One that carries our labels, so that a sweep finds it if we die."""
        box_id = f"helper-{secrets.token_hex(8)}"
        labels = Labels.ours(box_id, uid=box_id, generation=0, fence=0, station=self._station, pool=True)
        body: dict[str, Any] = {
            "Image": image.id,
            "User": "0:0",
            "WorkingDir": "/",
            "Entrypoint": ["/none"],
            "Cmd": [],
            "Healthcheck": {"Test": ["NONE"]},
            "NetworkDisabled": True,
            "Labels": ownership(labels),
            **more,
        }
        locked = {
            "NetworkMode": "none", "CapDrop": ["ALL"], "PidsLimit": 64,
            "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp.OWN.text}"],
            "LogConfig": {"Type": "none", "Config": {}}, "Memory": 256 << 20, "IpcMode": "private",
        }  # fmt: skip
        body["HostConfig"] = {**locked, **body.get("HostConfig", {})}
        name = container_name(self._station, box_id)
        container = name
        try:
            container = await self._engine.create(name, body)
            yield container
        finally:
            # What went wrong before is the better reason; the labels tell the next sweep.
            with suppress(StationError):
                await remove(self._engine, container)
