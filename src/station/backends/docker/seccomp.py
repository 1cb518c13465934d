"""A seccomp profile for engines that have none of their own in force.

User code has the guest's filter on every backend (guest/src/seccomp.c), and an engine's default profile above it: the
two together refuse more than either. Only where the engine runs containers `unconfined` is this one given, so that the
guest itself is confined too; where the engine's is in force, to replace it by a shorter list would weaken the box.
"""

from __future__ import annotations

from typing import Any

_DENIED = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "fanotify_init",
    "finit_module", "get_kernel_syms", "get_mempolicy", "init_module", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie",
    "mbind", "memfd_secret", "move_pages", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "perf_event_open",
    "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "query_module", "quotactl",
    "quotactl_fd", "reboot", "request_key", "set_mempolicy", "settimeofday", "stime", "swapoff", "swapon",
    "_sysctl", "sysfs", "syslog", "uselib", "userfaultfd", "ustat", "vhangup", "vm86", "vm86old",
)  # fmt: skip

DENY_PROFILE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
    "syscalls": [
        {"names": list(_DENIED), "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        {
            "names": ["socket"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": 1,
            "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_EQ"}],  # AF_VSOCK
        },
    ],
}
