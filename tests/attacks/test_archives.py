"""HD-F11, F12: an archive changes a sandbox as a whole or not at all; a tree that moves is exported whole or not."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from station import Sandbox
from station.core.errors import StationError, TooLarge
from tests.worker.test_archive import ATTACKS, archive, file, folder, link, special

pytestmark = pytest.mark.timeout(300)

FIRST = archive(file("first", b"new"), file("added", b"new"))[:2048]
"""Two good members without an end: what a refused archive begins with must not be there either."""
LOOK = """
import hashlib, os
for top, folders, files in sorted(os.walk('.')):
    for name in sorted(folders + files):
        path = os.path.join(top, name)
        kept = os.lstat(path)
        link = os.readlink(path) if os.path.islink(path) else ''
        digest = hashlib.sha256(open(path, 'rb').read()).hexdigest() if os.path.isfile(path) and not link else ''
        print(path, oct(kept.st_mode), kept.st_ino, link, digest)
"""
CHANGING = """
import os, random
for number in range(20):
    open(f'tree/kept-{number}', 'wb').write(bytes([number]) * 10_000)
print('ready', flush=True)
while True:
    name = f'tree/{random.randrange(200):03}'
    what = random.randrange(5)
    try:
        if what == 0: os.unlink(name)
        elif what == 1: os.rename(name, f'tree/d{random.randrange(5)}/moved')
        elif what == 2: os.makedirs(f'tree/d{random.randrange(5)}', exist_ok=True)
        elif what == 3: os.truncate(name, random.randrange(100_000))
        else: open(name, 'wb').write(b'x' * random.randrange(100_000))
    except OSError: pass
"""
CARELESS = """
import os
differing = 0
for _ in range(100_000):
    for entry in os.scandir('tree'):
        try:
            size = entry.stat(follow_symlinks=False).st_size
            differing += entry.is_file() and len(open(entry.path, 'rb').read()) != size
        except OSError:
            differing += 1
    if differing: break
print(differing)
"""


def _through_a_link(outside: Path) -> bytes:
    return archive(link("l", str(outside)), file("l/x", b"out"))


def test_hd_f11_the_control_a_plain_extraction_writes_outside(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    for data in (_through_a_link(outside), archive(file("../outside/y")), archive(special("pipe", tarfile.FIFOTYPE))):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(inside, filter="fully_trusted")
    assert sorted(os.listdir(outside)) == ["x", "y"]
    assert (inside / "pipe").is_fifo()


def test_hd_f11_a_bad_archive_changes_nothing(anywhere: Sandbox) -> None:
    """Every archive of the list, each behind two members that would be let in."""
    anywhere.exec("mkdir -p d/e; echo old > first; echo kept > d/e/f; ln -s e d/link; ln first hard; chmod 640 first")
    before = anywhere.exec(["python3", "-c", LOOK]).stdout
    names = [entry.path for entry in anywhere.files.list(".", recursive=True)]
    assert len(names) == 6
    for attack, data in ATTACKS.items():
        zipped = data[:2] == b"\x1f\x8b"
        behind = (gzip.compress(FIRST) if zipped else FIRST) + data
        for place, whole in ((".", data), (".", behind), ("d", behind), ("d/new", behind)):
            with pytest.raises(StationError, match="nothing changed") as caught:
                anywhere.files.write_tar(place, whole)
            assert caught.value.status in (400, 413), attack
        assert [entry.path for entry in anywhere.files.list(".", recursive=True)] == names, attack
    assert anywhere.exec(["python3", "-c", LOOK]).stdout == before


@pytest.fixture(scope="module")
def too_many() -> bytes:
    """In the full tier the million that hardening 4 names; a tenth of it is more than the bound too."""
    return gzip.compress(b"".join(_headers(1_000_000 if os.environ.get("STN_TEST_FULL") else 110_000)) + bytes(1024), 1)


def _headers(count: int) -> Iterator[bytes]:
    """Of empty files. By hand, as `tarfile` takes a minute for a million: only name and checksum differ."""
    block = tarfile.TarInfo("0" * 7).tobuf()
    fixed = sum(block) - sum(block[:7]) - sum(block[148:156]) + 8 * ord(" ")
    for number in range(count):
        name = b"%07d" % number
        yield name + block[7:148] + b"%06o\0 " % (fixed + sum(name)) + block[156:]


@pytest.mark.full
def test_hd_f11_a_million_members_are_refused(anywhere: Sandbox, too_many: bytes) -> None:
    """The control: a thousand are let in."""
    assert anywhere.files.write_tar("few", b"".join(_headers(1000)) + bytes(1024)) == 1000
    with pytest.raises(TooLarge, match="100000 members"):
        anywhere.files.write_tar("many", too_many)
    assert [entry.path for entry in anywhere.files.list(".")] == ["/workspace/few"]


def test_hd_f11_what_is_let_in_is_kept_as_it_was_meant(anywhere: Sandbox) -> None:
    """Relative links that stay inside, as in node_modules, absolute ones as names, and bits without those of root."""
    good = archive(
        folder("node_modules/.bin"),
        file("node_modules/tool/cli.js", b"#!/bin/sh\necho tool\n", mode=0o6755, uid=0, gid=0),
        link("node_modules/.bin/tool", "../tool/cli.js"),
        link("python", "/usr/bin/python3"),
    )
    assert anywhere.files.write_tar(".", good) == 4
    assert anywhere.exec("node_modules/.bin/tool").stdout == "tool\n"
    assert anywhere.exec("readlink node_modules/.bin/tool python").stdout == "../tool/cli.js\n/usr/bin/python3\n"
    assert anywhere.files.stat("node_modules/tool/cli.js").mode == "755"
    again = b"".join(anywhere.files.read_tar("."))
    with tarfile.open(fileobj=io.BytesIO(again)) as tar:
        assert tar.getmember("node_modules/.bin/tool").linkname == "../tool/cli.js"


def test_hd_f12_a_tree_that_changes_is_exported_whole_or_with_an_error(anywhere: Sandbox) -> None:
    """The control: who takes the size first and reads then meets other bytes than he was told of."""
    anywhere.exec("mkdir tree")
    exports = 40 if os.environ.get("STN_TEST_FULL") else 10
    changer = anywhere.start(["python3", "-c", CHANGING])
    try:
        next(iter(changer.output()))
        assert int(anywhere.exec(["python3", "-c", CARELESS], timeout_seconds=60).stdout) > 0, "nothing changes"
        for _ in range(exports):
            try:
                data = b"".join(anywhere.files.read_tar("tree"))
            except StationError:
                continue
            assert data[-1024:] == bytes(1024), "an archive that came without an error has its end mark"
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                found = {name.name: name for name in tar}
                kept = {name: tar.extractfile(f"kept-{name}") for name in range(20)}
                for number, content in kept.items():
                    assert content is not None
                    assert content.read() == bytes([number]) * 10_000
                assert all(not name.startswith(("/", "..")) for name in found)
    finally:
        changer.kill()
    after = b"".join(anywhere.files.read_tar("tree"))  # nobody changes it any more: now it must come
    assert after[-1024:] == bytes(1024)
