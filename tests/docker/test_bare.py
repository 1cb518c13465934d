"""What a newcomer meets: an engine without images, one that is not theirs to use, settings that change nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from station.backends.docker import DockerBackend, DockerSettings, Pull, RegistryAuth
from station.backends.docker.engine import Engine as Spoken
from station.backends.docker.registry import Logins
from station.core.errors import BackendUnavailable, InvalidInput
from station.core.spec import Spec
from station.worker.audit import Audit, Policy
from tests.backends.test_as_other_users import NOBODY, ROOT, interpreter

from .conftest import IMAGE, Bed
from .proxy import FaultProxy

SHORT = Spec("docker", ephemeral=True)


async def _nothing(*_: object) -> None: ...


@pytest.mark.docker
async def test_where_there_is_no_image_at_all_the_callers_is_named(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = bed.backend()
    with monkeypatch.context() as patch:
        patch.setattr(Spoken, "image", _nothing)
        patch.setattr(Spoken, "any_image", _nothing)
        assert not (await backend.probe()).available
    with pytest.raises(InvalidInput, match=r"no image pyhton:3\.11: .*docker pull pyhton:3\.11"):
        backend.check(replace(SHORT, image="pyhton:3.11"))
    with pytest.raises(InvalidInput, match="is no name of an image"):
        backend.check(replace(SHORT, image="--privileged"))
    with pytest.raises(BackendUnavailable, match=f"no image {IMAGE}"):
        backend.check(SHORT)
    await backend.probe()
    backend.check(replace(SHORT, image="pyhton:3.11"))  # which is looked for when a box is made


@pytest.mark.docker
async def test_a_diagnosis_sees_that_the_engine_has_gone_and_is_back(bed: Bed, proxy: FaultProxy) -> None:
    backend = bed.backend(url=proxy.url)
    audit = Audit({"docker": backend}, bed.state, Policy(), clock=time.monotonic)
    seen = [(await audit.diagnose()).backends[0].available]
    await proxy.go_away()
    (gone,) = (await audit.diagnose()).backends
    assert "does not answer" in (gone.reason or "")
    await proxy.come_back()
    seen += [gone.available, (await audit.diagnose()).backends[0].available]
    assert seen == [True, False, True]


@pytest.mark.docker
async def test_an_unused_login_is_told_of(bed: Bed) -> None:
    auth = RegistryAuth(username="u", password="p")
    assert any("registry_auth" in note for note in (await bed.backend(auth=auth).probe()).notes)
    assert not any("registry_auth" in note for note in (await bed.backend().probe()).notes)


def test_a_login_that_is_used_is_no_note() -> None:
    auth = RegistryAuth(username="u", password="p")
    assert DockerSettings(auth=auth, pull=Pull.MISSING).notes() == ()
    assert DockerSettings().notes() == ()


async def test_without_an_engine_it_says_when_the_environment_is_read(tmp_path: Path) -> None:
    backend = DockerBackend(tmp_path, station_id="none", environ={"XDG_RUNTIME_DIR": str(tmp_path)})
    backend._address = lambda: None  # type: ignore[method-assign]  # this machine may have one
    found = await backend.probe()
    assert "DOCKER_HOST" in (found.remedy or "")
    assert "stn stop" in (found.remedy or "")


@pytest.fixture
def closed() -> Iterator[Path]:
    """A socket of root's, where everybody gets to."""
    path = Path(f"/tmp/stn-closed-{os.getpid()}.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        try:
            yield path
        finally:
            path.unlink()


PROBE = """
import asyncio, sys
from pathlib import Path
from station.backends.docker import DockerBackend
backend = DockerBackend(Path("/nonexistent"), station_id="x", environ={"DOCKER_HOST": f"unix://{sys.argv[1]}"})
print(asyncio.run(backend.probe()).reason)
"""


@pytest.mark.root
def test_a_socket_that_is_closed_to_us_names_the_group(closed: Path) -> None:
    python = interpreter()
    if python is None or not all(os.stat(p).st_mode & 1 for p in (ROOT, *ROOT.parents)):
        pytest.skip("no Python of this version, or not this directory, is open to other users")
    packages = os.pathsep.join([str(ROOT / "src"), *(str(p) for p in (ROOT / ".venv/lib").glob("*/site-packages"))])
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", python, "-c", PROBE, str(closed)]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=env)
    assert "usermod -aG docker" in done.stdout, done


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"username": "u", "password": "p", "identity_token": "t"}, "one of them"),
        ({"username": "u", "password": "p", "server_address": "ghcr.io/somebody"}, "without a path"),
        ({"username": "u", "password": "p", "server_address": "https://r.example:5000/v2/"}, "without a path"),
    ],
)
def test_a_login_that_says_two_things_is_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        RegistryAuth(**given)


@pytest.mark.parametrize("server", ["https://index.docker.io/v1/", "ghcr.io", "https://ghcr.io/", ""])
def test_addresses_that_docker_takes_are_taken(server: str) -> None:
    assert RegistryAuth(username="u", password="p", server_address=server).server_address == server


async def test_a_config_below_home_is_found_and_one_that_is_missing_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text('{"auths": {"ghcr.io": {"username": "u", "password": "p"}}}')
    found = await Logins(RegistryAuth(docker_config_path="~/config.json")).for_image("ghcr.io/a/b")
    assert found is not None
    assert found.username == "u"
    for place, named in (("~/none.json", f"{tmp_path}/none.json"), ("~no-such-user/c", "~no-such-user/c")):
        with pytest.raises(BackendUnavailable, match=f"{named}: No such file"):
            await Logins(RegistryAuth(docker_config_path=place)).for_image("ghcr.io/a/b")
