from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.sandboxes.aclose()
    await made.registry.aclose()
