"""`sandbox_stage_file sandbox_publish_file`: between the store and a sandbox; no byte passes through the model."""

from __future__ import annotations

from station.client._async.sandbox import AsyncSandbox
from station.core.errors import PathRefused
from station.core.stored import Staged, StoredFile

from . import texts
from .answers import PublishAnswer, StageAnswer
from .call import Call, Reply
from .caller import id_of
from .inputs import PublishInput, StageInput


async def stage(call: Call, wanted: StageInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, Staged]:
        try:
            return sandbox, await sandbox.files.stage(wanted.file_key, wanted.destination, own=True)
        except PathRefused as error:
            raise PathRefused(f"path traversal not allowed: {error.message}", **error.detail) from error

    sandbox, staged = await call.caller.within(wanted.sandbox_id, work)
    answer = StageAnswer(True, wanted.destination, staged.size, staged.checksum, id_of(sandbox))
    return Reply(
        answer, f"staged {texts.name(wanted.file_key)} as {texts.named(wanted.destination)}, {staged.size} bytes"
    )


async def publish(call: Call, wanted: PublishInput) -> Reply:
    async def work(sandbox: AsyncSandbox) -> tuple[AsyncSandbox, StoredFile]:
        return sandbox, await sandbox.files.publish(wanted.source, key=wanted.file_key, own=True)

    sandbox, stored = await call.caller.within(wanted.sandbox_id, work)
    answer = PublishAnswer(
        ok=True,
        file_key=stored.key,
        size_bytes=stored.size,
        checksum=stored.checksum,
        content_type=stored.content_type,
        sandbox_id=id_of(sandbox),
        expires_at=stored.expires_at,
    )
    return Reply(answer, f"published {texts.named(wanted.source)}, {stored.size} bytes, as {texts.name(stored.key)}")
