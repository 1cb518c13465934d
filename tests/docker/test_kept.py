"""What sandboxes have left with an engine is found without a record, and pruned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from station.core.ids import uid_of
from station.server.upkeep import room as upkeep
from tests.engine import Engine

from .conftest import Bed
from .stationed import opened, station_on

pytestmark = pytest.mark.docker


async def test_an_engine_tells_of_which_sandboxes_it_has_files(bed: Bed) -> None:
    backend = bed.backend()
    await backend.probe()
    assert await backend.kept() == []
    engine = backend._ask()
    for name, station in (("ours", bed.station), ("theirs", "another")):
        await engine.create_volume(f"stn-test-{name}", {"station.station": station, "station.id": name})
    assert await backend.kept() == ["ours"]
    for name in ("ours", "theirs"):
        await engine.remove_volume(f"stn-test-{name}")
    assert await backend.kept() == []


async def test_a_station_that_never_used_the_engine_knows_of_none_and_does_not_ask(bed: Bed) -> None:
    assert await bed.backend(url="unix:///nowhere/docker.sock").kept() == []


@pytest.mark.full
async def test_volumes_without_a_record_are_pruned_and_no_others(
    engine: Engine, tmp_path: Path, ran: Callable[[str], None]
) -> None:
    async with station_on(engine.url, tmp_path) as station:
        uid = await opened(station)
        lost = uid_of("local", "lost")
        backend = station.backends["docker"]
        await backend._ask().create_volume(  # type: ignore[attr-defined]
            f"stn-{station.id}-{lost}-home", {"station.station": station.id, "station.id": lost}
        )
        would = await upkeep.prune(station, dry_run=True)
        assert [part.what for part in would.parts] == ["files without a sandbox"]
        assert sorted(await backend.kept()) == sorted([uid, lost])  # type: ignore[attr-defined]
        await upkeep.prune(station, dry_run=False)
        assert await backend.kept() == [uid]  # type: ignore[attr-defined]
        await station.sandboxes.delete(uid)
    ran("docker")
