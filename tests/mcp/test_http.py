"""The tools at /mcp of a station that listens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from station import Client
from tests.mcp.driver import LEGACY, over_http

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.fixture
async def http(home: Path, client: Client) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that may call, once the station is there."""
    client.info()
    told = json.loads((home / "listening.json").read_text())
    token = (home / "operator.token").read_text().strip()
    headers = {"authorization": f"Bearer {token}", **ACCEPT}
    async with httpx2.AsyncClient(base_url=told["url"], headers=headers, timeout=30, trust_env=False) as made:
        yield made


def message(name: str = "sandbox_exec", **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def answer_of(response: httpx2.Response) -> Any:
    """Of one call, whichever way it came."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("application/json"):
        return response.json()
    lines = [line.removeprefix("data:").strip() for line in response.text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_both_revisions_are_answered_and_the_token_decides_which_sandbox(
    home: Path, client: Client, mode: Any
) -> None:
    client.info()
    async with over_http(home, mode=mode) as one, over_http(home) as two:
        await one.write("f", mode)
        assert (await two.read("f"))["contents"] == mode
        opened = await one.open()
        assert (await two.open())["sandbox_id"] == opened["sandbox_id"]
        assert client.get_by_id(opened["sandbox_id"]).name.startswith("token:")
        await one.close()


async def test_the_address_may_name_the_sandbox(home: Path, client: Client) -> None:
    with client.open("named") as sandbox:
        async with over_http(home, query="?sandbox=named") as tools:
            opened = await tools.open()
            assert (opened["created"], opened["sandbox_id"]) == (False, sandbox.info().tool_id)
        async with over_http(home) as others:
            refused = await others.exec("true", sandbox_id=opened["sandbox_id"])
            assert refused.error["code"] == "sandbox_not_found"
        sandbox.delete()


async def test_an_address_that_says_something_else_is_an_error_of_the_call(home: Path, client: Client) -> None:
    client.info()
    for query, word in [("?sandbx=x", "sandbx"), ("?sandbox=", "name"), ("?sandbox=a%0Ab", "name")]:
        async with over_http(home, query=query) as tools:
            answer = await tools.exec("true")
            assert answer.error["code"] == "invalid_input"
            assert word in answer.text


async def test_a_body_over_the_bound_is_413_and_the_next_call_works(http: httpx2.AsyncClient) -> None:
    over = message("sandbox_fs_write", path="big", content="x" * (32 * 1024 * 1024))
    response = await http.post("/mcp", json=over)
    assert response.status_code == 413
    done = answer_of(await http.post("/mcp", json=message(command="echo ok"), headers={"mcp-protocol-version": LEGACY}))
    assert done["result"]["structuredContent"]["stdout"] == "ok\n"


async def test_the_largest_file_fits_in_a_request(home: Path, client: Client) -> None:
    client.info()
    async with over_http(home) as tools:
        size = 16 * 1024 * 1024
        assert (await tools.write("big", "x" * size))["size_bytes"] == size
        await tools.close()


async def test_what_has_no_room_in_an_answer_is_read_on(home: Path, client: Client) -> None:
    """Quotes are four times as long in a message, and clients take none above 1 MiB."""
    client.info()
    async with over_http(home) as tools:
        await tools.write("quotes", '"' * 1_500_000)
        size, at, told = 0, 0, True
        while told:
            part = await tools.read("quotes", offset=at, max_bytes=16 * 1024 * 1024)
            assert set(part["contents"]) == {'"'}
            size, told = size + len(part["contents"]), part["truncated"]
            at = part.value.get("next_offset", 0)
        assert size == 1_500_000
        done = await tools.exec("""head -c 1500000 /dev/zero | tr '\\0' '"'""")
        assert (done["stdout_bytes"], done["truncated"]) == (1_500_000, True)
        await tools.close()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"jsonrpc":"2.0"}', b"[1,2]", b'"x"'])
async def test_a_body_that_is_no_message_is_an_error_and_no_crash(http: httpx2.AsyncClient, body: bytes) -> None:
    response = await http.post("/mcp", content=body, headers={"mcp-protocol-version": LEGACY})
    assert 400 <= response.status_code < 500, response.text
    done = answer_of(await http.post("/mcp", json=message(command="echo ok"), headers={"mcp-protocol-version": LEGACY}))
    assert done["result"]["structuredContent"]["exit_code"] == 0


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_only_post_is_answered(http: httpx2.AsyncClient, method: str) -> None:
    response = await http.request(method, "/mcp")
    assert response.status_code == 405


async def test_without_the_token_nothing_is_answered(http: httpx2.AsyncClient) -> None:
    for headers in ({"authorization": "Bearer wrong"}, {"authorization": ""}):
        response = await http.post("/mcp", json=message(command="true"), headers=headers)
        assert response.status_code == 401
        assert "exit_code" not in response.text
