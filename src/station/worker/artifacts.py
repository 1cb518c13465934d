"""Files that a run gives back, by name or pattern, within bounds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from station.core.errors import FileNotFound, NotARegularFile, PathRefused, TooLarge
from station.core.globs import expression, is_pattern
from station.core.paths import WORKSPACE, SandboxPath, decode_name, encode_name, resolve
from station.core.wire import Artifact, Content

from .files import walk

if TYPE_CHECKING:
    from .live import LiveBox

FILE_BYTES = 16 * 1024 * 1024
TOTAL_BYTES = 64 * 1024 * 1024
MAX_NAMES = 100_000
_ROOT = SandboxPath(WORKSPACE, ".")


async def collect(
    live: LiveBox, wanted: Sequence[str], *, leave_out: frozenset[str] = frozenset()
) -> tuple[list[Artifact], list[str]]:
    """The files, in the order asked for, and the names or patterns that matched nothing.

    `leave_out`: paths that a pattern does not mean. Raises TooLarge naming the artifact: nothing is cut silently.
    """
    found: dict[str, Artifact] = {}
    missing: list[str] = []
    names: list[str] | None = None
    total = 0
    for asked in wanted:
        pattern = decode_name(asked)
        if is_pattern(pattern):
            names = await _names(live) if names is None else names
            matches = expression(pattern).fullmatch
            paths = [name for name in names if matches(name) and name not in leave_out]
        else:
            paths = [resolve(pattern).relative]
        before = len(found)
        for path in paths:
            if path not in found and (artifact := await _read(live, pattern, path)) is not None:
                total += artifact.size_bytes
                if total > TOTAL_BYTES:
                    raise TooLarge(f"the artifacts are over {TOTAL_BYTES} bytes together, at {artifact.path!r}")
                found[path] = artifact
        if len(found) == before and not any(path in found for path in paths):
            missing.append(asked)
    return list(found.values()), missing


async def _names(live: LiveBox) -> list[str]:
    names: list[str] = []
    async for entry in walk(live, _ROOT):
        if entry.kind == "f":
            names.append(entry.path)
        if len(names) > MAX_NAMES:
            raise TooLarge(f"the workspace has over {MAX_NAMES} files; name the artifacts instead of giving patterns")
    return names


async def _read(live: LiveBox, pattern: str, path: str) -> Artifact | None:
    """`None`: there is no such file, or it is none that may be read."""
    place = resolve(pattern) if not is_pattern(pattern) else SandboxPath(WORKSPACE, path)
    shown = encode_name(path if place.root == WORKSPACE else place.absolute)
    try:
        stream = await live.files.read(place, length=FILE_BYTES + 1)
    except (FileNotFound, NotARegularFile, PathRefused):
        return None
    async with stream:
        if stream.entry.size > FILE_BYTES:
            raise TooLarge(f"artifact {shown!r} has {stream.entry.size} bytes; an artifact has at most {FILE_BYTES}")
        data = b"".join([chunk async for chunk in stream])
    return Artifact(shown, len(data), hashlib.sha256(data).hexdigest(), Content.of(data))
