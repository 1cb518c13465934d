from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from station.backends.fake import FakeBackend
from station.core.errors import BackendUnavailable, Unavailable
from station.core.spec import Limits, Spec
from station.guest.frames import StartRecord
from station.worker.pool import Pool

from .box import eventually

SPEC = Spec("fake")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[FakeBackend]:
    made = FakeBackend(tmp_path, station_id="me")
    yield made
    await made.store.aclose()


@pytest.fixture
async def pool(backend: FakeBackend) -> AsyncIterator[Pool]:
    made = Pool({"fake": backend}, station="me", size=2, max_size=4, calm_seconds=3600)
    yield made
    await made.aclose()


async def filled(pool: Pool, count: int) -> None:
    await eventually(lambda: len(pool) == count)


async def test_the_first_claim_is_cold_and_the_next_find_a_box_ready(pool: Pool, backend: FakeBackend) -> None:
    assert not (await pool.claim(SPEC)).warm
    await filled(pool, 3)
    claims = [await pool.claim(SPEC) for _ in range(3)]
    assert [claim.warm for claim in claims] == [True] * 3
    assert len({claim.live.uid for claim in claims}) == 3
    assert all(live.labels.pool for live in backend.store.live.values())


async def test_a_claimed_box_runs_commands_and_is_destroyed_on_release(pool: Pool, backend: FakeBackend) -> None:
    live = (await pool.claim(SPEC)).live
    process = live.session.start(StartRecord(("true",), env={"PATH": "/bin"}), guest_id=live.session.next_id())
    assert (await process.exit()).value == 0
    pool.release(live)
    await eventually(lambda: live.uid not in backend.store.live)


async def test_a_box_that_died_on_the_shelf_is_replaced(pool: Pool, backend: FakeBackend) -> None:
    pool.prepare(SPEC)
    await filled(pool, 2)
    dead = list(backend.store.live.values())
    for live in dead:
        live.die("killed by the test")
    for each in pool.boxes:
        await each.session.wait_closed()
    claim = await pool.claim(SPEC)
    assert claim.live.uid not in {live.labels.box_id for live in dead}
    assert claim.live.session.closed_reason is None


async def test_many_claims_at_once_get_a_box_each_and_the_shelf_grows_within_its_bound(pool: Pool) -> None:
    claims = await asyncio.gather(*(pool.claim(SPEC) for _ in range(16)))
    assert len({claim.live.uid for claim in claims}) == 16
    await filled(pool, 4)


async def test_after_a_calm_time_the_shelf_goes_back_to_its_size(backend: FakeBackend) -> None:
    pool = Pool({"fake": backend}, station="me", size=1, max_size=4, calm_seconds=0.05)
    await asyncio.gather(*(pool.claim(SPEC) for _ in range(8)))
    await filled(pool, 1)
    assert len(pool) == 1
    await pool.aclose()


async def test_what_cannot_be_made_ahead_is_made_for_its_user_alone(pool: Pool) -> None:
    claim = await pool.claim(replace(SPEC, limits=Limits(pids=64), best_effort=True))
    assert not claim.warm
    assert len(pool) == 0
    assert claim.live.spec.ephemeral


async def test_a_claim_that_is_cancelled_leaves_its_box_on_the_shelf(pool: Pool) -> None:
    waiting = asyncio.ensure_future(pool.claim(SPEC))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await filled(pool, 3)


async def test_a_box_that_cannot_be_made_is_told_to_who_waits_and_the_next_try_works(
    pool: Pool, backend: FakeBackend
) -> None:
    backend.faults.create_refusals = 4
    with pytest.raises(BackendUnavailable):
        await pool.claim(SPEC)
    backend.faults.create_refusals = 0
    assert (await pool.claim(SPEC)).live.session.closed_reason is None


async def test_closing_destroys_every_box_and_ends_who_waits(backend: FakeBackend) -> None:
    pool = Pool({"fake": backend}, station="me", size=2, at_once=1)
    claimed = await pool.claim(SPEC)
    waiting = [asyncio.ensure_future(pool.claim(SPEC)) for _ in range(8)]
    await asyncio.sleep(0)
    await pool.aclose()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} <= {Unavailable, type(claimed)}
    assert backend.store.live == {}
    with pytest.raises(Unavailable):
        await pool.claim(SPEC)
    await pool.aclose()
