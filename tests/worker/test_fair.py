from __future__ import annotations

import asyncio
import gc

from station.worker.fair import FairRoom


async def test_one_deployment_has_half_of_the_room_and_the_operator_all_of_it() -> None:
    room = FairRoom(4)
    within: list[str] = []

    async def one(who: str) -> None:
        async with room.one(who):
            within.append(who)
            await asyncio.Event().wait()

    async def ask(*callers: str) -> list[asyncio.Task[None]]:
        asking = [asyncio.create_task(one(who)) for who in callers]
        for _ in range(5):
            await asyncio.sleep(0)
        return asking

    asking = await ask(*["dep_a"] * 9, "dep_b")
    assert sorted(within) == ["dep_a", "dep_a", "dep_b"], "who asked nine times does not stand before the other"
    for each in asking:
        each.cancel()
    await asyncio.wait(asking)
    del each, asking
    gc.collect()
    assert dict(room._of) == {}, "nothing is kept of who has nothing under way"
    within.clear()
    asking = await ask(*["local"] * 9)
    assert within == ["local"] * 4
    for each in asking:
        each.cancel()


async def test_in_the_smallest_room_everybody_has_a_turn() -> None:
    room, within = FairRoom(1), list[str]()
    for who in ("dep_a", "local", "dep_b"):
        async with asyncio.timeout(30), room.one(who):
            within.append(who)
    assert within == ["dep_a", "local", "dep_b"]
