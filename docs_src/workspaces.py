import asyncio
import tempfile
from base64 import b64encode

import station
from station.host import HostSandboxAdapter, SandboxError


async def main(root: str) -> None:
    async with HostSandboxAdapter(root, max_concurrent=2) as sandboxes:  # ready() on the way in, close() on the way out
        workspace = await sandboxes.create()
        program = b64encode(b"print(sum(range(10)))\n").decode()
        await sandboxes.write_file(workspace.id, "job/sum.py", base64=program, create_parents=True)

        run = await sandboxes.exec(workspace.id, "python3 sum.py", cwd="job", timeout_ms=10_000)
        while run.finished_at is None:  # exec answers at once; this alone says that it is over
            await asyncio.sleep(0.05)
            run = await sandboxes.command(workspace.id, run.id)
        print(run.status, run.exit_code, run.stdout.strip())

        try:
            await sandboxes.read_file(workspace.id, "../../etc/passwd")
        except SandboxError as error:
            print(error.code, error.status)
        print([entry.path for entry in (await sandboxes.list_files(workspace.id, "job")).entries])
        await sandboxes.destroy(workspace.id)


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(directory))
    with station.connect(directory) as client:
        client.stop()  # else it ends by itself, when nobody needs it for some minutes
