"""Idempotency-Key: a POST that is sent again under the same key is done once and answered the same.

Commands and runs get a process id that is made from the key, so that what was under way when a station died is joined,
not done again (docs/decisions/0004); of commands nothing else is kept. All other answers are (`store.answers`).
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from station.control.locks import KeyedLocks
from station.core.errors import Conflict, InvalidInput, StationError
from station.core.wire import ExecRequest, RunRequest
from station.server.access.guard import caller
from station.server.requests import LARGE_BODY, read_body
from station.store.answers import KEPT_SECONDS, Answers, Kept

from .operation import Again, Call, Operation

log = logging.getLogger(__name__)

HEADER = b"idempotency-key"
KEY = "station.idempotency_key"
"""Where the scope of a request has it, if it has one."""
_FORM = re.compile(rb"[\x21-\x7e]{1,255}")

R = TypeVar("R", ExecRequest, RunRequest)
Work: TypeAlias = Callable[[Receive], Awaitable[Response]]
"""Answers a request whose body comes from there."""


class Once:
    """For one station; the answers are their maker's to close."""

    def __init__(self, answers: Answers, *, now: Callable[[], float]) -> None:
        self._answers = answers
        self._now = now
        self._turns = KeyedLocks()

    async def answer(self, request: Call, work: Work) -> Response:
        """The first answer under the key of the request; who comes while that is under way waits for it. A failure is
        no answer: who comes after it tries again.

        Raises InvalidInput for a key that is none, or where none is taken; Conflict for one of another request, and
        where the answer is not kept; where the key cannot be written down, and nothing is done; and what `work` raises.
        """
        again, owner = request.operation.again, caller(request).owner
        name = _name(request)
        _check_taken(request.operation)
        raw = await read_body(request, LARGE_BODY)
        wanted = _digest(request.method.encode(), _target(request.scope), raw)
        async with self._turns.holding(name.hex()):
            kept = await self._answers.begin(owner, name, wanted, self._now())
            if kept is not None and kept.request != wanted:
                raise Conflict(
                    f"this Idempotency-Key came with another request in the last {KEPT_SECONDS / 3600:g} hours; choose "
                    "a new one",
                    field="Idempotency-Key",
                )
            if kept is not None and kept.status is not None:
                return _given(kept)
            try:
                response = await work(_replayed(raw, request.receive))
            except StationError as error:
                if error.status < 500:
                    await _tried(self._answers.forget(name))
                raise
            if again is not Again.JOINS:
                body = bytes(response.body) if again is Again.ANSWER else None
                answer = Kept(wanted, response.status_code, response.headers.get("content-type"), body)
                await _tried(self._answers.keep(owner, name, self._now(), answer))
            return response


async def _tried(keeping: Awaitable[None]) -> None:
    """What was done is answered as it was, also where that cannot be written down: only who asks again is not known."""
    try:
        await keeping
    except StationError as error:
        log.warning("what was answered under an Idempotency-Key is not kept: %s", error)


def _given(kept: Kept) -> Response:
    assert kept.status is not None
    if kept.body is None:
        raise Conflict("this was done and answered; the answer is not kept, as it was too large or held a secret")
    return Response(kept.body, kept.status, media_type=kept.media)


def _check_taken(operation: Operation) -> None:
    """Raises InvalidInput where a key would be passed over though it was meant."""
    if not operation.takes_key:
        raise InvalidInput(
            "this takes no Idempotency-Key, as its body is not kept; a file is stored once with PUT and a key of your "
            "own, or in pieces (POST /uploads)",
            field="Idempotency-Key",
        )


def named(wanted: R, request: Request) -> R:
    """With an id that is made from the key, where there is one and the caller has chosen no id."""
    if KEY not in request.scope or wanted.id is not None:
        return wanted
    text = base64.b32encode(_digest(_name(request), request.scope["path"].encode())).decode()
    return replace(wanted, id=f"prc_{text.rstrip('=').lower()}")


def _name(request: Request) -> bytes:
    key: bytes = request.scope[KEY]
    if not _FORM.fullmatch(key):
        raise InvalidInput("an Idempotency-Key has 1 to 255 visible ASCII characters", field="Idempotency-Key")
    owner = caller(request).owner
    return _digest(owner.account.encode(), owner.deployment.encode(), key)


def _target(scope: Scope) -> bytes:
    path: str = scope["path"]
    return path.encode("utf-8", "surrogatepass") + b"?" + bytes(scope["query_string"])


def _digest(*parts: bytes) -> bytes:
    """Of the parts as they are, not only of their sequence."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8) + part)
    return whole.digest()


def _replayed(raw: bytes, rest: Receive) -> Receive:
    """A body that was read, once more; what follows it is as it comes."""
    begun = False

    async def receive() -> Message:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": raw, "more_body": False}
        return await rest()

    return receive
