"""Attacks as one program: `python3 probes.py NAME [ARG...]` prints `succeeded: ...` or `refused: ...`.

The same file runs inside a box, where each must be refused, and on an unhardened target as the control, where it must
succeed: a test that cannot fail proves nothing (hardening 0.15). No attack here harms the target it succeeds on.
Attacks by system calls are in `programs`. Standard library only: it runs on the interpreter of the box.
"""

import os
import socket
import sys


class Refused(Exception):
    """The attack had no effect; the text says why."""


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
