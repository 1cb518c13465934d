"""Backup and restore on the files of a state directory: what is in, and that damage changes nothing."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from station.core.errors import AlreadyExists, Busy, InvalidInput, NotFound, StorageFull, Unavailable
from station.server.home import Lock
from station.server.upkeep import backup as upkeep_backup
from station.server.upkeep.backup import Report, backup
from station.server.upkeep.restore import restore
from station.server.upkeep.walk import MOST_LEVELS, folders, taken

from .conftest import Machine

CONTENT = os.urandom(3_000_000)
SECRET = b"canary-of-a-token-0123456789"


async def filled(machine: Machine) -> Path:
    """A state directory with a sandbox, a stored file and secrets; its station has ended."""
    async with machine.api() as api:
        uid = await api.open("box")
        await api.call("POST", f"/sandboxes/{uid}/exec", {"argv": ["echo", "hello"]})
        for key, data in (("a", b"first"), ("b", b"second"), ("c", b"first")):
            assert (await api.call("PUT", f"/files/files/{key}", content=data)).is_success
    for name in ("operator.token", "identity.keys", ".env", "station.yaml"):
        (machine.home / name).write_bytes(b"# " + SECRET + b"\n")
    place = machine.home / "sandboxes" / uid / "workspace"
    (place / "d").mkdir(parents=True)
    (place / "d" / "f").write_bytes(CONTENT)
    (place / "link").symlink_to("/etc/passwd")
    (place / os.fsdecode(b"n\xff")).write_bytes(b"")
    os.mkfifo(place / "pipe")
    (place / "d").chmod(0o500)
    return machine.home


def made(home: Path, **options: Any) -> tuple[bytes, Report]:
    sink = io.BytesIO()
    report = backup(home, sink, **options)
    return sink.getvalue(), report


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def left(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()} - {"station.lock"} if home.exists() else set()


async def test_what_was_backed_up_comes_back(machine: Machine, tmp_path: Path) -> None:
    home = await filled(machine)
    archive, report = made(home, secrets=True, workspaces=True)
    assert (report.sandboxes, report.stored_files, report.skipped, report.changed) == (1, 3, 1, [])
    assert report.without_files == ["box"], "the fake backend has its files elsewhere"
    new = tmp_path / "new"
    restored = restore(new, io.BytesIO(archive))
    assert (restored.sandboxes, restored.header.secrets) == (1, True)
    assert (new / "operator.token").read_bytes() == (home / "operator.token").read_bytes()
    assert (new / "operator.token").stat().st_mode & 0o777 == 0o600
    (uid,) = os.listdir(new / "sandboxes")
    place = new / "sandboxes" / uid / "workspace"
    assert (place / "d" / "f").read_bytes() == CONTENT
    assert (place / "d").stat().st_mode & 0o777 == 0o500
    assert os.readlink(place / "link") == "/etc/passwd"
    assert sorted(os.listdir(os.fsencode(place))) == [b"d", b"link", b"n\xff"]
    for name in ("station.yaml", ".env", "identity.keys"):
        (new / name).unlink()

    again = Machine(new)
    async with again.api() as api:
        view = (await api.call("GET", f"/sandboxes/{uid}")).json()
        assert view["state"] == "suspended"
        assert view["reason"].startswith("it was restored from a backup of 20")
        assert (await api.call("GET", "/files/files/c")).content == b"first"
        assert await api.open("box") == uid
        history = (await api.call("GET", f"/sandboxes/{uid}/processes")).json()["processes"]
        assert [process["command"] for process in history] == [["echo", "hello"]]
    await again.store.aclose()


async def test_keys_and_deployments_come_back_and_their_tokens_with_the_secrets(
    machine: Machine, tmp_path: Path
) -> None:
    async with machine.api() as api:
        made_key = (await api.call("POST", "/keys", {"name": "ci"})).json()
        key = made_key["key"].encode()
        assert api.station.access.principal(key).kind == "operator"
    ring = b'{"keys": []}'
    (machine.home / "identity.keys").write_bytes(ring)
    (machine.home / "identity.keys").chmod(0o600)
    for name, secrets in (("plain", False), ("whole", True)):
        new = tmp_path / name
        restore(new, io.BytesIO(made(machine.home, secrets=secrets)[0]))
        assert (new / "identity.keys").exists() is secrets
        again = Machine(new)
        async with again.api() as api:
            assert [one["name"] for one in (await api.call("GET", "/keys")).json()["keys"]] == ["ci"]
            assert api.station.access.principal(key).kind == "operator"
        await again.store.aclose()


async def test_secrets_and_workspaces_are_in_it_where_they_are_asked_for(machine: Machine) -> None:
    home = await filled(machine)
    plain, report = made(home)
    assert report.without_files == ["box"]
    assert SECRET not in gzip.decompress(plain)
    assert not [name for name in names(plain) if name.startswith("sandboxes")]
    secret, _ = made(home, secrets=True)
    assert SECRET in gzip.decompress(secret)


async def test_a_backup_beside_a_station_that_writes_is_consistent(machine: Machine, tmp_path: Path) -> None:
    """Files are written again and deleted while it is taken: each is in it whole, as it was at some moment."""
    async with machine.api() as api:
        for number in range(20):
            await api.call("PUT", f"/files/files/{number}", content=b"%d" % number * 1000)
        taken_out = 0

        def disturb(_size: int) -> None:
            nonlocal taken_out
            if taken_out < 5:
                with closing(sqlite3.connect(machine.home / "files/catalog.db", isolation_level=None)) as db:
                    key, checksum = db.execute(
                        "SELECT key, checksum FROM files WHERE key NOT LIKE '%/x%' ORDER BY checksum DESC LIMIT 1"
                    ).fetchone()
                    db.execute("DELETE FROM files WHERE key = ?", (key,))
                (machine.home / "files/blobs" / checksum[:2] / checksum).unlink()
                taken_out += 1

        sink = io.BytesIO()
        report = backup(machine.home, sink, advance=disturb)
    assert report.stored_files == 15
    new = tmp_path / "new"
    restore(new, io.BytesIO(sink.getvalue()))
    with closing(sqlite3.connect(new / "files/catalog.db")) as db:
        wanted = {row[0] for row in db.execute("SELECT checksum FROM files")}
    assert {path.name for path in (new / "files/blobs").glob("*/*")} == wanted


def repacked(archive: bytes, change: Callable[[tarfile.TarInfo, bytes], bool | bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar, tarfile.open(fileobj=sink, mode="w:gz") as out:
        for member in tar:
            found = tar.extractfile(member) if member.isreg() else None
            data = found.read() if found else b""
            changed = change(member, data)
            if changed is not False:
                data = data if changed is True else changed
                member.size = len(data)
                out.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return sink.getvalue()


def other(member: tarfile.TarInfo, data: bytes) -> bool | bytes:
    return b"X" + data[1:] if "blobs" in member.name else True


def flipped(archive: bytes) -> bytes:
    middle = len(archive) // 2
    return archive[:middle] + bytes([archive[middle] ^ 1]) + archive[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "no archive": lambda _: b"hello\n" * 1000,
    "cut": lambda archive: archive[: len(archive) // 2],
    "cut at its end": lambda archive: archive[:-4],
    "cut before the manifest": lambda archive: repacked(archive, lambda member, data: member.name != "manifest.jsonl"),
    "a flipped bit": flipped,
    "another content": lambda archive: repacked(archive, other),
    "a member too few": lambda archive: repacked(archive, lambda member, data: "blobs" not in member.name),
    "something behind it": lambda archive: archive + gzip.compress(b"more"),
    "another tar": lambda archive: repacked(archive, lambda member, data: member.name != "backup.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_or_cut_archive_changes_nothing(machine: Machine, tmp_path: Path, damage: str) -> None:
    archive, _ = made(await filled(machine), secrets=True, workspaces=True)
    new = tmp_path / "new"
    with pytest.raises(InvalidInput):
        restore(new, io.BytesIO(DAMAGES[damage](archive)))
    assert not new.exists()
    new.mkdir(mode=0o700)
    (new / "station.yaml").write_text("# mine\n")
    with pytest.raises(InvalidInput):
        restore(new, io.BytesIO(DAMAGES[damage](archive)))
    assert left(new) == {"station.yaml"}
    restore(new, io.BytesIO(archive))  # and the same place takes a good one
    assert (new / "station.yaml").read_text() == "# mine\n"


def archive_of(*members: tuple[str, str, str]) -> bytes:
    """A whole archive by its own account: kind, path, and content or target."""
    sink = io.BytesIO()
    from station.server.upkeep.archive import Header, Writer

    facts = os.stat("/")
    with Writer(sink, Header("1", "st-0", 0.0, False, True), lambda _: None) as writer:
        for kind, path, text in members:
            if kind == "file":
                writer.data(path, text.encode())
            elif kind == "link":
                writer.link(path, text, facts)
            else:
                writer.directory(path, facts)
        writer.finish()
    return sink.getvalue()


HOSTILE = {
    "up": [("file", "sandboxes/../../evil", "x")],
    "absolute": [("file", "/evil", "x")],
    "unknown": [("file", "station.sock", "x")],
    "empty part": [("file", "sandboxes//evil", "x")],
    "through a link": [("link", "sandboxes/l", "{outside}"), ("file", "sandboxes/l/evil", "x")],
    "over a link": [("link", "sandboxes/evil", "{outside}/evil"), ("file", "sandboxes/evil", "x")],
    "a linked database": [("link", "registry.db", "{outside}/evil")],
    "twice": [("file", "station_id", "x"), ("file", "station_id", "x")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    members = [(kind, path, text.format(outside=outside)) for kind, path, text in HOSTILE[name]]
    with pytest.raises(InvalidInput, match="archive"):
        restore(tmp_path / "new", io.BytesIO(archive_of(*members)))
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "new").exists()


def member(name: str, **facts: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info


def sparse(size: int) -> bytes:
    """The header of a file of holes, as GNU tar wrote it once."""
    head = bytearray(member("sandboxes/hole", type=tarfile.GNUTYPE_SPARSE).tobuf(tarfile.USTAR_FORMAT))
    head[386:410] = b"%011o\0" % 0 * 2
    head[483:495] = b"%011o\0" % size
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def pax(keyword: str, value: str, name: str = "sandboxes/x", kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A member with a fact about it before it."""
    text = f" {keyword}={value}\n"
    size = len(text) + 1
    while len(f"{size}{text}") != size:
        size = len(f"{size}{text}")
    told = f"{size}{text}".encode()
    head = member("pax", type=kind, size=len(told)).tobuf(tarfile.USTAR_FORMAT)
    return head + told + bytes(-len(told) % 512) + member(name).tobuf(tarfile.USTAR_FORMAT)


IMPOSSIBLE = {
    "a time without end": pax("mtime", "inf"),
    "a late time": pax("mtime", "1e300"),
    "no time": pax("mtime", "nan"),
    "a huge user": pax("uid", str(1 << 70)),
    "a user below none": pax("uid", "-1"),
    "a huge group": pax("gid", str(1 << 40)),
    "a negative size": pax("size", "-512"),
    "holes of once": sparse(1 << 32),
    "holes of now": pax("GNU.sparse.map", "0,0"),
    "a device": member("sandboxes/x", type=tarfile.CHRTYPE).tobuf(tarfile.USTAR_FORMAT),
    "a second name": member("sandboxes/x", type=tarfile.LNKTYPE, linkname="y").tobuf(tarfile.USTAR_FORMAT),
    "facts of all members": pax("comment", "x", kind=tarfile.XGLTYPE),
    "a long fact": pax("comment", "x" * 8_000_000),
    "many facts": pax("comment", "x")[:1024] * 10_000,
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_backup_says_of_a_member_is_refused_before_it_costs_anything(tmp_path: Path, name: str) -> None:
    whole = gzip.decompress(archive_of(("file", "station_id", "x")))
    first = 512 + 512 * -(-int(whole[124:135], 8) // 512)
    crafted = gzip.compress(whole[:first] + IMPOSSIBLE[name] + whole[first:])
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size

    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="archive"):
            restore(tmp_path / "new", io.BytesIO(crafted), advance=count)
        assert (read, tracemalloc.get_traced_memory()[1] < 5_000_000) == (0, True)
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidInput, match="its manifest says"):  # the control: what a backup does say is read
        restore(tmp_path / "new", io.BytesIO(gzip.compress(whole[:first] + pax("mtime", "7.5") + whole[first:])))


@pytest.mark.parametrize("told", ['"soon"', "1e300", "NaN", "null", "[" * 100_000])
def test_a_backup_of_no_time_is_none(tmp_path: Path, told: str) -> None:
    sink = io.BytesIO()
    text = (
        f'{{"version": "1", "station_id": "x", "created_at": {told}, "secrets": false, "workspaces": false}}'.encode()
    )
    with tarfile.open(fileobj=sink, mode="w:gz") as tar:
        tar.addfile(member("backup.json", size=len(text)), io.BytesIO(text))
    with pytest.raises(InvalidInput, match="no archive of"):
        restore(tmp_path / "new", io.BytesIO(sink.getvalue()))


async def test_what_is_secret_is_this_users_alone_whatever_the_archive_says(machine: Machine, tmp_path: Path) -> None:
    archive, _ = made(await filled(machine), secrets=True, workspaces=True)

    def open_to_all(member: tarfile.TarInfo, data: bytes) -> bool | bytes:
        member.mode = 0o777
        return True

    new = tmp_path / "new"
    restore(new, io.BytesIO(repacked(archive, open_to_all)))
    for path in new.rglob("*"):
        inside = path.relative_to(new).parts[0] in ("output", "sandboxes")
        if not path.is_symlink() and path.name != "station.lock":
            assert (path.stat().st_mode & 0o077 != 0) is inside, path


async def test_a_directory_in_use_is_left_alone(machine: Machine, tmp_path: Path) -> None:
    archive, _ = made(await filled(machine))
    before = left(machine.home)
    with pytest.raises(AlreadyExists, match="is not empty"):
        restore(machine.home, io.BytesIO(archive))
    assert left(machine.home) == before
    new = tmp_path / "new"
    new.mkdir(mode=0o700)
    lock = Lock(new)
    with pytest.raises(Busy):
        restore(new, io.BytesIO(archive))
    lock.release()
    with pytest.raises(NotFound, match="no state directory"):
        made(tmp_path / "none")


async def test_a_station_on_nats_is_told_where_its_backup_is(machine: Machine) -> None:
    home = await filled(machine)
    (home / "station.yaml").write_text("store: nats\n")
    with pytest.raises(Unavailable, match="nats account backup"):
        made(home)
    (home / "station.yaml").write_text("stor: nats\n")
    assert made(home)[1].sandboxes == 1, "settings that are broken keep nobody from a backup"


async def test_an_archive_of_a_later_form_names_who_reads_it(machine: Machine, tmp_path: Path) -> None:
    archive, _ = made(await filled(machine))

    def later(member: tarfile.TarInfo, data: bytes) -> bool | bytes:
        return json.dumps({**json.loads(data), "format": 2}).encode() if member.name == "backup.json" else True

    with pytest.raises(InvalidInput, match="made by version"):
        restore(tmp_path / "new", io.BytesIO(repacked(archive, later)))


async def test_without_room_nothing_is_restored(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, _ = made(await filled(machine))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("station.server.upkeep.restore._own", full)
    with pytest.raises(StorageFull):
        restore(tmp_path / "new", io.BytesIO(archive))
    assert not (tmp_path / "new").exists()


async def test_a_file_that_shrinks_while_it_is_read_is_told(machine: Machine, tmp_path: Path) -> None:
    home = await filled(machine)

    def shrink(_size: int) -> None:
        for file in home.glob("sandboxes/*/workspace/d/f"):
            os.truncate(file, 10)

    report = backup(home, (sink := io.BytesIO()), workspaces=True, advance=shrink)
    # The first bytes that went by were those of databases: by then it had its later size.
    assert report.changed == []
    (home / "sandboxes" / "x").mkdir()
    (file := home / "sandboxes" / "x" / "f").write_bytes(bytes(5_000_000))

    def late(_size: int) -> None:
        if upkeep.bytes > 2_000_000:
            os.truncate(file, 10)

    upkeep = Report()

    def count(size: int) -> None:
        upkeep.bytes += size
        late(size)

    report = backup(home, (sink := io.BytesIO()), workspaces=True, advance=count)
    assert report.changed == ["sandboxes/x/f"]
    restore(tmp_path / "new", io.BytesIO(sink.getvalue()))
    assert (tmp_path / "new" / "sandboxes" / "x" / "f").stat().st_size == 5_000_000


async def test_names_that_change_while_they_are_looked_at_stop_nothing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name is another thing by the time that it is opened, as code in a sandbox can have it."""
    home = await filled(machine)
    place = home / "sandboxes" / "x"
    place.mkdir()
    (place / "a-link").symlink_to("y")
    for name in ("b-file", "c-file", "d-file", "e-file"):
        (place / name).write_text("x")
    real = upkeep_backup._Backup._entry

    def late(self: Any, parent: int, name: str, path: str, facts: os.stat_result) -> None:
        if path.startswith("sandboxes/x/") and name != "e-file":
            (place / name).unlink()
            if name == "a-link":
                (place / name).write_text("x")
            elif name == "b-file":
                (place / name).symlink_to("y")
            elif name == "c-file":
                os.mkfifo(place / name)
            else:
                with socket.socket(socket.AF_UNIX) as bound:
                    monkeypatch.chdir(place)
                    bound.bind(name)
        real(self, parent, name, path, facts)

    monkeypatch.setattr(upkeep_backup._Backup, "_entry", late)
    archive, report = made(home, workspaces=True)
    assert report.unreadable == [f"sandboxes/x/{name}" for name in ("a-link", "b-file", "c-file", "d-file")]
    assert "sandboxes/x/e-file" in names(archive)


async def test_a_disk_that_cannot_be_written_is_no_file_that_cannot_be_read(machine: Machine) -> None:
    home = await filled(machine)
    refused = False

    class Closed(io.BytesIO):
        def write(self, data: Any, /) -> int:
            nonlocal refused
            if not refused and self.tell() > 1_000_000:
                refused = True
                raise PermissionError(13, "no")
            return super().write(data)

    with pytest.raises(PermissionError):
        backup(home, Closed(), workspaces=True)


async def test_holes_and_names_of_a_sandbox_are_read_up_to_a_bound(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = await filled(machine)
    monkeypatch.setattr(upkeep_backup, "MOST_SPARE_BYTES", 3_000_000)
    one, other = home / "sandboxes" / "one", home / "sandboxes" / "other"
    for place in (one, other):
        place.mkdir()
        with (place / "a").open("wb") as file:
            file.truncate(2_000_000)
    with (one / "hole").open("wb") as file:
        file.truncate(1 << 43)
    (one / "full").write_bytes(os.urandom(4_000_000))
    os.link(one / "full", one / "g")
    (one / "h").write_bytes(os.urandom(800_000))
    for name in ("i", "j"):
        os.link(one / "h", one / name)
    assert upkeep_backup.size_of(home, workspaces=True) < 20_000_000
    archive, report = made(home, workspaces=True)
    # One further name of `h` has room, and what the disk has in full always has.
    assert report.sparse == ["sandboxes/one/g", "sandboxes/one/hole", "sandboxes/one/j"]
    found = names(archive)
    assert {"sandboxes/one/a", "sandboxes/other/a", "sandboxes/one/full", "sandboxes/one/i"} < set(found)
    restore(tmp_path / "new", io.BytesIO(archive))
    assert (tmp_path / "new" / "sandboxes" / "one" / "a").read_bytes() == bytes(2_000_000)


def test_a_folder_whose_names_alone_can_be_read_is_told(tmp_path: Path) -> None:
    """Root reads all, so another user looks."""
    (tmp_path / "top" / "d").mkdir(parents=True)
    (tmp_path / "top" / "d" / "f").write_text("x")
    tmp_path.chmod(0o755)
    (tmp_path / "top" / "d").chmod(0o444)
    look = "import sys; from pathlib import Path; from station.server.upkeep.walk import folders\n"
    look += "print([folder.path for folder in folders(Path('top'), print)])"
    if os.geteuid() == 0:
        look = look.replace("\n", "; import os; os.seteuid(12345)\n")
    done = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "d/f\n['', 'd']\n", done.stderr


def test_a_walk_follows_no_link_and_survives_any_depth(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    top.mkdir()
    (top / "link").symlink_to(outside)
    fd = os.open(top, os.O_RDONLY)
    for _ in range(MOST_LEVELS + 50):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    missed: list[str] = []
    found = [folder.path for folder in folders(top, missed.append)]
    assert len(found) == MOST_LEVELS
    assert missed == ["/".join(["d"] * MOST_LEVELS)]
    assert not any("secret" in path for path in found)
    assert list(folders(tmp_path / "none")) == []


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever writes in a sandbox may change it between a look and the next."""
    top, outside = tmp_path / "top", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    (top / "d").mkdir(parents=True)
    missed: list[str] = []
    found = []
    for folder in folders(top, missed.append):
        found.append(folder.path)
        if not folder.path:
            (top / "d").rmdir()
            (top / "d").symlink_to(outside)
    assert (found, missed) == ([""], ["d"])


def test_room_is_counted_once_for_a_file_with_two_names(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1_000_000)
    once = taken(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    assert 1_000_000 <= taken(tmp_path) == once
    assert taken(tmp_path / "a") >= 1_000_000
    assert taken(tmp_path / "none") == 0


def test_the_names_of_a_backup_are_those_of_a_state_directory() -> None:
    assert {"registry.db", "processes.db", "files", "sandboxes"} <= upkeep_backup.KNOWN
