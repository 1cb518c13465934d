"""A session whose box cannot be asked for: nothing is decided, no time counts, and whoever cannot wait is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from station.core.errors import BoxLost, Unavailable
from station.guest import frames
from station.guest.frames import StartRecord
from station.guest.session import GuestSession, HostAway

from .peer import Door, Peer, exit_payload, listed

PATIENCE_SECONDS = 0.2
SLEEP = StartRecord(("sleep", "100"))


async def connected(door: Door) -> tuple[GuestSession, Peer]:
    connecting = asyncio.ensure_future(GuestSession.connect(door.open, patience_seconds=PATIENCE_SECONDS))
    peer = await door.peer()
    await peer.greet()
    return await connecting, peer


async def eventually(fits: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not fits():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def after(seconds: float) -> None:
    """As much time as the loop counts; nothing is waited for but that."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed


async def test_no_time_counts_while_the_box_cannot_be_asked_for(door: Door) -> None:
    session, peer = await connected(door)
    process = session.start(SLEEP, guest_id=session.next_id())
    await peer.expect(frames.START)
    door.shut = HostAway("the engine is away")
    peer.close()
    await after(3 * PATIENCE_SECONDS)
    assert session.closed_reason is None
    assert session.away is not None
    with pytest.raises(Unavailable, match=r"cannot be reached since .*the engine is away") as error:
        await session.reachable(0.01)
    assert error.value.retryable
    waiting = asyncio.ensure_future(session.reachable(5))
    door.shut = None
    again = await door.peer()
    await again.greet(listed(1), last_id=1)
    await waiting
    assert session.away is None
    await again.send(frames.EXIT, 1, exit_payload())
    assert (await process.exit()).value == 0
    await session.aclose()


async def test_time_counts_again_once_it_can_be_asked_for(door: Door) -> None:
    session, peer = await connected(door)
    door.shut = HostAway("the engine is away")
    peer.close()
    await eventually(lambda: session.away is not None)
    waiting = asyncio.ensure_future(session.reachable(5))
    door.shut = ConnectionRefusedError("it does not attach")
    assert "no new one came" in await session.wait_closed()
    with pytest.raises(BoxLost):
        await waiting
    await session.aclose()


async def test_a_connection_that_is_silent_is_opened_again(door: Door) -> None:
    session, peer = await connected(door)
    asked = asyncio.ensure_future(session.answers(0.05))
    await peer.expect(frames.PING)
    assert not await asked
    again = await door.peer()
    await again.greet()
    asked = asyncio.ensure_future(session.answers(5))
    _, payload = await again.expect(frames.PING)
    await again.send(frames.PONG, 0, payload)
    assert await asked
    await session.aclose()
