"""Whose connection to the station a call over HTTP goes by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from station.client._async.client import AsyncClient
from station.core.principals import OPERATOR, Kind, Principal
from station.core.records import Owner
from station.mcp.http import Callers


class Connection:
    def __init__(self, acts_for: str | None) -> None:
        self.acts_for = acts_for
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def scope_of(deployment: str | None) -> dict[str, Any]:
    principal = OPERATOR if deployment is None else Principal(Kind.DEPLOYMENT, Owner("local", deployment))
    return {"state": {"principal": principal}, "query_string": b""}


async def test_connections_that_nobody_uses_are_closed_all_but_the_last_ones() -> None:
    made: list[Connection] = []

    def connect(acts_for: str | None) -> AsyncClient:
        made.append(Connection(acts_for))
        return cast("AsyncClient", made[-1])

    def client_of(scope: dict[str, Any]) -> Any:
        return callers.of(cast("Any", SimpleNamespace(request=SimpleNamespace(scope=scope)))).client

    callers = Callers(connect, most=2)
    held = scope_of("dep_held")
    async with callers.calling(held):
        in_use = client_of(held)
        for name in (None, "dep_1", None, "dep_2"):
            async with callers.calling(scope_of(name)):
                client_of(scope_of(name))
        assert [each.acts_for for each in made] == ["dep_held", None, "dep_1", "dep_2"]
        assert [each.acts_for for each in made if each.closed] == ["dep_1"], "the operator has called since"
        assert client_of(held) is in_use
    assert [each.acts_for for each in made if each.closed] == [None, "dep_1"]
    async with callers.calling(scope_of("dep_1")):
        assert not client_of(scope_of("dep_1")).closed, "it is made anew"
    assert (len(callers._clients), callers._calls) == (2, {})
    await callers.aclose()
    assert all(each.closed for each in made)
