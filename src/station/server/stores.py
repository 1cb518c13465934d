"""Which bodies stand behind the ports of the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from station.core.errors import Unavailable
from station.core.states import State
from station.store.directory import DirectoryFiles
from station.store.files import FileStore
from station.store.registry import Registry
from station.store.sqlite import SqliteRegistry

from .settings import NatsSettings, Settings

if TYPE_CHECKING:
    from station.store.nats.connection import NatsAccess

log = logging.getLogger(__name__)


async def open_stores(
    settings: Settings, stack: AsyncExitStack, *, now: Callable[[], float]
) -> tuple[Registry, FileStore]:
    """Those of the settings, and with them what they need; all ends with `stack`. Raises Unavailable or StorageFull
    where they cannot be used."""
    if settings.store == "nats":
        return await _nats(settings, stack, now)
    registry = SqliteRegistry(settings.home / "registry.db")
    stack.push_async_callback(registry.aclose)
    bounds = settings.files
    files = DirectoryFiles(
        settings.home / "files", now=now, max_file_bytes=bounds.max_file_bytes, max_bytes=bounds.max_bytes
    )
    stack.push_async_callback(files.aclose)
    return registry, files


async def _nats(settings: Settings, stack: AsyncExitStack, now: Callable[[], float]) -> tuple[Registry, FileStore]:
    try:
        from station.store.nats.connection import NatsConnection
        from station.store.nats.files import NatsFiles
        from station.store.nats.imports import import_sessions
        from station.store.nats.registry import NatsRegistry
        from station.store.nats.seen import Seen
    except ModuleNotFoundError as error:
        raise Unavailable(
            "store: nats needs the client of NATS, which is not installed: pip install 'station-sandbox[nats]' "
            "(requirements/nats.txt has its versions)",
            retryable=False,
        ) from error
    nats, bounds = settings.nats, settings.files
    where = await _where(settings, stack)
    seen = Seen() if nats.url else await Seen.opened(settings.home / "nats" / "seen.db")
    stack.push_async_callback(seen.aclose)
    connection = await NatsConnection.open(where)
    stack.push_async_callback(connection.aclose)
    registry = await NatsRegistry.opened(connection, bucket=nats.bucket, replicas=nats.replicas, seen=seen)
    stack.push_async_callback(registry.aclose)
    # In the words that operators of the reference program look for.
    log.info("[INFO] Session store: Initialized with NATS KV (bucket: %s)", nats.bucket)
    if told := await import_sessions(connection, registry, now=now()):
        log.warning("%s", told)
    there = [record for record in (await registry.list()).records if record.state is not State.TOMBSTONE]
    log.info("[INFO] Recovered %d sandbox sessions from NATS KV", len(there))
    files = await NatsFiles.opened(
        connection,
        bucket=nats.files_bucket,
        replicas=nats.replicas,
        seen=seen,
        now=now,
        max_file_bytes=bounds.max_file_bytes,
        max_bytes=bounds.max_bytes,
    )
    stack.push_async_callback(files.aclose)
    return registry, files


async def _where(settings: Settings, stack: AsyncExitStack) -> Callable[[], NatsAccess]:
    """The operator's servers, else one of the station's own."""
    from station.store.nats.connection import NatsAccess

    from .nats_child import NatsServer, binary

    nats: NatsSettings = settings.nats
    if nats.url:
        operators = NatsAccess(nats.url, nats.user, nats.password, nats.token)
        return lambda: operators
    server = await stack.enter_async_context(NatsServer.running(settings.home, program=binary(nats.server_binary)))
    return server.access
