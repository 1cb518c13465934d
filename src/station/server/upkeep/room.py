"""What takes room in the state directory, and what may go. Nothing that somebody could still ask for is among it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from station.backends.base import Keeping
from station.core.errors import StationError
from station.core.ids import is_uid
from station.core.states import State
from station.core.upkeep import Part, PruneView, SandboxRoom, UsageView
from station.core.wire import LOG
from station.server.station import Station
from station.store.registry import Damaged

from .walk import taken

IDLE_UPLOAD_SECONDS = 3600.0
LEFT_SECONDS = 3600.0
"""After so long nobody goes on with a temporary file or folder."""
_TEMPORARY = ".stn-"
_KINDS = {"sandboxes": "sandboxes", "output": "output", "boxes": "boxes", "files": "files", "uploads": "uploads"}
_NATS = "nats"
_RECORDS, _LOGS, _OTHER = "records", "logs", "other"


async def usage(station: Station) -> UsageView:
    """Looks at every file: minutes where there are millions."""
    home = station.settings.home
    sizes = await asyncio.to_thread(_sizes, home)
    records, _ = await station.records()
    rooms = [
        SandboxRoom(
            record.uid,
            record.name,
            record.spec.backend,
            sizes.get(("sandboxes", record.uid)),
            sizes.get(("output", record.uid), 0),
        )
        for record in records
    ]
    items = Counter(kind for kind, _ in sizes)
    items["files"] = (await station.store.room()).files
    totals: Counter[str] = Counter()
    for (kind, _), size in sizes.items():
        totals[kind] += size
    disk = shutil.disk_usage(home)
    return UsageView(
        str(home),
        disk.total,
        disk.free,
        totals.total(),
        tuple(Part(kind, items[kind], totals[kind]) for kind in sorted(totals, key=lambda kind: -totals[kind])),
        tuple(sorted(rooms, key=lambda room: -((room.files_bytes or 0) + room.output_bytes))),
    )


async def prune(station: Station, *, dry_run: bool) -> PruneView:
    """Removes what may go, or tells what would. What cannot be removed stops nothing, and is not told of as gone."""
    steps: dict[str, Callable[[], Awaitable[list[int]]]] = {
        "boxes without a sandbox": lambda: _boxes(station, dry_run),
        "files without a sandbox": lambda: _files(station, dry_run),
        "output without a sandbox": lambda: _output(station, dry_run),
        "unfinished uploads": lambda: station.uploads.drop_idle(IDLE_UPLOAD_SECONDS, dry_run=dry_run),
        "expired stored files": lambda: _expired(station, dry_run),
        "old logs": lambda: asyncio.to_thread(_old_logs, station.settings.home, dry_run),
        "temporary files": lambda: asyncio.to_thread(_temporary, station.settings.home, dry_run),
    }
    parts = []
    for what, step in steps.items():
        if sizes := await step():
            parts.append(Part(what, len(sizes), sum(sizes)))
    return PruneView(dry_run, sum(part.bytes for part in parts), tuple(parts))


async def _boxes(station: Station, dry_run: bool) -> list[int]:
    """A box that may just be in the making is waited for: the sweep takes it a minute after it was seen first."""
    count = len(await station.orphans.found()) if dry_run else await station.orphans.sweep()
    return [0] * count


async def _files(station: Station, dry_run: bool) -> list[int]:
    freed: dict[str, int] = {}
    for name, backend in station.boxes.backends.items():
        if not isinstance(backend, Keeping):
            continue
        try:
            for uid in await backend.kept():
                # The backends of this machine have one place for all.
                if uid in freed or not is_uid(uid) or not await _is_unwanted(station, uid):
                    continue
                size = await asyncio.to_thread(taken, station.settings.home / "sandboxes" / uid)
                unwanted = partial(_is_unwanted, station, uid)
                if dry_run or await station.boxes.remove_files_if(name, uid, unwanted):
                    freed[uid] = size
        except StationError:  # an engine that is away: what it has is found the next time
            continue
    return list(freed.values())


async def _output(station: Station, dry_run: bool) -> list[int]:
    freed = []
    for uid in await asyncio.to_thread(_names, station.settings.home / "output"):
        if is_uid(uid) and await _is_unwanted(station, uid):
            freed.append(await asyncio.to_thread(taken, station.settings.home / "output" / uid))
            if not dry_run:
                station.processes.forget_sandbox(uid)
    return freed


async def _is_unwanted(station: Station, uid: str) -> bool:
    """A record that is damaged may be mended, so that what it names stays."""
    record = await station.record(uid)
    return record is None or (not isinstance(record, Damaged) and record.state is State.TOMBSTONE)


async def _expired(station: Station, dry_run: bool) -> list[int]:
    """They go by themselves within seconds, with contents that a crash has left."""
    if dry_run:
        return []
    swept = await station.store.sweep(station.now())
    return [0] * swept.expired if swept.expired else [swept.orphan_bytes] * (swept.orphan_bytes > 0)


def _old_logs(home: Path, dry_run: bool) -> list[int]:
    return [_removed(path, dry_run) for path in sorted(home.glob(f"{LOG}.*"))]


def _temporary(home: Path, dry_run: bool) -> list[int]:
    old = time.time() - LEFT_SECONDS
    return [_removed(path, dry_run) for path in sorted(home.glob(f"{_TEMPORARY}*")) if path.lstat().st_mtime < old]


def _removed(path: Path, dry_run: bool) -> int:
    size = taken(path)
    if not dry_run:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return size


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _sizes(home: Path) -> dict[tuple[str, str], int]:
    """By kind and name, all that is in the state directory."""
    sizes: dict[tuple[str, str], int] = {}
    for name in _names(home):
        if (kind := _KINDS.get(name)) is None:
            sizes[_kind_of(name), name] = taken(home / name)
        else:
            for each in _names(home / name):
                sizes[kind, each] = taken(home / name / each)
    return sizes


def _kind_of(name: str) -> str:
    if ".db" in name:
        return _RECORDS
    if name == _NATS:
        return _NATS
    return _LOGS if name.startswith(LOG) else _OTHER
