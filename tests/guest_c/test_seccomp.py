"""What user code may not ask of the kernel (attack suite K01-K07, K13), and that ordinary programs do not notice."""

from __future__ import annotations

import platform
import shutil

import pytest

from tests.guest_c.client import Client
from tests.guest_c.conftest import MakeGuest

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are given by number")

PRELUDE = """
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return -ctypes.get_errno() if result == -1 else result
room = ctypes.create_string_buffer(256)
"""

EPERM, ENOSYS = -1, -38
DENIED = {
    "mount": "call(165, b'none', b'/tmp', b'tmpfs', 0, 0)",
    "umount": "call(166, b'/proc', 2)",
    "pivot_root": "call(155, b'/', b'/')",
    "chroot": "call(161, b'/tmp')",
    "fsopen": "call(430, b'tmpfs', 0)",
    "open_tree": "call(428, -100, b'/', 1)",
    "mount_setattr": "call(442, -100, b'/', 0, room, 32)",
    "unshare of a user namespace": "call(272, 0x10000000)",
    "clone into a user namespace": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "setns": "call(308, 0, 0)",
    "ptrace": "call(101, 16, os.getppid(), 0, 0)",
    "traceme": "call(101, 0, 0, 0, 0)",
    "process_vm_readv": "call(310, os.getppid(), room, 1, room, 1, 0)",
    "pidfd_getfd": "call(438, 0, 0, 0)",
    "kcmp": "call(312, os.getpid(), os.getpid(), 0, 0, 0)",
    "prlimit of PID 1": "call(302, 1, 7, struct.pack('QQ', 1, 1), 0)",
    "affinity of PID 1": "call(203, 1, 8, b'\\1' + bytes(7))",
    "scheduler of PID 1": "call(144, 1, 0, room)",
    "priority of PID 1": "call(141, 0, 1, 10)",
    "priority of a user": "call(141, 2, 0, 10)",
    "add_key": "call(248, b'user', b'name', b'value', 5, -3)",
    "request_key": "call(249, b'user', b'name', 0, -3)",
    "keyctl": "call(250, 0, -3, 1)",
    "io_uring_setup": "call(425, 4, room)",
    "bpf": "call(321, 0, room, 64)",
    "perf_event_open": "call(298, room, 0, -1, -1, 0)",
    "userfaultfd": "call(323, 1)",
    "name_to_handle_at": "call(303, -100, b'/', room, room, 0)",
    "memfd_secret": "call(447, 0)",
    "reboot": "call(169, 0, 0, 0, 0)",
    "clock_settime": "call(227, 0, struct.pack('QQ', 0, 0))",
    "personality": "call(135, 0x0400000)",
    "vsock": "call(41, 40, 1, 0)",
    "af_alg": "call(41, 38, 5, 0)",
    "packet": "call(41, 17, 3, 0)",
    "netlink of audit": "call(41, 16, 3, 9)",
    "TIOCSTI": "call(16, 0, 0x5412, b'x')",
    "TIOCLINUX": "call(16, 0, 0x541C, b'x')",
    "TIOCSTI with high bits": "call(16, 0, 0x100005412, b'x')",
}
ABSENT = {
    "clone3": "call(435, room, 88)",
    "x32": "call(0x40000000 + 39)",
    "x32 socket": "call(0x40000000 + 41, 40, 1, 0)",
}
ALLOWED = {
    "own prlimit": "call(302, 0, 7, 0, room)",
    "own affinity": "call(203, 0, 8, b'\\3' + bytes(7))",
    "own priority": "call(141, 0, 0, 5)",
    "personality question": "call(135, 0xffffffff) & 0",
    "no randomisation": "call(135, 0x40000) & 0",
    "unix": "min(call(41, 1, 1, 0), 0)",
    "inet": "min(call(41, 2, 1, 0), 0)",
    "inet6": "min(call(41, 10, 1, 0), 0)",
    "netlink of routes": "min(call(41, 16, 3, 0), 0)",
    "winsize": "0 if call(16, 0, 0x5413, room) in (0, -25) else -1",
}
PYTHON = (
    "import subprocess, threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join(); "
    'print(subprocess.run(["echo", "2"], capture_output=True).stdout)'
)
GIT = (
    "cd $(mktemp -d) && git init -q . && echo x > f && git add f && "
    "git -c user.name=n -c user.email=e commit -qm m && git log --format=%s"
)


def ask(client: Client, questions: dict[str, str]) -> dict[str, int]:
    program = PRELUDE + "".join(f"print({question}, flush=True)\n" for question in questions.values())
    output = client.run(["/usr/bin/python3", "-c", program])
    return dict(zip(questions, map(int, output.data[1].split()), strict=True))


def test_dangerous_calls_are_refused(boxed: Client) -> None:
    assert {name: code for name, code in ask(boxed, DENIED).items() if code != EPERM} == {}


def test_other_call_tables_do_not_exist(boxed: Client) -> None:
    assert {name: code for name, code in ask(boxed, ABSENT).items() if code != ENOSYS} == {}


def test_a_32_bit_call_reaches_nothing(boxed: Client) -> None:
    """`mov eax, 20; int 0x80; ret`: getpid by the old door."""
    program = PRELUDE + (
        "import mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)(), flush=True)\nos._exit(0)\n"
    )
    output = boxed.run(["/usr/bin/python3", "-c", program])
    assert output.ending
    assert output.data[1] == b"-38\n" or output.ending.kind == 2


def test_what_programs_need_is_allowed(boxed: Client) -> None:
    assert {name: code for name, code in ask(boxed, ALLOWED).items() if code != 0} == {}


def test_the_control_shows_the_harm_without_the_filter(make_guest: MakeGuest) -> None:
    with make_guest("--no-seccomp").connect() as client:
        through = [name for name, code in ask(client, DENIED).items() if code not in (EPERM, -13)]
        assert {"add_key", "personality", "af_alg"} & set(through), through


@pytest.mark.parametrize(
    ("program", "script", "expected"),
    [
        ("python3", f"python3 -c '{PYTHON}'", b"1\nb'2\\n'\n"),
        ("node", "node -e 'setTimeout(() => console.log(3), 1)'", b"3\n"),
        ("git", GIT, b"m\n"),
        ("gcc", "cd $(mktemp -d) && echo 'int main(void){return 7;}' > a.c && gcc a.c -o a; ./a; echo $?", b"7\n"),
        ("sqlite3", "sqlite3 $(mktemp -d)/x 'create table t(a); insert into t values(5); select a from t'", b"5\n"),
        ("perl", "perl -e 'print fork() ? do { wait; qq(6\\n) } : do { exit }'", b"6\n"),
    ],
)  # fmt: skip
def test_ordinary_programs_do_not_notice(boxed: Client, program: str, script: str, expected: bytes) -> None:
    if not shutil.which(program, path="/usr/bin:/bin"):
        pytest.skip(f"needs /usr/bin/{program}")
    output = boxed.shell(script, env=("PATH=/usr/bin:/bin", "HOME=/tmp"))
    assert output.text() == (expected.decode(), "")
