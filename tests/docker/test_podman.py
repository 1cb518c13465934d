"""Podman's Docker API in place of an engine of Docker's: what holds there, and what does not."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from station.core.capabilities import Level
from station.core.errors import BackendUnavailable, BoxLost
from station.core.paths import resolve
from station.core.spec import Spec
from station.guest.files import GuestFiles
from tests.engine import Engine

from .conftest import Bed, bed_on, in_fresh, run, session_of
from .podman import Podman, podman
from .relay import Relay

pytestmark = [pytest.mark.docker, pytest.mark.podman, pytest.mark.timeout(120)]
IMAGE = "station-test/busybox"
HERE = f"localhost/{IMAGE}"
KEPT, SHORT = Spec("docker"), Spec("docker", ephemeral=True)


@pytest.fixture(scope="module")
def engine_of_podman(engine: Engine) -> Iterator[Podman]:
    # Podman takes no path of more than 50 characters for its running state.
    with (
        tempfile.TemporaryDirectory(prefix="stn-pod-", dir="/tmp") as place,
        podman(Path(place), engine, IMAGE) as made,
    ):
        yield made


@pytest.fixture
async def place(engine_of_podman: Podman, ran: Callable[[str], None]) -> AsyncIterator[Bed]:
    async with bed_on(engine_of_podman.url) as made:
        yield made
    ran("docker")


async def test_it_is_recognised_and_says_what_does_not_hold(place: Bed) -> None:
    found = await place.backend(image=HERE).probe()
    assert found.available, found.reason
    assert found.seccomp
    assert "(Podman)" in found.notes[0]
    assert any("does not survive its station" in note for note in found.notes)
    # Podman says yes to a volume with a size and forgets it.
    assert found.limits["workspace_mb"].level is Level.NOT_ENFORCED
    assert all(found.limits[name].level is Level.ENFORCED for name in ("memory_mb", "pids", "tmp_mb", "shm_mb"))


async def test_a_box_is_confined_as_on_docker(place: Bed) -> None:
    backend = place.backend(image=HERE)
    words = "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; cat /proc/net/dev | wc -l; touch /x"
    code, said = await in_fresh(backend, place.labels(), SHORT, "sh", "-c", words)
    lines = dict(line.split(":\t") for line in said.splitlines() if ":\t" in line)
    assert lines == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    assert said.splitlines()[0] == "1000"
    assert "3" in said.splitlines()  # two lines of heads and the loopback
    assert code != 0
    assert "Read-only file system" in said


async def test_every_place_that_can_be_written_has_a_size(place: Bed) -> None:
    words = "for at in /tmp /run /var/tmp /dev/shm /workspace /home/node; do df -m $at | tail -n 1; done"
    code, said = await in_fresh(place.backend(image=HERE), place.labels(), SHORT, "sh", "-c", words)
    sizes = {line.split()[-1]: int(line.split()[1]) for line in said.splitlines()}
    assert code == 0
    assert sizes == {"/tmp": 256, "/run": 16, "/var/tmp": 256, "/dev/shm": 64, "/workspace": 2048, "/home/node": 1024}


async def test_limits_hold(place: Bed) -> None:
    forks = "i=0; while [ $i -lt 400 ]; do sleep 5 & i=$((i+1)); done 2>&1"
    _, said = await in_fresh(place.backend(image=HERE), place.labels(), SHORT, "sh", "-c", forks)
    assert "fork" in said or "Resource temporarily unavailable" in said
    eats = "tail /dev/zero"
    code, _ = await in_fresh(place.backend(image=HERE), place.labels("eats"), SHORT, "sh", "-c", eats)
    assert code != 0


async def test_files_outlive_the_box_which_ends_with_its_connection(place: Bed) -> None:
    backend = place.backend(image=HERE)
    await backend.probe()
    box = await backend.create(KEPT, place.labels())
    async with session_of(box) as session:
        assert await run(session, box, "echo", "here") == (0, "here\n")
        await GuestFiles(session, box.layout).write(resolve("note"), b"kept")
    with pytest.raises(BoxLost):
        await place.backend(image=HERE).adopt(box.ref)
    again = await backend.create(KEPT, place.labels(generation=2))
    async with session_of(again) as session:
        assert await run(session, again, "cat", "note") == (0, "kept")
    await again.destroy()
    assert [item async for item in backend.boxes()] == []


async def test_over_tcp_it_is_refused_with_the_reason(engine_of_podman: Podman, place: Bed) -> None:
    """It reads the seccomp profile from its own disk, which may be another machine's."""
    async with Relay.before(engine_of_podman.place / "sock") as relay:
        backend = place.backend(image=HERE, url=f"tcp://127.0.0.1:{relay.port}")
        found = await backend.probe()
        assert not found.available
        assert "reads seccomp profiles from its own disk" in (found.reason or "")
        with pytest.raises(BackendUnavailable, match="its own disk"):
            await backend.create(SHORT, place.labels())
