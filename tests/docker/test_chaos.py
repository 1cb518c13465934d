"""An engine that does anything to any call, and one that cannot get rid of a container (HD-D10, HD-D12)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random

import pytest

from station.backends.docker import engine as engines
from station.backends.docker import helpers
from station.core.errors import StationError, Unavailable
from station.core.principals import LOCAL
from station.core.states import State
from station.server.station import Station
from station.worker import orphans
from tests.engine import Engine

from .proxy import Chaos, FaultProxy
from .stationed import execute, opened, station_on, until, until_saved

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]
FULL = bool(os.environ.get("STN_TEST_FULL"))
SEEDS = range(25 if FULL else 1)
NAMES = ("a", "b", "c") if FULL else ("a", "b")
STEPS = 40 if FULL else 16
FALSE = ("conflict", "not_found", "backend_unavailable", "invalid_input", "sandbox_not_found")
"""Codes of what may be answered because the engine said so, retryable or not."""
CALL_SECONDS = 0.5
"""A sixtieth of what a call has: so the delays of 1 to 60 s are 1/60 to 1 s."""


def containers(engine: Engine, station: Station, *more: str) -> list[str]:
    return engine.docker("ps", "-q", "--filter", f"label=station.station={station.id}", *more).split()


@pytest.mark.parametrize("seed", SEEDS)
async def test_hd_d10_whatever_the_engine_does_to_a_call_nothing_is_doubled_or_left(
    proxy: FaultProxy, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(helpers, "REMOVE_SECONDS", 2.0)
    monkeypatch.setattr(orphans, "GRACE_SECONDS", 0.0)
    async with station_on(proxy.url, tmp_path, call_seconds=CALL_SECONDS) as station:
        await station.boxes.capabilities("docker")
        proxy.chaos = chaos = Chaos(seed, share=0.3, longest_seconds=1.0)
        wrong = await steps(station, Random(seed))
        proxy.chaos = None
        station.backends["docker"]._ask()._call_seconds = engines.CALL_SECONDS  # type: ignore[attr-defined]
        assert chaos.struck > 10, "nothing was tried"
        assert wrong == []
        for name in NAMES:
            uid = await opened(station, name)
            assert (await execute(station, uid, "echo well")).ending is not None
            assert len(containers(engine, station, "--filter", f"label=station.id={uid}")) == 1
        await station.orphans.sweep()
        await station.orphans.sweep()
        assert len(containers(engine, station, "-a")) == len(NAMES)
        await station.delete_all()
        assert containers(engine, station, "-a") == []


async def steps(station: Station, random: Random) -> list[object]:
    """Opens, uses and deletes sandboxes; what came of it that should not."""
    wrong: list[object] = []
    for _ in range(STEPS):
        name = random.choice(NAMES)
        try:
            async with asyncio.timeout(30):
                uid = await opened(station, name)
                if random.random() < 0.3:
                    await station.sandboxes.delete(uid)
                else:
                    await execute(station, uid, "echo $$", timeout_seconds=5.0)
        except StationError as error:
            if not error.retryable and error.code not in FALSE:
                wrong.append(error)
        except TimeoutError as error:
            wrong.append(error)
    return wrong


async def test_hd_d10_an_engine_that_says_there_is_no_such_box_and_lists_it_is_not_believed(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    async with station_on(proxy.url, tmp_path) as station:
        uid = await opened(station)
        live = await station.live(uid, LOCAL)
        proxy.answer(r"GET \S+containers/[0-9a-f]{64}/json", "404 Not Found", b'{"message": "No such container"}')
        await proxy.go_away()
        await proxy.come_back()
        await until(lambda: live.session.away is not None)
        proxy.lies.clear()
        assert (await execute(station, uid, "echo there")).exit_code == 0
        assert station.boxes.get(uid) is live
        await station.delete_all()


async def test_hd_d10_control_an_engine_that_is_believed_costs_the_box(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def believed(*_: object) -> bool:
        return False

    monkeypatch.setattr(engines.Engine, "_is_listed", believed)
    async with station_on(proxy.url, tmp_path) as station:
        uid = await opened(station)
        proxy.answer(r"GET \S+containers/[0-9a-f]{64}/json", "404 Not Found", b'{"message": "No such container"}')
        await proxy.go_away()
        await proxy.come_back()
        await until_saved(station, uid)
        assert station.boxes.get(uid) is None
        proxy.lies.clear()
        await station.delete_all()


HELD = (
    b'{"message": "driver \\"overlay2\\" failed to remove root filesystem: unlinkat merged: device or resource busy"}'
)


@pytest.mark.parametrize(
    ("status", "body"),
    [("500 Oops", HELD), ("409 Conflict", b'{"message": "removal of container is already in progress"}')],
    ids=["rootfs-held-open", "removal-in-progress"],
)
async def test_hd_d12_a_box_that_cannot_be_removed_is_told_and_holds_up_no_other(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, body: bytes
) -> None:
    monkeypatch.setattr(helpers, "REMOVE_SECONDS", 10.0)
    async with station_on(proxy.url, tmp_path) as station:
        uid, other = await opened(station, "stuck"), await opened(station, "other")
        record = await station.sandboxes.get(uid)
        assert record.box is not None
        requests = proxy.requests
        proxy.answer(f"DELETE .*{record.box.data['container']}", status, body)
        deleting = asyncio.create_task(station.sandboxes.delete(uid))
        assert (await execute(station, other, "echo well")).exit_code == 0
        await station.sandboxes.delete(other)
        await opened(station, "another")
        assert not deleting.done(), "the others waited for it"
        with pytest.raises(Unavailable, match="did not remove the container") as error:
            await deleting
        assert error.value.retryable
        assert proxy.requests - requests < 60, "it was tried without a pause"
        seen = await station.sandboxes.get(uid)
        assert seen.state is State.DELETING
        assert "busy" in (seen.reason or "") or "in progress" in (seen.reason or "")
        proxy.lies.clear()
        await station.sandboxes.delete(uid)
        await station.delete_all()


async def test_hd_d12_control_without_the_back_off_the_first_refusal_is_the_end(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helpers, "_PASSING", ())
    await _removed_at_the_third_try(proxy, tmp_path, raises=True)


async def test_hd_d12_a_refusal_that_passes_is_not_seen(proxy: FaultProxy, tmp_path: Path) -> None:
    await _removed_at_the_third_try(proxy, tmp_path, raises=False)


async def _removed_at_the_third_try(proxy: FaultProxy, home: Path, *, raises: bool) -> None:
    async with station_on(proxy.url, home) as station:
        uid = await opened(station)
        before = proxy.requests
        proxy.answer("DELETE", "500 Oops", HELD)
        deleting = asyncio.create_task(station.sandboxes.delete(uid))
        await until(lambda: deleting.done() or proxy.requests >= before + 3)
        proxy.lies.clear()
        if raises:
            with pytest.raises(Unavailable, match="busy"):
                await deleting
        else:
            await deleting
        await station.delete_all()
