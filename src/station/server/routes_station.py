"""The station itself."""

from __future__ import annotations

import asyncio
import os

from starlette.requests import Request
from starlette.responses import Response

import station
from station.core.wire import StationView

from . import answers
from .settings import is_changed
from .station import Station


async def health(_station: Station, _request: Request) -> Response:
    return answers.facts(status="ok", version=station.__version__, pid=os.getpid())


async def info(this: Station, _request: Request) -> Response:
    records, damaged = await this.records()
    return answers.one(
        StationView(
            version=station.__version__,
            pid=os.getpid(),
            home=str(this.settings.home),
            started_at=this.started_at,
            default_backend=this.default_backend,
            sandboxes=len(records) + len(damaged),
            live_boxes=len(this.boxes),
            pool_boxes=len(this.pool),
            running_processes=len(this.processes.running()),
            timeout_seconds=this.settings.sandbox.timeout_seconds,
            max_stdout_bytes=this.settings.sandbox.max_stdout_bytes,
            settings_sha256=this.settings.digest,
            settings_changed=await asyncio.to_thread(is_changed, this.settings),
            pulls=tuple(this.boxes.fetches()),
        )
    )


async def stop(this: Station, _request: Request) -> Response:
    """Answered before it happens."""
    this.request_stop()
    return answers.facts(202, status="stopping", pid=os.getpid())


async def doctor(this: Station, _request: Request) -> Response:
    return answers.one(await this.doctor())
