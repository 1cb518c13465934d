"""Output and input: offsets, credit, rings, sessions that come and go."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from tests.guest_c import wire
from tests.guest_c.client import Client, Guest
from tests.guest_c.wire import Wire

MIB = 1 << 20


def pattern(count: int) -> bytes:
    return b"".join(b"%07d\n" % n for n in range(count // 8))


def emit(count: int) -> list[str | bytes]:
    return ["/bin/sh", "-c", f"seq -f %07.0f 0 {count // 8 - 1}"]


def test_twenty_megabytes_arrive_whole_with_credit(client: Client) -> None:
    output = client.run(emit(20 * MIB))
    assert hashlib.sha256(output.data[1]).digest() == hashlib.sha256(pattern(20 * MIB)).digest()


def test_nothing_is_sent_beyond_the_credit(guest: Guest) -> None:
    with guest.connect(credit=1000, automatic=False) as client:
        ident = client.start(emit(MIB))
        client.expect(wire.OUTPUT, ident)
        while client.output(ident).at[1] + 12 < 1000 and not client.silence(0.5):
            pass
        assert client.silence()
        assert client.output(ident).at[1] <= 1000 - 12
        client.send(wire.CREDIT, 0, struct.pack("<I", 100))
        client.expect(wire.OUTPUT, ident)
        assert client.output(ident).at[1] <= 1100 - 24


def test_a_process_that_blocks_waits_for_acknowledgements(guest: Guest) -> None:
    with guest.connect(credit=8 * MIB, automatic=False) as client:
        ident = client.start(emit(MIB), ring_bytes=65536)
        while not client.silence():
            pass
        assert client.output(ident).at[1] == 65536
        assert client.output(ident).ending is None
        client.automatic = True
        client.send(wire.ACK, ident, struct.pack("<IQ", 1, 65536))
        assert client.wait(ident).data[1] == pattern(MIB)


def test_dropped_output_is_announced(guest: Guest) -> None:
    with guest.connect(credit=0) as client:
        script = f"seq -f %07.0f 0 {4 * MIB // 8 - 1}; touch {guest.root}/written"
        ident = client.start(["/bin/sh", "-c", script], on_full=1, ring_bytes=65536)
        # Its end cannot be told without credit; that of a command without output can.
        client.shell(f"until [ -e {guest.root}/written ]; do sleep 0.02; done")
        client.send(wire.CREDIT, 0, struct.pack("<I", 30000))
        output = client.wait(ident)
        assert output.ending
        assert output.ending.stdout_total == 4 * MIB
        assert output.gaps
        whole, at = pattern(4 * MIB), 0
        kept = b""
        for _, start, stop in output.gaps:
            kept += whole[at:start]
            at = stop
        assert output.data[1] == kept + whole[at:]


def test_a_full_ring_can_end_the_process(guest: Guest) -> None:
    with guest.connect(credit=MIB, automatic=False) as client:
        ident = client.start(["/usr/bin/yes"], on_full=2, ring_bytes=8192, grace_ms=100)
        ending = client.wait(ident).ending
        assert ending
        assert (ending.kind, ending.reason) == (2, 3)


@pytest.mark.parametrize("limit", [1000, 100_000])
def test_the_output_limit_cuts_exactly_and_ends_the_process(client: Client, limit: int) -> None:
    output = client.run(["/usr/bin/yes"], output_limit=limit, grace_ms=100)
    assert output.ending
    assert (output.ending.reason, len(output.data[1])) == (3, limit)
    exact = client.run(["/usr/bin/head", "-c", str(limit), "/dev/zero"], output_limit=limit)
    assert exact.ending
    assert (exact.ending.kind, exact.ending.reason) == (1, 0)


def test_without_stdin_there_is_end_of_file_at_once(client: Client) -> None:
    assert client.run(["/bin/cat"], timeout=3).ending


def test_five_megabytes_of_stdin_come_back(client: Client) -> None:
    data = os.urandom(5 * MIB)
    ident = client.start(["/bin/cat"], stdin=True)
    client.feed(ident, data)
    output = client.wait(ident)
    assert output.data[1] == data
    assert output.stdin_taken == len(data)


def test_a_reader_that_goes_away_is_told(client: Client) -> None:
    ident = client.start(["/bin/sh", "-c", "exec <&-; echo closed; sleep 100"], stdin=True)
    client.expect(wire.OUTPUT, ident)
    client.send(wire.STDIN, ident, b"nobody reads this")
    client.expect(wire.STDIN_CLOSED, ident)
    client.send(wire.CANCEL, ident, struct.pack("<II", 0, 1))
    client.wait(ident)


def test_more_stdin_than_the_window_is_refused(client: Client) -> None:
    ident = client.start(["/bin/sleep", "100"], stdin=True)
    for _ in range(8):
        client.send(wire.STDIN, ident, b"x" * 65536)
    client.expect(wire.ERROR, ident)
    assert client.errors[0] == (ident, 105)
    client.send(wire.CANCEL, ident, struct.pack("<II", 0, 1))
    client.wait(ident)


def test_a_new_session_goes_on_where_the_old_one_was_lost(guest: Guest) -> None:
    size = 4 * MIB
    with guest.connect() as first:
        ident = first.start(emit(size))
        while first.output(ident).at[1] < MIB:
            first.expect(wire.OUTPUT, ident)
        kept = bytes(first.output(ident).data[1])
    with guest.connect(wanted={ident: (len(kept), 0)}) as second:
        assert ident in second.processes()
        assert kept + second.wait(ident).data[1] == pattern(size)
        second.send(wire.FORGET, ident)
    with guest.connect() as third:
        assert third.processes() == {}
        assert third.last_id == ident


def test_an_ended_process_is_told_again_until_it_is_forgotten(guest: Guest) -> None:
    with guest.connect() as first:
        ident = first.start(["/bin/sh", "-c", "echo kept"])
        first.expect(wire.STARTED, ident)
    for _ in range(2):
        with guest.connect(wanted={ident: (0, 0)}, automatic=False) as again:
            output = again.wait(ident)
            assert output.data[1] == b"kept\n"
            assert output.ending


def test_a_process_that_is_not_asked_for_stays_silent_until_acknowledged(guest: Guest) -> None:
    with guest.connect() as first:
        ident = first.start(["/bin/sh", "-c", "echo one; echo two >&2"])
        first.expect(wire.STARTED, ident)
    with guest.connect(automatic=False) as second:
        assert second.silence()
        for stream in (1, 2):
            second.send(wire.ACK, ident, struct.pack("<IQ", stream, 0))
        output = second.wait(ident)
        assert output.text() == ("one\n", "two\n")


def test_the_newest_hello_wins(guest: Guest) -> None:
    with guest.connect() as first, guest.connect() as second:
        assert second.run(["true"]).ending
        with pytest.raises(OSError, match=r"closed|reset"):
            first.expect(wire.PONG)
        assert second.run(["true"]).ending


def test_a_connection_without_hello_disturbs_nobody(guest: Guest) -> None:
    with guest.connect() as client:
        silent = [socket.socket(socket.AF_UNIX) for _ in range(10)]
        for connection in silent:
            connection.connect(str(guest.path))
            connection.sendall(b"STN1 nonsense")
        assert client.run(["true"]).ending
        for connection in silent:
            connection.close()


def test_half_frames_and_garbage_are_dropped_and_never_executed(guest: Guest) -> None:
    with guest.connect() as client:
        marker = client.wire.frame(wire.START, 1, wire.record(["/bin/sh", "-c", f"touch {guest.root}/executed"]))
        forged = marker[:-8] + bytes(8)
        for half in (marker[:-1], marker[:20], forged, b"STN1" + b"\xff" * 12, os.urandom(3000), b"STN1STN1"):
            client.socket.sendall(half)
            client.wire = Wire()
            client.socket.sendall(bytes(65560) + client.wire.hello(MIB))
            greeting = client.expect(wire.HELLO_ACK).payload
            assert greeting[:16] == client.wire.nonce
            assert struct.unpack_from("<II", greeting, 24)[0] == 0, "no id was ever accepted"
        client.socket.sendall(marker)  # with a nonce that is no longer the session's
        client.last_id = 5
        assert client.run(["true"]).ending
        assert not (guest.workspace / "executed").exists()


def test_many_commands_at_once_all_end(client: Client) -> None:
    ids = [client.start(["/bin/sh", "-c", f"echo {n}"]) for n in range(20)]
    assert [client.wait(ident).data[1] for ident in ids] == [b"%d\n" % n for n in range(20)]


def test_stdin_and_stdout_can_be_the_stream(binary: Path) -> None:
    command = [str(binary), "serve", "--fd", "-", "--box", "test", "--containment", "subreaper"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        wire_ = Wire()
        process.stdin.write(b"half a frame STN1" + bytes(65560) + wire_.hello(MIB))
        process.stdin.write(wire_.frame(wire.START, 1, wire.record(["/bin/echo", "through"])))
        frames: list[wire.Frame] = []
        while not any(frame.kind == wire.EXIT for frame in frames):
            frames += wire_.feed(process.stdout.read(65536))
        assert [frame.payload[12:] for frame in frames if frame.kind == wire.OUTPUT] == [b"through\n"]
        process.stdin.close()
        assert process.wait(10) == 0, "nobody can ever speak to it again"


def test_a_guest_without_free_descriptors_answers_and_recovers(binary: Path, tmp_path: Path) -> None:
    guest = Guest(binary, tmp_path, boxed=False, options=("--containment", "subreaper"), user=None, nofile=24)
    with guest.connect() as client:
        sleepers = [client.start(["/bin/sleep", "100"]) for _ in range(20)]
        refused = client.expect(wire.EXIT)
        ending = client.output(refused.ident).ending
        assert ending
        assert (ending.kind, ending.value) == (5, 24)
        for sleeper in sleepers:
            client.send(wire.CANCEL, sleeper, struct.pack("<II", 0, 1))
        for sleeper in sleepers:
            client.wait(sleeper)
        after = client.run(["true"]).ending
        assert after
        assert after.kind == 1
    guest.stop()


def test_an_idle_guest_is_small(guest: Guest) -> None:
    with guest.connect() as client:
        client.run(["true"])
        client.run(emit(4 * MIB))
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{guest.pid()}/status").read_text().splitlines() if ":" in line
        )
        assert int(status["VmRSS"].split()[0]) < 700
