"""What takes room, and what of it may go."""

from __future__ import annotations

from starlette.responses import Response

from station.server.station import Station
from station.server.upkeep import room

from . import answers
from . import parameters as p
from .operation import Call


async def usage(this: Station, _call: Call) -> Response:
    return answers.one(await room.usage(this))


async def prune(this: Station, call: Call) -> Response:
    return answers.one(await room.prune(this, dry_run=call.query[p.DRY_RUN]))
