"""Images from a registry with a password, as operators set them up and users wait for them."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from station import connect, errors
from tests.docker.registry import Registry, gate_in_a_thread, registry
from tests.engine import Engine

from .conftest import state_directory

pytestmark = [pytest.mark.docker, pytest.mark.registry]
SMALL = "station-test/busybox"
NAME = "station/small:1"
LARGE_BYTES = 8 << 20
PROOFS: dict[str, Callable[[Engine, Registry], None]] = {}
"""By key of docs/settings.md."""


def proves(
    *keys: str,
) -> Callable[[Callable[[Engine, Registry], None]], Callable[[Engine, Registry], None]]:
    def note(proof: Callable[[Engine, Registry], None]) -> Callable[[Engine, Registry], None]:
        PROOFS.update(dict.fromkeys((f"sandbox.registry_auth.{key}" for key in keys), proof))
        return proof

    return note


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as made:
        made.push(engine, SMALL, NAME)
        yield made


@pytest.fixture(autouse=True)
def with_engine(
    engine: Engine, place: Registry, monkeypatch: pytest.MonkeyPatch, ran: Callable[[str], None]
) -> Iterator[None]:
    """For the stations that these tests start; it has nothing of the registry."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    place.remove_from(engine)
    yield
    place.remove_from(engine)
    ran("docker")


def settings(auth: dict[str, str], *servers: str) -> str:
    """`servers`: beside that of the credentials."""
    common = {"backend": "docker", "pool_size": 0, "docker_image": SMALL, "pull": "missing"}
    named = [server for server in (auth.get("server_address"), *servers) if server]
    return json.dumps({"sandbox": {**common, "pull_from": named, "registry_auth": auth}})


def opens(place: Registry, auth: dict[str, str]) -> None:
    with state_directory(settings(auth, place.server)) as home, connect(home) as client:
        with client.open("x", image=f"{place.server}/{NAME}") as sandbox:
            assert sandbox.exec("echo here").stdout == "here\n"
        told = "".join(path.read_text(errors="replace") for path in home.glob("station.log*"))
        told += repr(client.doctor()) + repr(client.info()) + repr(client.list())
        told += "".join(path.read_bytes().decode("latin-1") for path in home.glob("*.db*"))
        assert place.password not in told


def refused(place: Registry, auth: dict[str, str], who: str) -> None:
    with state_directory(settings(auth, place.server)) as home, connect(home) as client:
        with pytest.raises(errors.Refused, match=rf"to {who}: .*sandbox\.registry_auth") as error:
            client.open("x", image=f"{place.server}/{NAME}")
        assert error.value.detail["setting"] == "sandbox.registry_auth"
        assert client.list() == []


@proves("username", "password", "server_address")
def a_user_and_a_password_are_for_one_registry(engine: Engine, place: Registry) -> None:
    refused(place, {}, "nobody in particular")
    refused(place, place.auth(server_address="ghcr.io"), "nobody in particular")
    refused(place, place.auth(password="another"), "the user of the credentials")
    refused(place, place.auth(username="another"), "the user of the credentials")
    opens(place, place.auth())


@proves("identity_token")
def a_token_is_told_in_place_of_them(engine: Engine, place: Registry) -> None:
    # A registry with passwords takes no token: what matters is that it got one.
    refused(place, {"identity_token": "no-such-token", "server_address": place.server}, "the bearer of the token")


@proves("docker_config_path")
def a_docker_config_file_is_read_when_it_is_needed(engine: Engine, place: Registry) -> None:
    path = place.place / "user.json"
    packed = base64.b64encode(f"{place.user}:{place.password}".encode()).decode()
    path.write_text(json.dumps({"auths": {"other.example": {"auth": packed}}}))
    refused(place, {"docker_config_path": str(path)}, "nobody in particular")
    path.write_text(json.dumps({"auths": {place.server: {"auth": packed}}}))
    opens(place, {"docker_config_path": str(path)})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("proof", dict.fromkeys(PROOFS.values()), ids=lambda proof: proof.__name__)
def test_each_key_of_the_section_has_its_effect(
    proof: Callable[[Engine, Registry], None], engine: Engine, place: Registry
) -> None:
    proof(engine, place)


def test_a_secret_comes_from_the_stations_environment(place: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = place.auth(password="${TEST_REGISTRY_TOKEN}")
    monkeypatch.setenv("TEST_REGISTRY_TOKEN", place.password)
    opens(place, auth)


# ── what the user sees meanwhile ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large(place: Registry, engine: Engine, tmp_path: Path) -> str:
    """The small one with something like a bash, and a layer that takes its time."""
    (tmp_path / "noise").write_bytes(os.urandom(LARGE_BYTES))
    (tmp_path / "bash").write_text('#!/bin/sh\nexec sh "$@"\n', encoding="utf-8")
    (tmp_path / "bash").chmod(0o755)
    box = engine.docker("create", SMALL, "true")
    engine.docker("cp", str(tmp_path / "noise"), f"{box}:/noise")
    engine.docker("cp", str(tmp_path / "bash"), f"{box}:/bin/bash")
    made = engine.docker("commit", box)
    engine.docker("rm", box)
    place.push(engine, made, "station/large:1")
    engine.docker("rmi", made, check=False)
    return "station/large:1"


class Terminal:
    """`stn` with a terminal for its standard error."""

    def __init__(self, home: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        with closing(os.fdopen(slave, "wb", buffering=0)) as error:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "station", *words],
                env={**os.environ, "STN_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=error,
                start_new_session=True,
            )
        self.seen = b""

    def until(self, text: bytes) -> None:
        end = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            self.seen += os.read(self._master, 4096)

    def end(self) -> tuple[int, bytes]:
        """Exit code and standard output."""
        out, _ = self.process.communicate(timeout=50)
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # nobody has the other end any more
                break
            if not data:
                break
            self.seen += data
        os.close(self._master)
        return self.process.returncode, out


COMMANDS = {
    "run": (("run", "-c", "echo out", "--runtime", "bash", "--image"), b"out\n"),
    "open": (("open", "there", "--image"), b"there: made, running"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_shows_how_far_a_pull_is(place: Registry, large: str, command: str) -> None:
    words, expected = COMMANDS[command]
    with gate_in_a_thread(place.port, LARGE_BYTES // 2) as (server, open_gate):
        with state_directory(settings(place.auth(server_address=server))) as home, connect(home) as client:
            image = f"{server}/{large}"
            terminal = Terminal(home, *words, image)
            terminal.until(b"pulling")
            (pull,) = client.info().pulls
            assert pull.image == image
            assert terminal.process.poll() is None
            open_gate.set()
            code, out = terminal.end()
            assert (code, out.startswith(expected)) == (0, True), terminal.seen
            assert client.info().pulls == ()


def test_json_stays_clean_and_who_waits_elsewhere_shares_the_pull(place: Registry, large: str) -> None:
    with gate_in_a_thread(place.port, LARGE_BYTES // 2) as (server, open_gate):
        with state_directory(settings(place.auth(server_address=server))) as home, connect(home) as client:
            shown = Terminal(home, "open", "there", "--image", f"{server}/{large}")
            shown.until(b"pulling")
            plain = Terminal(home, "open", "other", "--json", "--image", f"{server}/{large}")
            assert len(client.info().pulls) == 1
            open_gate.set()
            assert shown.end()[0] == 0
            code, out = plain.end()
            assert (code, json.loads(out)["name"], plain.seen) == (0, "other", b"")


def test_whoever_gives_up_ends_the_pull(place: Registry, large: str) -> None:
    for command, (words, _) in COMMANDS.items():
        with gate_in_a_thread(place.port, LARGE_BYTES // 2) as (server, _):
            with state_directory(settings(place.auth(server_address=server))) as home, connect(home) as client:
                terminal = Terminal(home, *words, f"{server}/{large}")
                terminal.until(b"pulling")
                terminal.process.send_signal(signal.SIGINT)
                assert terminal.end()[0] == 130, command
                end = time.monotonic() + 10
                while client.info().pulls:
                    assert time.monotonic() < end, "the pull goes on"
                assert client.list() == []
