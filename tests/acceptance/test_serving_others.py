"""Code of others in a real engine: an old runc is refused, a kernel of its own is not."""

from __future__ import annotations

import json

import pytest

from station import connect, errors
from station.core.audit import Status
from station.core.machine import runc_is_mended
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.engine import Engine

from .conftest import state_directory, stn_of
from .test_docker import settings, with_engine

__all__ = ["with_engine"]

pytestmark = [pytest.mark.docker, pytest.mark.filterwarnings(REFUSED_SOCKET)]
IMAGE = "station-test/busybox"


def runc_of(engine: Engine) -> str:
    """As the engine's own command tells it."""
    lines = engine.docker("version", "--format", "{{range .Server.Components}}{{.Name}} {{.Version}}\n{{end}}").split(
        "\n"
    )
    return next(line.split()[1] for line in lines if line.startswith("runc "))


def test_runc_serves_others_from_its_floor_on_alone(engine: Engine) -> None:
    mended = runc_is_mended(runc_of(engine))
    text = settings(docker_image=IMAGE, docker_runtime="runc")
    with state_directory(text) as home, connect(home) as client:
        with client.open("mine") as sandbox:
            assert sandbox.exec(["busybox", "true"]).ok, "the control: one's own code runs, whatever the version"
        client.stop()
        (home / "station.yaml").write_text(settings(docker_image=IMAGE, docker_runtime="runc", serves_others=True))
        told = client.doctor()
        check = next(check for check in told.checks if check.id == "docker.runtime")
        assert (check.status, check.required) == (Status.OK if mended else Status.RED, True)
        assert runc_of(engine) in check.found
        layers = [one.layer for one in told.serves_others["docker"]]
        assert layers == ([] if mended else ["docker.runtime"])
        if mended:
            client.open("new").close()
            return
        sandbox = client.get("mine")
        for call in (lambda: client.open("new"), lambda: sandbox.exec(["busybox", "true"]), lambda: client.run("1")):
            with pytest.raises(errors.Refused, match=r"docker_runtime: runsc"):
                call()
        client.delete("mine")
        assert client.list() == []


def test_gvisor_serves_others_beside_an_old_runc(engine: Engine) -> None:
    if not engine.works("runsc"):
        pytest.skip("this engine runs no gVisor")
    text = settings(docker_image=IMAGE, docker_runtime="runsc", serves_others=True, minimum_isolation="user-kernel")
    with state_directory(text) as home, connect(home) as client:
        assert client.doctor().serves_others["docker"] == []
        with client.open("theirs") as sandbox:
            assert sandbox.exec(["busybox", "true"]).ok
        with pytest.raises(errors.Refused, match="minimum_isolation is user-kernel"):
            client.run("1", backend="bubblewrap")


def test_doctor_tells_of_the_engine_check_by_check(engine: Engine) -> None:
    with state_directory(settings(docker_image=IMAGE, docker_runtime="runc")) as home:
        stn = stn_of(home)
        checks = {check["id"]: check for check in json.loads(stn("doctor", "--json").stdout)["checks"]}
        names = ("api", "runtime", "default_runtime", "cgroups", "seccomp", "quota", "disk", "live_restore", "socket")
        assert {f"docker.{name}" for name in names} <= set(checks)
        assert all(check["backend"] == ("docker" if "." in name else None) for name, check in checks.items())
        assert checks["docker.live_restore"]["status"] == "ok"
        text = stn("doctor").stdout.decode()
        assert f"runc {runc_of(engine)}" in text
        assert "who can speak to the engine: " in text
        assert "\x1b" not in text
