"""The two volumes of a kept sandbox, home and workspace: how they are made, bounded, mounted and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from station.backends.docker import config, disks, trial
from station.backends.docker.disks import Disks
from station.backends.docker.engine import Engine
from station.backends.docker.facts import EngineFacts
from station.backends.docker.helpers import remove_volume
from station.backends.docker.quota import TURNED_OFF, Bound, Quota, QuotaMode, bound_of
from station.core.paths import HOME, WORKSPACE

TRIAL = "quotatrial"
"""The sandbox of trials, by whose name the next one finds what a killed one has left."""
TRIAL_MB = 16
COUNTS_AGAIN = 25
"""The first engine whose live-restore is trusted to know which volumes are mounted. 20.10 does not: it never removes
such a volume, and may give a later box the empty directory below the mount."""
_WORDS = {HOME: "home", WORKSPACE: "workspace"}


class Volumes:
    """Those of one station in one engine. Whoever calls holds the lock of the sandbox."""

    def __init__(self, engine: Engine, station: str, directory: Path, mode: QuotaMode) -> None:
        self._engine = engine
        self._station = station
        self._mode = mode
        self._disks = Disks(directory)
        self.quota = Quota.NONE
        """Of sandboxes that are made from now on."""

    async def choose(self, engine: EngineFacts) -> str:
        """Sets `quota` to the best that may work here: an image must be tried. Returns why it is no image."""
        self.quota = Quota.NONE
        await self._disks.sweep()
        if self._mode is QuotaMode.OFF:
            return TURNED_OFF
        if await trial.has_quota(self._engine, f"stn-{self._station}-{TRIAL}-size"):
            self.quota = Quota.PROJECT
            return ""
        why = _elsewhere(self._engine, engine) or disks.missing()
        if why is None:
            self.quota = Quota.IMAGE
        return why or ""

    async def labels(self, uid: str) -> Mapping[str, str] | None:
        """What was written down when the sandbox got its first box; `None`: it has had none."""
        return await self._engine.volume_labels(config.volume_names(self._station, uid)[HOME])

    async def make(self, uid: str, known: Mapping[str, str] | None, *, image: str, workspace_mb: int) -> Bound:
        """Both are there when this returns, empty for a first box, whose labels `known` are later: what bounds them
        stays. Raises StorageFull where an image has no room."""
        bound = Bound(self.quota, workspace_mb) if known is None else bound_of(known)
        if bound.quota is Quota.IMAGE and known is None:
            await self._disks.make(uid, {word: bound.size_of(place) for place, word in _WORDS.items()})
        own = {"station.station": self._station, "station.id": uid, "station.image": image, **bound.labels}
        for place, name in config.volume_names(self._station, uid).items():
            options = bound.options(place, self._disks.device(uid, _WORDS[place]))
            await self._engine.create_volume(name, own, options)
        return bound

    @asynccontextmanager
    async def attached(self, uid: str, bound: Bound) -> AsyncIterator[None]:
        """Within, a box of the sandbox can be started. Raises InternalError for an image that is gone, Unavailable
        without a loop device."""
        if bound.quota is not Quota.IMAGE:
            yield
            return
        async with self._disks.attached(uid, tuple(_WORDS.values())):
            yield

    async def kept(self) -> list[str]:
        """Of which sandboxes there are any. Raises Unavailable while the engine cannot be asked."""
        found = await self._engine.volumes("station.station", self._station)
        return sorted({labels["station.id"] for labels in found if labels.get("station.id", TRIAL) != TRIAL})

    async def remove(self, uid: str) -> None:
        """Repeating is no error. Raises Unavailable while the engine cannot be asked."""
        for name in config.volume_names(self._station, uid).values():
            await remove_volume(self._engine, name)
        self._disks.remove(uid, tuple(_WORDS.values()))


def _elsewhere(engine: Engine, facts: EngineFacts) -> str | None:
    """Why an engine will not mount devices of ours for boxes; `None`: it may."""
    if not engine.address.local:
        return "the engine may be on another machine, and images are on this one"
    if facts.podman:
        return "Podman's volumes are tried with its own quota alone"
    if facts.rootless or facts.userns:
        return "the engine's boxes have users of their own, to whom an image would not belong"
    if facts.live_restore and _major(facts.version) < COUNTS_AGAIN:
        return (
            f"Docker Engine {facts.version} with live-restore forgets at its restart which volumes are mounted: take "
            f"{COUNTS_AGAIN}.0 or later, or live-restore out of its daemon.json"
        )
    return None


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() else 0
