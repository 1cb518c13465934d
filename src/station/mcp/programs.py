"""`sandbox_run sandbox_exec sandbox_start sandbox_output sandbox_kill`."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from station.client._async.processes import AsyncProcess
from station.client._async.sandbox import AsyncSandbox
from station.client.results import ExecResult
from station.core.errors import InvalidInput

from . import progress, replies, texts
from .answers import KillAnswer, RunLimits, StartAnswer
from .call import Call, Reply, fitted
from .caller import id_of
from .inputs import ExecInput, KillInput, OutputInput, RunInput, StartInput, from_base64
from .replies import Taken

_UNUSED = (
    "A sandbox that no call uses for a while is removed with its files, this program too (sandbox_open tells after how "
    "long): look at it with sandbox_output now and then, or give timeout_seconds, which counts as use."
)


async def run(call: Call, wanted: RunInput) -> Reply:
    station = await call.caller.station()
    work = call.caller.client.run(
        wanted.code,
        runtime=wanted.runtime or "python",
        args=wanted.args,
        stdin=wanted.stdin,
        env=wanted.env,
        files=_files(wanted),
        artifacts=wanted.artifacts,
        timeout_seconds=wanted.timeout_seconds,
        end_when_left=True,
        progress=False,
        **call.caller.where(None),
    )
    result = await progress.beside(work, call.tell, progress.pulls_of(call.caller.client))
    most, room = station.max_stdout_bytes, call.caller.answer_bytes
    limits = RunLimits(wanted.timeout_seconds or station.timeout_seconds, most)
    return fitted(lambda cut: replies.run_reply(wanted, result, limits, cut, room), most, room)


async def exec_(call: Call, wanted: ExecInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, ExecResult]:
        prc = sandbox.processes.new_id()
        running = sandbox.exec(
            wanted.command,
            cwd=wanted.cwd,
            env=wanted.env,
            stdin=wanted.stdin,
            timeout_seconds=wanted.timeout_seconds,
            process_id=prc,
            end_when_left=True,  # a client may kill this process, and nobody else knows the command
        )
        return sandbox, await progress.beside(running, call.tell, progress.output_of(sandbox, prc))

    sandbox, result = await call.caller.within(wanted.sandbox_id, work)
    sandbox_id, network = id_of(sandbox), sandbox.isolation.network
    return fitted(
        lambda cut: replies.exec_reply(wanted, sandbox_id, network, result, cut),
        await call.shown_bytes(),
        call.caller.answer_bytes,
    )


async def start(call: Call, wanted: StartInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, AsyncProcess]:
        process = await sandbox.start(
            wanted.command,
            cwd=wanted.cwd,
            env=wanted.env,
            stdin=wanted.stdin,
            timeout_seconds=wanted.timeout_seconds,
        )
        return sandbox, process

    sandbox, process = await call.caller.within(wanted.sandbox_id, work)
    kept = sandbox.view.remove_at is None or wanted.timeout_seconds is not None
    text = texts.lines(
        f"started {process.id} in sandbox {id_of(sandbox)}; sandbox_output shows what it writes",
        None if kept else _UNUSED,
    )
    return Reply(StartAnswer(process.id, id_of(sandbox)), text)


async def output(call: Call, wanted: OutputInput) -> Reply:
    most = wanted.max_bytes or await call.shown_bytes()

    async def work(sandbox: AsyncSandbox) -> Reply:
        process = await sandbox.processes.get(wanted.process_id)
        taken, full = await _read(process, wanted, most)
        view = process.view if process.view.state == "ended" else await process.info()
        all_there = view.state == "ended" and not full
        return fitted(
            lambda cut: replies.output_reply(id_of(sandbox), view, taken, wanted.encoding, cut, all_there=all_there),
            most,
            call.caller.answer_bytes,
        )

    return await call.caller.within(wanted.sandbox_id, work, opens=False)


async def _read(process: AsyncProcess, wanted: OutputInput, most: int) -> tuple[dict[str, Taken], bool]:
    """What there is of both streams, and whether the answer is full: then there may be more."""
    taken = {"stdout": Taken(wanted.stdout_offset), "stderr": Taken(wanted.stderr_offset)}
    follow = wanted.wait_seconds > 0
    pieces = process.output(after_stdout=wanted.stdout_offset, after_stderr=wanted.stderr_offset, follow=follow)
    # What came until the time is up is the answer.
    with suppress(TimeoutError):
        async with asyncio.timeout(wanted.wait_seconds if follow else None):
            async for chunk in pieces:
                more = taken[chunk.stream].with_(chunk, most)
                if more is None:
                    return taken, True
                taken[chunk.stream] = more
                if len(more.data) >= most:
                    return taken, True
    return taken, False


async def kill(call: Call, wanted: KillInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> Reply:
        process = await sandbox.processes.get(wanted.process_id)
        if process.view.state == "ended":
            answer = KillAnswer(True, process.id, running=False, exit_code=process.view.exit_code, already_ended=True)
            return Reply(answer, f"{process.id} had ended already")
        if wanted.signal is None:
            await process.cancel()
            # TERM, and KILL a second later: it does not run on for long.
            await process.wait(timeout_seconds=10)
        else:
            await process.signal(wanted.signal)
            await process.info()
        running = process.view.ending is None
        text = f"{process.id} was sent the signal and runs on" if running else f"{process.id} has ended"
        return Reply(KillAnswer(True, process.id, running, exit_code=process.view.exit_code), text)

    return await call.caller.within(wanted.sandbox_id, work, opens=False)


def _files(wanted: RunInput) -> dict[str, str | bytes]:
    both = sorted(set(wanted.files) & set(wanted.files_b64))
    if both:
        raise InvalidInput(f"files and files_b64 both have {texts.named(both[0])!r}", field="files_b64")
    coded = {path: from_base64(text, f"files_b64.{path}") for path, text in wanted.files_b64.items()}
    return {**wanted.files, **coded}
