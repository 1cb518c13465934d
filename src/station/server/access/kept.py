"""Documents of one kind as dataclasses: in memory for whoever asks, and written down before anybody is told."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Generic, TypeVar

from station.core import codec
from station.core.errors import Conflict
from station.store.principals import Document, Documents

log = logging.getLogger(__name__)

T = TypeVar("T")


class Kept(Generic[T]):
    """Of a store whose only writer this is."""

    def __init__(self, documents: Documents, kind: str, cls: type[T]) -> None:
        self._documents = documents
        self._kind = kind
        self._cls = cls
        self._known: dict[str, tuple[T, Document]] = {}

    async def load(self) -> None:
        """One that cannot be read is left where it is, and stands for nothing."""
        for document in await self._documents.list(self._kind):
            try:
                value = codec.from_plain(self._cls, json.loads(document.value))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                log.error("the document %s is damaged, and stands for nothing: %s", document.key, error)
            else:
                self._known[document.key.partition("/")[2]] = value, document

    def get(self, name: str) -> T | None:
        found = self._known.get(name)
        return None if found is None else found[0]

    def all(self) -> list[T]:
        return [value for value, _ in self._known.values()]

    async def create(self, name: str, value: T) -> None:
        """Raises AlreadyExists."""
        self._known[name] = value, await self._documents.create(f"{self._kind}/{name}", self._encoded(value))

    async def put(self, name: str, value: T) -> None:
        """Raises Conflict where there is none, or it was changed or deleted meanwhile."""
        found = self._known.get(name)
        if found is None:
            raise Conflict(f"there is no {self._kind} {name} any more", retryable=False)
        written = await self._documents.put(replace(found[1], value=self._encoded(value)))
        if name in self._known:
            self._known[name] = value, written

    async def delete(self, name: str) -> None:
        """Repeating is no error."""
        await self._documents.delete(f"{self._kind}/{name}")
        self._known.pop(name, None)

    @staticmethod
    def _encoded(value: T) -> bytes:
        return json.dumps(codec.to_plain(value)).encode()
