"""Images from a registry that asks for credentials: pulled only where that is wanted, told of, held to their digest."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from station.backends.docker import Pull, RegistryAuth
from station.backends.docker._api import address_of
from station.backends.docker.backend import DockerBackend
from station.backends.docker.engine import Engine as Spoken
from station.backends.docker.pulls import Pulls
from station.backends.docker.registry import Logins
from station.core.errors import InvalidInput, Refused, StationError, Unavailable
from station.core.spec import Spec
from station.server.loading import load
from station.server.station import backends_of
from tests.engine import Engine

from .conftest import Bed, in_fresh
from .registry import Gate, Registry, registry

pytestmark = [pytest.mark.docker, pytest.mark.registry]
SMALL = "station-test/busybox"
NAME = "station/small:1"
LARGE_BYTES = 8 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Registry]:
    """With one image that the engine lacks by that name, though not its layers."""
    with registry(tmp_path_factory.mktemp("registry")) as made:
        made.push(engine, SMALL, NAME)
        try:
            yield made
        finally:
            made.remove_from(engine)


@pytest.fixture
def image(place: Registry, engine: Engine) -> Iterator[str]:
    """The engine does not have it."""
    place.remove_from(engine)
    yield f"{place.server}/{NAME}"
    place.remove_from(engine)


def backend_of(bed: Bed, auth: RegistryAuth | None = None, **more: Any) -> DockerBackend:
    return bed.backend(image=SMALL, **{"pull": Pull.MISSING, "auth": auth or RegistryAuth(), **more})


async def runs(bed: Bed, backend: DockerBackend, image: str) -> None:
    said = await in_fresh(backend, bed.labels(), Spec("docker", image=image, ephemeral=True), "echo", "pulled")
    assert said == (0, "pulled\n")


def there(engine: Engine, image: str) -> bool:
    return bool(engine.docker("images", "-q", image))


# ── credentials ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_box_is_made_from_an_image_that_asks_for_credentials(
    bed: Bed, place: Registry, image: str, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert not there(engine, image)
    backend = backend_of(bed, RegistryAuth(**place.auth()))
    await runs(bed, backend, image)
    assert there(engine, image)
    shown = caplog.text + repr(backend.__dict__) + engine.docker("inspect", image)
    assert "pulled the image" in caplog.text
    assert place.password not in shown


@pytest.mark.parametrize("user", ["reader", "somebody-else"])
async def test_wrong_credentials_are_refused_by_the_name_of_the_setting(
    bed: Bed, place: Registry, image: str, engine: Engine, user: str
) -> None:
    backend = backend_of(bed, RegistryAuth(**place.auth(username=user, password="wrong-password")))
    await backend.probe()
    with pytest.raises(Refused, match=r"sandbox\.registry_auth") as error:
        await backend.create(Spec("docker", image=image), bed.labels())
    told = json.dumps(error.value.to_body())
    assert f"the registry {place.server} does not give {image} to the user of the credentials" in error.value.message
    assert "somebody-else" not in told
    assert "wrong-password" not in told
    assert base64.b64encode(f"{user}:wrong-password".encode()).decode() not in told
    assert not there(engine, image)


async def test_without_credentials_the_setting_is_named(bed: Bed, place: Registry, image: str, engine: Engine) -> None:
    backend = backend_of(bed, pull_from=[place.server])
    await backend.probe()
    with pytest.raises(Refused, match=r"nobody in particular: .*sandbox\.registry_auth"):
        await backend.create(Spec("docker", image=image), bed.labels())
    assert not there(engine, image)


async def test_another_registry_never_sees_them(bed: Bed, place: Registry, image: str, engine: Engine) -> None:
    async with Gate.before(place.port) as other:
        backend = backend_of(bed, RegistryAuth(**place.auth()), pull_from=[place.server, other.server])
        await backend.probe()
        with pytest.raises(Refused, match="nobody in particular"):
            await backend.create(Spec("docker", image=f"{other.server}/{NAME}"), bed.labels())
        assert other.connections > 0
        assert other.authorized == 0
        # The control: told that they are for it, it does see them.
        owner = backend_of(bed, RegistryAuth(**place.auth(server_address=other.server)))
        await runs(bed, owner, f"{other.server}/{NAME}")
        assert other.authorized > 0


async def test_a_variable_of_the_station_fills_the_setting(
    bed: Bed, place: Registry, image: str, tmp_path: Path
) -> None:
    auth = place.auth(password="${TEST_REGISTRY_TOKEN}")
    document = {"sandbox": {"pull": "missing", "docker_image": SMALL, "docker_runtime": "runc", "registry_auth": auth}}
    (tmp_path / "station.yaml").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(
        InvalidInput, match=r"sandbox\.registry_auth\.password .* TEST_REGISTRY_TOKEN, which is not set"
    ):
        load(tmp_path, {})
    settings = load(tmp_path, {"TEST_REGISTRY_TOKEN": place.password})
    assert place.password not in repr(settings)
    made = backends_of(tmp_path, bed.station, settings)["docker"]
    assert isinstance(made, DockerBackend)
    await runs(bed, backend_of(bed, made._settings.auth), image)


async def test_a_docker_config_file_and_its_helper_serve(
    bed: Bed, place: Registry, image: str, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {place.server: "tests"}}), encoding="utf-8")
    answer = json.dumps({"ServerURL": place.server, "Username": place.user, "Secret": place.password})
    program = tmp_path / "docker-credential-tests"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n", encoding="utf-8")
    program.chmod(0o700)
    auth = RegistryAuth(docker_config_path=str(tmp_path))
    path = f"{tmp_path}:{os.environ['PATH']}"
    await runs(bed, backend_of(bed, auth, pull_from=[place.server], environ={"PATH": path}), image)
    place.remove_from(engine)
    packed = base64.b64encode(f"{place.user}:{place.password}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {f"http://{place.server}/v2/": {"auth": packed}}}))
    await runs(bed, backend_of(bed, auth, pull_from=[place.server]), image)


# ── whether, and which ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_pulled_unless_that_is_configured(
    bed: Bed, place: Registry, image: str, engine: Engine
) -> None:
    async with Gate.before(place.port) as gate:
        name = f"{gate.server}/{NAME}"
        auth = RegistryAuth(**place.auth(server_address=gate.server))
        never = backend_of(bed, auth, pull=Pull.NEVER)
        await never.probe()
        spec = Spec("docker", image=name)
        with pytest.raises(InvalidInput, match=rf"docker pull {name}.*sandbox\.pull: missing"):
            await never.fetch(spec)
        with pytest.raises(InvalidInput, match=rf"docker pull {name}.*sandbox\.pull: missing"):
            await never.create(spec, bed.labels())
        assert gate.connections == 0
        await runs(bed, backend_of(bed, auth), name)
        assert gate.connections > 0


CANARY = "canary-of-a-server-beside-the-engine"


@asynccontextmanager
async def beside() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server of the engine's network that is no registry, by its address, and what it was asked for."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            body = json.dumps({"errors": [{"code": "DENIED", "message": CANARY, "detail": CANARY}]})
            kind = "Content-Type: application/json\r\nConnection: close"
            writer.write(f"HTTP/1.1 403 No\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def test_hd_no_caller_has_the_engine_ask_a_server_of_its_choice(
    bed: Bed, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "station.backends.docker")
    async with beside() as (server, asked):
        name = f"{server}/latest/meta-data"
        backend = backend_of(bed)
        await backend.probe()
        for image in (name, f"{name}:1", f"{name}@sha256:{'0' * 64}"):
            for call in (backend.fetch(Spec("docker", image=image)),
                         backend.create(Spec("docker", image=image), bed.labels())):  # fmt: skip
                with pytest.raises(Refused, match=r"sandbox\.pull_from") as error:
                    await call
                assert error.value.detail["setting"] == "sandbox.pull_from"
        assert asked == []
        # The control: an operator who allows it has it asked, and what it says comes to nobody.
        permissive = backend_of(bed, pull_from=[server])
        await permissive.probe()
        with pytest.raises(StationError) as told:
            await permissive.create(Spec("docker", image=name), bed.labels())
        assert asked
        assert CANARY not in json.dumps(told.value.to_body())
        assert CANARY in caplog.text  # the engine did say it
        # So does the operator's own word for an image.
        before = len(asked)
        with pytest.raises(StationError):
            await backend_of(bed, images={"bash": name}, pull_from=[]).fetch(Spec("docker", runtime="bash"))
        assert len(asked) > before


async def test_an_image_that_is_there_is_used_wherever_it_came_from(
    bed: Bed, place: Registry, image: str, engine: Engine
) -> None:
    await runs(bed, backend_of(bed, RegistryAuth(**place.auth())), image)
    other = backend_of(bed, pull_from=["ghcr.io"])
    await runs(bed, other, image)
    with pytest.raises(Refused, match=r"sandbox\.pull_from"):
        await other.fetch(Spec("docker", image="someone/absent:1"))


async def test_an_image_that_is_there_is_not_asked_for_again(bed: Bed, place: Registry, image: str) -> None:
    async with Gate.before(place.port) as gate:
        name = f"{gate.server}/{NAME}"
        backend = backend_of(bed, RegistryAuth(**place.auth(server_address=gate.server)))
        await runs(bed, backend, name)
        before = gate.connections
        await runs(bed, backend, name)
        await runs(bed, backend_of(bed), name)
        assert gate.connections == before


@pytest.mark.parametrize("name", ["station/absent:1", "station/small:absent"])
async def test_an_image_that_the_registry_lacks_is_named(bed: Bed, place: Registry, name: str) -> None:
    backend = backend_of(bed, RegistryAuth(**place.auth()))
    await backend.probe()
    with pytest.raises(InvalidInput, match=rf"the registry {place.server} has no image {place.server}/{name}"):
        await backend.create(Spec("docker", image=f"{place.server}/{name}"), bed.labels())


async def test_a_registry_that_is_away_is_a_retryable_answer(bed: Bed, image: str) -> None:
    backend = backend_of(bed, pull_from=["127.0.0.1:1"])
    await backend.probe()
    with pytest.raises(Unavailable, match=r"the registry 127\.0\.0\.1:1 is out of its reach") as error:
        await backend.create(Spec("docker", image="127.0.0.1:1/x:1"), bed.labels())
    assert error.value.retryable


async def test_a_digest_is_pulled_and_held_to(bed: Bed, place: Registry, image: str, engine: Engine) -> None:
    digest = place.push(engine, SMALL, "station/small:2")
    backend = backend_of(bed, RegistryAuth(**place.auth()))
    await runs(bed, backend, f"{place.server}/station/small@{digest}")
    wrong = f"{place.server}/station/small@sha256:{'0' * 64}"
    with pytest.raises(InvalidInput):
        await backend.create(Spec("docker", image=wrong), bed.labels())


async def test_a_sandbox_stays_with_the_image_of_its_first_box(
    bed: Bed, place: Registry, image: str, engine: Engine
) -> None:
    name = f"{place.server}/station/moving:1"
    place.push(engine, SMALL, "station/moving:1")
    backend = backend_of(bed, RegistryAuth(**place.auth()))
    await backend.probe()
    first = await backend.create(Spec("docker", image=name), bed.labels("stays"))
    was = first.ref.data["image"]
    await first.destroy()
    engine.docker("rmi", name)
    place.push(engine, "station-test/static", "station/moving:1")
    other = await backend.create(Spec("docker", image=name), bed.labels("other"))  # the tag means another one now
    assert other.ref.data["image"] != was
    await other.destroy()
    again = await backend.create(Spec("docker", image=name), bed.labels("stays", generation=2))
    assert again.ref.data["image"] == was
    await again.destroy()
    for uid in ("stays", "other"):
        await backend.remove_files(uid)


# ── how far ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large(place: Registry, engine: Engine, tmp_path: Path) -> Iterator[str]:
    """An image of one layer that the engine has never seen, and which no compression makes smaller."""
    (tmp_path / "noise").write_bytes(os.urandom(LARGE_BYTES))
    tarball = tmp_path / "noise.tar"
    with tarfile.open(tarball, "w") as archive:
        archive.add(tmp_path / "noise", "noise")
    made = engine.docker("import", str(tarball), "station-test/noise:1")
    place.push(engine, made, "station/noise:1")
    engine.docker("rmi", "station-test/noise:1")
    yield "station/noise:1"
    place.remove_from(engine)


@pytest.fixture
async def gate(place: Registry) -> AsyncIterator[Gate]:
    async with Gate.before(place.port, LARGE_BYTES // 2) as made:
        yield made


@pytest.fixture
async def pulls(gate: Gate, place: Registry, engine: Engine) -> AsyncIterator[Pulls]:
    address = address_of({"DOCKER_HOST": engine.url})
    assert address
    spoken = Spoken(address, call_seconds=2.0)
    made = Pulls(spoken, Logins(RegistryAuth(**place.auth(server_address=gate.server)), {}))
    yield made
    await made.aclose()
    await spoken.aclose()


async def test_many_share_one_pull_and_see_how_far_it_is(gate: Gate, pulls: Pulls, large: str, engine: Engine) -> None:
    name = f"{gate.server}/{large}"
    waiting = [asyncio.create_task(pulls.pull(name)) for _ in range(20)]
    async with asyncio.timeout(30):
        await gate.held.wait()
        while not (pulls.views() and pulls.views()[0].done_bytes):  # noqa: ASYNC110 - the engine tells when it likes
            await asyncio.sleep(0.02)
        (view,) = pulls.views()
        assert (view.image, view.layers, view.layers_done) == (name, 1, 0)
        assert 0 < view.done_bytes < view.total_bytes
        assert view.total_bytes > LARGE_BYTES * 0.9
        # Longer than a call may take: it is not for a pull.
        done, _ = await asyncio.wait(waiting, timeout=2.5)
        assert not done
        gate.open()
        await asyncio.gather(*waiting)
    assert len(gate.blobs) == len(set(gate.blobs))
    assert pulls.views() == []
    assert there(engine, name)


async def test_the_last_who_leaves_ends_it(gate: Gate, pulls: Pulls, large: str, engine: Engine) -> None:
    name = f"{gate.server}/{large}"
    waiting = [asyncio.create_task(pulls.pull(name)) for _ in range(3)]
    async with asyncio.timeout(30):
        await gate.held.wait()
        for task in waiting[:2]:
            task.cancel()
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        assert [view.image for view in pulls.views()] == [name]
        assert not gate.left.is_set()
        waiting[2].cancel()
        await asyncio.gather(waiting[2], return_exceptions=True)
        assert pulls.views() == []
        await gate.left.wait()  # the engine itself has hung up on the registry
        assert not there(engine, name)
        gate.open()
        await pulls.pull(name)
    assert there(engine, name)


async def test_all_who_wait_are_told_why_it_failed(gate: Gate, pulls: Pulls) -> None:
    told = await asyncio.gather(*(pulls.pull(f"{gate.server}/no/such:1") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, InvalidInput) for error in told)
    assert len({id(error) for error in told}) == 5


async def test_a_pull_ends_with_its_station(gate: Gate, pulls: Pulls, large: str) -> None:
    waiting = asyncio.create_task(pulls.pull(f"{gate.server}/{large}"))
    async with asyncio.timeout(30):
        await gate.held.wait()
        await pulls.aclose()
        with pytest.raises(StationError, match="stopping"):
            await waiting
        await gate.left.wait()
