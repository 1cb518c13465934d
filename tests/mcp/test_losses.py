"""What the tools need may go away between two calls; the next call works, or says what is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from station import Client
from tests.acceptance.conftest import Stn
from tests.mcp.driver import WAIT, Answer, Tools, in_memory, over_stdio, pid_of


def delete(client: Client, opened: Answer) -> None:
    client.get_by_id(opened["sandbox_id"]).delete()


@pytest.mark.parametrize("backend", ["bubblewrap", pytest.param("host", marks=pytest.mark.full)])
async def test_a_station_that_died_is_started_again_and_the_files_are_there(
    home: Path, backend: str, ran: Callable[[str], None]
) -> None:
    ran(backend)
    async with over_stdio(home, "--backend", backend) as tools:
        opened = await tools.open()
        other = await tools.open(session_key="other")
        await tools.write("kept", "x")
        await tools.write("kept", "y", sandbox_id=other["sandbox_id"])
        for _ in range(2):
            before = pid_of(home)
            os.kill(before, signal.SIGKILL)
            assert (await tools.exec("cat kept"))["stdout"] == "x"
            assert pid_of(home) != before
            assert (await tools.read("kept", sandbox_id=other["sandbox_id"]))["contents"] == "y"
        again = await tools.open()
        assert (again["created"], again["sandbox_id"]) == (False, opened["sandbox_id"])
        await tools.close(sandbox_id=other["sandbox_id"])
        await tools.close()


async def test_a_call_under_way_outlives_its_station(home: Path) -> None:
    async with in_memory(home) as tools:
        await tools.open()
        task = asyncio.create_task(tools.exec(f"echo one; touch begun; {WAIT}; echo two"))
        while (await tools.read("begun")).failed:
            pass
        os.kill(pid_of(home), signal.SIGKILL)
        await tools.write("go", "")
        async with asyncio.timeout(30):
            assert (await task)["stdout"] == "one\ntwo\n"


async def test_a_default_sandbox_that_was_removed_is_opened_again_in_silence(
    tools: Tools, client: Client, stn: Stn
) -> None:
    opened = await tools.open()
    await tools.write("x", "1")
    assert stn("rm", client.get_by_id(opened["sandbox_id"]).name).returncode == 0
    done = await tools.exec("ls; echo ok")
    assert done["stdout"] == "ok\n"
    assert done["sandbox_id"] != opened["sandbox_id"]


@pytest.mark.parametrize("name", ["sandbox_fs_write", "sandbox_fs_list", "sandbox_start", "sandbox_fs_delete"])
async def test_so_it_is_for_every_tool_that_opens_one(tools: Tools, client: Client, name: str) -> None:
    arguments = {
        "sandbox_fs_write": {"path": "x", "content": ""},
        "sandbox_fs_list": {},
        "sandbox_start": {"command": "true"},
        "sandbox_fs_delete": {"path": "x"},
    }
    opened = await tools.open()
    delete(client, opened)
    assert (await tools.call(name, arguments[name]))["sandbox_id"] != opened["sandbox_id"]


async def test_a_sandbox_given_by_its_id_is_never_opened_again(tools: Tools, client: Client) -> None:
    default, other = await tools.open(), await tools.open(session_key="other")
    started = await tools.start("sleep 1000", sandbox_id=other["sandbox_id"])
    for opened in (default, other):
        delete(client, opened)
        given = {"sandbox_id": opened["sandbox_id"]}
        for answer in (
            await tools.exec("true", **given),
            await tools.read("x", **given),
            await tools.list(**given),
            await tools.output(started["process_id"], **given),
            await tools.kill(started["process_id"], **given),
        ):
            assert answer.error["code"] == "sandbox_not_found", answer.text
            assert "sandbox_open" in answer.text
        assert (await tools.close(**given))["already_closed"] is True


async def test_the_output_of_a_sandbox_that_was_removed_is_gone_with_it(tools: Tools, client: Client) -> None:
    opened = await tools.open()
    started = await tools.start("sleep 1000")
    delete(client, opened)
    for answer in (await tools.output(started["process_id"]), await tools.kill(started["process_id"])):
        assert answer.error["code"] in ("sandbox_not_found", "process_not_found"), answer.text
    assert (await tools.exec("echo ok"))["stdout"] == "ok\n"
    assert (await tools.output(started["process_id"])).error["code"] == "process_not_found"


async def test_closing_twice_is_no_error_and_closes_once(tools: Tools) -> None:
    opened = await tools.open()
    assert (await tools.close())["already_closed"] is False
    assert (await tools.close())["already_closed"] is True
    assert (await tools.close(sandbox_id=opened["sandbox_id"]))["already_closed"] is True


async def test_closing_the_default_that_was_removed_meanwhile_says_so(tools: Tools, client: Client) -> None:
    delete(client, await tools.open())
    assert (await tools.close())["already_closed"] is True


async def test_files_wait_for_the_next_opening_where_they_are_to_stay(anywhere: Tools) -> None:
    await anywhere.write("kept", "x")
    await anywhere.start("sleep 1000")
    assert (await anywhere.close(delete_workspace=False))["already_closed"] is False
    assert (await anywhere.exec("cat kept"))["stdout"] == "x"
    assert (await anywhere.close(delete_workspace=True))["already_closed"] is False
    assert (await anywhere.read("kept")).error["code"] == "file_not_found"
