"""A nats-server for each module that asks for one, and what is opened over it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from station.server.nats_child import NatsServer, binary
from station.store.nats.connection import NatsConnection

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsServer]:
    async with NatsServer.running(tmp_path_factory.mktemp("nats"), program=binary(None)) as server:
        yield server


@pytest.fixture
async def connection(nats_server: NatsServer) -> AsyncIterator[NatsConnection]:
    made = await NatsConnection.open(nats_server.access)
    yield made
    await made.aclose()


@pytest.fixture
def bucket() -> str:
    """A name that nobody has used."""
    return f"test-{next(_NUMBERS)}"
