"""The backend docker as users and operators have it: by settings, by the SDK, by `stn`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from station import Limits, connect, errors
from station.backends.docker.profile import own_profile
from station.core.capabilities import Grade, Level
from tests.engine import Engine
from tests.observer import Observer

from .conftest import state_directory, stn_of

pytestmark = pytest.mark.docker
SMALL = "station-test/busybox"
PROOFS: dict[str, Callable[[Engine], None]] = {}
"""By key of docs/settings.md."""


def proves(*keys: str) -> Callable[[Callable[[Engine], None]], Callable[[Engine], None]]:
    def note(proof: Callable[[Engine], None]) -> Callable[[Engine], None]:
        PROOFS.update(dict.fromkeys(keys, proof))
        return proof

    return note


@pytest.fixture(autouse=True)
def with_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch, ran: Callable[[str], None]) -> Iterator[Engine]:
    """For the stations that these tests start."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    yield engine
    ran("docker")


def settings(**more: object) -> str:
    return json.dumps({"sandbox": {"backend": "docker", "pool_size": 0, **more}})


@proves("sandbox.docker_image")
def boxes_are_made_from_the_operators_image(engine: Engine) -> None:
    with state_directory(settings(docker_image=SMALL)) as home, connect(home) as client:
        with client.open("small") as sandbox:
            assert sandbox.exec(["busybox", "echo", "here"]).stdout == "here\n"
            assert sandbox.info().isolation.image == SMALL
        with client.open("named", image="python:3.11-slim") as sandbox:
            assert sandbox.exec("python3 -c 'print(1)'").stdout == "1\n"


@proves("sandbox.images.linux", "sandbox.images.python", "sandbox.images.node", "sandbox.images.bash")
def every_runtime_has_its_image(engine: Engine) -> None:
    images = {
        "linux": SMALL, "python": "station-test/dev", "node": "python:3.11-slim",
        "bash": "ubuntu:22.04",
    }  # fmt: skip
    text = settings(docker_image="no/such", images=images)
    with state_directory(text) as home, connect(home) as client:
        for runtime, image in images.items():
            with client.open(runtime, runtime=None if runtime == "linux" else runtime) as sandbox:
                assert sandbox.info().isolation.image == image
                assert sandbox.exec("command -v gcc").ok == (runtime == "python")
                assert sandbox.exec("command -v busybox").ok == (runtime == "linux")
        result = client.run("import shutil; print(bool(shutil.which('gcc')))").check()
        assert (result.stdout, result.isolation and result.isolation.image) == ("True\n", "station-test/dev")


@proves("sandbox.pull")
def images_are_pulled_only_where_that_is_set(engine: Engine) -> None:
    # No such registry: what matters is whether it is asked.
    image = "127.0.0.1:1/none:1"
    with state_directory(settings(docker_image=SMALL)) as home, connect(home) as client:
        with pytest.raises(errors.InvalidInput, match=r"docker pull 127\.0\.0\.1:1/none:1"):
            client.open("x", image=image)
    text = settings(docker_image=SMALL, pull="missing", pull_from="127.0.0.1:1")
    with state_directory(text) as home, connect(home) as client:
        with pytest.raises(errors.StationError, match=r"does not get 127\.0\.0\.1:1/none:1"):
            client.open("x", image=image)


@proves("sandbox.pull_from")
def images_come_from_the_registries_of_the_list(engine: Engine) -> None:
    image = "127.0.0.1:1/none:1"
    for listed, asked in (({}, False), ({"pull_from": ["ghcr.io"]}, False), ({"pull_from": ["127.0.0.1:1"]}, True)):
        text = settings(docker_image=SMALL, pull="missing", **listed)
        with state_directory(text) as home, connect(home) as client:
            with pytest.raises(errors.StationError) as error:
                client.open("x", image=image)
            assert isinstance(error.value, errors.Refused) is not asked
            assert ("sandbox.pull_from" in error.value.message) is not asked
            with client.open("y", image="station-test/static:latest") as sandbox:  # which is there
                assert sandbox.info().isolation.image == "station-test/static:latest"


@proves("sandbox.docker_runtime")
def the_runtime_is_the_operators_and_no_other(engine: Engine) -> None:
    image = {"docker_image": SMALL}
    grades = {"runc": Grade.CONTAINER, **({"runsc": Grade.USER_KERNEL} if engine.works("runsc") else {})}
    for runtime, grade in grades.items():
        with state_directory(settings(docker_runtime=runtime, **image)) as home, connect(home) as client:
            with client.open("there") as sandbox:
                assert sandbox.info().isolation.grade is grade
                assert ("4.4.0" in sandbox.exec("cat /proc/version").stdout) == (runtime == "runsc")
    with state_directory(settings(docker_runtime="kata-none", **image)) as home, connect(home) as client:
        with pytest.raises(errors.BackendUnavailable, match="kata-none"):
            client.open("there")


@proves("sandbox.docker_network", "sandbox.docker_network_restricted")
def boxes_have_the_operators_network_and_say_what_it_is_worth(engine: Engine) -> None:
    name = f"stn-proof-{os.getpid()}"
    engine.docker("network", "create", "--internal", name)
    try:
        for restricted, told in ((False, "unrestricted"), (True, "asserted by operator")):
            network = {"docker_network": name, "docker_network_restricted": restricted}
            with state_directory(settings(docker_image=SMALL, **network)) as home, connect(home) as client:
                with client.open("there") as sandbox, client.open("closed", network="none") as closed:
                    assert sandbox.info().isolation.network == told
                    assert closed.info().isolation.network == "none"
                    for each, reaches in ((sandbox, True), (closed, False)):
                        assert ("eth0" in each.exec("ls /sys/class/net").stdout) == reaches
    finally:
        engine.docker("network", "rm", name)


@proves("sandbox.docker_seccomp")
def boxes_run_under_the_operators_profile(engine: Engine) -> None:
    with state_directory() as home:
        profile = home / "profile.json"
        narrow = json.loads(own_profile())
        for rule in narrow["syscalls"]:
            rule["names"] = [name for name in rule["names"] if name not in ("mkdir", "mkdirat")]
        profile.write_text(json.dumps(narrow), encoding="utf-8")
        profile.chmod(0o644)
        for own, code in (({}, 0), ({"docker_seccomp": str(profile)}, 1)):
            (home / "station.yaml").write_text(settings(docker_image=SMALL, **own), encoding="utf-8")
            with connect(home) as client, client.open(f"box-{code}") as sandbox:
                assert sandbox.exec("busybox mkdir d").exit_code == code
                sandbox.delete()
                client.stop()
        profile.chmod(0o666)
        with connect(home) as client, pytest.raises(errors.StationError, match=r"sandbox\.docker_seccomp"):
            client.open("box")


@proves("sandbox.docker_workspace_quota")
def workspaces_have_their_size_where_that_can_be_had_and_is_wanted(engine: Engine) -> None:
    for word in ("auto", "off"):
        # As people write it: YAML takes a bare `off` for false.
        text = f"sandbox: {{backend: docker, pool_size: 0, docker_image: {SMALL}, docker_workspace_quota: {word}}}"
        with state_directory(text) as home, connect(home) as client:
            with client.open("there", limits=Limits(workspace_mb=32), best_effort=True) as sandbox:
                report = sandbox.info().isolation.limits["workspace_mb"]
                result = sandbox.exec("busybox dd if=/dev/zero of=big bs=1M count=64")
                assert ("No space left" in result.stderr) == (report.level is Level.ENFORCED)
                if word == "off":
                    assert "docker_workspace_quota is off" in report.by
                else:
                    assert "docker_workspace_quota is off" not in report.by


@pytest.mark.parametrize("proof", dict.fromkeys(PROOFS.values()), ids=lambda proof: proof.__name__)
def test_a_setting_changes_what_a_station_does(proof: Callable[[Engine], None], engine: Engine) -> None:
    proof(engine)


def test_bubblewrap_stays_the_default_and_docker_is_there_by_name(engine: Engine) -> None:
    with state_directory("sandbox: {pool_size: 0}") as home, connect(home) as client:
        assert client.info().default_backend == "bubblewrap"
        result = client.run("print(1)", backend="docker").check()
        assert result.isolation is not None
        assert (result.isolation.backend, result.isolation.image) == ("docker", "python:3.11-slim")
        assert result.isolation.limits["memory_mb"].level is Level.ENFORCED


def test_a_sandbox_goes_on_after_its_station_and_ends_with_its_files(engine: Engine) -> None:
    with state_directory(settings(docker_image="python:3.11-slim")) as home:
        with connect(home) as client, client.open("kept") as sandbox:
            sandbox.files.write("note", b"kept")
            running = sandbox.start("sleep 1; echo done")
            client.stop()
        with connect(home) as client:
            again = client.get("kept")
            assert again.files.read("note") == b"kept"
            assert again.processes.get(running.id).wait(20).stdout == "done\n"
            client.delete("kept")
        assert [line for line in engine.docker("volume", "ls", "-q").split() if home.name in line] == []


def test_boxes_stand_ready_for_runs(engine: Engine) -> None:
    text = json.dumps({"sandbox": {"backend": "docker", "pool_size": 1, "docker_image": "python:3.11-slim"}})
    with state_directory(text) as home, connect(home) as client:
        client.run("print(1)").check()
        Observer.until(lambda: client.info().pool_boxes >= 1, "the shelf was not filled", 20)
        assert client.run("print(1)").check().warm
        identity = (home / "station_id").read_text().strip()
    names = engine.docker("ps", "-a", "--format", "{{.Names}}").split()
    assert not [name for name in names if identity in name and "box_" in name]


def test_doctor_tells_of_the_engine(engine: Engine, tmp_path: Path) -> None:
    with state_directory("") as home:
        text = stn_of(home)("doctor").stdout.decode()
        assert "docker: works; isolation container" in text
        assert "API 1." in text
    with state_directory("") as home:
        text = stn_of(home, env={"DOCKER_HOST": f"unix://{tmp_path}/none"})("doctor").stdout.decode()
        assert "docker: does not work here: the Docker engine at" in text
