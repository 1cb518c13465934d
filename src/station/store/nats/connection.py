"""One connection of a station to NATS: what is asked over it is answered or refused within seconds.

Everything that is asked may be asked again: reads and purges by their nature, a message because it carries an id by
which it is found. So a lost connection and an election of the servers are ridden out here and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from station.core.errors import Refused, StationError, StorageFull, TooLarge, Unavailable

from .messages import Message, from_api, from_direct

log = logging.getLogger(__name__)

ANSWER_SECONDS = 4.5
"""The port's bound is 5 s."""
ELECTION_SECONDS = 15.0
"""How long a message is offered to servers that answer, and have no leader: an election takes 4 to 9 s."""
_TRY_SECONDS = 3.0
"""How long one try waits for its answer; not at all once its connection is lost."""
FULL_BYTES = 2 << 20
"""A disk with less has no room: for a chunk, and what the server needs beside it."""
_OLDEST = (2, 10, 23)
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_WRONG_LAST = (10071, 10164)
_FULL = (10002, 10023, 10028, 10047, 10077)
"""Bounds of the account, of the server and of the stream; a disk that cannot be written."""
_ID = "Nats-Msg-Id"
_LAST = "Nats-Expected-Last-Subject-Sequence"

Body: TypeAlias = Mapping[str, Any]


class ChangedMeanwhile(Exception):
    """Somebody else has written the subject: nothing was changed."""


class ApiError(Exception):
    """An answer of the servers that is an error."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(str(answer.get("description", "no reason was given")))
        self.code: int = answer.get("code", 500)
        self.err_code: int = answer.get("err_code", 0)


@dataclass(frozen=True)
class NatsAccess:
    """Where the servers are, and who the station is there. At most one of the ways to show that is given."""

    urls: tuple[str, ...]
    """None: it is ours, and away just now."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    place: Path | None = None
    """Where the data of a server of our own is: on a full disk it answers nothing. `None`: it is not ours to know."""

    @property
    def shown(self) -> str:
        """For sentences: without what an address may hold before its @."""
        return ", ".join(url.rpartition("@")[2] or url for url in self.urls) or "127.0.0.1"


class NatsConnection:
    """Made by `open`, ended by `aclose`. `clock` is in seconds and never goes back."""

    def __init__(self, where: Callable[[], NatsAccess], clock: Callable[[], float] = time.monotonic) -> None:
        """Use `open`."""
        self._where = where
        self._access = where()
        """As of the last connection, or try."""
        self._clock = clock
        self._client = Client()
        self._up = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._asking: set[asyncio.Timeout] = set()
        self._trouble = ""
        """What was last said about the connection."""
        self._denied: dict[str, str] = {}
        """By subject, that this user may not use it."""
        self._too_old: StationError | None = None
        self._closed = False

    @classmethod
    async def open(cls, where: Callable[[], NatsAccess]) -> Self:
        """`where` is asked at each connection. Raises Unavailable where no server answers or lets this user in, where
        it is too old or has no JetStream."""
        made = cls(where)
        opened = False
        try:
            await made._connect()
            opened = True
        finally:
            if not opened:
                await made.aclose()
        return made

    async def _connect(self) -> None:
        deadline = self._clock() + ANSWER_SECONDS
        while True:
            try:
                async with asyncio.timeout(deadline - self._clock()):
                    await self._connect_once()
                break
            except (TimeoutError, errors.Error, OSError, ValueError) as error:
                trouble = self._trouble or str(error)
                if "authorization" in trouble.lower():
                    raise Unavailable(
                        f"NATS at {self._access.shown} does not let this user in ({trouble}); nats.user and "
                        "nats.password, or nats.token, say who the station is",
                        retryable=False,
                    ) from error
                if self._clock() >= deadline:
                    raise self._unreachable(trouble) from error
                await asyncio.sleep(0.1)
        await self._on_connected()
        if self._too_old is not None:
            raise self._too_old

    async def _connect_once(self) -> None:
        access = self._access = self._where()
        if not access.urls:
            raise ConnectionRefusedError("nats-server has ended and is started anew")
        client = Client()
        try:
            await self._connect_to(client, access)
            # Ours is another one as soon as it has ended, so who answered is ours, and not somebody on its old port.
            if self._where() != access:
                raise ConnectionResetError("nats-server has ended meanwhile")
            self._client = client
        finally:
            if self._client is not client:
                await _close(client)

    async def _connect_to(self, client: Client, access: NatsAccess) -> None:
        shown: dict[str, Any] = {"user": access.user, "password": access.password, "token": access.token}
        await client.connect(
            list(access.urls),
            name="station",
            # The client's own first tries can neither be bounded nor cancelled.
            allow_reconnect=False,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]  # is slept
            connect_timeout=2,
            ping_interval=5,
            # Nothing is kept for a connection that comes back: it would come when nobody waits for it.
            pending_size=0,
            error_cb=self._on_error,
            disconnected_cb=partial(self._on_disconnected, client),
            reconnected_cb=self._on_connected,
            **{name: value for name, value in shown.items() if value},
        )
        # By itself it goes back to the same port, which of ours may be anybody's by then: `where` is asked.
        client.options["allow_reconnect"] = access.place is None

    async def aclose(self) -> None:
        """Repeating is no error."""
        self._closed = True
        self._up.set()
        await _close(self._client)

    @property
    def max_payload(self) -> int:
        """Bytes of one message."""
        return self._client.max_payload

    # ── what is asked ───────────────────────────────────────────────────────────────────────────────────────────

    async def api(self, name: str, body: Body | None = None) -> dict[str, Any]:
        """The answer of JetStream's API. Raises ApiError, Unavailable, Refused."""
        payload = b"" if body is None else json.dumps(body).encode()
        answer, _ = await self._ask(f"$JS.API.{name}", payload)
        return _checked(json.loads(answer.data))

    async def stream(self, name: str, **asked: Any) -> dict[str, Any] | None:
        """What the servers tell of a stream; `None`: there is none."""
        try:
            return await self.api(f"STREAM.INFO.{name}", asked)
        except ApiError as error:
            if error.err_code == _NO_STREAM:
                return None
            raise self._foreign(error) from error

    async def make_stream(self, name: str, config: Body) -> None:
        """Nothing happens where it is there already: it is as its operator wants it."""
        if await self.stream(name) is not None:
            return
        try:
            await self.api(f"STREAM.CREATE.{name}", {"name": name, **config})
        except ApiError as error:
            if await self.stream(name) is None:
                raise self._foreign(error) from error

    async def subjects(self, stream: str, pattern: str) -> dict[str, int]:
        """How many messages each subject has that matches."""
        found: dict[str, int] = {}
        while True:
            info = await self.stream(stream, subjects_filter=pattern, offset=len(found))
            if info is None:
                raise self.gone(stream)
            page = info["state"].get("subjects") or {}
            found |= page
            if not page or len(found) >= info.get("total", 0):
                return found

    async def last(self, stream: str, subject: str) -> Message | None:
        """The newest message of the subject, as its leader has it; `None`: there is none."""
        return await self._message(stream, {"last_by_subj": subject})

    async def next(self, stream: str, pattern: str, sequence: int) -> Message | None:
        """The first message at or after `sequence` whose subject matches; `None`: there is none."""
        return await self._message(stream, {"seq": sequence, "next_by_subj": pattern})

    async def chunk(self, stream: str, subject: str, sequence: int) -> Message | None:
        """As `next`, from any server that has it: for what never changes."""
        asked = json.dumps({"seq": sequence, "next_by_subj": subject}).encode()
        answer, _ = await self._ask(f"$JS.API.DIRECT.GET.{stream}", asked)
        return from_direct(answer) or await self.next(stream, subject, sequence)

    async def publish(
        self, stream: str, subject: str, payload: bytes, *, last: int | None = None, headers: Body | None = None
    ) -> int:
        """Writes a message durably, once, and answers its sequence.

        `last`: only where that is the sequence of the newest message of the subject (0: it has none), else
        ChangedMeanwhile. Raises Unavailable where no answer came: it is open then whether the message was written.
        """
        if len(payload) > self.max_payload:
            raise TooLarge(
                f"it has {len(payload)} bytes, and the NATS servers take {self.max_payload} in one message; their "
                "setting max_payload bounds it",
                limit=self.max_payload,
            )
        sent = {**(headers or {}), _ID: secrets.token_hex(12)}
        if last is not None:
            sent[_LAST] = str(last)
        answer, tries = await self._ask(subject, payload, sent, patience=ELECTION_SECONDS)
        try:
            return int(_checked(json.loads(answer.data))["seq"])
        except ApiError as error:
            if error.err_code not in _WRONG_LAST:
                raise self._foreign(error) from error
        # An earlier try, of which no answer came, may have written it.
        found = await self.last(stream, subject) if tries > 1 else None
        if found is not None and found.headers.get(_ID) == sent[_ID]:
            return found.sequence
        raise ChangedMeanwhile

    async def purge(self, stream: str, subject: str) -> int:
        """How many messages of the subject were removed."""
        try:
            return int((await self.api(f"STREAM.PURGE.{stream}", {"filter": subject}))["purged"])
        except ApiError as error:
            raise self._foreign(error) from error

    async def remove(self, stream: str, sequence: int) -> None:
        """One message; repeating is no error."""
        try:
            await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
        except ApiError as error:
            if await self._message(stream, {"seq": sequence}) is not None:
                raise self._foreign(error) from error

    def gone(self, stream: str) -> Unavailable:
        return Unavailable(f"NATS at {self._access.shown} has no stream {stream} any more: somebody deleted its bucket")

    async def _message(self, stream: str, asked: Body) -> Message | None:
        try:
            return from_api((await self.api(f"STREAM.MSG.GET.{stream}", asked))["message"])
        except ApiError as error:
            if error.err_code == _NO_MESSAGE:
                return None
            if error.err_code == _NO_STREAM:
                raise self.gone(stream) from error
            raise self._foreign(error) from error

    # ── how it is asked ─────────────────────────────────────────────────────────────────────────────────────────

    async def _ask(
        self, subject: str, payload: bytes, headers: Body | None = None, *, patience: float = ANSWER_SECONDS
    ) -> tuple[Msg, int]:
        """The answer, and at the how many-th try it came. `patience`: how long servers may have no leader."""
        begun, tries = self._clock(), 0
        deadline = begun + ANSWER_SECONDS
        told = subject.lower()  # as the client repeats it
        self._denied.pop(told, None)
        given = None if headers is None else {name: str(value) for name, value in headers.items()}
        while True:
            try:
                left = min(_TRY_SECONDS, deadline - self._clock())
                async with self._until_lost(left):
                    await self._connected()
                    tries += 1
                    return await self._client.request(subject, payload, timeout=left, headers=given), tries
            except errors.NoRespondersError as error:
                deadline, cause = begun + patience, error
                reason = f"nobody there answers for {subject[:80]}: no JetStream, or no leader just now"
            except (TimeoutError, errors.Error, OSError) as error:
                reason, cause = self._trouble or "no answer came", error  # type: ignore[assignment]
            if told in self._denied:
                raise Refused(
                    f"NATS at {self._access.shown} refuses this user: {self._denied[told]}; grant it there, or name "
                    "another user (nats.user, nats.token)"
                ) from cause
            if self._clock() >= deadline - 0.1:
                raise self._unreachable(reason) from cause
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _until_lost(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError after so long, or as soon as the connection is lost: no answer comes over another one."""
        async with asyncio.timeout(seconds) as bound:
            if self._up.is_set():
                self._asking.add(bound)
            try:
                yield
            finally:
                self._asking.discard(bound)

    def _wake(self) -> None:
        """Who waits for an answer looks why none can come."""
        for bound in self._asking:
            bound.reschedule(0.0)
        self._asking.clear()

    async def _connected(self) -> None:
        if self._closed:
            raise Unavailable("the connection to NATS is closed: the station is stopping")
        if self._client.is_closed:
            # Servers that turn a user away end more than a connection, and ours is asked for anew.
            async with self._connecting:
                if self._client.is_closed:
                    await self._connect()
        await self._up.wait()
        if self._too_old is not None:
            raise self._too_old

    def _foreign(self, error: ApiError) -> StationError:
        """Errors of the servers become ours here."""
        where = f"NATS at {self._access.shown}"
        if error.err_code in _FULL:
            return StorageFull(f"{where} has no room: {error}", retryable=True)
        return Unavailable(f"{where} cannot do it: {error} (code {error.err_code})", retryable=error.code >= 500)

    def _unreachable(self, reason: str) -> StationError:
        place = self._access.place
        if place is not None and shutil.disk_usage(place).free < FULL_BYTES:
            return StorageFull("the disk is full: no room for NATS", retryable=True)
        return Unavailable(
            f"NATS at {self._access.shown} did not answer within {ANSWER_SECONDS:g} s: {reason}; nats.url names it",
        )

    # ── what the client tells ───────────────────────────────────────────────────────────────────────────────────

    async def _on_error(self, error: Exception) -> None:
        self._trouble = str(error) or type(error).__name__
        if "permissions violation" in self._trouble.lower():
            log.error("NATS: %s", self._trouble)
            # The client knows of it here alone; whoever asked would wait.
            self._denied |= dict.fromkeys(self._trouble.split('"')[1::2], self._trouble)
            self._wake()
        elif self._up.is_set():
            log.warning("NATS: %s", self._trouble)

    async def _on_disconnected(self, client: Client) -> None:
        if client is self._client and self._up.is_set() and not self._closed:
            self._up.clear()
            self._wake()
            log.warning("the connection to NATS at %s is lost: %s", self._access.shown, self._trouble or "no reason")

    async def _on_connected(self) -> None:
        self._too_old = too_old(self._client.connected_server_version)
        if self._too_old is not None:
            log.error("%s", self._too_old)
        self._trouble = ""
        self._up.set()
        log.info("connected to NATS at %s", self._access.shown)


def too_old(version: Any) -> Unavailable | None:
    """Why a server of that version is not used; `None`: it is."""
    if (version.major, version.minor, version.patch) >= _OLDEST:
        return None
    found, floor = (".".join(map(str, parts)) for parts in ((version.major, version.minor, version.patch), _OLDEST))
    return Unavailable(
        f"the NATS server has version {found}; {floor} is the oldest that keeps what it has acknowledged when it is "
        "killed, and older ones ignore what they do not know. Update it, name another with nats.url, or leave nats.url "
        "out for a server of the station's own",
        retryable=False,
    )


async def _close(client: Client) -> None:
    """What it still has for servers that do not listen, it would wait with; one that never began to connect asserts."""
    with suppress(TimeoutError, AssertionError):
        async with asyncio.timeout(_TRY_SECONDS):
            await client.close()


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise ApiError(answer["error"])
    return answer
