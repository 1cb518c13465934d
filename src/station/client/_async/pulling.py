"""A request that may have to wait for an image, and what is shown meanwhile."""

from __future__ import annotations

from typing import Any

from station.client._build import Call, url
from station.client._io_async import watching
from station.client._progress import PullBar
from station.core.codec import from_plain
from station.core.wire import StationView

from .connection import AsyncConnection

LOOK_SECONDS = 0.5
PULL_SECONDS = 1900.0
"""How much longer an answer may take: the station gives a pull half an hour."""
OPEN_SECONDS = 120 + PULL_SECONDS
"""How long the answer to an open may take."""


async def request_shown(connection: AsyncConnection, call: Call, image: str | None, progress: bool | None) -> Any:
    """As `AsyncConnection.request`. `progress`: whether pulls of `image`, of any where it is `None`, are shown on
    standard error; `None`: where that is a terminal."""
    with PullBar(image, shown=progress) as bar:
        if not bar.shown:
            return await connection.request(call)

        async def look() -> None:
            answer = await connection.request(Call("GET", url("station"), replay=True))
            bar.show(from_plain(StationView, answer).pulls)

        return await watching(lambda: connection.request(call), look, LOOK_SECONDS)
