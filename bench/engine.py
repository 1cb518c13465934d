"""The baseline: Docker's API on this machine, with an engine of the tests' own where none is given."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiodocker

from tests import engine as engines

IMAGE = "python:3.11-slim"
"""As scripts/image makes it: Debian of this machine's own release with Python. Nothing is pulled."""
Container = aiodocker.containers.DockerContainer


class NoEngine(Exception):
    """Why the comparison with Docker cannot be made here."""


@dataclass(frozen=True)
class Docker:
    """A client of an engine that has `IMAGE`; DOCKER_HOST names it as long as this lives."""

    client: aiodocker.Docker
    engine: engines.Engine


@asynccontextmanager
async def docker() -> AsyncIterator[Docker]:
    """Raises NoEngine with the reason."""
    if why := engines.unavailable():
        raise NoEngine(why)
    before = os.environ.get("DOCKER_HOST")
    try:
        with engines.engine([IMAGE, engines.SMALLEST]) as found:
            os.environ["DOCKER_HOST"] = found.url
            async with aiodocker.Docker(url=found.url) as client:
                yield Docker(client, found)
    except engines.EngineError as error:
        raise NoEngine(str(error)) from error
    finally:
        os.environ.pop("DOCKER_HOST", None)
        if before is not None:
            os.environ["DOCKER_HOST"] = before


@asynccontextmanager
async def container(docker: Docker) -> AsyncIterator[Container]:
    """A running container without network, as an agent's would be."""
    box = await made(docker, {"Init": True})
    try:
        yield box
    finally:
        await box.delete(force=True)


async def made(docker: Docker, host: Mapping[str, Any]) -> Container:
    """Made and started."""
    config = {"Image": IMAGE, "Cmd": ["sleep", "infinity"], "HostConfig": {"NetworkMode": "none", **host}}
    box = await docker.client.containers.create(config)
    await box.start()
    return box


async def container_of(docker: Docker, uid: str) -> Container:
    """The very box of a sandbox."""
    (found,) = await docker.client.containers.list(filters={"label": [f"station.id={uid}"]})
    return found


async def docker_exec(box: Container, argv: list[str]) -> int:
    """Create, start attached, read to the end, inspect: what an exec over the API takes."""
    execution = await box.exec(argv)
    async with execution.start(detach=False) as stream:
        while await stream.read_out() is not None:
            pass
    return int((await execution.inspect())["ExitCode"])


async def docker_run(argv: list[str]) -> None:
    """`docker run --rm` by the command line, as people call it."""
    process = await asyncio.create_subprocess_exec(
        "docker", "run", "--rm", "--network", "none", IMAGE, *argv, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait() != 0:
        raise NoEngine("docker run failed")
