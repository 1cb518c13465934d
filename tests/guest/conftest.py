from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from station.core.errors import BackendUnavailable
from station.guest.binary import guest_binary
from station.guest.session import GuestSession

from .peer import Door, Peer, RealGuest, real_guest


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


@pytest.fixture
async def met(door: Door) -> AsyncIterator[tuple[GuestSession, Peer]]:
    """A session and the peer that it has greeted."""
    connecting = asyncio.ensure_future(GuestSession.connect(door.open, patience_seconds=0.5))
    peer = await door.peer()
    await peer.greet()
    session = await connecting
    yield session, peer
    await session.aclose()


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGuest]:
    """One real guest for a module of tests."""
    try:
        guest_binary()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    with real_guest(tmp_path_factory.mktemp("guest")) as running:
        yield running


@pytest.fixture
async def session(guest: RealGuest) -> AsyncIterator[GuestSession]:
    connected = await GuestSession.connect(guest.open)
    yield connected
    await connected.aclose()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory that the real guest sees as it is."""
    return tmp_path
