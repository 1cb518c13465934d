"""Calls to a Docker engine: bounded in time, and every error of it translated, here alone."""

from __future__ import annotations

import asyncio
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from station.backends.docker import podman
from station.backends.docker.tls import NEEDS_TLS, tls_trouble, wants_tls
from station.core.errors import (
    AlreadyExists,
    BackendUnavailable,
    Conflict,
    NotFound,
    Refused,
    StationError,
    StorageFull,
    Unavailable,
)
from station.core.machine import OLDEST_API

if TYPE_CHECKING:
    from ._api import Address, Answer, Api, AttachedStream

Translate: TypeAlias = Callable[[int, str, str], StationError]
"""From a status, what was said, and what was asked for."""

CALL_SECONDS = 30.0
AT_ONCE = 8
"""Calls that make or start something, of one station, and as many that remove: more wait here, where they cost nothing,
and in order. An engine on 2 cores makes 8 boxes a second with 4, 8, 16 or 32 calls at once, and everything else waits
longer the more there are. Two bounds, so that removals which hang hold up no box."""
ATTACH_SECONDS = 5.0
PULL_SECONDS = 1800.0
_ID = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(?<![\w.:/-])(?:/[\w.+@-]+){2,}/?")
_NO_ACCESS = (
    "its socket is for root and one group, mostly `docker`, whose members can do all that root can: "
    "`sudo usermod -aG docker $USER`, log in anew and `stn stop`"
)
_SENTENCE_BYTES = 300
_NO_CONNECTION = 900
"""aiodocker's status for an engine that it could not reach."""


def away(address: str, why: str) -> Unavailable:
    """The engine cannot be asked now. What runs goes on meanwhile, for all we know."""
    return Unavailable(f"the Docker engine at {address} does not answer: {why}", engine="engine_unreachable")


def translate(status: int, message: str, doing: str) -> StationError:
    """What an engine's refusal means for us. Paths of its machine are left out of the sentence."""
    said = re.sub(r"\s+", " ", _PATH.sub("<path>", message)).strip()[:_SENTENCE_BYTES]
    sentence = f"the Docker engine refuses to {doing}: {said}"
    lower = message.lower()
    if "no space left" in lower or "disk quota exceeded" in lower:
        return StorageFull(f"the engine's disk is full: {sentence}", engine="resource_exhausted")
    if status == 404 or "no such container" in lower:  # Podman: 500 for one that another removes
        return NotFound(sentence, engine="not_found")
    if status == 409:
        kind = AlreadyExists if "already in use" in lower else Conflict
        return kind(sentence, retryable=True, engine="resource_conflict")
    if status in (401, 403):
        return Refused(sentence, engine="permission_denied")
    if status == 400:
        return BackendUnavailable(sentence, engine="engine_error")
    return Unavailable(sentence, engine="engine_error")


class Engine:
    """Made at once, connected by the first call, ended by `aclose`. Every call ends within its bound; StationErrors
    only: Unavailable, retryable, where the engine is away or slow, NotFound, Conflict and the like where it refuses."""

    def __init__(
        self,
        address: Address,
        *,
        call_seconds: float = CALL_SECONDS,
        at_once: int = AT_ONCE,
        profiles: Path | None = None,
    ) -> None:
        """`profiles`: a directory of this machine where copies of seccomp profiles may be kept."""
        self.address = address
        self._profiles = profiles if address.local else None
        self._call_seconds = call_seconds
        self._opened: Api | None = None
        self._negotiated = False
        self._making = asyncio.Semaphore(at_once)
        self._removing = asyncio.Semaphore(at_once)

    async def aclose(self) -> None:
        api, self._opened = self._opened, None
        self._negotiated = False
        if api is not None:
            await api.aclose()

    # ── the engine ──────────────────────────────────────────────────────────────────────────────────────────────

    async def version(self) -> tuple[int, int]:
        """The newest API that it speaks. Raises BackendUnavailable for one that is too old for us."""
        async with self._bounded("answer a ping"):
            theirs = await self._api().version()
        if theirs < OLDEST_API:
            raise BackendUnavailable(
                f"the Docker engine speaks API {theirs[0]}.{theirs[1]}; Station needs 1.41 (Docker 20.10) or later"
            )
        self._negotiated = True
        return theirs

    async def about(self) -> dict[str, Any]:
        """The versions of its parts."""
        return await self._document("GET", "version", doing="tell its version")

    @property
    def is_podman(self) -> bool:
        """Known once `version` was asked."""
        return self._opened is not None and self._opened.podman

    async def info(self) -> dict[str, Any]:
        found = await self._document("GET", "info", doing="tell about itself")
        return {**found, "ServerVersion": f"{found.get('ServerVersion')} (Podman)"} if self.is_podman else found

    # ── containers ──────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """The new container's id. Raises AlreadyExists for a name that is taken, NotFound for the image."""
        doing = "make a container"
        await self._negotiate()
        if self.is_podman:
            body = await asyncio.to_thread(podman.body_for, body, self._profiles)
        made = await self._document("POST", "containers/create", doing=doing, params={"name": name}, body=body)
        return _text(made, "Id", doing)

    async def start(self, container: str) -> None:
        await self._call("POST", f"containers/{container}/start", doing="start a container")

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """`None`: there is none. Raises Unavailable where the engine says so and lists it all the same."""
        doing = "tell about a container"
        try:
            found = await self._document("GET", f"containers/{container}/json", doing=doing)
        except NotFound:
            if await self._is_listed(container):
                raise _nonsense(doing) from None
            return None
        _text(found, "Id", doing)
        return found

    async def _is_listed(self, container: str) -> bool:
        """A box is lost with its container, so that one word is not enough to believe that it is gone."""
        key = "id" if _ID.fullmatch(container) else "name"
        items = await self._list({key: [container]})
        return any(item.get("Id") == container or f"/{container}" in (item.get("Names") or ()) for item in items)

    async def containers(self, *labels: str) -> list[dict[str, Any]]:
        """All that carry these labels, in every state."""
        return await self._list({"label": list(labels)})

    async def _list(self, filters: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        doing = "list containers"
        params = {"all": "1", "filters": json.dumps(filters)}
        try:
            found = await self._json("GET", "containers/json", doing=doing, params=params)
        except (NotFound, Conflict) as error:
            raise _nonsense(doing) from error
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise _nonsense(doing)
        return found

    async def wait(self, container: str, *, seconds: float | None = None) -> None:
        """Until it does not run; as long as that takes, or at most `seconds`. Raises NotFound, Unavailable."""
        await self._negotiate()
        async with self._bounded("wait for a container", seconds=seconds):
            await self._api().request("POST", f"containers/{container}/wait")

    async def attach(self, container: str) -> AttachedStream:
        """Raises TimeoutError (one that another attached client blocks) and other OSErrors as the connection does."""
        await self._negotiate()
        async with asyncio.timeout(ATTACH_SECONDS):
            async with self._bounded("attach to a container", seconds=None):
                return await self._api().attach(container)

    async def unpause(self, container: str) -> None:
        await self._call("POST", f"containers/{container}/unpause", doing="thaw a container")

    async def remove(self, container: str) -> None:
        """With its anonymous volumes, by force. Raises NotFound, or Conflict while another is removing it."""
        params = {"force": "1", "v": "1"}
        await self._call("DELETE", f"containers/{container}", doing="remove a container", params=params)

    async def memory_bytes(self, container: str) -> int:
        """As its cgroup counts it, without the cache that the kernel can drop."""
        doing = "measure a container"
        params = {"stream": "0", "one-shot": "1"}
        stats = await self._document("GET", f"containers/{container}/stats", doing=doing, params=params)
        memory = stats.get("memory_stats")
        if not isinstance(memory, dict) or not isinstance(memory.get("usage"), int):
            raise Unavailable("the container does not run, so it uses no memory")
        details = memory.get("stats") or {}
        idle = details.get("total_inactive_file", details.get("inactive_file", 0))
        return max(0, int(memory["usage"]) - int(idle))

    # ── files of containers that do not run yet ─────────────────────────────────────────────────────────────────

    async def has_file(self, container: str, path: str) -> bool:
        """Whether there is something of that name; links in its folder are followed, one in the name itself is not."""
        await self._negotiate()
        async with self._bounded("look for a file"):
            status = await self._api().head(f"containers/{container}/archive", params={"path": path})
        if status not in (200, 404):
            raise translate(status, f"status {status}", "look for a file")
        return status == 200

    async def read_file(self, container: str, path: str) -> bytes | None:
        """A small regular file; `None`: there is none."""
        params = {"path": path}
        try:
            answer = await self._call("GET", f"containers/{container}/archive", doing="read a file", params=params)
            with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
                member = archive.next()
                content = archive.extractfile(member) if member is not None and member.isreg() else None
                return content.read() if content is not None else None
        except NotFound:
            return None
        except tarfile.TarError as error:
            raise _nonsense("read a file") from error

    async def write_file(self, container: str, directory: str, name: str, content: bytes, *, mode: int) -> None:
        """Into a container whose root file system can be written."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
        doing, params = "write a file", {"path": directory}
        await self._call("PUT", f"containers/{container}/archive", doing=doing, params=params, data=buffer.getvalue())

    # ── volumes and images ──────────────────────────────────────────────────────────────────────────────────────

    async def volume_labels(self, name: str) -> dict[str, str] | None:
        """`None`: there is no such volume."""
        try:
            found = await self._document("GET", f"volumes/{name}", doing="tell about a volume")
        except NotFound:
            return None
        labels = found.get("Labels") or {}
        return {str(key): str(value) for key, value in labels.items()}

    async def volumes(self, label: str, value: str) -> list[dict[str, str]]:
        """The labels of all volumes that carry this one."""
        doing, params = "list volumes", {"filters": json.dumps({"label": [f"{label}={value}"]})}
        found = (await self._document("GET", "volumes", doing=doing, params=params)).get("Volumes") or []
        return [{str(key): str(text) for key, text in (volume.get("Labels") or {}).items()} for volume in found]

    async def create_volume(
        self, name: str, labels: Mapping[str, str], options: Mapping[str, str] | None = None
    ) -> None:
        """The one that is there already stays as it is."""
        body = {"Name": name, "Driver": "local", "Labels": dict(labels), "DriverOpts": dict(options or {})}
        await self._call("POST", "volumes/create", doing="make a volume", body=body)

    async def remove_volume(self, name: str) -> None:
        """Repeating is no error. Raises Conflict while a container has it."""
        try:
            await self._call("DELETE", f"volumes/{name}", doing="remove a volume")
        except NotFound:
            return

    async def network(self, name: str) -> dict[str, Any] | None:
        """`None`: there is none."""
        try:
            return await self._document("GET", f"networks/{name}", doing="tell about a network")
        except NotFound:
            return None

    async def image(self, name: str) -> dict[str, Any] | None:
        """`None`: the engine does not have it."""
        doing = "tell about an image"
        try:
            found = await self._document("GET", f"images/{name}/json", doing=doing)
        except NotFound:
            return None
        _text(found, "Id", doing)
        return found

    async def any_image(self) -> str | None:
        """The id of one that is there, tagged ones first; `None`: the engine has none."""
        found = await self._json("GET", "images/json", doing="list images")
        items = [item for item in found or () if isinstance(item, dict) and isinstance(item.get("Id"), str)]
        items.sort(key=lambda item: not item.get("RepoTags"))
        return str(items[0]["Id"]) if items else None

    async def pull(
        self,
        name: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        tell: Callable[[Any], None] = lambda _: None,
        translated: Translate = translate,
    ) -> None:
        """Returns when it is there. `tell` gets each line of the engine; `translated` makes errors of refusals."""
        doing = f"pull {name}"
        tag = {} if "@" in name or ":" in name.rpartition("/")[2] else {"tag": "latest"}
        params = {"fromImage": name, **tag}
        await self._negotiate()
        answer = self._api().lines("POST", "images/create", params=params, headers=headers)
        async with self._bounded(doing, seconds=PULL_SECONDS, translated=translated), aclosing(answer) as lines:
            async for line in lines:
                if isinstance(line, dict) and line.get("error"):
                    raise translated(500, str(line["error"]), doing)
                tell(line)

    # ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _api(self) -> Api:
        if self._opened is None:
            from ._api import Api  # heavy, and not needed before an engine is asked for

            self._opened = Api(self.address)
        return self._opened

    async def _document(self, method: str, path: str, *, doing: str, **more: Any) -> dict[str, Any]:
        found = await self._json(method, path, doing=doing, **more)
        if not isinstance(found, dict):
            raise _nonsense(doing)
        return found

    async def _json(self, method: str, path: str, *, doing: str, **more: Any) -> Any:
        answer = await self._call(method, path, doing=doing, **more)
        try:
            return answer.json()
        except ValueError as error:
            raise _nonsense(doing) from error

    async def _call(self, method: str, path: str, *, doing: str, **more: Any) -> Answer:
        await self._negotiate()
        changes = self._removing if method == "DELETE" else self._making
        async with changes if method != "GET" else nullcontext(), self._bounded(doing):
            return await self._api().request(method, path, **more)

    async def _negotiate(self) -> None:
        if not self._negotiated:
            await self.version()

    @asynccontextmanager
    async def _bounded(
        self, doing: str, *, seconds: float | None = -1.0, translated: Translate = translate
    ) -> AsyncIterator[None]:
        """A time limit, and the one place where foreign errors become ours."""
        import aiohttp
        from aiodocker import DockerError

        address = self.address.url
        limit = self._call_seconds if seconds == -1.0 else seconds
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError as error:
            raise away(address, f"no answer within {limit or 0:g} s when asked to {doing}") from error
        except DockerError as error:
            if error.status == _NO_CONNECTION:
                raise tls_trouble(address, error) or away(address, _why(error.__context__ or error)) from error
            if NEEDS_TLS in str(error.message):
                raise wants_tls(address) from error
            raise translated(error.status, str(error.message), doing) from error
        except (aiohttp.ClientError, OSError) as error:
            raise tls_trouble(address, error) or away(address, _why(error)) from error
        except (ValueError, KeyError, TypeError) as error:  # the library's own trust in what engines say
            raise _nonsense(doing) from error


def _why(error: BaseException) -> str:
    if not isinstance(getattr(error, "message", ""), str):  # what had been parsed of an answer
        return "it broke off in the middle of an answer"
    system = getattr(error, "os_error", None) or error
    if isinstance(system, PermissionError):
        return f"{system.strerror}; {_NO_ACCESS}"
    return str(getattr(system, "strerror", None) or "") or f"{error}" or type(error).__name__


def _nonsense(doing: str) -> Unavailable:
    return Unavailable(f"the Docker engine was asked to {doing} and answered what no engine answers", engine="nonsense")


def _text(found: Mapping[str, Any], key: str, doing: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value:
        raise _nonsense(doing)
    return value
