"""One station for each file. Most tests call the tools without a process between; what a transport does has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Stn, state_directory, stn_of
from tests.mcp.driver import Tools, in_memory

# It listens on TCP too, so that the same station answers over every transport.
SETTINGS = "listen: 127.0.0.1:0\nsandbox:\n  allow_host: true\n"


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with state_directory(SETTINGS) as home:
        yield home


@pytest.fixture
def stn(home: Path) -> Stn:
    return stn_of(home)


@pytest.fixture
async def tools(home: Path, ran: Callable[[str], None]) -> AsyncIterator[Tools]:
    """Of a process of its own, on a confining backend."""
    ran("bubblewrap")
    async with in_memory(home, backend="bubblewrap") as made:
        yield made


@pytest.fixture(params=["bubblewrap", "host"])
async def anywhere(request: pytest.FixtureRequest, home: Path, ran: Callable[[str], None]) -> AsyncIterator[Tools]:
    """Tools on each backend."""
    ran(request.param)
    async with in_memory(home, backend=request.param) as made:
        yield made
