"""Station's own seccomp profile for containers: a list of what may be called, of everything else nothing.

It confines the guest, its helpers and user code alike; user code has the guest's filter too (guest/src/seccomp.c), and
of both the stricter answer holds. Made from the kernel's own tables of system calls. Left out is what builds or enters
namespaces and mounts, reaches into other processes, changes the machine, or is a large door that no program of a box
needs: io_uring, bpf, perf, userfaultfd, key rings, file handles, every socket family but local, internet and routing.
"""

from __future__ import annotations

import json
from typing import Any

_FILES = (
    "access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3",
    "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown",
    "fchownat", "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat", "getcwd",
    "getdents", "getdents64", "ioctl", "lchown", "link", "linkat", "lseek", "lstat", "mkdir", "mkdirat", "mknod",
    "mknodat", "newfstatat", "open", "openat", "openat2", "pipe", "pipe2", "pread64", "preadv", "preadv2", "pwrite64",
    "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv", "rename", "renameat", "renameat2",
    "rmdir", "sendfile", "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range",
    "syncfs", "tee", "truncate", "umask", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vmsplice", "write",
    "writev", "fgetxattr", "flistxattr", "fremovexattr", "fsetxattr", "getxattr", "lgetxattr", "listxattr",
    "llistxattr", "lremovexattr", "lsetxattr", "removexattr", "setxattr", "inotify_add_watch", "inotify_init",
    "inotify_init1", "inotify_rm_watch", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup",
    "io_submit",
)  # fmt: skip
_MEMORY = (
    "brk", "cachestat", "madvise", "map_shadow_stack", "membarrier", "memfd_create", "mincore", "mlock", "mlock2",
    "mlockall", "mmap", "mprotect", "mremap", "mseal", "msync", "munlock", "munlockall", "munmap", "pkey_alloc",
    "pkey_free", "pkey_mprotect", "remap_file_pages", "shmat", "shmctl", "shmdt", "shmget",
)  # fmt: skip
_PROCESSES = (
    "arch_prctl", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork", "get_robust_list",
    "get_thread_area", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getpid",
    "getppid", "getpriority", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid",
    "ioprio_get", "ioprio_set", "kill", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self",
    "pause", "pidfd_open", "pidfd_send_signal", "prctl", "prlimit64", "rseq", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",
    "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler", "sched_yield", "seccomp", "set_robust_list", "set_thread_area", "set_tid_address",
    "setfsgid", "setfsuid", "setgid", "setgroups", "setpgid", "setpriority", "setregid", "setresgid", "setresuid",
    "setreuid", "setrlimit", "setsid", "setuid", "sigaltstack", "tgkill", "tkill", "vfork", "wait4", "waitid",
)  # fmt: skip
_WAITING = (
    "alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "epoll_create", "epoll_create1", "epoll_ctl",
    "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "futex", "futex_requeue", "futex_wait",
    "futex_waitv", "futex_wake", "getitimer", "gettimeofday", "nanosleep", "poll", "ppoll", "pselect6",
    "restart_syscall", "select", "setitimer", "signalfd", "signalfd4", "time", "timer_create", "timer_delete",
    "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime",
    "times",
)  # fmt: skip
_MESSAGES = (
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
    "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown", "mq_getsetattr", "mq_notify",
    "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl",
    "semget", "semop", "semtimedop",
)  # fmt: skip
_MACHINE = ("getrandom", "sysinfo", "uname")
_OWN_KERNEL = (
    "chroot", "mount", "pivot_root", "setns", "umount2", "unshare",
)  # fmt: skip
"""What the guest makes a PID namespace for each command with, where the box has a kernel of its own."""
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. By its number each, so that no later one slips in: AF_VSOCK (40) and AF_ALG
(38) are what engines let through."""
_PERSONALITIES = (0, 8, 0x0040000, 0xFFFFFFFF)
"""Linux, 32 bits of uname, no randomised addresses, and the question which one it is."""
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_EPERM, _ENOSYS = 1, 38


def own_profile(*, own_kernel: bool = False) -> str:
    """As JSON, of the same bytes each time. `own_kernel`: for a runtime in whose boxes the guest makes namespaces."""
    everyone = (*_FILES, *_MEMORY, *_PROCESSES, *_WAITING, *_MESSAGES, *_MACHINE, *(_OWN_KERNEL if own_kernel else ()))
    rules: list[dict[str, Any]] = [{"names": sorted(everyone), "action": "SCMP_ACT_ALLOW"}]
    rules += [_allowed(("socket", "socketpair"), family) for family in _FAMILIES]
    rules += [_allowed(("personality",), value) for value in _PERSONALITIES]
    clone: dict[str, Any] = {"names": ["clone"], "action": "SCMP_ACT_ALLOW"}
    if not own_kernel:
        clone["args"] = [{"index": 0, "value": _NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    # Its flags lie in memory, where no filter sees them; a libc that is told that there is none uses clone.
    rules += [clone, {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS}]
    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _EPERM,
        "archMap": [
            # The guest's filter says ENOSYS to other tables of calls; one that is missing here would kill the program.
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
        ],
        "syscalls": rules,
    }
    return json.dumps(profile, sort_keys=True, separators=(",", ":"))


def _allowed(names: tuple[str, ...], value: int) -> dict[str, Any]:
    argument = {"index": 0, "value": value, "op": "SCMP_CMP_EQ"}
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": [argument]}
