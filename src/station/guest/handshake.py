"""The hello of a new connection, whatever stood in the stream before it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from station.core.errors import BoxLost, Unavailable

from .frames import (
    HELLO_ACK,
    PROTOCOL_VERSION,
    RESYNC_ZEROS,
    Decoder,
    Frame,
    Hello,
    hello_frame,
    parse_hello_ack,
    seal,
)
from .outbox import CREDIT

AGAIN_SECONDS = 2.0


class ByteStream(Protocol):
    """Both directions of one connection to a guest: `station.backends.base.ByteStream`, which this layer cannot see."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes) -> None: ...

    async def aclose(self) -> None: ...


class HostAway(ConnectionError):
    """For whoever opens a stream: the box may live, and nothing that could tell can be asked now. Nothing is decided
    about the box meanwhile, and no time counts."""


class GuestSilent(BoxLost):
    """There is a stream, and no answer to the hello."""


class Connection(NamedTuple):
    """A stream whose both ends know the nonce."""

    stream: ByteStream
    nonce: bytes
    decoder: Decoder
    hello: Hello
    first: list[Frame]
    """What came with the hello."""


def speaks_to(version: int, ours: int) -> bool:
    """Whether a station that speaks `ours` speaks to a guest that answers with `version`: its own, or that of the
    release before."""
    return max(1, ours - 1) <= version <= ours


async def greet(stream: ByteStream, wanted: Mapping[int, tuple[int, int]], *, seconds: float) -> Connection:
    """Says hello until the guest answers. Raises GuestSilent after `seconds`, OSError when the stream breaks, and
    Unavailable for a guest of a version that is not spoken to: it lives, and others can.

    The stream stays the caller's to close.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _greet(stream, wanted)
    except TimeoutError as error:
        raise GuestSilent(f"the guest did not answer within {seconds:g} s") from error


async def _greet(stream: ByteStream, wanted: Mapping[int, tuple[int, int]]) -> Connection:
    nonce = secrets.token_bytes(16)
    hello = seal([hello_frame(nonce, CREDIT, wanted)], nonce)
    decoder = Decoder(nonce)
    await stream.send(hello)
    while True:
        try:
            async with asyncio.timeout(AGAIN_SECONDS):
                frames = await _first_frames(stream, decoder)
        except TimeoutError:
            # Half a frame of an earlier session may have swallowed it: zeros end that one.
            await stream.send(bytes(RESYNC_ZEROS) + hello)
            continue
        answer = parse_hello_ack(frames[0].payload)
        if not speaks_to(answer.version, PROTOCOL_VERSION):
            raise Unavailable(
                f"the guest of this box, of release {answer.guest_version}, speaks version {answer.version} of the "
                f"protocol, and this station, {PROTOCOL_VERSION}, that one and the one before. The box is kept, with "
                "what runs in it: a station of that release takes it over; or delete the sandbox",
                retryable=False,
                guest_version=answer.guest_version,
            )
        return Connection(stream, nonce, decoder, answer, frames[1:])


async def _first_frames(stream: ByteStream, decoder: Decoder) -> list[Frame]:
    while True:
        data = await stream.receive()
        if not data:
            raise ConnectionResetError("the guest closed the connection")
        frames = decoder.feed(data)
        if frames:
            assert frames[0].kind == HELLO_ACK
            return frames
