"""What the backends of this machine share: directories of boxes, starting, adopting, listing, deleting."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from station.backends._box import LocalBox, Remains, first_process, ref_of
from station.backends._boxdir import BoxDirectory
from station.backends._cgroups import BoxCgroup, Cgroups
from station.backends._processes import PidWatch, command_line, handle_of, parent_of
from station.backends._spawn import spawn
from station.backends._trees import remove_below
from station.backends.base import Labels
from station.core.errors import BoxLost, InternalError, InvalidInput, StationError, StorageFull, Unavailable
from station.core.records import BoxRef
from station.durable import is_full

START_SECONDS = 10.0
_POLL_SECONDS = 0.002
"""Each look reads files of /proc and costs a twentieth of a millisecond; a start takes some ten."""


def check_uid(uid: str) -> None:
    """Raises InvalidInput for what must not name a directory."""
    if not uid.isalnum():
        raise InvalidInput("a sandbox uid has letters and digits alone", field="uid")


class LocalBackend:
    """Owns the boxes it made or adopted until they end or `aclose` lets go of them."""

    name = ""
    polite = False
    """See `Remains.polite`."""

    def __init__(self, state_dir: Path, *, station_id: str) -> None:
        self.state = state_dir
        self.station_id = station_id
        self._boxes_dir = state_dir / "boxes" / self.name
        self._live: set[LocalBox] = set()
        self._cgroups = Cgroups((), station_id)

    async def aclose(self) -> None:
        """Lets go of all boxes without ending them. Repeating is no error."""
        for box in list(self._live):
            box.let_go()

    async def adopt(self, ref: BoxRef) -> LocalBox:
        """Raises BoxLost if the box is gone; what was left of it, or half-made, is removed first."""
        directory = BoxDirectory(self._boxes_dir, ref.box_id)
        facts = directory.facts()
        handle = first_process(ref, directory, self.marker(ref.box_id))
        watch = PidWatch.open(handle) if handle is not None else None
        remains = self._remains(directory, facts)
        if watch is None or not facts or not await self._settled(watch, directory):
            await remains.end(watch)
            if watch is not None:
                watch.close()
            raise BoxLost(f"box {ref.box_id} is gone", box_id=ref.box_id)
        remains.child = self.child_of_ours(watch.handle.pid)
        return self._own(ref_of(self.name, ref.box_id, watch.handle), watch, remains, facts)

    async def boxes(self) -> AsyncIterator[tuple[Labels, BoxRef]]:
        for directory, labels in BoxDirectory.all(self._boxes_dir):
            pid = directory.child_pid()
            handle = handle_of(pid) if pid is not None else None
            yield labels, ref_of(self.name, directory.box_id, handle)

    async def remove_files(self, uid: str) -> None:
        check_uid(uid)
        try:
            await asyncio.to_thread(remove_below, self.state / "sandboxes", uid)
        except OSError as error:
            raise InternalError(f"the files of sandbox {uid} could not be removed: {error}", uid=uid) from error

    async def kept(self) -> list[str]:
        try:
            return sorted(await asyncio.to_thread(os.listdir, self.state / "sandboxes"))
        except FileNotFoundError:
            return []

    async def remove_box_files(self, facts: dict[str, Any]) -> None:
        """What of a box lies elsewhere than in its directory. Raises InternalError if it stays."""

    def marker(self, box_id: str) -> str:
        """Unlike a box id, no other station's box has it."""
        return f"{self.station_id}:{box_id}"

    def persistent(self, uid: str, owner: tuple[int, int] | None) -> dict[str, Path]:
        """Home and workspace of a kept sandbox, made where missing; of `owner` where the station is root."""
        check_uid(uid)
        base = self.state / "sandboxes" / uid
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The last is where the workspace is mounted a second time.
        places = {"home": base / "home", "workspace": base / "workspace", "again": base / "home" / "workspace"}
        for place in places.values():
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                place.unlink()  # code of the sandbox has put it there; nothing of it runs now
            place.mkdir(mode=0o755, exist_ok=True)
            if owner is not None and place.lstat().st_uid != owner[0]:
                os.chown(place, *owner, follow_symlinks=False)
        return {name: places[name] for name in ("home", "workspace")}

    async def start(self, labels: Labels, facts: dict[str, Any], prepare: Callable[[], Sequence[str]]) -> LocalBox:
        """Writes labels and facts down, then starts what `prepare` gives. On failure, also by cancellation, nothing is
        left. Raises AlreadyExists, StorageFull or Unavailable."""
        try:
            directory = BoxDirectory.create(self._boxes_dir, labels, facts)
        except OSError as error:
            raise _translated(error) from error
        remains = self._remains(directory, facts)
        watch: PidWatch | None = None
        box: LocalBox | None = None
        try:
            remains.child = spawn(directory, prepare())
            async with asyncio.timeout(START_SECONDS):
                watch = await self._first_process(remains)
            box = self._own(ref_of(self.name, directory.box_id, watch.handle), watch, remains, facts)
        except TimeoutError as error:
            raise Unavailable(f"the box did not start in {START_SECONDS:g} s: {directory.log()}") from error
        except OSError as error:
            raise _translated(error) from error
        finally:
            if box is None:
                await remains.end(watch)
                if watch is not None:
                    watch.close()
        return box

    def is_first(self, pid: int, directory: BoxDirectory) -> bool:
        """Whether `pid` is already the guest, no longer what starts it."""
        arguments = command_line(pid)
        marker = self.marker(directory.box_id).encode()
        return arguments[1:2] == [b"serve"] and marker in arguments

    def child_of_ours(self, first: int) -> int | None:
        """Whom to reap once a box is gone, if it is a child of this very process: bwrap's monitor."""
        return parent_of(first)

    def first_pid(self, remains: Remains) -> int | None:
        """The guest's pid as soon as it is known."""
        return remains.directory.child_pid()

    async def _first_process(self, remains: Remains) -> PidWatch:
        directory = remains.directory
        while True:
            pid = self.first_pid(remains)
            handle = handle_of(pid) if pid is not None and self.is_first(pid, directory) else None
            watch = PidWatch.open(handle) if handle is not None else None
            if watch is not None:
                return watch
            if remains.reap():
                raise self.failed_start(directory.log())
            await asyncio.sleep(_POLL_SECONDS)

    def failed_start(self, log: str) -> StationError:
        return Unavailable(f"the box did not start: {log or 'its guest ended at once'}")

    async def _settled(self, watch: PidWatch, directory: BoxDirectory) -> bool:
        """Waits a little for a box that its station left in the making."""
        try:
            async with asyncio.timeout(2.0):
                while not self.is_first(watch.handle.pid, directory):
                    if watch.gone():
                        return False
                    await asyncio.sleep(0.005)
        except TimeoutError:
            return False
        return not watch.gone()

    def _remains(self, directory: BoxDirectory, facts: dict[str, Any]) -> Remains:
        cgroup = BoxCgroup(Path(path) for path in facts.get("cgroups", ()))
        marker = self.marker(directory.box_id)
        remove_files = partial(self.remove_box_files, facts)
        return Remains(directory, marker, cgroup, remove_files=remove_files, polite=self.polite)

    def _own(self, ref: BoxRef, watch: PidWatch, remains: Remains, facts: dict[str, Any]) -> LocalBox:
        box = LocalBox(ref, watch, remains, facts=facts, forget=self._live.discard)
        self._live.add(box)
        return box


def _translated(error: OSError) -> StationError:
    if is_full(error):
        return StorageFull(f"no room to make a box: {error.strerror}")
    return Unavailable(f"the box could not be started: {error}")
