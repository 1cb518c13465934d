from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .box import RealBox, Station, station


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def box() -> Iterator[RealBox]:
    # Not below tmp_path: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="stn-") as directory:
        made = RealBox(Path(directory))
        yield made
        made.kill()


@pytest.fixture
async def one(home: Path, box: RealBox) -> AsyncIterator[Station]:
    async with station(home, box) as started:
        yield started
