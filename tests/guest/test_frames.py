from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from station.core.errors import InvalidInput, TooLarge
from station.guest import frames
from station.guest.endings import ExitKind, GuestExit, Reason
from station.guest.frames import Decoder, Frame, OnFull, ProtocolError, StartRecord

from .peer import exit_payload, listed

NONCE = bytes(range(16))
a_frame = st.builds(
    Frame, st.sampled_from(range(0x81, 0x8A)), st.integers(0, 2**32 - 1), st.binary(max_size=300).map(bytes)
)
no_magic = st.binary(max_size=60).filter(lambda raw: b"S" not in raw)


def wire(parts: list[bytes | Frame]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else frames.frame(*part) for part in parts)


def in_chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.one_of(a_frame, no_magic), max_size=12), st.lists(st.integers(0, 10_000), max_size=8))
def test_fb_b17_frames_are_found_between_garbage_however_the_stream_is_chunked(
    parts: list[bytes | Frame], cuts: list[int]
) -> None:
    decoder = Decoder()
    found = [each for chunk in in_chunks(wire(parts), cuts) for each in decoder.feed(chunk)]
    assert found == [part for part in parts if isinstance(part, Frame)]


@given(st.lists(st.one_of(a_frame, st.binary(max_size=80), st.just(b"STN1"), st.just(bytes(70_000)))), st.data())
def test_any_bytes_decode_the_same_in_one_piece_and_in_many_and_never_raise(
    parts: list[bytes | Frame], data: st.DataObject
) -> None:
    raw = wire(parts)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=10))
    decoder = Decoder()
    assert [each for chunk in in_chunks(raw, cuts) for each in decoder.feed(chunk)] == Decoder().feed(raw)


@given(st.lists(st.one_of(a_frame, st.binary(max_size=200)), max_size=6), st.lists(a_frame, max_size=3), st.data())
def test_resynchronising_discards_all_before_the_hello_with_the_nonce(
    before: list[bytes | Frame], after: list[Frame], data: st.DataObject
) -> None:
    hello = Frame(frames.HELLO_ACK, 0, NONCE + bytes(16))
    half = wire([Frame(frames.OUTPUT, 3, bytes(5000))])[: data.draw(st.integers(0, 5016))]
    raw = wire(before) + half + wire([hello, *after])
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=10))
    decoder = Decoder(NONCE)
    assert [each for chunk in in_chunks(raw, cuts) for each in decoder.feed(chunk)] == [hello, *after]


def test_a_nonce_in_the_output_of_an_earlier_session_is_no_hello() -> None:
    decoder = Decoder(NONCE)
    assert decoder.feed(frames.frame(frames.OUTPUT, 1, NONCE + b"x" * 40) + bytes(12) + NONCE) == []


def test_a_length_above_the_maximum_is_garbage() -> None:
    good = Frame(frames.PONG, 0, b"p")
    raw = frames._HEADER.pack(frames.MAGIC, frames.OUTPUT, 1, 65_537) + frames.frame(*good)
    assert Decoder().feed(raw) == [good]


@given(st.sampled_from(range(0x81, 0x8A)), st.binary(max_size=120))
def test_a_damaged_payload_is_a_protocol_error_and_nothing_else(kind: int, payload: bytes) -> None:
    parsers = {
        frames.HELLO_ACK: frames.parse_hello_ack,
        frames.STARTED: frames.parse_started,
        frames.OUTPUT: frames.parse_output,
        frames.GAP: frames.parse_gap,
        frames.EXIT: frames.parse_exit,
        frames.STDIN_ACK: frames.parse_stdin_ack,
        frames.ERROR: frames.parse_error,
    }
    if kind in parsers:
        try:
            parsers[kind](payload)
        except ProtocolError:
            return


def test_a_start_record_has_the_layout_of_the_protocol() -> None:
    record = StartRecord(
        ("/bin/sh", "-c", "é"),
        cwd="/w",
        env={"A": "1"},
        stdin=True,
        on_full=OnFull.KILL,
        timeout_seconds=1.5,
        grace_seconds=0.25,
        ring_bytes=8192,
        output_limit=2**40,
    )
    assert record.encode() == struct.pack("<IIIIIQII", 1, 2, 1500, 250, 8192, 2**40, 3, 1) + (
        b"/w\0/bin/sh\0-c\0\xc3\xa9\0A=1\0"
    )


def test_names_that_are_no_text_keep_their_bytes() -> None:
    assert StartRecord(("cat", b"\xff\xfe".decode("utf-8", "surrogateescape"))).encode().endswith(b"\0cat\0\xff\xfe\0")


def test_a_tiny_timeout_is_not_none() -> None:
    assert struct.unpack_from("<III", StartRecord(("x",), timeout_seconds=0.0001).encode())[2] == 1


@pytest.mark.parametrize("argv", [("a\0b",), ("\ud800",)])
def test_what_no_command_can_hold_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        StartRecord(argv).encode()


def test_a_record_above_two_mebibytes_is_too_large() -> None:
    with pytest.raises(TooLarge, match="2 MiB"):
        StartRecord(("x", "y" * (2 << 20))).encode()


@pytest.mark.parametrize(
    ("size", "lengths"), [(65_536, [65_536]), (65_537, [65_536, 1]), (200_000, [65_536, 65_536, 65_536, 3_392])]
)
def test_a_long_record_is_sent_in_parts_and_the_last_is_the_start(size: int, lengths: list[int]) -> None:
    sent = Decoder().feed(b"".join(frames.start_frames(9, bytes(size))))
    assert [len(each.payload) for each in sent] == lengths
    assert [each.kind for each in sent] == [frames.START_PART] * (len(lengths) - 1) + [frames.START]
    assert {each.id for each in sent} == {9}


def test_every_frame_is_sealed_with_half_the_nonce() -> None:
    assert frames.seal([b"one", b"two"], NONCE) == b"one" + NONCE[:8] + b"two" + NONCE[:8]


def test_a_hello_is_read_with_its_processes() -> None:
    payload = struct.pack("<16sIIII", NONCE, 1, 0b1000010, 12, 1) + listed(12, state=2, taken=5, out=9) + b"0.1.0\0"
    hello = frames.parse_hello_ack(payload)
    assert (hello.version, hello.last_id, hello.guest_version) == (1, 12, "0.1.0")
    assert hello.capabilities == {"subreaper", "separate_uid"}
    assert hello.processes[12] == frames.HelloProcess(12, False, 7, 5, 0, 9, 0, 0)


def test_an_exit_is_read_in_full() -> None:
    assert frames.parse_exit(exit_payload(ExitKind.SIGNALLED, 9, stdout=5, stderr=6)) == GuestExit(
        ExitKind.SIGNALLED, 9, Reason.NONE, 0, 5, 6, 1000, 2000, 3000, 4000
    )
