"""How files lie in a bucket of the NATS object store, and what the names in it say together. Pure.

An object has a name, which is the owner and the key, and lies as other clients of NATS have it: `nats object ls` shows
it. Its facts are one message, replaced by compare-and-set: so the names of the bucket are the catalogue, and there is
no other.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

from station.core.records import Owner
from station.core.stored import StoredFile

from .messages import Message

K = TypeVar("K")

_OURS = "station"
"""In the metadata of an object: what the store needs and NATS has no field for."""


@dataclass(frozen=True)
class Content:
    """Bytes that came in one upload, under an id of their own."""

    nuid: str
    chunks: int
    chunk_bytes: int
    """Of each but the last."""
    first: int
    last: int
    """Sequences of its first and its last message; 0: it is empty."""


@dataclass(frozen=True)
class Entry:
    """What the bucket says of one key."""

    owner: Owner
    file: StoredFile
    content: Content
    sequence: int = 0
    """Of the message that says so: the next one names it."""


class Layout:
    """Subjects of one bucket."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.stream = f"OBJ_{bucket}"
        self._names = f"$O.{bucket}.M."
        self._chunks = f"$O.{bucket}.C."
        self.all_names, self.all_chunks = f"{self._names}>", f"{self._chunks}>"

    def config(self, replicas: int) -> dict[str, object]:
        return {
            "subjects": [self.all_chunks, self.all_names],
            "storage": "file",
            "num_replicas": replicas,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        }

    def chunks(self, nuid: str) -> str:
        return self._chunks + nuid

    def nuid(self, subject: str) -> str:
        """Of a subject of chunks."""
        return subject.removeprefix(self._chunks)

    def name(self, owner: Owner, key: str) -> str:
        """The subject that says what a key has."""
        return self._names + base64.urlsafe_b64encode(object_name(owner, key).encode()).decode()

    def encode(self, entry: Entry) -> bytes:
        file, content = entry.file, entry.content
        digest = base64.urlsafe_b64encode(bytes.fromhex(file.checksum)).decode()
        ours = {"owner": asdict(entry.owner), "file": asdict(file), "first": content.first, "last": content.last}
        return json.dumps(
            {
                "name": object_name(entry.owner, file.key),
                "bucket": self.bucket,
                "nuid": content.nuid,
                "size": file.size,
                "chunks": content.chunks,
                "digest": f"SHA-256={digest}",
                "options": {"max_chunk_size": content.chunk_bytes},
                "metadata": {_OURS: json.dumps(ours)},
            }
        ).encode()

    def encode_deleted(self, entry: Entry) -> bytes:
        name = object_name(entry.owner, entry.file.key)
        return json.dumps(
            {"name": name, "bucket": self.bucket, "nuid": entry.content.nuid, "size": 0, "chunks": 0, "deleted": True}
        ).encode()


class Index:
    """What all names say, as told by messages in their order."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._by_key: dict[tuple[Owner, str], str] = {}
        self._by_checksum: dict[str, set[str]] = defaultdict(set)
        self._owned: Counter[tuple[Owner, str]] = Counter()
        """By owner and checksum how many keys have that."""
        self._nuids: Counter[str] = Counter()
        self._others: dict[str, str] = {}
        """By subject the contents of objects that somebody else keeps in the bucket."""
        self.gone: dict[str, int] = {}
        """By subject the sequence of what says that a name was deleted."""
        self.unreadable: set[str] = set()
        """Subjects whose message makes no sense: what they name is not known."""
        self.used = 0
        """Bytes of distinct contents of each owner."""

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def take(self, message: Message) -> None:
        """Repeating is no error, nor is an older message than the one that is known."""
        found = self._entries.get(message.subject)
        if message.sequence <= max(found.sequence if found else 0, self.gone.get(message.subject, 0)):
            return
        self.forget(message.subject)
        try:
            facts = json.loads(message.data)
            if facts.get("deleted"):
                self.gone[message.subject] = message.sequence
            elif ours := (facts.get("metadata") or {}).get(_OURS):
                self._add(message.subject, _entry(facts, json.loads(ours), message.sequence))
            else:
                self._add_other(message.subject, facts["nuid"])
        except (ValueError, TypeError, KeyError, AttributeError):
            self.unreadable.add(message.subject)

    def note(self, subject: str, entry: Entry | None, sequence: int) -> None:
        """What was written here. `None`: the name was deleted."""
        self.forget(subject)
        if entry is None:
            self.gone[subject] = sequence
        else:
            self._add(subject, entry)

    def get(self, owner: Owner, key: str) -> Entry | None:
        subject = self._by_key.get((owner, key))
        return None if subject is None else self._entries[subject]

    def sequence(self, subject: str) -> int:
        """Of what is known of a name; 0: nothing."""
        found = self._entries.get(subject)
        return found.sequence if found else self.gone.get(subject, 0)

    def below(self, owner: Owner, prefix: str, after: str = "") -> list[Entry]:
        """By key."""
        keys = sorted(k for who, k in self._by_key if who == owner and k.startswith(prefix) and k > after)
        return [self._entries[self._by_key[owner, key]] for key in keys]

    def expired(self, now: float) -> list[Entry]:
        return [it for it in self._entries.values() if it.file.expires_at is not None and it.file.expires_at <= now]

    def content(self, entry: Entry) -> Content:
        """The newest with that checksum: an older one may have been damaged since."""
        return self._newest(entry.file.checksum).content

    def twice(self) -> list[Entry]:
        """Those whose content is there under another key too, and newer: they are to have that one."""
        found = []
        for checksum, subjects in self._by_checksum.items():
            if len(subjects) > 1:
                newest = self._newest(checksum).content
                same = (self._entries[subject] for subject in subjects)
                found += [replace(it, content=newest) for it in same if it.file.size and it.content.nuid != newest.nuid]
        return found

    def is_named(self, nuid: str) -> bool:
        return self._nuids[nuid] > 0

    def _newest(self, checksum: str) -> Entry:
        # By the place of their last chunk: facts may be rewritten later than the bytes that they name.
        return max((self._entries[s] for s in self._by_checksum[checksum]), key=lambda it: it.content.last)

    def _add(self, subject: str, entry: Entry) -> None:
        checksum = entry.file.checksum
        self.used += entry.file.size if not self._owned[entry.owner, checksum] else 0
        self._owned[entry.owner, checksum] += 1
        self._entries[subject] = entry
        self._by_key[entry.owner, entry.file.key] = subject
        self._by_checksum[checksum].add(subject)
        self._nuids[entry.content.nuid] += 1

    def _add_other(self, subject: str, nuid: object) -> None:
        if not isinstance(nuid, str):
            raise TypeError("an object has an id")
        self._others[subject] = nuid
        self._nuids[nuid] += 1

    def forget(self, subject: str) -> None:
        """Nothing is known of that name."""
        self.gone.pop(subject, None)
        self.unreadable.discard(subject)
        if other := self._others.pop(subject, None):
            _drop_one(self._nuids, other)
        if entry := self._entries.pop(subject, None):
            del self._by_key[entry.owner, entry.file.key]
            checksum = entry.file.checksum
            self._by_checksum[checksum].discard(subject)
            if not self._by_checksum[checksum]:
                del self._by_checksum[checksum]
            if _drop_one(self._owned, (entry.owner, checksum)):
                self.used -= entry.file.size
            _drop_one(self._nuids, entry.content.nuid)


def _drop_one(counts: Counter[K], name: K) -> bool:
    """Whether it was the last."""
    counts[name] -= 1
    if is_last := not counts[name]:
        del counts[name]
    return is_last


def object_name(owner: Owner, key: str) -> str:
    """As other clients see it."""
    return "/".join((quote(owner.account, safe=""), quote(owner.deployment, safe=""), key))


def _entry(facts: dict[str, Any], ours: dict[str, Any], sequence: int) -> Entry:
    content = Content(
        str(facts["nuid"]),
        int(facts["chunks"]),
        int(facts["options"]["max_chunk_size"]),
        int(ours["first"]),
        int(ours["last"]),
    )
    return Entry(Owner(**ours["owner"]), StoredFile(**ours["file"]), content, sequence)


class Resting:
    """Since when things are as they are, as far as it was looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def see(self, things: Mapping[str, int], now: float) -> None:
        """All there are now, each with a number that changes when it does."""
        known = self._seen
        self._seen = {
            name: known[name] if name in known and known[name][0] == number else (number, now)
            for name, number in things.items()
        }

    def since(self, then: float) -> list[str]:
        """Those that were then as they are now."""
        return [name for name, (_, begun) in self._seen.items() if begun <= then]
