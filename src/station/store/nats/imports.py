"""Takes over, once, what the bucket `sandbox-sessions` of the reference program tells of sandboxes."""

from __future__ import annotations

import json
from datetime import datetime

from station.core.errors import AlreadyExists, InvalidInput
from station.core.ids import check_name, is_tool_id, new_tool_id, uid_of
from station.core.records import Owner, SandboxRecord
from station.core.spec import LifecycleClass, Spec
from station.core.states import State

from .connection import NatsConnection
from .messages import Message
from .registry import NatsRegistry

SOURCE = "sandbox-sessions"
_KEYS = f"$KV.{SOURCE}.session."
_REASON = (
    f"it was imported from the bucket {SOURCE}: its box was another program's, and its files were in that box; the "
    "next use makes a new one"
)


async def import_sessions(connection: NatsConnection, registry: NatsRegistry, *, now: float) -> str | None:
    """What was imported and what was not, for the log; `None`: there was nothing to be done, or it was done before.

    The source stays as it is. A sandbox whose name is taken is left out. Raises what asking does; then the next call
    goes on.
    """
    stream = f"KV_{SOURCE}"
    if await connection.stream(stream) is None or await registry.is_done(SOURCE):
        return None
    imported, skipped = 0, []
    for subject in sorted(await connection.subjects(stream, f"{_KEYS}>")):
        message = await connection.last(stream, subject)
        if message is None or "KV-Operation" in message.headers:
            continue
        try:
            await registry.create(record_of(message, now))
            imported += 1
        except AlreadyExists:
            skipped.append(f"{subject.removeprefix(_KEYS)}: there is a sandbox of that name")
        except (ValueError, TypeError, KeyError, AttributeError, InvalidInput) as error:
            skipped.append(f"{subject.removeprefix(_KEYS)}: {type(error).__name__}: {error}"[:200])
    await registry.note_done(SOURCE)
    told = f"{imported} sandboxes were imported from the bucket {SOURCE}"
    return told + "".join(f"; left out {what}" for what in skipped)


def record_of(message: Message, now: float) -> SandboxRecord:
    """A sandbox without a box, named as its key was. Raises InvalidInput, ValueError, TypeError, KeyError or
    AttributeError for what cannot be read."""
    told = json.loads(message.data)
    key = told["key"]
    name = check_name(":".join(str(key[part]) for part in ("Namespace", "ID", "Key")))
    created, used = (_time(told.get(field), now) for field in ("created_at", "last_used_at"))
    session = str(told["session_id"])
    return SandboxRecord(
        uid=uid_of(Owner().deployment, name),
        name=name,
        owner=Owner(),
        spec=Spec(_backend(str(told["backend"])), image=str(told["image"]) or None),
        class_=LifecycleClass.KEPT,
        state=State.SAVED,
        generation=1,
        created_at=created,
        updated_at=now,
        last_active_at=used,
        tool_id=session if is_tool_id(session) else new_tool_id(created),
        reason=_REASON,
    )


def _backend(text: str) -> str:
    if text not in ("docker", "fly_machines"):
        raise ValueError(f"the backend {text[:40]!r} is unknown")
    return text


def _time(text: object, otherwise: float) -> float:
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else otherwise
