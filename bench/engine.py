"""The baseline: Docker's API on this machine, with an engine of our own where none answers.

The image is the host's own Debian release with Python, made by mmdebstrap; nothing is pulled.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import aiodocker

IMAGE = "station-bench/python:latest"


class NoEngine(Exception):
    """Why the comparison with Docker cannot be made here."""


@asynccontextmanager
async def docker() -> AsyncIterator[aiodocker.Docker]:
    """A client of an engine that has `IMAGE`. Raises NoEngine with the reason."""
    async with AsyncExitStack() as stack:
        host = os.environ.get("DOCKER_HOST") or await _own_engine(stack)
        os.environ["DOCKER_HOST"] = host
        client = await stack.enter_async_context(aiodocker.Docker(url=host))
        await _image(client)
        yield client


async def _own_engine(stack: AsyncExitStack) -> str:
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        raise NoEngine("needs DOCKER_HOST, or root with `apt-get install docker.io`")
    home = Path(stack.enter_context(TemporaryDirectory(prefix="station-bench-engine-", ignore_cleanup_errors=True)))
    command = ["dockerd", "--host", f"unix://{home}/docker.sock", "--data-root", f"{home}/data"]
    command += ["--exec-root", f"{home}/exec", "--pidfile", f"{home}/pid", "--bridge", "none", "--iptables=false"]
    log = stack.enter_context(open(home / "log", "wb"))
    engine = subprocess.Popen(command, stdout=log, stderr=log)
    stack.callback(_end, engine)
    for _ in range(150):
        if (home / "docker.sock").exists():
            return f"unix://{home}/docker.sock"
        if engine.poll() is not None:
            break
        await asyncio.sleep(0.1)
    raise NoEngine(f"dockerd did not start: {(home / 'log').read_text(errors='replace')[-300:]}")


def _end(engine: subprocess.Popen[bytes]) -> None:
    engine.terminate()
    try:
        engine.wait(20)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


async def _image(client: aiodocker.Docker) -> None:
    try:
        await client.images.inspect(IMAGE)
        return
    except aiodocker.DockerError:
        pass
    if not shutil.which("mmdebstrap"):
        raise NoEngine("needs `apt-get install mmdebstrap` to make an image with Python")
    with TemporaryDirectory(prefix="station-bench-image-") as home:
        tar = Path(home) / "image.tar"
        include = "--include=python3,ca-certificates"
        lists = (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))
        sources = [str(path) for path in lists if path.is_file()]
        code = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
        suite = code["VERSION_CODENAME"].strip('"')
        made = await asyncio.create_subprocess_exec(
            "mmdebstrap", "--quiet", "--variant=minbase", include, suite, str(tar), *sources
        )
        if await made.wait() != 0:
            raise NoEngine("mmdebstrap could not make an image")
        imported = ("docker", "import", str(tar), IMAGE)
        done = await asyncio.create_subprocess_exec(*imported, stdout=asyncio.subprocess.DEVNULL)
        if await done.wait() != 0:
            raise NoEngine("docker import failed")


@asynccontextmanager
async def container(client: aiodocker.Docker) -> AsyncIterator[aiodocker.containers.DockerContainer]:
    """A running container without network, as an agent's would be."""
    config = {"Image": IMAGE, "Cmd": ["sleep", "infinity"], "HostConfig": {"NetworkMode": "none", "Init": True}}
    box = await client.containers.create(config)
    await box.start()
    try:
        yield box
    finally:
        await box.delete(force=True)


async def docker_exec(box: aiodocker.containers.DockerContainer, argv: list[str]) -> int:
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
