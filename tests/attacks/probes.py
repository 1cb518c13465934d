"""Attacks as one program: `python3 probes.py NAME [ARG...]` prints `succeeded: ...` or `refused: ...`.

The same file runs inside a box, where each must be refused, and on an unhardened target as the control, where it must
succeed: a test that cannot fail proves nothing (hardening 0.15). No attack here harms the target it succeeds on.
Standard library only: it runs on the interpreter of the box.
"""

import ctypes
import errno
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


class Refused(Exception):
    """The attack had no effect; the text says why."""


def syscall(x86: int, arm: int, *args: object) -> int:
    """The raw system call; raises Refused with the errno's name on failure."""
    number = x86 if X86 else arm
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = LIBC.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        raise Refused(errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno())))
    return int(result)


def mount() -> str:
    """K01: a new mount."""
    if LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None) != 0:
        raise Refused(errno.errorcode[ctypes.get_errno()])
    return "mounted over /tmp"


def mount_api() -> str:
    """K01: the newer calls: fsopen, open_tree."""
    fd = syscall(430, 430, ctypes.c_char_p(b"tmpfs"), 0)
    tree = syscall(428, 428, -100, ctypes.c_char_p(b"/"), 0x8001)
    return f"fsopen gave {fd}, open_tree gave {tree}"


def umount() -> str:
    """K01: take away a mount of the box."""
    if LIBC.umount2(b"/proc", 2) != 0:
        raise Refused(errno.errorcode[ctypes.get_errno()])
    return "detached /proc"


def unshare_user() -> str:
    """K02: a user namespace of one's own, and with it every capability over it."""
    if LIBC.unshare(0x10000000) != 0:
        raise Refused(errno.errorcode[ctypes.get_errno()])
    return "unshared"


def clone_user() -> str:
    """K02: the same by clone."""
    pid = syscall(56, 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


def setns_init() -> str:
    """K02: enter the namespaces of PID 1."""
    fd = os.open("/proc/1/ns/pid", os.O_RDONLY)
    if LIBC.setns(fd, 0) != 0:
        raise Refused(errno.errorcode[ctypes.get_errno()])
    return "entered"


def ptrace_other() -> str:
    """K03: attach to a process that is no child of ours."""
    child = subprocess.Popen(["sleep", "20"])
    try:
        if LIBC.ptrace(16, child.pid, 0, 0) != 0:
            raise Refused(errno.errorcode[ctypes.get_errno()])
        os.waitpid(child.pid, 0)
        return "attached"
    finally:
        child.kill()
        child.wait()


def vm_read() -> str:
    """K03: read another process's memory by process_vm_readv."""
    child = subprocess.Popen(["sleep", "20"])
    try:
        buffer = ctypes.create_string_buffer(16)
        local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
        with open(f"/proc/{child.pid}/maps") as maps:
            address = int(maps.readline().split("-")[0], 16)
        remote = (ctypes.c_void_p * 2)(address, 16)
        syscall(310, 270, child.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        return "read"
    finally:
        child.kill()
        child.wait()


def read_init() -> str:
    """K03, S01: memory, environment and descriptors of PID 1."""
    got = []
    for name in ("mem", "environ", "maps"):
        try:
            with open(f"/proc/1/{name}", "rb") as file:
                if name != "mem" and not file.read(1):
                    continue
                got.append(name)
        except OSError:
            pass
    try:
        got += [f"fd/{fd}" for fd in os.listdir("/proc/1/fd")]
    except OSError:
        pass
    if not got:
        raise Refused("nothing of PID 1 can be read")
    return ", ".join(got)


PRIVILEGED = {  # K01, K04: arguments with which not even root changes anything
    "bpf": (321, 280, (99, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, 0, 0, 0)),
    "userfaultfd": (323, 282, (0x7FFFFFFF,)),
    "kexec_load": (246, 104, (0, 0, 0, 0x7FFFFFFF)),
    "init_module": (175, 105, (0, 0, 0)),
    "finit_module": (313, 273, (-1, 0, 0x7FFFFFFF)),
    "delete_module": (176, 106, (0, 0)),
    "reboot": (169, 142, (1, 2, 3, 0)),
    "swapon": (167, 224, (0, 0)),
    "quotactl": (179, 60, (0x7FFFFFFF, 0, 0, 0)),
    "acct": (163, 89, (1,)),
    "pivot_root": (155, 41, (0, 0)),
    "mount_setattr": (442, 442, (-1, 0, 0x7FFFFFFF, 0, 0)),
    "move_mount": (429, 429, (-1, 0, -1, 0, 0x7FFFFFFF)),
    "keyctl": (250, 219, (0x7FFFFFFF, 0, 0, 0, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
}


def privileged() -> str:
    """K01, K04: which of the calls get past permission (any other answer than EPERM or ENOSYS)."""
    passed = []
    for name, (x86, arm, args) in PRIVILEGED.items():
        try:
            syscall(x86, arm, *args)
            passed.append(name)
        except Refused as why:
            if str(why) not in ("EPERM", "ENOSYS"):
                passed.append(f"{name}={why}")
    if not passed:
        raise Refused("EPERM or ENOSYS for every call")
    return ", ".join(passed)


def io_uring() -> str:
    """K05."""
    params = ctypes.create_string_buffer(256)
    return f"ring {syscall(425, 425, 4, params)}"


def kernel_files() -> str:
    """K08: open for writing what would change the host; nothing is written."""
    opened = []
    for path in (
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger",
        "/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/power/state",
    ):  # fmt: skip
        try:
            os.close(os.open(path, os.O_WRONLY))
            opened.append(path)
        except OSError:
            pass
    if not opened:
        raise Refused("none opened")
    return ", ".join(opened)


def host_services(port: str) -> str:
    """K09: the host's sockets, by path, by environment and by TCP."""
    found = [name for name in ("DOCKER_HOST", "STN_HOME", "NATS_URL") if name in os.environ]
    sockets = (
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/dbus/system_bus_socket",
    )
    found += [path for path in sockets if os.path.exists(path)]
    try:
        with open("/proc/net/unix") as table:
            found += [line.split()[-1] for line in table if "/" in line]
    except OSError:
        pass
    for host in ("127.0.0.1", "::1", "0.0.0.0"):
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            found.append(f"{host}:{port}")
        except OSError:
            pass
    if not found:
        raise Refused("none in reach")
    return ", ".join(found)


def devices() -> str:
    """K10: make and open devices."""
    got = []
    for kind, number in ((stat.S_IFBLK, os.makedev(7, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
        path = f"probe-{number}"
        try:
            os.mknod(path, kind | 0o600, number)
            got.append(path)
            os.unlink(path)
        except OSError:
            pass
    for path in ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda"):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            got.append(path)
        except OSError:
            pass
    if not got:
        raise Refused("none made, none opened")
    return ", ".join(got)


def other_pids() -> str:
    """R14, guest 1: harm PID 1 or a sibling by limits and priorities."""
    got = []
    try:
        limits = (ctypes.c_ulong * 2)(1, 1)
        syscall(302, 261, 1, 7, limits, 0)
        got.append("prlimit(1)")
    except Refused:
        pass
    if LIBC.setpriority(0, 1, 19) == 0:
        got.append("setpriority(1)")
    mask = ctypes.c_ulong(1)
    if LIBC.sched_setaffinity(1, 8, ctypes.byref(mask)) == 0:
        got.append("sched_setaffinity(1)")
    if not got:
        raise Refused("PID 1 unharmed")
    return ", ".join(got)


def fake_exit() -> str:
    """R16: the first thread exits as if all were over; a second one works on and leaves a mark."""
    import threading

    def work() -> None:
        time.sleep(1.5)
        with open("second-thread-ran", "w") as mark:
            mark.write("yes")

    threading.Thread(target=work).start()
    sys.stdout.write("succeeded: first thread gone\n")
    sys.stdout.flush()
    LIBC.syscall(60 if X86 else 93, 0)  # exit of this thread alone, not exit_group
    return "unreachable"


def console_flood() -> str:
    """R06: write past the captured output."""
    written = []
    for path in ("/proc/1/fd/1", "/dev/console", "/dev/kmsg"):
        try:
            with open(path, "wb", buffering=0) as target:
                target.write(b"x" * 65536)
                written.append(path)
        except OSError:
            pass
    if not written:
        raise Refused("no way past the captured output")
    return ", ".join(written)


def main() -> None:
    probe = globals()[sys.argv[1]]
    try:
        print("succeeded:", probe(*sys.argv[2:]))
    except (Refused, OSError) as why:
        print("refused:", why)


if __name__ == "__main__":
    main()
