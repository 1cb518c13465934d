"""Power loss takes what was written and not synced. Seen at the system calls: what is acknowledged was synced before.

That the disk then really has it is for a machine whose power is cut; here no shim can stand between a static server and
its files.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from station.core.records import SandboxRecord
from station.server.nats_child import NatsServer, binary
from station.store.files import FileStore
from station.store.nats.connection import NatsAccess, NatsConnection
from station.store.nats.files import NatsFiles
from station.store.nats.registry import NatsRegistry
from station.store.registry import Registry

from .nats_bed import LEFT_OPEN, operators
from .test_files import NOW, put
from .test_registry import record

pytestmark = [
    pytest.mark.filterwarnings(LEFT_OPEN),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]
WRITES = 6


@contextmanager
def traced(pid: int, log: Path) -> Iterator[None]:
    """Its system calls on files within."""
    words = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,write,pwrite64", "-o", str(log), "-p", str(pid)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        assert "attached" in attached, attached
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()


def unsynced(log: Path, pattern: str) -> list[str]:
    """The files whose name matches that were written after they were last synced."""
    found: set[str] = set()
    for line in log.read_text(errors="replace").splitlines():
        # What another thread interrupts is told again when it ends.
        if match := re.search(r"\b(fsync|fdatasync|write|pwrite64)\(\d+<([^>]*)>", line):
            if re.search(pattern, match[2]):
                (found.discard if "sync" in match[1] else found.add)(match[2])
    return sorted(found)


def syncs(log: Path, pattern: str) -> int:
    calls = re.findall(r"\bf(?:data)?sync\(\d+<([^>]*)>", log.read_text(errors="replace"))
    return sum(1 for name in calls if re.search(pattern, name))


async def write_records(registry: Registry) -> None:
    made = await registry.create(record())
    for number in range(WRITES - 1):
        made = await registry.put(replace(made, reason=str(number)))
    assert isinstance(made, SandboxRecord)


async def write_files(store: FileStore) -> None:
    for number in range(WRITES):
        await put(store, f"files/{number}", b"%d" % number * 1000)


async def test_hd_d06_our_nats_server_syncs_every_record_and_every_file_before_it_acknowledges(tmp_path: Path) -> None:
    async with NatsServer.running(tmp_path, program=binary(None)) as server:
        connection = await NatsConnection.open(server.access)
        registry = await NatsRegistry.opened(connection, bucket="b")
        store = await NatsFiles.opened(connection, bucket="f", now=lambda: NOW)
        assert server.pid is not None
        with traced(server.pid, tmp_path / "log"):
            await write_records(registry)
            await write_files(store)
        await connection.aclose()
    assert syncs(tmp_path / "log", r"KV_b/msgs/\d+\.blk") >= WRITES
    assert syncs(tmp_path / "log", r"OBJ_f/msgs/\d+\.blk") >= 2 * WRITES
    assert unsynced(tmp_path / "log", r"msgs/\d+\.blk") == []


async def test_hd_d06_the_control_a_server_as_it_comes_syncs_later(tmp_path: Path) -> None:
    with operators(tmp_path / "servers") as url:
        connection = await NatsConnection.open(lambda: NatsAccess((url,)))
        registry = await NatsRegistry.opened(connection, bucket="b")
        pid = int(next((tmp_path / "servers").glob("*.ports")).stem.rpartition("_")[2])
        with traced(pid, tmp_path / "log"):
            await write_records(registry)
        await connection.aclose()
    assert syncs(tmp_path / "log", r"\.blk") == 0
    assert unsynced(tmp_path / "log", r"\.blk") != []


_WRITER = """
import asyncio, sys
from pathlib import Path
from station.store.directory import DirectoryFiles
from station.store.sqlite import SqliteRegistry
from tests.store.test_power_loss import NOW, write_files, write_records

async def main():
    sys.stdin.readline()
    registry = SqliteRegistry(Path(sys.argv[1]) / "registry.db")
    store = DirectoryFiles(Path(sys.argv[1]) / "files", now=lambda: NOW)
    await write_records(registry)
    await write_files(store)
    print("acknowledged", flush=True)
    sys.stdin.readline()
    await store.aclose()
    await registry.aclose()

asyncio.run(main())
"""


def test_hd_d06_the_files_of_sqlite_and_the_directory_are_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    root, home = Path(__file__).parents[2], tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-c", _WRITER, str(home)]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=root, env={"PYTHONPATH": str(root)}, **piped) as writer:  # type: ignore[call-overload]
        with traced(writer.pid, tmp_path / "log"):
            writer.stdin.write("go\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "acknowledged\n"
        writer.communicate("end\n")
    assert syncs(tmp_path / "log", r"registry\.db-wal") >= WRITES
    assert syncs(tmp_path / "log", r"catalog\.db-wal") >= WRITES
    assert syncs(tmp_path / "log", r"\.stn-") >= WRITES
    assert unsynced(tmp_path / "log", rf"{home}.*(\.db-wal|\.stn-)") == []


def test_what_was_written_after_the_last_sync_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "1 write(3</a.blk>, ...) = 1\n1 fsync(3</a.blk>) = 0\n2 pwrite64(4</b.blk>, ...) = 1\n"
    )
    assert unsynced(tmp_path / "log", "blk") == ["/b.blk"]
