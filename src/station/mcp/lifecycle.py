"""`sandbox_open sandbox_close`."""

from __future__ import annotations

from station.client._async.sandbox import AsyncSandbox
from station.core.errors import SandboxNotFound

from . import progress, texts
from .answers import CloseAnswer, OpenAnswer
from .call import Call, Reply
from .caller import id_of
from .inputs import CloseInput, OpenInput


async def open_(call: Call, wanted: OpenInput) -> Reply:
    opening = call.caller.open(wanted)
    sandbox = await progress.beside(opening, call.tell, progress.pulls_of(call.caller.client))
    view = sandbox.view
    idle = None if view.remove_at is None else round(view.remove_at - view.last_active_at)
    answer = OpenAnswer(
        sandbox_id=id_of(sandbox),
        image=view.isolation.image,
        workdir=view.workdir,
        created=view.created,
        network=view.isolation.network,
        isolation=texts.isolation(view.isolation),
        timeout_seconds=view.timeout_seconds,
        removed_after_idle_seconds=idle,
    )
    made = "made new" if view.created else "there already, with its files"
    files = "its files, but for the folder of the user" if view.mount else "its files"
    end = f"; unused for {idle // 60} minutes it is removed with {files}" if idle else ""
    return Reply(answer, f"sandbox {answer.sandbox_id}: {made}{end}\n{answer.isolation} · files in {answer.workdir}")


async def close(call: Call, wanted: CloseInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> AsyncSandbox:
        await sandbox.info()  # to delete what is not there is no error
        await sandbox.delete(keep_files=not wanted.delete_workspace)
        return sandbox

    try:
        sandbox = await call.caller.within(wanted.sandbox_id, work, opens=False)
    except SandboxNotFound:
        return Reply(CloseAnswer(True, already_closed=True), "there was no such sandbox any more")
    if wanted.delete_workspace:
        call.caller.forget(sandbox)
    gone = "its files are gone, the user's folder stays" if sandbox.view.mount else "its files are gone"
    kept = gone if wanted.delete_workspace else "its files wait for the next sandbox_open of that name"
    return Reply(CloseAnswer(True, already_closed=False), f"closed {id_of(sandbox)}; {kept}")
