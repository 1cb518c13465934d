"""Two stations on one engine leave each other's boxes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from station.core.errors import BoxLost
from station.core.spec import Spec
from tests.engine import Engine

from .conftest import Bed, bed_on, run, session_of

pytestmark = pytest.mark.docker


async def test_a_container_of_another_station_is_left_alone(bed: Bed, engine: Engine) -> None:
    """Also where a damaged record names it. The control: its own station takes it over."""
    async with bed_on(engine.url) as other:
        theirs = other.backend()
        await theirs.probe()
        box = await theirs.create(Spec("docker", ephemeral=True), other.labels())
        await box.let_go()
        ours = bed.backend()
        await ours.probe()
        assert [item async for item in ours.boxes()] == []
        with pytest.raises(BoxLost, match="another's"):
            await ours.adopt(box.ref)
        with pytest.raises(BoxLost, match="another's"):
            await ours.adopt(replace(box.ref, data={"container": box.container}))
        again = await other.backend().adopt(box.ref)
        async with session_of(again) as session:
            assert (await run(session, again, "true"))[0] == 0
        await again.destroy()
