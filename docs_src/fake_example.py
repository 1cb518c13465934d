"""A test of your own program against the fake backend: no isolation, no processes, nothing to install."""

import asyncio
from pathlib import Path

from station.backends.base import Labels
from station.backends.fake import FakeBackend, FakeProcess, FakeStore, Faults, ManualClock
from station.core.paths import resolve
from station.core.spec import Spec
from station.guest.files import GuestFiles
from station.guest.frames import StartRecord
from station.guest.session import GuestSession


async def python3(process: FakeProcess) -> int:
    """Stands in for the interpreter: what `python3 main.py` does in this test."""
    source = process.files.read_bytes(process.argv[1])
    await process.out(f"{len(source)} bytes of Python\n")
    await process.sleep(60)
    process.files.write_bytes("result.txt", b"42\n")
    return 0


async def main() -> None:
    clock, faults = ManualClock(), Faults()
    async with FakeStore() as store:
        backend = FakeBackend(
            Path("unused"), station_id="test", programs={"python3": python3}, faults=faults, store=store, clock=clock
        )
        labels = Labels("box-1", "uid", generation=1, fence=1, station="test", owner_pid=1, owner_start=1)
        box = await backend.create(Spec(backend="fake"), labels)
        session = await GuestSession.connect(box.connect)
        files = GuestFiles(session, box.layout)
        await files.write(resolve("main.py"), b"print(6 * 7)\n")

        faults.cut_after_bytes = 10  # the connection breaks in the middle of the answer; nobody notices
        record = StartRecord(argv=("python3", "main.py"), cwd="/workspace", env=dict(box.layout.env))
        process = session.start(record, guest_id=session.next_id())
        await clock.advance(60)  # a minute, at once
        output = b"".join([chunk.data async for chunk in process.chunks()])
        ended = await process.exit()
        print(output.decode(), ended.to_ending(), sep="")

        faults.disk_full = True
        result = b"".join([piece async for piece in await files.read(resolve("result.txt"))])
        print("result:", result.decode(), end="")
        await session.aclose()
        await box.destroy()


if __name__ == "__main__":
    asyncio.run(main())
