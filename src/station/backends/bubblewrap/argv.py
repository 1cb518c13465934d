"""The command lines of a box, as pure functions of its plan. What each flag is for was measured; see docs/layout.md."""

from __future__ import annotations

from dataclasses import dataclass

from station.backends._layout import BOX_USER, GUEST, HOSTNAME, LINKS, HostUsr
from station.backends._limits import GUEST_SPARE_PIDS
from station.backends._mounts import MountPlan
from station.backends._spawn import INFO_FD, LAST_FD, LISTEN_FD
from station.backends._users import Users
from station.core.paths import HOME, TMP, WORKSPACE

STAGE = TMP
"""Exists everywhere and may be walked by everybody; the box's own mount namespace has it under a tmpfs."""
SHM = "/dev/shm"  # noqa: S108 - the box's own
RUN_BYTES = 16 << 20
INODES_PER_MIB = 256
"""So 64 Ki files for the 256 MiB of /tmp: as many as a container of ours has."""
DISABLE_USERNS_SINCE = (0, 8)
_CAPS_SHARED = ("CAP_SYS_ADMIN", "CAP_SETPCAP")
_CAPS_SEPARATE = (*_CAPS_SHARED, "CAP_SETUID", "CAP_SETGID", "CAP_KILL")


@dataclass(frozen=True)
class Tmpfs:
    size_bytes: int
    mode: str = "755"

    @property
    def inodes(self) -> int:
        return max(1024, (self.size_bytes >> 20) * INODES_PER_MIB)

    def option(self, name: str) -> str:
        return f"{name}={self.size_bytes}:{self.inodes}:{self.mode}"


@dataclass(frozen=True)
class BoxPlan:
    """All that the two command lines depend on."""

    marker: str
    """Told to the guest as `--box`, and found by it in the list of processes."""
    users: Users
    usr: HostUsr
    launcher: str
    """The guest's binary outside."""
    bwrap: str
    """As the launcher finds it; below the stage if it has to be carried there."""
    bwrap_version: tuple[int, ...]
    pids: int
    open_files: int
    max_file_size_bytes: int | None = None
    binds: tuple[tuple[str, str], ...] = ()
    """Name on the stage, and source: `guest`, `etc`, `links`, and `home`, `workspace` where they are on disk."""
    tmpfs: tuple[tuple[str, Tmpfs], ...] = ()
    mount: MountPlan | None = None
    cgroup_procs: tuple[str, ...] = ()
    guest_options: tuple[str, ...] = ()
    """Of tests alone."""

    @property
    def separate(self) -> bool:
        return self.users.guest_user is not None


def launch_argv(plan: BoxPlan) -> list[str]:
    """`stn-guest launch … -- bwrap …`."""
    users = plan.users
    argv = [plan.launcher, "launch", "--last-fd", str(LAST_FD)]
    for procs in plan.cgroup_procs:
        argv += ["--cgroup", procs]
    if users.become:
        argv += ["--become", f"{users.user}:{users.group}"]
    if plan.separate:
        argv += ["--users", f"{users.guest_user}:{users.guest_group}", "--max-userns", "0"]
    else:
        argv += ["--users", "shared"]
        if not _can_disable_userns(plan):
            argv += ["--max-userns", "1"]  # bwrap's own, and no other in it
    nproc = plan.pids + GUEST_SPARE_PIDS
    argv += ["--rlimit", f"nproc={nproc}:{nproc}"]
    argv += ["--rlimit", f"nofile={plan.open_files}:{plan.open_files}", "--rlimit", "core=0:0"]
    if plan.max_file_size_bytes is not None:
        argv += ["--rlimit", f"fsize={plan.max_file_size_bytes}:{plan.max_file_size_bytes}"]
    argv += ["--stage", STAGE]
    for name, source in plan.binds:
        argv += ["--bind", f"{name}={source}"]
    argv += _folder(plan.mount) if plan.mount is not None else []
    for name, tmpfs in plan.tmpfs:
        argv += ["--tmpfs", tmpfs.option(name)]
    return [*argv, "--", *bwrap_argv(plan)]


def _folder(mount: MountPlan) -> list[str]:
    """Guarded by the launcher, not by bwrap: that one takes names, which others can make links meanwhile."""
    argv = ["--folder", f"workspace={mount.source}"]
    for name in mount.pinned:
        argv += ["--pin", name]
    for name in mount.protected:
        argv += ["--protect", name]
    return argv


def bwrap_argv(plan: BoxPlan) -> list[str]:
    """`bwrap … /.stn/guest serve …`. No `--die-with-parent`: a box outlives its station."""
    return [plan.bwrap, *_isolation(plan), *_system(plan), *_places(plan), *_guest(plan)]


def _can_disable_userns(plan: BoxPlan) -> bool:
    return plan.bwrap_version >= DISABLE_USERNS_SINCE


def _isolation(plan: BoxPlan) -> list[str]:
    argv = ["--unshare-all"]
    if not plan.separate:
        # With two users the launcher has made the namespace and forbidden others in it.
        argv += ["--unshare-user"]
        argv += ["--disable-userns"] if _can_disable_userns(plan) else []
        argv += ["--uid", str(BOX_USER), "--gid", str(BOX_USER)]
    argv += ["--as-pid-1", "--new-session", "--hostname", HOSTNAME, "--info-fd", str(INFO_FD), "--cap-drop", "ALL"]
    for capability in _CAPS_SEPARATE if plan.separate else _CAPS_SHARED:
        argv += ["--cap-add", capability]
    return argv


def _system(plan: BoxPlan) -> list[str]:
    argv = []
    for name in ("/.stn", "/home", "/var"):  # as parents of a mount they would be bwrap's alone
        argv += ["--perms", "0755", "--dir", name]
    argv += ["--ro-bind", "/usr", "/usr"]
    for target, name in plan.usr.links:
        argv += ["--symlink", target, name]
    for name in plan.usr.directories:
        argv += ["--ro-bind", name, name]
    argv += ["--ro-bind", f"{STAGE}/etc", "/etc"]
    for name in plan.usr.etc_directories:
        argv += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    argv += ["--ro-bind", f"{STAGE}/links", LINKS, "--ro-bind", f"{STAGE}/guest", GUEST]
    argv += ["--symlink", TMP, f"/var{TMP}", "--symlink", "/run", "/var/run", "--proc", "/proc", "--dev", "/dev"]
    return argv


def _places(plan: BoxPlan) -> list[str]:
    argv = []
    for name, place in (("tmp", TMP), ("shm", SHM), ("run", "/run"), ("home", HOME)):
        argv += ["--bind", f"{STAGE}/{name}", place]
    read_only = plan.mount is not None and plan.mount.read_only
    for place in (WORKSPACE, f"{HOME}/workspace"):
        argv += ["--ro-bind" if read_only else "--bind", f"{STAGE}/workspace", place]
    # What is left of bwrap's own tmpfs has no size: nothing may be written there.
    return [*argv, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE]


def _guest(plan: BoxPlan) -> list[str]:
    argv = [GUEST, "serve", "--fd", str(LISTEN_FD), "--box", plan.marker]
    if plan.separate:
        argv += ["--uid", str(BOX_USER), "--gid", str(BOX_USER)]
    return [*argv, "--nproc", str(plan.pids), *plan.guest_options]
