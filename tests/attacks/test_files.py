"""HD-F01 to F10: the file tools touch the sandbox's files, whatever user code does meanwhile."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from station import Sandbox
from station.core.errors import Conflict, FileNotFound, InvalidInput, NotARegularFile, StationError

pytestmark = pytest.mark.timeout(600)

CALLERS = 4
INSIDE = {"/workspace/dir/secret", "/workspace/dir/made"}
SWAPPER = """
import ctypes, os, shutil, sys
libc = ctypes.CDLL(None)
os.makedirs('real', exist_ok=True)
open('real/secret', 'w').write('inside')
os.path.islink('link') or os.symlink(sys.argv[1], 'link')
os.path.lexists('dir') or os.mkdir('dir')
open('dir/secret', 'w').write('inside')
print('ready', flush=True)
def put(name, there):
    # What the API has made of that name meanwhile goes.
    while True:
        try:
            return os.rename(name, there)
        except FileNotFoundError:
            return
        except OSError:
            shutil.rmtree(there, ignore_errors=True)
while True:
    if libc.renameat2(-100, b'dir', -100, b'link', 2) != 0:  # gVisor knows no exchange: one after the other
        for pair in ('dir', 'kept'), ('link', 'dir'), ('dir', 'link'), ('kept', 'dir'):
            put(*pair)
"""


def swaps(backend: str = "") -> int:
    if os.environ.get("STN_TEST_FULL"):
        return 100_000
    # The way of the API is the same on the host; what isolates is tried by the thousands.
    return 1_000 if backend == "host" else 10_000


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory that code on the host may read and change, whoever it runs as."""
    with tempfile.TemporaryDirectory(prefix="stn-elsewhere-") as directory:
        found = Path(directory)
        (found / "passwd").touch()
        found.chmod(0o777)
        yield found


@pytest.mark.timeout(3600)
def test_hd_f01_a_directory_swapped_with_a_link_never_leads_outside(anywhere: Sandbox, elsewhere: Path) -> None:
    """The control opens the same name without care, from inside, and gets the outside in some of the tries."""
    backend = anywhere.info().isolation.backend
    outside = elsewhere if backend == "host" else Path("/etc")
    anywhere.exec("mkdir -p real")
    anywhere.files.write("swapper.py", SWAPPER.encode())
    swapper = anywhere.start(["python3", "swapper.py", str(outside)], timeout_seconds=3600)
    careless = "import os\nprint(sum(os.path.exists('dir/passwd') for _ in range(20_000)))"
    try:
        next(iter(swapper.output()))
        met = int(anywhere.exec(["python3", "-c", careless], timeout_seconds=100).stdout)
        assert met > 0, "the control never met the link: the swapper does not swap"
        # Several callers at once, as one waits most of the time.
        with ThreadPoolExecutor(CALLERS) as pool:
            found = list(pool.map(lambda _: _races(anywhere, swaps(backend) // CALLERS), range(CALLERS)))
    finally:
        swapper.kill()
    assert sum(seen for seen, _ in found) > 0
    assert set().union(*(refusals for _, refusals in found)) <= {400, 404, 409}
    if outside != Path("/etc"):
        assert os.listdir(outside) == ["passwd"]


def _races(sandbox: Sandbox, count: int) -> tuple[int, set[int]]:
    """That many reads, writes, listings and removals: how many came to something, and how the others were refused."""
    seen, refusals = 0, set[int]()
    for number in range(count):
        try:
            match number % 4:
                case 0:
                    assert sandbox.files.read("dir/secret") == b"inside"
                case 1:
                    names = {entry.path for entry in sandbox.files.list("dir", recursive=True)}
                    assert {name for name in names if ".stn-" not in name} <= INSIDE
                case 2:
                    sandbox.files.write("dir/made", b"x")
                case _:
                    sandbox.files.remove("dir/made")
            seen += 1
        except StationError as error:
            refusals.add(error.status)
    return seen, refusals


def test_hd_f01_no_tree_or_name_is_carried_through_a_swapped_link(confined: Sandbox) -> None:
    """As above for archives, copies, renames and new directories; what lies outside may be written by the code itself,
    so that only the way there can be what is refused. The control writes through the link, from inside."""
    confined.exec(
        "mkdir -p /dev/shm/outside/in; echo outside > /dev/shm/outside/secret; echo OUT > /dev/shm/outside/in/old"
    )
    before = confined.exec("cd /dev/shm/outside && find . | sort; cat secret in/old").stdout
    confined.files.write("swapper.py", SWAPPER.encode())
    confined.files.write("src", b"inside")
    swapper = confined.start(["python3", "swapper.py", "/dev/shm/outside"])
    archive = _tar("in/made", b"x", 0o644)
    done: dict[str, int] = {}
    refusals: set[int] = set()

    def packed(path: str) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(b"".join(confined.files.read_tar(path)))) as tar:
            return b"".join(f.read() for member in tar if (f := tar.extractfile(member)) is not None)

    def moved() -> None:
        confined.files.write("moving", b"inside")
        confined.files.rename("moving", "dir/moved")

    attempts: dict[str, Callable[[], object]] = {
        "tar out": lambda: packed("dir"),
        "tar in": lambda: confined.files.write_tar("dir", archive),
        "tar into a new one": lambda: confined.files.write_tar("dir/new", archive),
        "copy in": lambda: confined.files.copy("src", "dir/copied"),
        "copy out": lambda: confined.files.copy("dir", "copy"),
        "what was copied": lambda: confined.files.read("copy/secret"),
        "rename in": moved,
        "rename out": lambda: confined.files.rename("dir/secret", "got"),
        "what was renamed": lambda: confined.files.read("got"),
        "rename back": lambda: confined.files.rename("got", "dir/secret"),
        "mkdir": lambda: confined.files.mkdir("dir/sub"),
        "remove": lambda: confined.files.remove("dir/sub", recursive=True),
    }
    try:
        next(iter(swapper.output()))
        careless = """if True:
            import os
            for _ in range(100_000):
                try:
                    os.mkdir('dir/c')
                    print(os.path.exists('/dev/shm/outside/c') and 'seen' or '', end='')
                    os.rmdir('dir/c')
                except OSError: pass
            """
        seen = confined.exec(["python3", "-c", careless], timeout_seconds=100, output_limit_bytes=1000)
        assert seen.stdout.startswith("seen"), "the control never met the link"
        confined.exec("rmdir /dev/shm/outside/c")
        for _ in range(swaps() // 100):
            for name, attempt in attempts.items():
                try:
                    result = attempt()
                    done[name] = done.get(name, 0) + 1
                    assert not isinstance(result, bytes) or (b"outside" not in result.lower() and b"OUT" not in result)
                except StationError as error:
                    refusals.add(error.status)
    finally:
        swapper.kill()
    assert set(done) == set(attempts)
    assert refusals <= {400, 404, 409}
    assert confined.exec("cd /dev/shm/outside && find . | sort; cat secret in/old").stdout == before
    assert ".stn-" not in confined.exec("find . -name '.stn-*'").stdout


@pytest.mark.parametrize(
    "path", ["..", "/etc/passwd", "a/../../x", "../workspace/../etc/passwd", "//etc/passwd", "/proc/self/environ", "/"]
)
def test_hd_f02_a_path_that_leads_outside_is_refused_by_every_call(anywhere: Sandbox, path: str) -> None:
    for call in (
        lambda: anywhere.files.read(path),
        lambda: anywhere.files.write(path, b"x"),
        lambda: anywhere.files.stat(path),
        lambda: anywhere.files.list(path),
        lambda: anywhere.files.remove(path, recursive=True),
        lambda: anywhere.files.mkdir(path),
        lambda: anywhere.files.rename(path, "there"),
    ):
        with pytest.raises(InvalidInput, match="outside"):
            call()


@pytest.mark.parametrize("path", ["%2e%2e/passwd", "..\\passwd", "a..b", "...", "dir/."])
def test_hd_f02_a_name_that_only_looks_like_a_way_out_is_a_name(anywhere: Sandbox, path: str) -> None:
    anywhere.files.write(path if path != "dir/." else "dir/x", b"mine")
    assert anywhere.files.read(path if path != "dir/." else "dir/./x") == b"mine"


@pytest.mark.parametrize(
    "name",
    [
        "new\nline",
        "esc\x1b[31m",
        "-rf",
        "$(touch x)",
        "'",
        '"',
        "a\\b",
        "é漢😀",
        "\udcff\udcfe",
        "x" * 255,
        " ",
        "*",
        ";",
    ],
)
def test_hd_f03_a_strange_name_is_kept_byte_for_byte(anywhere: Sandbox, name: str) -> None:
    anywhere.files.write(name, b"strange")
    assert anywhere.files.read(name) == b"strange"
    names = [entry.path for entry in anywhere.files.list(".")]
    assert f"/workspace/{name}" in names
    listed = anywhere.exec(["python3", "-c", "import os\nprint(sorted(os.listdir(b'.')))"]).stdout
    assert repr(os.fsencode(name)) in listed
    anywhere.files.remove(name)
    assert f"/workspace/{name}" not in [entry.path for entry in anywhere.files.list(".")]


@pytest.mark.parametrize("name", ["nul\0", "x" * 256, "d/" * 2500 + "x"])
def test_hd_f03_a_name_that_cannot_be_is_refused(anywhere: Sandbox, name: str) -> None:
    with pytest.raises(InvalidInput):
        anywhere.files.write(name, b"")


def test_hd_f04_only_regular_files_are_read_and_nothing_blocks(anywhere: Sandbox) -> None:
    anywhere.exec("mkfifo fifo; ln -s /dev/zero zero; ln -s /proc/self/fd/0 stdin; mkdir dir")
    anywhere.exec(["python3", "-c", "import socket\nsocket.socket(socket.AF_UNIX).bind('socket')"])
    begun = time.monotonic()
    for name in ("fifo", "socket", "dir"):
        with pytest.raises(NotARegularFile):
            anywhere.files.read(name)
    for name in ("zero", "stdin"):
        with pytest.raises(InvalidInput, match="leads out"):
            anywhere.files.read(name)
    assert time.monotonic() - begun < 5


def test_hd_f05_a_write_onto_something_else_leaves_the_old_or_the_new(anywhere: Sandbox) -> None:
    anywhere.exec("mkfifo fifo; mkdir dir; echo old > target; ln -s target link; echo keep > locked; chmod 400 locked")
    with pytest.raises(Conflict):
        anywhere.files.write("dir", b"x")
    anywhere.files.write("link", b"new")
    assert anywhere.files.read("target") == b"old\n", "a write replaces the link, it does not follow it"
    assert anywhere.files.read("link") == b"new"
    with pytest.raises(StationError):
        anywhere.files.write("locked/x", b"x")
    assert anywhere.files.read("locked") == b"keep\n"
    leftovers = [entry.path for entry in anywhere.files.list(".") if ".stn-" in entry.path]
    assert leftovers == []


def test_hd_f05_a_full_file_system_keeps_the_old_content(confined: Sandbox) -> None:
    confined.files.write("/tmp/kept", b"old")
    confined.exec("head -c 1G /dev/zero > /tmp/fill")
    with pytest.raises(StationError) as caught:
        confined.files.write("/tmp/kept", b"x" * 1_000_000)
    assert caught.value.status == 507
    assert confined.files.read("/tmp/kept") == b"old"
    confined.exec("rm /tmp/fill")
    confined.files.write("/tmp/kept", b"x" * 1_000_000)
    assert confined.files.stat("/tmp/kept").size == 1_000_000


def test_hd_f06_loops_and_dangling_links_are_clean_errors(anywhere: Sandbox) -> None:
    anywhere.exec("ln -s a b; ln -s b a; ln -s nowhere dangling; for i in $(seq 0 50); do ln -s c$((i+1)) c$i; done")
    for name in ("a", "c0", "dangling"):
        with pytest.raises(StationError) as caught:
            anywhere.files.read(name)
        assert caught.value.status in (400, 404, 409)
        assert "/sandboxes/" not in caught.value.message
    with pytest.raises(FileNotFound):
        anywhere.files.read("dangling")


@pytest.mark.full
def test_hd_f07_a_huge_directory_is_listed_in_pages(anywhere: Sandbox) -> None:
    count = 100_000
    script = f"import os\nos.mkdir('d')\nfor i in range({count}): open(f'd/{{i:06}}', 'w').close()"
    anywhere.exec(["python3", "-c", script])
    page = anywhere.files.page("d", limit=1000)
    assert [len(page.entries), page.truncated] == [1000, True]
    assert [entry.path for entry in page.entries] == [f"/workspace/d/{i:06}" for i in range(1000)]
    assert page.next is not None
    second = anywhere.files.page("d", limit=1000, after=page.next)
    assert second.entries[0].path == "/workspace/d/001000"
    assert sum(1 for _ in anywhere.files.list("d")) == count
    anywhere.files.remove("d", recursive=True)


def test_hd_f08_a_sparse_file_is_read_within_its_bounds(anywhere: Sandbox) -> None:
    anywhere.exec("truncate -s 10G sparse; truncate -s 1M small")
    assert anywhere.files.stat("sparse").size == 10 * 2**30
    assert anywhere.files.read("sparse", offset=9 * 2**30, length=10) == b"\0" * 10
    assert len(anywhere.files.read("small", length=2**20 + 5)) == 2**20


def test_hd_f08_a_file_that_shrinks_under_a_reader_is_an_error_never_other_bytes(anywhere: Sandbox) -> None:
    anywhere.exec("head -c 8M /dev/zero > moving")
    mover = anywhere.start("while :; do truncate -s 0 moving; truncate -s 8M moving; done")
    try:
        refusals = set()
        for _ in range(20):
            try:
                assert set(anywhere.files.read("moving")) <= {0}
            except StationError as error:
                refusals.add(error.status)
        assert refusals <= {409, 500, 503}
    finally:
        mover.kill()
    anywhere.exec("truncate -s 3 moving")
    assert anywhere.files.read("moving") == b"\0\0\0"


def test_hd_f09_no_hard_link_to_a_file_of_the_image_or_the_host_can_be_made(confined: Sandbox) -> None:
    """/usr is another file system inside. The control: within one it can."""
    assert confined.exec("ln /usr/bin/env stolen").exit_code == 1
    assert confined.exec("echo x > own; ln own linked").ok


def test_hd_f09_a_hard_link_gives_no_more_than_its_content(anywhere: Sandbox) -> None:
    """The control: what writes in place writes the other name's file too."""
    anywhere.exec("echo data > a; ln a b; echo data > c; ln c d; echo replaced > d")
    assert anywhere.files.read("c") == b"replaced\n"
    anywhere.files.write("b", b"replaced")
    assert anywhere.files.read("a") == b"data\n"


def _tar(name: str, data: bytes, mode: int) -> bytes:
    """An archive of one file that claims to belong to root since 1970."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.uid, member.gid, member.mtime = len(data), mode, 0, 0, 0
        archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def test_hd_f10_an_upload_is_owned_by_the_user_with_plain_bits(anywhere: Sandbox) -> None:
    with pytest.raises(InvalidInput, match="0 to 777"):
        anywhere.files.write("up", b"x", mode=0o4755)
    anywhere.files.write_tar(".", _tar("up", b"x", 0o7777))
    assert anywhere.files.stat("up").mode == "777"
    look = "import os\nkept = os.stat('up')\nprint(kept.st_uid == os.getuid(), oct(kept.st_mode), os.listxattr('up'))"
    assert anywhere.exec(["python3", "-c", look]).stdout == "True 0o100777 []\n"
    assert anywhere.exec("echo more >> up && cat up").stdout == "xmore\n"
