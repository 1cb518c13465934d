"""Which image a box is made from, and what the engine says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any

from station.backends.docker.config import Image, check_image
from station.backends.docker.engine import Engine
from station.backends.docker.pulls import Pulls
from station.backends.docker.registry import FROM_SETTING, Logins, RegistryAuth, registry_of
from station.core.errors import InvalidInput, Refused, Unavailable
from station.core.spec import Spec
from station.core.wire import PullView

BY_RUNTIME = {"python": "python:3.11-slim", "node": "node:20-slim", "bash": "ubuntu:22.04", "linux": "ubuntu:22.04"}
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")


class Pull(StrEnum):
    NEVER = "never"
    MISSING = "missing"


class Images:
    def __init__(
        self,
        engine: Engine,
        *,
        by_runtime: Mapping[str, str],
        default: str | None = None,
        pull: Pull = Pull.NEVER,
        registries: AbstractSet[str] = frozenset(),
        logins: Logins | None = None,
    ) -> None:
        """`by_runtime` goes before `default`, and `default` before the built-in names. `registries`: where images may
        be pulled from; the operator's own, which are named here, wherever they are."""
        self._own = frozenset((*by_runtime.values(), *([default] if default is not None else [])))
        for name in self._own:
            check_image(name)
        self._engine = engine
        self._by_runtime = by_runtime
        self._default = default
        self._pull = pull
        self._registries = registries
        self._pulls = Pulls(engine, logins or Logins(RegistryAuth()))
        self._seen: set[str] = set()

    def name_for(self, spec: Spec) -> str:
        if spec.image is not None:
            return spec.image
        runtime = spec.runtime or "linux"
        return self._by_runtime.get(runtime) or self._default or BY_RUNTIME.get(runtime, BY_RUNTIME["linux"])

    def by_runtime(self) -> dict[str, str]:
        """For every runtime, `linux` for none, what is used where the caller names no image."""
        return {runtime: self.name_for(Spec("docker", runtime=runtime)) for runtime in BY_RUNTIME}

    def known(self) -> list[str]:
        """Those that boxes are made from where callers name none, the likeliest first."""
        built_in = () if self._default else BY_RUNTIME.values()
        named = ([self._default] if self._default else [], self._by_runtime.values(), built_in)
        return list(dict.fromkeys(name for group in named for name in group))

    async def resolve(self, name: str, *, pinned: str | None = None) -> Image:
        """What `name` means now, or the very one that is pinned. Raises InvalidInput for one that the engine lacks,
        Refused for one that would come from a registry which is not allowed, and what `Pulls.pull` raises."""
        check_image(name)
        wanted = pinned or name
        found = await self._engine.image(wanted)
        if found is None and self._pull is Pull.MISSING and pinned is None:
            self._check_registry(name)
            await self._pulls.pull(name)
            found = await self._engine.image(wanted)
        if found is None:
            self._seen.discard(name)
            raise missing(name, pinned)
        image = parse_image(name, found)
        if pinned is not None and image.id != pinned:
            raise Unavailable(f"the engine was asked for the image {pinned} and gave another one")
        self._seen.add(name)
        return image

    def _check_registry(self, name: str) -> None:
        """An engine asks whatever host an image's name begins with, from where it is in the network."""
        server = registry_of(name)
        if name not in self._own and server not in self._registries:
            raise Refused(
                f"{name} is not pulled: its registry {server} is none of those that the operator allows "
                f"({FROM_SETTING} in station.yaml)",
                registry=server,
                image=name,
                setting=FROM_SETTING,
            )

    async def fetch(self, name: str) -> None:
        """Pulls it where that is wanted and needed. Cheap for one that was seen before; raises as `resolve`, also for
        one that is missing and not to be pulled."""
        if name not in self._seen:
            await self.resolve(name)

    def pulls(self) -> list[PullView]:
        return self._pulls.views()

    async def aclose(self) -> None:
        await self._pulls.aclose()


def parse_image(name: str, found: Mapping[str, Any]) -> Image:
    """Raises InvalidInput where it is not what its digest says, Unavailable for nonsense."""
    identity = found.get("Id")
    config = found.get("Config") or {}
    if not isinstance(identity, str) or not _ID.fullmatch(identity) or not isinstance(config, dict):
        raise Unavailable("the Docker engine was asked about an image and answered what no engine answers")
    if digest := _DIGEST.search(name):
        known = {str(known).rpartition("@")[2] for known in found.get("RepoDigests") or ()}
        if digest[1] not in known | {identity}:
            raise InvalidInput(
                f"the engine's image of the name {name} has another digest: {', '.join(sorted(known)) or identity}",
                field="image",
            )
    if str(found.get("Os", "linux")) != "linux":
        raise InvalidInput(f"the image {name} is for {found.get('Os')}; Station runs Linux ones", field="image")
    path = next((str(v)[5:] for v in config.get("Env") or () if str(v).startswith("PATH=")), "")
    volumes = (str(place).rstrip("/") for place in config.get("Volumes") or ())
    return Image(
        name=name,
        id=identity,
        path=tuple(part for part in path.split(":") if part.startswith("/")),
        volumes=tuple(place for place in volumes if place.startswith("/")),
    )


def missing(name: str, pinned: str | None = None) -> InvalidInput:
    """That the engine lacks it, or the very one that is pinned; with what helps."""
    if pinned is not None:
        return InvalidInput(
            f"this sandbox was made from the image {name} as it was then ({pinned[:19]}), which the Docker engine no "
            "longer has; load it again, or delete the sandbox and open it anew",
            field="image",
            image=name,
            digest=pinned,
        )
    return InvalidInput(
        f"the Docker engine has no image {name}: run `docker pull {name}`, or set sandbox.pull: missing in "
        "station.yaml",
        field="image",
        image=name,
        remedy=f"docker pull {name}",
    )
