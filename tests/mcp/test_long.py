"""What takes long: it is told of, waits for nobody, and its output is read in parts to the last byte."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from station import Client
from tests.mcp.driver import WAIT, Tools, over_http


@asynccontextmanager
async def waiting(tools: Tools, command: str = WAIT, **options: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """A command that ends once `go` is there."""
    task = asyncio.create_task(tools.call("sandbox_exec", {"command": command}, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_progress_tells_what_is_written_while_the_command_runs(home: Path, client: Client) -> None:
    """Over each transport: tests/interop."""
    told: asyncio.Queue[tuple[float, str | None]] = asyncio.Queue()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        await told.put((progress, message))

    client.info()  # so the station is there, and listens
    async with over_http(home) as tools:
        async with waiting(tools, f"echo one; {WAIT}; echo two", progress_callback=hear) as task:
            async with asyncio.timeout(20):
                progress, message = await told.get()
            assert message == "one\n"
            assert progress > 0
            assert not task.done()
            await tools.write("go", "")
            async with asyncio.timeout(20):
                ended = await task
        assert ended["stdout"] == "one\ntwo\n"
        await tools.close()


async def test_nobody_who_did_not_ask_is_told(tools: Tools) -> None:
    async with waiting(tools, f"echo one; sleep 0.7; {WAIT}") as task:
        await tools.write("go", "")
        assert (await task)["stdout"] == "one\n"


async def test_15_calls_do_not_wait_for_the_one_that_takes_long(anywhere: Tools) -> None:
    async with waiting(anywhere) as long:
        calls = [anywhere.exec(["echo", str(number)]) for number in range(15)]
        async with asyncio.timeout(30):
            done = await asyncio.gather(*calls)
        assert [answer["stdout"] for answer in done] == [f"{number}\n" for number in range(15)]
        assert not long.done()
        await anywhere.write("go", "")
        assert (await long)["exit_code"] == 0


async def test_a_first_call_of_many_at_once_opens_one_sandbox(tools: Tools) -> None:
    done = await asyncio.gather(*[tools.exec(["true"]) for _ in range(10)])
    assert len({answer["sandbox_id"] for answer in done}) == 1


async def test_a_program_runs_on_and_is_read_and_ended(anywhere: Tools) -> None:
    started = await anywhere.start(f"echo one; {WAIT}; echo two; sleep 1000")
    prc = started["process_id"]
    first = await anywhere.output(prc, wait_seconds=0)
    while not first["stdout"]:
        first = await anywhere.output(prc, wait_seconds=0.1)
    assert (first["stdout"], first["running"], first["more"]) == ("one\n", True, True)
    assert "exit_code" not in first.value
    await anywhere.write("go", "")
    second = await anywhere.output(prc, stdout_offset=first["stdout_next"], wait_seconds=10, max_bytes=4)
    assert (second["stdout"], second["running"]) == ("two\n", True)
    assert (await anywhere.kill(prc, signal="CONT"))["running"] is True
    ended = await anywhere.kill(prc)
    assert (ended["running"], ended["exit_code"]) == (False, 130)
    assert (await anywhere.kill(prc))["already_ended"] is True
    last = await anywhere.output(prc, stdout_offset=second["stdout_next"])
    assert (last["running"], last["more"], last["stdout"], last["exit_code"]) == (False, False, "", 130)


async def test_a_signal_is_named_or_numbered(tools: Tools) -> None:
    for signal in ("SIGKILL", "KILL", 9):
        prc = (await tools.start("sleep 1000"))["process_id"]
        await tools.kill(prc, signal=signal)
        assert (await tools.output(prc, wait_seconds=10))["exit_code"] == 137


async def test_a_signal_that_is_none_is_an_error(tools: Tools) -> None:
    for signal in ("NOPE", 0, 65, -9, "", "9; rm"):
        prc = (await tools.start("sleep 1000"))["process_id"]
        assert (await tools.kill(prc, signal=signal)).error["code"] == "invalid_input"
        await tools.kill(prc)


async def test_what_a_command_leaves_running_is_ended_and_told(anywhere: Tools) -> None:
    done = await anywhere.exec("sleep 1000 & echo started")
    assert done["stdout"] == "started\n"
    assert done["ended_children"] == 1
    assert "sandbox_start" in done["hint"]


async def rest_of(tools: Tools, process_id: str, most: int, encoding: str) -> list[str]:
    parts, at = [], 0
    while True:
        part = await tools.output(process_id, stdout_offset=at, max_bytes=most, encoding=encoding)
        parts.append(part["stdout"])
        assert "stdout_lost_bytes" not in part.value
        if not part["more"]:
            return parts
        assert part["stdout_next"] > at
        at = part["stdout_next"]


async def test_3_mb_of_text_are_read_to_the_last_character_wherever_they_are_cut(anywhere: Tools) -> None:
    text = "aé€🙂" * 300_000
    done = await anywhere.exec(
        ["python3", "-c", "import sys; sys.stdout.buffer.write('aé€🙂'.encode() * 300_000)"], env={"LANG": "C.UTF-8"}
    )
    assert (done["truncated"], done["stdout_bytes"]) == (True, 3_000_000)
    marker = "\n... [truncated]"
    assert done["stdout"] == text[: len(done["stdout"]) - len(marker)] + marker
    assert 199_996 < len(done["stdout"].removesuffix(marker).encode()) <= 200_000
    assert "\ufffd" not in done.text
    assert "".join(await rest_of(anywhere, done["process_id"], 700_001, "utf-8")) == text


async def test_bytes_are_read_exactly_in_base64(anywhere: Tools) -> None:
    done = await anywhere.exec("head -c 700000 /dev/urandom | tee raw")
    assert done["truncated"] is True
    parts = await rest_of(anywhere, done["process_id"], 131_071, "base64")
    read = await anywhere.read("raw", max_bytes=1_000_000)
    assert b"".join(map(base64.b64decode, parts)) == base64.b64decode(read["contents_b64"])
    assert read["size_bytes"] == 700_000


async def test_less_than_a_character_at_a_time_still_comes_to_an_end(tools: Tools) -> None:
    for most in (1, 2, 3):
        done = await tools.exec("printf 'a🙂b'")
        parts = await rest_of(tools, done["process_id"], most, "base64")
        assert b"".join(map(base64.b64decode, parts)) == "a🙂b".encode()
        assert await rest_of(tools, done["process_id"], most, "utf-8")


async def test_a_flood_is_bounded_in_the_answer(tools: Tools) -> None:
    done = await tools.exec("yes | head -c 20000000; yes 2>&1 >&2 | head -c 20000000 >&2")
    assert done["stdout_bytes"] == 20_000_000
    assert len(done["stdout"]) == 200_000 + len("\n... [truncated]")
    assert len(done.text) < 500_000
    # What is no longer kept is told, and what is there begins where it says.
    part = await tools.output(done["process_id"], stdout_offset=10_000_000, max_bytes=10)
    assert part["stdout_next"] >= 10_000_010
    assert len(part["stdout"]) == 10
