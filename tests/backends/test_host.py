"""The host backend: no isolation, said so, and yet every process has an owner."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from station.backends._processes import marked
from station.backends.base import Labels
from station.backends.host import HostBackend, HostSettings
from station.core.capabilities import Grade, Level
from station.core.errors import BoxLost, CannotEnforce
from station.core.spec import Limits, Mount, Spec
from station.guest.session import GuestSession

KEPT = Spec("host")
EPHEMERAL = Spec("host", ephemeral=True)
MakeLabels = Callable[..., Labels]
STATION = f"test{os.getpid()}"  # as in conftest


async def test_it_says_that_it_isolates_nothing(host: HostBackend) -> None:
    capabilities = await host.probe()
    assert (capabilities.grade, capabilities.network) == (Grade.NONE, "unrestricted")
    assert capabilities.containment == "subreaper"
    assert capabilities.limits["workspace_mb"].level is Level.NOT_ENFORCED


async def test_code_runs_in_directories_of_its_own_and_not_as_root(
    host: HostBackend, labels: MakeLabels, sh, ran: Callable[[str], None]
) -> None:
    box = await host.create(KEPT, labels("b1"))
    ran("host")
    out = (
        await sh(box, "id -u; pwd; echo $HOME; echo $TMPDIR; echo x > f; cat ~/workspace/f; python -c 'print(2)'")
    ).split()
    assert out[0] != "0"
    assert out[1:4] == [box.layout.workspace, box.layout.home, box.layout.tmp]
    assert out[4:] == ["x", "2"]
    await box.destroy()
    again = await host.create(KEPT, labels("b2"))
    assert await sh(again, "cat f") == "x\n"
    await again.destroy()
    await host.remove_files("uid1")
    await host.aclose()
    assert not host._files.exists()


async def test_a_daemon_ends_with_its_box(host: HostBackend, labels: MakeLabels, sh, start) -> None:
    box = await host.create(EPHEMERAL, labels("b1"))
    session = await GuestSession.connect(box.connect)
    process = start(session, box, "trap '' TERM; (trap '' TERM; setsid sleep 7654 & sleep 7654) & echo up; sleep 7654")
    async for _ in process.chunks():
        break
    await session.aclose()
    await box.destroy()
    names = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not [name for name in names if b"7654" in name]
    assert marked(f"{STATION}:b1") == []
    assert not (host._files / "boxes" / "b1").exists()


async def test_a_daemon_ends_even_if_the_guest_was_killed(host: HostBackend, labels: MakeLabels, start) -> None:
    box = await host.create(EPHEMERAL, labels("b1"))
    session = await GuestSession.connect(box.connect, patience_seconds=0.1)
    process = start(session, box, "sleep 7655 & echo up; sleep 7655")
    async for _ in process.chunks():
        break
    os.kill(box.ref.data["pid"], 9)
    assert "signal 9" in await box.ended()
    await session.aclose()
    await box.destroy()
    names = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not [name for name in names if b"7655" in name]


async def test_it_is_adopted_after_a_restart(host: HostBackend, labels: MakeLabels, sh, state: Path) -> None:
    box = await host.create(KEPT, labels("b1"))
    await host.aclose()
    other = HostBackend(state, station_id=STATION, settings=host._settings)
    await other.probe()
    ((found, ref),) = [x async for x in other.boxes()]
    assert (found.box_id, ref) == ("b1", box.ref)
    adopted = await other.adopt(ref)
    assert await sh(adopted, "echo on") == "on\n"
    await adopted.destroy()
    with pytest.raises(BoxLost):
        await other.adopt(ref)
    await other.remove_files("uid1")
    await other.aclose()


async def test_what_it_cannot_keep_is_refused_by_name(host: HostBackend, tmp_path: Path) -> None:
    for spec, word in (
        (Spec("host", network="example.org"), "allow list"),
        (Spec("host", image="debian:12"), "docker"),
        (Spec("host", limits=Limits(tmp_mb=5)), "tmp_mb"),
        (Spec("host", mount=Mount(str(tmp_path))), "protect"),
        (Spec("host", mount=Mount(str(tmp_path), read_only=True, protect=False)), "read-only"),
    ):
        with pytest.raises(CannotEnforce, match=word):
            host.check(spec)


async def test_an_unknown_guest_is_a_reason_and_no_crash(state: Path) -> None:
    backend = HostBackend(state, station_id="s", settings=HostSettings(guest=state / "missing", files=state / "f"))
    assert (await backend.probe()).available is False
