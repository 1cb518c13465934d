"""A station is replaced by one of another release while boxes live (ruling A12)."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from station import connect, errors
from station.guest.binary import GUEST_VERSION, guest_binary
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.observer import Observer

from .conftest import state_directory

pytestmark = pytest.mark.filterwarnings(REFUSED_SOCKET)
OLD = "0.0.0"
STATION = """
import sys
from pathlib import Path
from station.guest import binary, frames, handshake
from station.server.serve import Options, run
home, guests, protocol, fd = sys.argv[1:]
binary.guest_binary.__kwdefaults__["directory"] = Path(guests)
frames.PROTOCOL_VERSION = handshake.PROTOCOL_VERSION = int(protocol)
sys.exit(run(Path(home), Options(ready_fd=int(fd))))
"""


@contextmanager
def station(home: Path, guests: Path, *, protocol: int = 1) -> Iterator[None]:
    """One that has these guests, and speaks that version of the protocol."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", STATION, home, guests, str(protocol), str(writer)],
        pass_fds=[writer],
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"\n", process.communicate()[1].decode()
        yield
    finally:
        os.close(reader)
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=60)
    assert process.returncode == 0, words.decode()


@pytest.fixture
def old_guests(tmp_path: Path) -> Path:
    """The guest of a release before, which differs in what it says of itself alone."""
    guest = guest_binary()
    # By its first half: a compiler may have the whole in two instructions.
    ours, before = (f"{version[:4]}".encode() for version in (GUEST_VERSION, OLD))
    content = guest.read_bytes()
    assert content.count(ours) >= 2
    place = tmp_path / "guests"
    place.mkdir()
    (place / guest.name).write_bytes(content.replace(ours, before))
    (place / guest.name).chmod(0o755)
    return place


def record(home: Path, statement: str, *values: str) -> str:
    """What a statement on the one record finds; `document` is that as text."""
    with closing(sqlite3.connect(home / "registry.db", isolation_level=None)) as db:
        found = db.execute(statement.replace("document", "CAST(document AS TEXT)", 1), values).fetchone()
    return str(found[0]) if found else ""


def guest_of(home: Path) -> str:
    return record(home, "SELECT json_extract(document, '$.guest_version') FROM sandboxes")


def test_a_box_of_the_release_before_is_taken_over_and_one_older_is_kept(
    old_guests: Path, ran: Callable[[str], None]
) -> None:
    ran("bubblewrap")
    ours = guest_binary().parent
    with state_directory("sandbox: {backend: bubblewrap, pool_size: 0}\n") as home:
        with station(home, old_guests), connect(home, start=False) as client:
            sandbox = client.open("kept")
            running = sandbox.start("read line; echo $line", stdin_open=True)
        assert guest_of(home) == OLD

        # The next release, whose protocol is one further: it speaks to this guest, and to those of its own.
        with station(home, ours, protocol=2), connect(home, start=False) as client:
            again = client.get("kept")
            assert again.processes.get(running.id).view.state == "running"
            assert again.exec("echo works").stdout == "works\n"
            again.files.write("f", b"x" * 100_000)
            assert again.info().generation == 1
            assert guest_of(home) == OLD, "it is the same guest"
            with client.open("new") as new:
                assert new.exec("echo works").stdout == "works\n"
                new.delete()

        # The one after that refuses it, and leaves it alone.
        with station(home, ours, protocol=3), connect(home, start=False) as client:
            for use in (lambda: client.get("kept").exec("true"), lambda: client.open("kept")):
                with pytest.raises(
                    errors.Unavailable, match=rf"release {OLD}, speaks version 1 .*box is kept"
                ) as caught:
                    use()
                assert not caught.value.retryable
            assert Observer(home).guests(sandbox.id)

        # So that the release that made it, or the next one, still has it with what runs there.
        with station(home, ours), connect(home, start=False) as client:
            process = client.get("kept").processes.get(running.id)
            process.write(b"after all\n")
            assert process.wait().stdout == "after all\n"
            assert client.get("kept").files.read("f") == b"x" * 100_000
            client.get("kept").delete()
        Observer.until(lambda: not Observer(home).all_guests(), "a box is left")


@pytest.mark.full
def test_a_refused_box_can_be_deleted(old_guests: Path, ran: Callable[[str], None]) -> None:
    ran("bubblewrap")
    with state_directory("sandbox: {backend: bubblewrap, pool_size: 0}\n") as home:
        with station(home, old_guests), connect(home, start=False) as client:
            client.open("kept").start("sleep 1000")
        with station(home, guest_binary().parent, protocol=3), connect(home, start=False) as client:
            client.delete("kept")
            assert client.list() == []
        assert not Observer(home).all_guests()


@pytest.mark.full
def test_hd_d24_a_record_of_a_later_release_is_read_and_loses_nothing() -> None:
    """Downgrade: what this release does not know is kept through its own writes, for the one that comes back."""
    with state_directory("sandbox: {pool_size: 0}\n") as home:
        with connect(home) as client:
            client.open("kept").close()
            client.stop()
        # As text: what a repair with sqlite3 leaves is read too.
        later = "UPDATE sandboxes SET document = json_set(CAST(document AS TEXT), '$.schema', 2, '$.later', json(?))"
        with closing(sqlite3.connect(home / "registry.db", isolation_level=None)) as db:
            db.execute(later, ('{"a": [1, "two"]}',))
        with connect(home) as client:
            with client.open("kept") as sandbox:
                assert sandbox.exec("echo works").stdout == "works\n"
            client.stop()
        kept = record(home, "SELECT json_extract(document, '$.later') FROM sandboxes")
        assert json.loads(kept) == {"a": [1, "two"]}
