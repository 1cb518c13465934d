"""HD-F14, F15: of uploads to one path the last one that was committed is there, whole, and nothing of the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from station import Sandbox
from station.core.errors import FileNotFound, StationError

pytestmark = pytest.mark.timeout(300)

SIZE = 1 << 20
CARELESS = """
import time
while True:
    with open('there', 'wb', buffering=0) as file:
        for _ in range(16):
            file.write(b'c' * 65536)
"""


def temporary(sandbox: Sandbox) -> list[str]:
    return [entry.path for entry in sandbox.files.list(".", recursive=True) if ".stn-" in entry.path]


def pieces(letter: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, size, 65536):
        yield letter * min(65536, size - at)


def whole(data: bytes) -> bool:
    """One letter from its beginning to its end, as long as that letter's upload."""
    return len(set(data)) == 1 and len(data) == SIZE // (data[0] - ord("a") + 1)


def uploads(sandbox: Sandbox, letter: int) -> None:
    """The later in the alphabet, the shorter."""
    sandbox.files.write("there", pieces(bytes([ord("a") + letter]), SIZE // (letter + 1)))


def test_hd_f14_f15_of_uploads_side_by_side_one_is_there_whole(anywhere: Sandbox) -> None:
    """A reader meanwhile sees one of them whole too. The control: a program that writes in place is seen half-way."""
    careless = anywhere.start(["python3", "-c", CARELESS])
    end = time.monotonic() + 60
    partial = False
    while not partial and time.monotonic() < end:
        try:
            partial = len(anywhere.files.read("there")) != SIZE
        except StationError:
            partial = True
    careless.kill()
    assert partial, "the control never showed half a file"

    uploads(anywhere, 0)
    with ThreadPoolExecutor(9) as pool:
        for _ in range(3):
            writers = [pool.submit(uploads, anywhere, letter) for letter in range(8)]
            while not all(writer.done() for writer in writers):
                assert whole(anywhere.files.read("there"))
            for writer in writers:
                writer.result()
            assert whole(anywhere.files.read("there"))
    # The last one that is acknowledged is the one that stays.
    for longer, shorter in pairwise(range(8)):
        uploads(anywhere, longer)
        uploads(anywhere, shorter)
        assert anywhere.files.read("there")[:1] == bytes([ord("a") + shorter])
        assert whole(anywhere.files.read("there")), "no stale tail"
    assert temporary(anywhere) == []


def test_hd_f14_an_upload_and_a_removal_leave_all_or_nothing(anywhere: Sandbox) -> None:
    seen = set()
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            upload = pool.submit(uploads, anywhere, number % 8)
            removal = pool.submit(anywhere.files.remove, "there")
            upload.result()
            removal.result()
            try:
                seen.add(whole(anywhere.files.read("there")))
            except FileNotFound:
                seen.add(True)
    assert seen == {True}
    assert temporary(anywhere) == []


class _Left(Exception):
    pass


def test_hd_f14_an_upload_that_breaks_off_leaves_the_old_file_and_no_other(anywhere: Sandbox) -> None:
    anywhere.files.write("there", b"old")

    def breaking() -> Iterator[bytes]:
        yield b"n" * 300_000
        raise _Left

    for _ in range(5):
        with pytest.raises(_Left):
            anywhere.files.write("there", breaking())
    assert anywhere.files.read("there") == b"old"
    end = time.monotonic() + 10
    while left := temporary(anywhere):
        assert time.monotonic() < end, left
