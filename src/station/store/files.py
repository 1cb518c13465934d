"""The files port: contents by key, kept whole and checked by digest.

Its bodies: a directory of blobs named by digest (`directory`), and the object store of NATS (`nats.files`).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from station.core.records import Owner
from station.core.stored import StoredFile


@dataclass(frozen=True)
class Facts:
    """What is said of a file when it is stored."""

    content_type: str
    expires_at: float | None = None
    """`None`: never."""
    metadata: dict[str, str] = field(default_factory=dict)
    size: int | None = None
    """What was announced; another size is refused. `None`: whatever comes."""
    checksum: str | None = None
    """SHA-256 in hex that the content must have; `None`: whatever comes."""


@dataclass(frozen=True)
class Page:
    files: Sequence[StoredFile]
    next: str | None = None
    """The cursor of the next page; `None`: there is none."""


@dataclass(frozen=True)
class Room:
    """How much is stored, and how much may be."""

    files: int
    used_bytes: int
    """Of distinct contents: one that an owner has under two keys counts once, one that two owners have twice."""
    limit_bytes: int


@dataclass(frozen=True)
class Swept:
    expired: int
    orphan_bytes: int
    """Of contents that no key names any more, and of what was never finished."""


MayReplace: TypeAlias = Callable[[StoredFile], bool]


class StoredContent(Protocol):
    """The bytes of one stored file, to be iterated once."""

    file: StoredFile

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Raises InternalError where the whole content was read and has another digest than was acknowledged: what is
        damaged is never served silently."""

    async def aclose(self) -> None:
        """Ends the read. Repeating is no error."""


class FileStore(Protocol):
    """Files of many owners; a key of another owner is as one that was never used.

    An answer of `put` means: written durably, readable with the digest that it tells. Every method raises Unavailable,
    within 5 seconds, where the store cannot be reached. Nothing was changed then; or, where it went away before it
    answered, all that was asked for, now or later and once.
    """

    async def put(
        self,
        owner: Owner,
        key: str,
        content: AsyncIterable[bytes],
        facts: Facts,
        *,
        may_replace: MayReplace = lambda _there: True,
    ) -> StoredFile:
        """Stores all of `content` or nothing, also when it raises; a key that is there is overwritten in one step, if
        `may_replace` says so of what is there then.

        Raises InvalidInput where size or checksum are not those of `facts`, TooLarge beyond the bound of one file,
        StorageFull where the store, its quota or its disk has no room, AlreadyExists.
        """

    async def get(self, owner: Owner, key: str, now: float) -> StoredFile | None:
        """`None`: no such file, or it has expired by `now`."""

    async def open(self, owner: Owner, key: str, now: float, *, offset: int = 0) -> StoredContent | None:
        """The file as it is now: written again or deleted meanwhile, it is still read to its end."""

    async def list(self, owner: Owner, prefix: str, now: float, *, after: str = "", limit: int = 1000) -> Page:
        """By key; keys above `after` alone. What has expired is not among them."""

    async def delete(self, owner: Owner, key: str) -> bool:
        """Whether there was one."""

    async def delete_below(self, owner: Owner, prefix: str) -> int:
        """All whose keys begin so; how many. `prefix` ends with a slash."""

    def reserve(self, size: int, *, anyway: bool = False) -> None:
        """Counts so many bytes as coming, until they are released. Raises TooLarge and StorageFull as `put` does,
        unless `anyway`."""

    def release(self, size: int) -> None: ...

    async def room(self) -> Room:
        """Of all owners."""

    async def sweep(self, now: float) -> Swept:
        """Removes what has expired, and contents without a key that are older than the longest upload."""

    async def aclose(self) -> None:
        """Repeating is no error."""
