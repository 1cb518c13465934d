"""What a page in a browser of the same machine may not do with a station, each beside what differs in one thing and may
(HD-W06 to HD-W08; hosts are in test_guard.py)."""

from __future__ import annotations

import re

import pytest

from station.server.api.operations import OPERATIONS

from .served import Served

FORM = {"content-type": "application/x-www-form-urlencoded"}
FOREIGN = ["https://attacker.example", "null", "http://localhost.attacker.example", "http://127.0.0.1.nip.io:80"]
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


async def sandboxes(listening: Served) -> list[str]:
    async with listening.client() as client:
        return [view["name"] for view in (await client.get("/api/v1/sandboxes")).json()["sandboxes"]]


@pytest.mark.parametrize("origin", FOREIGN)
async def test_hd_w08_a_form_of_a_foreign_page_does_nothing_whatever_token_it_has(
    listening: Served, origin: str
) -> None:
    body, path = b'{"name": "by-a-page"}', "/api/v1/sandboxes"
    async with listening.tcp() as client:
        refused = await client.post(path, content=body, headers={**FORM, "origin": origin})
        assert (refused.status_code, refused.json()["code"]) == (403, "refused")
        assert "access-control-allow-origin" not in refused.headers
        assert await sandboxes(listening) == []
        # The control: the same form without a foreign origin opens it.
        assert (await client.post(path, content=body, headers=FORM)).status_code == 201
        assert await sandboxes(listening) == ["by-a-page"]
        for view in (await client.get(path)).json()["sandboxes"]:
            assert (await client.delete(f"{path}/{view['id']}")).status_code == 204


async def test_hd_w08_a_form_of_any_page_does_nothing_without_the_token_which_no_browser_sends_by_itself(
    listening: Served,
) -> None:
    async with listening.tcp(authorization="", cookie=f"token={listening.token}") as page:
        for origin in ({}, {"origin": "http://localhost:3000"}):
            refused = await page.post("/api/v1/sandboxes", content=b"{}", headers={**FORM, **origin})
            assert refused.status_code == 401
    assert await sandboxes(listening) == []


WRITES = [each for each in OPERATIONS if each.method == "POST"]


async def test_hd_w08_what_changes_something_is_not_done_by_get(listening: Served) -> None:
    reads = {each.path for each in OPERATIONS if each.method == "GET"}
    async with listening.tcp() as client:
        for operation in WRITES:
            for method in ("GET", "HEAD"):
                answer = await client.request(method, re.sub(r"{[\w:]+}", "x", operation.path))
                if operation.path in reads:
                    assert answer.status_code in (200, 404), operation.id
                else:
                    assert (answer.status_code, "POST" in answer.headers["allow"]) == (405, True), operation.id
    assert await sandboxes(listening) == []


@pytest.mark.parametrize("origin", FOREIGN)
async def test_hd_w06_an_upgrade_of_a_foreign_page_is_refused_before_anything_looks_at_it(
    listening: Served, origin: str
) -> None:
    async with listening.tcp() as client:
        for path, otherwise in (("/api/v1/station", 200), ("/nothing", 404)):
            assert (await client.get(path, headers={**UPGRADE, "origin": origin})).status_code == 403
            # The control: without the origin it comes through, and is answered as if no upgrade were asked for.
            assert (await client.get(path, headers=UPGRADE)).status_code == otherwise


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_foreign_page_reads_nothing_not_even_health(listening: Served, origin: str) -> None:
    async with listening.tcp() as client:
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1/station"):
            assert (await client.get(path, headers={"origin": origin})).status_code == 403
            assert (await client.get(path)).status_code == 200
