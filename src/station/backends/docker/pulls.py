"""Images on their way from a registry to the engine: each once, however many wait for it, and how far it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from station.backends.docker.engine import Engine
from station.backends.docker.registry import SETTING, Credentials, Logins, registry_of
from station.core.display import escape
from station.core.errors import InvalidInput, Refused, StationError, StorageFull, Unavailable
from station.core.wire import PullView

log = logging.getLogger(__name__)

_LOG_SECONDS = 30.0
_DENIED = ("unauthorized", "authentication required", "basic auth credentials", "denied", "forbidden", "status 401")
_UNKNOWN = ("manifest unknown", "not found", "name unknown", "no matching manifest")
_DAMAGED = (
    "digest", "verification failed", "checksum", "unexpected end of json", "invalid character", "unexpected eof",
    "failed to register layer", "media type", "mediatype", "unsupported manifest", "invalid manifest", "invalid tar",
)  # fmt: skip
_NO_ROOM = ("no space left", "disk quota exceeded")
_DONE = ("Pull complete", "Already exists")
_LOGGED_CHARS = 2000


@dataclass
class Progress:
    """What the lines of a pull have told, layer by layer."""

    _total: dict[str, int] = field(default_factory=dict)
    _got: dict[str, int] = field(default_factory=dict)
    _done: dict[str, bool] = field(default_factory=dict)

    def tell(self, line: Any) -> None:
        """One line of the engine's answer; what is none of a layer is left out."""
        if not isinstance(line, dict) or not isinstance(layer := line.get("id"), str):
            return
        status = str(line.get("status") or "")
        if status.startswith("Pulling from"):
            return  # of the image, whose tag is the id here
        self._done[layer] = status in _DONE or self._done.get(layer, False)
        told = line.get("progressDetail")
        current, total = (told.get("current"), told.get("total")) if isinstance(told, dict) else (None, None)
        if status == "Downloading" and isinstance(current, int):
            self._got[layer] = current
            if isinstance(total, int) and total > 0:
                self._total[layer] = total
        elif status in ("Download complete", *_DONE) and layer in self._total:
            self._got[layer] = self._total[layer]

    def view(self, image: str, seconds: float) -> PullView:
        return PullView(
            image=image,
            layers=len(self._done),
            layers_done=sum(self._done.values()),
            done_bytes=sum(self._got.values()),
            total_bytes=sum(self._total.values()),
            seconds=round(seconds, 1),
        )


@dataclass
class _Pull:
    began: float
    progress: Progress = field(default_factory=Progress)
    task: asyncio.Task[None] | None = None
    waiting: int = 0


class Pulls:
    """For one event loop; `aclose` ends every pull."""

    def __init__(self, engine: Engine, logins: Logins, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._logins = logins
        self._clock = clock
        self._going: dict[str, _Pull] = {}

    def views(self) -> list[PullView]:
        """Those under way."""
        now = self._clock()
        return [pull.progress.view(name, now - pull.began) for name, pull in self._going.items()]

    async def pull(self, name: str) -> None:
        """One pull for all that wait for it; the last who leaves ends it. Raises Refused where the registry wants
        other credentials, InvalidInput where it has no such image, Unavailable where it cannot be asked."""
        pull = self._going.get(name)
        if pull is None:
            pull = self._going[name] = _Pull(self._clock())
            pull.task = asyncio.create_task(self._run(name, pull), name=f"pull {name}")
        task = pull.task
        assert task is not None
        pull.waiting += 1
        try:
            await asyncio.wait({task})
        finally:
            pull.waiting -= 1
            if not pull.waiting and not task.done():
                self._forget(name, pull)  # who comes now begins anew
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("the station is stopping")
        error = task.exception()
        if isinstance(error, StationError):
            raise error.again() from error
        task.result()

    async def aclose(self) -> None:
        tasks = [pull.task for pull in self._going.values() if pull.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, pull: _Pull) -> None:
        told = pull.began

        def tell(line: Any) -> None:
            nonlocal told
            pull.progress.tell(line)
            if self._clock() - told >= _LOG_SECONDS:
                told = self._clock()
                log.info("pulling the image %s: %s", name, pull.progress.view(name, told - pull.began))

        try:
            login = await self._logins.for_image(name)
            log.info("pulling the image %s%s", name, "" if login is None else f", known to {login.server}")
            header = {} if login is None else {"X-Registry-Auth": login.header()}
            await self._engine.pull(name, headers=header, tell=tell, translated=partial(refusal, name, login))
            log.info("pulled the image %s in %.1f s", name, self._clock() - pull.began)
        finally:
            self._forget(name, pull)

    def _forget(self, name: str, pull: _Pull) -> None:
        if self._going.get(name) is pull:
            del self._going[name]


def refusal(name: str, login: Credentials | None, status: int, message: str, doing: str) -> StationError:
    """What it means that an engine could not pull: its registry's word comes through it, in many forms. None of it is
    repeated but in the log, at debug: the registry was a caller's choice, and may be any server that the engine can
    reach."""
    told = login.hide(message) if login else message
    log.debug("the engine was asked to %s and said (status %d): %s", doing, status, escape(told[:_LOGGED_CHARS]))
    server, lower = registry_of(name), message.lower()
    where: dict[str, Any] = {"registry": server, "image": name}
    if any(word in lower for word in _NO_ROOM):
        return StorageFull(f"the engine's disk is full: {name} is not pulled", engine="resource_exhausted", **where)
    if status in (401, 403) or any(word in lower for word in _DENIED):
        return Refused(
            f"the registry {server} does not give {name} to {_who(login)}: check the name, and {SETTING} in "
            f"station.yaml (username, password, server_address: {server}, or docker_config_path)",
            engine="registry_denied",
            setting=SETTING,
            **where,
        )
    if status == 404 or any(word in lower for word in _UNKNOWN):
        return InvalidInput(
            f"the registry {server} has no image {name}, or none for the engine's machine", field="image", **where
        )
    if status == 400:
        return InvalidInput(f"the engine does not take {name} for an image's name", field="image", **where)
    if any(word in lower for word in _DAMAGED):
        return Unavailable(
            f"what the registry {server} gave for {name} is damaged, or no image that the engine can use",
            retryable=False,
            engine="registry_damaged",
            **where,
        )
    return Unavailable(
        f"the engine does not get {name}: the registry {server} is out of its reach, or does not answer as one does; "
        f"`docker pull {name}` on its machine shows its own words",
        engine="registry_unreachable",
        **where,
    )


def _who(login: Credentials | None) -> str:
    """No name: it is the operator's, and who reads it may be anybody."""
    if login is None:
        return "nobody in particular"
    return "the user of the credentials" if login.username else "the bearer of the token"
