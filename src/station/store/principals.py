"""The documents port: what is kept of API keys and deployments, each a small document under compare-and-set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from station.core.errors import InternalError

_KEY = re.compile(r"[a-z]+/[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Document:
    key: str
    value: bytes
    revision: int
    """Of the write that it was read from, larger than that of every write before, also after a deletion."""


class Documents(Protocol):
    """An answer means: written durably. Every method raises StorageFull without room and Unavailable where the store
    cannot be written or read; nothing was changed then."""

    async def get(self, key: str) -> Document | None:
        """`None`: there is none."""

    async def list(self, kind: str) -> Sequence[Document]:
        """All whose keys begin with `kind` and a slash, by key."""

    async def create(self, key: str, value: bytes) -> Document:
        """Raises AlreadyExists where there is one."""

    async def put(self, document: Document) -> Document:
        """With its new revision. Raises Conflict unless `document.revision` is that of what is stored."""

    async def delete(self, key: str) -> bool:
        """Whether there was one."""

    async def aclose(self) -> None:
        """Repeating is no error."""


def check_document_key(key: str) -> str:
    """`key` itself: a kind, a slash, and up to 64 letters, digits, `-` and `_`, which every body can hold. Raises
    InternalError: none comes from outside."""
    if not _KEY.fullmatch(key):
        raise InternalError(f"{key[:80]!r} is no key of a document")
    return key
