"""Engines over TCP, without and with TLS: what works on a socket works there, and what is set wrong is named."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from station import connect
from station.core.errors import Unavailable
from station.core.paths import resolve
from station.core.spec import Spec
from station.guest.files import GuestFiles
from station.guest.frames import StartRecord
from tests.acceptance.conftest import state_directory
from tests.engine import ROOT, OwnEngine

from .certificates import Authority
from .conftest import Bed, bed_on, run, session_of
from .registry import free_port
from .relay import Relay

pytestmark = [pytest.mark.docker, pytest.mark.root, pytest.mark.timeout(180)]
IMAGE = "station-test/busybox"
KEPT = Spec("docker")
LINES = 300
COUNT = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo $i; sleep 0.01; done"


@dataclass
class Remote:
    """An engine of our own that listens on TCP."""

    own: OwnEngine
    port: int
    environ: dict[str, str] = field(default_factory=dict)
    """Beside DOCKER_HOST."""
    authority: Authority | None = None

    def url(self, port: int | None = None) -> str:
        return f"tcp://127.0.0.1:{port or self.port}"

    def host(self, port: int | None = None) -> dict[str, str]:
        return {"DOCKER_HOST": self.url(port), **self.environ}


@pytest.fixture(scope="module", params=["tcp", "tls"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    port, place = free_port(), tmp_path_factory.mktemp("remote")
    options, environ, authority = [], {}, None
    if request.param == "tls":
        authority = Authority(place / "ca", "ca of tests")
        server = authority.server()
        options += ["--tlsverify", f"--tlscacert={server}/ca.pem"]
        options += [f"--tlscert={server}/cert.pem", f"--tlskey={server}/key.pem"]
        environ = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(authority.client())}
    with OwnEngine.in_a_slot(hosts=[f"tcp://127.0.0.1:{port}"], options=options) as own:
        local = {**os.environ, "DOCKER_HOST": own.url}
        subprocess.run([ROOT / "scripts" / "image", IMAGE], env=local, check=True)
        yield Remote(own, port, environ, authority)


@pytest.fixture
async def place(remote: Remote) -> AsyncIterator[Bed]:
    """Its leftovers are cleared on the engine's own socket."""
    async with bed_on(remote.own.url) as made:
        yield made


async def test_boxes_commands_and_files(remote: Remote, place: Bed) -> None:
    backend = place.backend(image=IMAGE, environ=remote.host())
    assert (await backend.probe()).available
    box = await backend.create(KEPT, place.labels())
    content = os.urandom(3 << 20)
    async with session_of(box) as session:
        assert await run(session, box, "sh", "-c", "echo $((6*7)); exit 5") == (5, "42\n")
        files = GuestFiles(session, box.layout)
        await files.write(resolve("noise"), content)
        stream = await files.read(resolve("noise"))
        assert b"".join([piece async for piece in stream]) == content
    await box.destroy()
    assert [item async for item in backend.boxes()] == []


async def test_a_cut_connection_loses_no_line(remote: Remote, place: Bed) -> None:
    async with Relay.before(remote.port) as relay:
        backend = place.backend(image=IMAGE, environ=remote.host(relay.port))
        await backend.probe()
        box = await backend.create(KEPT, place.labels())
        async with session_of(box) as session:
            record = StartRecord(argv=("sh", "-c", COUNT), env=dict(box.layout.env))
            process = session.start(record, guest_id=session.next_id())
            await process.pid()
            lines, cuts = b"", 0
            async with asyncio.timeout(60):
                async for chunk in process.chunks():
                    lines += chunk.data
                    if cuts < 3 and lines.count(b"\n") > 50 * (cuts + 1):
                        cuts += 1
                        assert relay.connections > 0
                        await relay.cut()
                assert (await process.exit()).value == 0
            assert cuts == 3
            assert lines.split() == [b"%d" % number for number in range(1, LINES + 1)]
            await relay.go_away()
            with pytest.raises(Unavailable) as error:
                await backend.create(KEPT, place.labels("other"))
            assert error.value.retryable
            await relay.come_back()
            assert await run(session, box, "echo", "there") == (0, "there\n")
        await box.destroy()


async def test_an_attached_connection_notices_a_machine_that_is_gone(remote: Remote, place: Bed) -> None:
    backend = place.backend(image=IMAGE, environ=remote.host())
    await backend.probe()
    box = await backend.create(KEPT, place.labels())
    stream = await box.connect()
    response = stream._stream._stream._resp
    assert response
    assert response.connection
    assert response.connection.transport
    attached = response.connection.transport.get_extra_info("socket")
    assert attached.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, between, tries = (
        attached.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle + between * tries <= 60
    await stream.aclose()
    await box.destroy()


def test_a_station_takes_its_boxes_over_again(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, ran: Callable[[str], None]
) -> None:
    for name, value in remote.host().items():
        monkeypatch.setenv(name, value)
    settings = f"sandbox: {{backend: docker, docker_image: {IMAGE}, pool_size: 0}}\n"
    with state_directory(settings) as home:
        with connect(home) as client, client.open("far") as sandbox:
            sandbox.files.write("note", "kept")
            process = sandbox.start("echo begun; read word; echo got $word", stdin_open=True)
            assert next(iter(process.output())).data == b"begun\n"
            pid = client.info().pid
            client.stop()
        with connect(home) as client, client.get("far") as sandbox:
            assert client.info().pid != pid
            assert sandbox.exec("cat note").stdout == "kept"
            found = sandbox.processes.get(process.id)
            found.write(b"it\n")
            assert b"".join(chunk.data for chunk in found.output()) == b"begun\ngot it\n"
            assert sandbox.info().generation == 1
    ran("docker")


# ── what is set wrong ───────────────────────────────────────────────────────────────────────────────────────────────


secured = pytest.mark.parametrize("remote", ["tls"], indirect=True)


async def refused(place: Bed, environ: dict[str, str]) -> tuple[str, str]:
    """Reason and remedy, and the engine is named."""
    found = await place.backend(image=IMAGE, environ=environ).probe()
    assert not found.available
    assert found.reason
    assert found.remedy
    assert not found.passing  # asking again helps nobody
    with pytest.raises(Unavailable) as error:
        await place.backend(image=IMAGE, environ=environ)._ask().info()
    assert error.value.message == found.reason
    return found.reason, found.remedy


@secured
async def test_an_engine_of_another_authority_is_not_believed(remote: Remote, place: Bed, tmp_path: Path) -> None:
    folder = tmp_path / "client"
    shutil.copytree(remote.environ["DOCKER_CERT_PATH"], folder)
    shutil.copy(Authority(tmp_path / "other", "another ca").place / "ca.pem", folder / "ca.pem")
    reason, remedy = await refused(place, {**remote.host(), "DOCKER_CERT_PATH": str(folder)})
    assert "shows a certificate that is not believed" in reason
    assert "ca.pem" in remedy


@secured
async def test_an_engine_of_another_name_is_not_believed(remote: Remote, place: Bed) -> None:
    host = remote.host() | {"DOCKER_HOST": f"tcp://localhost:{remote.port}"}
    reason, remedy = await refused(place, host)
    assert "localhost" in reason
    assert "DOCKER_HOST" in remedy


@secured
async def test_a_certificate_of_another_authority_is_not_accepted(remote: Remote, place: Bed, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other", "another ca").client()
    shutil.copy(Path(remote.environ["DOCKER_CERT_PATH"]) / "ca.pem", stranger / "ca.pem")
    reason, remedy = await refused(place, {**remote.host(), "DOCKER_CERT_PATH": str(stranger)})
    assert "does not accept the station's certificate" in reason
    assert "cert.pem" in remedy


@secured
@pytest.mark.parametrize("name", ["cert.pem", "key.pem", "ca.pem"])
async def test_a_missing_file_is_named(remote: Remote, place: Bed, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "client"
    shutil.copytree(remote.environ["DOCKER_CERT_PATH"], folder)
    (folder / name).unlink()
    reason, remedy = await refused(place, {**remote.host(), "DOCKER_CERT_PATH": str(folder)})
    assert f"{name} missing" in reason
    assert "DOCKER_CERT_PATH" in remedy


@secured
async def test_an_engine_that_wants_tls_says_so(remote: Remote, place: Bed) -> None:
    reason, remedy = await refused(place, {"DOCKER_HOST": remote.url()})
    assert "wants TLS" in reason
    assert "DOCKER_TLS_VERIFY=1" in remedy


@secured
async def test_an_engine_without_tls_is_named(remote: Remote, place: Bed) -> None:
    """A port that answers every greeting in plain HTTP."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reason, remedy = await refused(place, remote.host(port))
    assert "speaks no TLS" in reason
    assert "unset DOCKER_TLS_VERIFY" in remedy
