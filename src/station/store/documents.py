"""A sandbox record as a stored document and back. Shared by every body of the registry, so that they cannot differ."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from station.core import codec
from station.core.errors import StationError
from station.core.records import Owner, SandboxRecord

from .registry import Damaged

SCHEMA = 1
# Facts about one box; what a later version wrote there must not stick to the next box.
_NOT_KEPT = frozenset({"box", "schema", "fence", "extra"})


def encode(record: SandboxRecord) -> bytes:
    """The document of `record`: its fields, those of a later version that were read with it, and the schema number."""
    plain = codec.to_plain(record)
    del plain["fence"], plain["extra"]
    return json.dumps(_merged({"schema": SCHEMA, **plain}, record.extra)).encode()


def decode(uid: str, raw: bytes, fence: int) -> SandboxRecord | Damaged:
    """The record, or why it is none. Never raises."""
    document: Any = None
    try:
        document = json.loads(raw)
        record = codec.from_plain(SandboxRecord, document)
        problem = _problem(uid, record)
        known = codec.to_plain(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, StationError) as error:
        return _damaged(uid, raw, fence, document, f"{type(error).__name__}: {error}")
    if problem:
        return _damaged(uid, raw, fence, document, problem)
    return replace(record, fence=fence, extra=_unknown(document, known, skip=_NOT_KEPT))


def _problem(uid: str, record: SandboxRecord) -> str | None:
    """Field types that no constructor checks, and the one fact that the key says as well."""
    if record.uid != uid:
        return "it names another uid than its key"
    # Read from a file: the types are a hope.
    texts: list[Any] = [record.name, record.spec.backend]
    times: list[Any] = [record.created_at, record.updated_at, record.last_active_at]
    generation: Any = record.generation
    if not all(isinstance(text, str) for text in texts):
        return "its name or its backend is not text"
    if type(generation) is not int or generation < 0:
        return "its generation is not a number"
    if not all(isinstance(at, int | float) for at in times):
        return "one of its times is not a number"
    return None


def _damaged(uid: str, raw: bytes, fence: int, document: Any, reason: str) -> Damaged:
    facts = document if isinstance(document, dict) else {}
    name, generation = facts.get("name"), facts.get("generation")
    return Damaged(
        uid=uid,
        reason=reason[:500],
        raw=raw,
        fence=fence,
        name=name if isinstance(name, str) else None,
        generation=generation if type(generation) is int else None,
        owner=_owner(facts.get("owner")),
    )


def _owner(facts: Any) -> Owner | None:
    if not isinstance(facts, dict):
        return None
    account, deployment = facts.get("account"), facts.get("deployment")
    return Owner(account, deployment) if isinstance(account, str) and isinstance(deployment, str) else None


def _unknown(document: dict[str, Any], known: dict[str, Any], *, skip: frozenset[str] = frozenset()) -> dict[str, Any]:
    """What `document` has beyond `known`, at every depth of mappings."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key in skip:
            continue
        if key not in known:
            found[key] = value
        elif isinstance(value, dict) and isinstance(known[key], dict) and (inner := _unknown(value, known[key])):
            found[key] = inner
    return found


def _merged(known: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """`known` with `extra` below it: what we know always wins."""
    result = dict(known)
    for key, value in extra.items():
        if key not in result:
            result[key] = value
        elif isinstance(value, dict) and isinstance(result[key], dict):
            result[key] = _merged(result[key], value)
    return result
