import asyncio
import sys

from station.container import ContainerSandboxAdapter


async def main(root: str) -> None:
    sandboxes = ContainerSandboxAdapter(
        root,
        image="python:3.11-slim",
        network="none",
        cpus=1,
        memory_mb=1024,
        pids_limit=128,
    )
    await sandboxes.ready()
    workspace = await sandboxes.create()
    run = await sandboxes.exec(workspace.id, "python3 --version && pwd", timeout_ms=10_000)
    while run.finished_at is None:
        await asyncio.sleep(0.05)
        run = await sandboxes.command(workspace.id, run.id)
    print(run.status, run.stdout)
    await sandboxes.destroy(workspace.id)
    await sandboxes.close()


asyncio.run(main(sys.argv[1]))
