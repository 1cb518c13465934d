"""Files between the store and a sandbox, in both directions: streamed, and checked by digest at both ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from station.core.errors import FileNotFound
from station.core.paths import encode_name
from station.core.records import Owner
from station.core.stored import Staged, StoredFile, content_type_of, expires_at
from station.store.files import Facts, FileStore, StoredContent

from .files import Files

if TYPE_CHECKING:
    from .live import LiveBox


class Staging:
    def __init__(self, files: Files, store: FileStore, *, now: Callable[[], float]) -> None:
        self._files = files
        self._store = store
        self._now = now

    async def stage(
        self, live: LiveBox, owner: Owner, key: str, destination: str, *, mode: int = 0o644, overwrite: bool = True
    ) -> Staged:
        """The file of the store is at `destination`, whole and with the digest that the store acknowledged, or nothing
        has changed. Makes parents. Raises FileNotFound for a key that is not there, and what a write raises."""
        content = await self._store.open(owner, key, self._now())
        if content is None:
            raise not_found(key)
        async with aclosing(content):
            done = await self._files.write(
                live, destination, _sealed(content), mode=mode, overwrite=overwrite, parents=True, sealed=True
            )
        return Staged(done.entry.path, content.file.size, content.file.checksum, done.created)

    async def publish(
        self,
        live: LiveBox,
        owner: Owner,
        source: str,
        key: str,
        *,
        ttl_seconds: float | None = None,
        content_type: str | None = None,
        sandbox_id: str,
        only_own: bool = False,
    ) -> StoredFile:
        """The file of the sandbox is in the store as it was read: a file that becomes shorter meanwhile is a Conflict,
        and nothing was stored. `only_own`: AlreadyExists for a key that another than `sandbox_id` has published. Raises
        what a read and a `put` raise."""
        read = await self._files.read(live, source)
        name = read.entry.path
        facts = Facts(
            content_type or content_type_of(name),
            expires_at(key, self._now(), ttl_seconds),
            {"original_path": encode_name(name), "sandbox_id": sandbox_id},
            size=read.length,
        )

        def may_replace(there: StoredFile) -> bool:
            return not only_own or there.metadata.get("sandbox_id") == sandbox_id

        async with read:
            return await self._store.put(owner, key, read.chunks, facts, may_replace=may_replace)


def not_found(key: str) -> FileNotFound:
    return FileNotFound(f"file not found: {key}", key=key)


async def _sealed(content: StoredContent) -> AsyncIterator[bytes]:
    """With the acknowledged digest behind it, which the guest checks before the file gets its name."""
    async for chunk in content:
        yield chunk
    yield bytes.fromhex(content.file.checksum)
