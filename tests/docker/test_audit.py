"""What an engine tells of its runtimes, read for the host audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from station.backends.docker._api import Address
from station.backends.docker.audit import examine, runtime_version, transport_of
from tests.engine import Engine

from .conftest import Bed

ABOUT = {"Components": [{"Name": "Engine", "Version": "27.1"}, {"Name": "runc", "Version": "1.1.5+ds1"}]}


def features(version: object) -> dict[str, Any]:
    told = json.dumps({"annotations": {"org.opencontainers.runc.version": version}})
    return {"path": "runc", "status": {"org.opencontainers.runtime-spec.features": told}}


@pytest.mark.parametrize(
    ("entry", "about", "version"),
    [
        ({"path": "runc"}, ABOUT, "1.1.5+ds1"),
        (features("1.3.3"), ABOUT, "1.3.3"),
        ({"path": "runc"}, {}, None),
        ({"path": "/opt/old/runc"}, ABOUT, None),
        ({"runtimeType": "io.containerd.runc.v2"}, ABOUT, None),
        ({"path": "crun"}, ABOUT, None),
        ({"path": "runc", "status": {"org.opencontainers.runtime-spec.features": "{"}}, ABOUT, "1.1.5+ds1"),
        ({"path": "runc", "status": {"org.opencontainers.runtime-spec.features": 7}}, ABOUT, "1.1.5+ds1"),
        ({"path": "runc", "status": "x"}, {"Components": "x"}, None),
        ({"path": "runc"}, {"Components": [7, {"Name": "runc"}]}, None),
        ("runc", ABOUT, None),
    ],
)
def test_a_version_is_that_of_the_very_runtime(entry: Any, about: dict[str, Any], version: str | None) -> None:
    assert runtime_version({"Runtimes": {"mine": entry}}, about, "mine") == version
    assert runtime_version({"Runtimes": {"mine": entry}}, about, "another") is None
    assert runtime_version({}, about, "mine") is None


def test_how_an_engine_is_spoken_to() -> None:
    assert transport_of(Address("unix:///a", socket="/a")) == "unix"
    assert transport_of(Address("tcp://h:2375")) == "tcp"
    assert transport_of(Address("tcp://h:2376", tls=Path("/c"))) == "tls"


@pytest.mark.docker
async def test_a_real_engine_is_examined(bed: Bed, engine: Engine) -> None:
    backend = bed.backend()
    found = await backend.examine()
    assert found is not None
    assert (found.backend, found.runtime, found.named, found.program) == ("docker", "runc", True, "runc")
    assert found.runtime_version is not None
    assert found.runtime_version in engine.docker("version", "--format", "{{json .Server.Components}}")
    assert found.controllers >= {"memory", "pids"}
    assert found.seccomp is not None
    if found.transport == "unix":
        assert found.socket_mode == Path(engine.url.removeprefix("unix://")).stat().st_mode & 0o7777
        assert found.disk is not None
        assert 0 < found.disk.free < 1
    again = await examine(backend._ask(), backend="docker", runtime=None)
    assert (again.runtime, again.named) == (again.default_runtime, False)
