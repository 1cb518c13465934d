"""What is in `packaging`: units of systemd and what they mean for us, and the image."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from station import Client, connect
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import Observer, of_process

from .conftest import state_directory

pytestmark = pytest.mark.filterwarnings(REFUSED_SOCKET)
ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
UNITS = ("station.service", "station-user.service")


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(PACKAGING / name, encoding="utf-8")
    return parsed


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_lets_boxes_live_on_and_forbids_nothing_that_they_need(name: str) -> None:
    service = unit(name)["Service"]
    assert (service["Type"], service["KillMode"], service["Delegate"]) == ("notify", "process", "yes")
    assert (service["Restart"], service["OOMPolicy"]) == ("on-failure", "continue")
    assert service["ExecStart"].endswith("/bin/stn serve")
    forbidden = {"ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset", "ProtectHostname",
                 "ProtectControlGroups", "PrivateUsers", "PrivatePIDs", "RestrictNamespaces", "SystemCallFilter",
                 "MemoryDenyWriteExecute", "CapabilityBoundingSet", "DynamicUser"}  # fmt: skip
    assert forbidden & set(service) == set()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_a_unit(name: str, tmp_path: Path) -> None:
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", (PACKAGING / name).read_text(), flags=re.MULTILINE)
    (tmp_path / name).write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True)
    # It is of systemd 254, and what it is for is told where it is missing.
    told = [line for line in (done.stdout + done.stderr).splitlines() if "DelegateSubgroup" not in line]
    assert (done.returncode, told) == (0, [])
    # The control: a unit that is wrong is told of.
    (tmp_path / name).write_text(text.replace("KillMode=process", "KillMode=processes"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True)
    assert "kill mode" in done.stdout + done.stderr


class Service:
    """`stn serve` as a service manager runs it."""

    def __init__(self, home: Path, place: Path) -> None:
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._told.bind(str(place / "notify"))
        self._told.settimeout(60)
        self.main = subprocess.Popen(
            [sys.executable, "-m", "station", "--home", str(home), "serve"],
            env=os.environ | {"NOTIFY_SOCKET": str(place / "notify")},
            cwd="/",
            stderr=subprocess.DEVNULL,
        )

    def told(self) -> bytes:
        return self._told.recv(4096)

    def stop(self) -> None:
        """`KillMode=process`: TERM to the main process, and nothing to any other."""
        self.main.send_signal(signal.SIGTERM)
        assert self.told() == b"STOPPING=1"
        assert self.main.wait(60) == 0

    def close(self) -> None:
        if self.main.poll() is None:
            self.main.kill()
        self.main.wait()
        self._told.close()


@contextmanager
def served(home: Path, place: Path) -> Iterator[Service]:
    place.mkdir()
    service = Service(home, place)
    try:
        assert service.told() == b"READY=1"
        yield service
    finally:
        service.close()


def test_a_service_that_is_stopped_by_its_main_process_alone_keeps_its_boxes(
    tmp_path: Path, ran: Callable[[str], None]
) -> None:
    ran("bubblewrap")
    with state_directory("sandbox: {backend: bubblewrap, pool_size: 0}\n") as home:
        with served(home, tmp_path / "a") as service, connect(home, start=False) as client:
            sandbox = client.open("kept")
            running = sandbox.start("while true; do echo x >> ticks; sleep 0.1; done")
            Observer.until(lambda: sandbox.exec("cat ticks").ok, "it has not begun")
            processes = Observer(home).processes(sandbox)
            environments = [of_process(pid, "environ") for pid in processes]
            assert not any(b"NOTIFY_SOCKET" in environment for environment in environments)
            service.stop()
        ticks = home / "sandboxes" / sandbox.id / "workspace" / "ticks"
        before = ticks.stat().st_size
        Observer.until(lambda: ticks.stat().st_size > before, "it does not run on without a station")

        with served(home, tmp_path / "b") as service, connect(home, start=False) as client:
            view = client.get("kept").processes.get(running.id).view
            assert (view.state, client.get("kept").info().generation) == ("running", 1)
            # The control: where all that belongs to the service is ended, as systemd does by itself, nothing is left.
            service.stop()
            for pid in Observer(home).processes(sandbox):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with served(home, tmp_path / "c"), connect(home, start=False) as client:
            again = client.get("kept")
            assert again.info().state == "suspended"
            assert again.processes.get(running.id).view.state == "ended"
            _end(client)


def _end(client: Client) -> None:
    for view in client.list():
        client.delete(view.name)


def test_a_manager_that_does_not_listen_stops_nothing(tmp_path: Path) -> None:
    from station.server.notify import READY, Manager

    environ = {"NOTIFY_SOCKET": str(tmp_path / "none"), "HOME": "/"}
    manager = Manager(environ)
    assert environ == {"HOME": "/"}
    manager.tell(READY)
    Manager({}).tell(READY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0stn-test-{os.getpid()}")
        Manager({"NOTIFY_SOCKET": f"@stn-test-{os.getpid()}"}).tell(READY)
        assert sock.recv(100) == b"READY=1"


def test_the_image_is_made_of_what_is_here_by_hash_and_runs_as_nobody_special() -> None:
    text = (PACKAGING / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line and not line.startswith("#")]
    steps = [line.split(None, 1) for line in lines]
    assert {word for word, _ in steps} <= {
        "ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "VOLUME", "USER", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT",
        "CMD",
    }  # fmt: skip
    assert [rest for word, rest in steps if word == "FROM"] == ["${BASE} AS build", "${BASE}"]
    for word, rest in steps:
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
        if word == "RUN":
            for command in re.findall(r"pip (?:install|wheel)[^&]*", rest):
                assert re.search(r"--require-hashes|--no-index|--no-build-isolation --no-deps", command), command
    users = [index for index, (word, rest) in enumerate(steps) if word == "USER" and rest not in ("root", "0")]
    assert users[-1] > max(index for index, (word, _) in enumerate(steps) if word == "RUN")
    assert not re.search(r"[\w-]+\.(io|com|org|dev)\b", text), "no registry's host"
