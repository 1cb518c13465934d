"""The command lines of a box are pure functions of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from station.backends._layout import HostUsr
from station.backends._mounts import MountPlan
from station.backends._users import Users
from station.backends.bubblewrap.argv import BoxPlan, Tmpfs, bwrap_argv, launch_argv

MERGED = HostUsr((("usr/bin", "/bin"), ("usr/lib", "/lib")), (), ("ssl",))
SPLIT = HostUsr((), ("/bin", "/lib"), ())
SHARED = Users(1234, 1234, become=False)
SEPARATE = Users(1234, 1234, become=False, guest_user=100_000, guest_group=200_000)
ROOT = Users(60_578, 60_578, become=True, guest_user=60_579, guest_group=60_579)
PLAN = BoxPlan(
    "st:b1",
    SHARED,
    MERGED,
    "/g/stn-guest",
    "/usr/bin/bwrap",
    (0, 8, 0),
    pids=256,
    open_files=1024,
    binds=(("guest", "/g/stn-guest"), ("etc", "/s/etc"), ("home", "/s/h"), ("workspace", "/s/w")),
    tmpfs=(("tmp", Tmpfs(256 << 20, "1777")), ("shm", Tmpfs(64 << 20, "1777"))),
)


def pairs(argv: list[str]) -> list[tuple[str, ...]]:
    """The options in order, each with its values."""
    found: list[tuple[str, ...]] = []
    for word in argv:
        if word.startswith("--"):
            found.append((word,))
        elif found:
            found[-1] += (word,)
    return found


def test_a_box_with_one_user_forbids_other_user_namespaces_by_bwrap() -> None:
    argv = bwrap_argv(PLAN)
    for flag in ("--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1", "--new-session"):
        assert flag in argv
    assert "--die-with-parent" not in argv
    assert ["CAP_SYS_ADMIN", "CAP_SETPCAP"] == [v[1] for v in pairs(argv) if v[0] == "--cap-add"]
    assert ("--cap-drop", "ALL") in pairs(argv)
    assert argv[-8:] == ["/.stn/guest", "serve", "--fd", "3", "--box", "st:b1", "--nproc", "256"]


def test_an_old_bwrap_leaves_that_to_the_launcher() -> None:
    argv = launch_argv(replace(PLAN, bwrap_version=(0, 6, 1)))
    assert "--disable-userns" not in argv
    assert ("--max-userns", "1") in pairs(argv)


@pytest.mark.parametrize("users", [SEPARATE, ROOT])
def test_a_box_with_two_users_has_its_namespace_from_the_launcher(users: Users) -> None:
    argv = launch_argv(replace(PLAN, users=users))
    assert ("--users", f"{users.guest_user}:{users.guest_group}") in pairs(argv)
    assert ("--max-userns", "0") in pairs(argv)
    assert "--unshare-user" not in argv
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_KILL"} <= {v[1] for v in pairs(argv) if v[0] == "--cap-add"}
    assert argv[-8:-2] == ["--box", "st:b1", "--uid", "1000", "--gid", "1000"]


def test_only_root_becomes_somebody_else() -> None:
    assert ("--become", "60578:60578") in pairs(launch_argv(replace(PLAN, users=ROOT)))
    assert "--become" not in launch_argv(replace(PLAN, users=SEPARATE))


def test_the_launcher_sets_limits_with_room_for_the_guest() -> None:
    limits = [v[1] for v in pairs(launch_argv(replace(PLAN, max_file_size_bytes=5))) if v[0] == "--rlimit"]
    assert limits == ["nproc=288:288", "nofile=1024:1024", "core=0:0", "fsize=5:5"]


def test_every_tmpfs_has_a_size_and_a_number_of_files() -> None:
    assert [v[1] for v in pairs(launch_argv(PLAN)) if v[0] == "--tmpfs"] == [
        "tmp=268435456:65536:1777",
        "shm=67108864:16384:1777",
    ]
    assert "--tmpfs" not in bwrap_argv(PLAN)


def test_what_is_left_of_the_root_is_made_read_only_last() -> None:
    argv = bwrap_argv(PLAN)
    mounts = [i for i, word in enumerate(argv) if word in ("--bind", "--ro-bind", "--proc", "--dev", "--symlink")]
    assert argv.index("--remount-ro") > max(mounts)
    assert [v[1] for v in pairs(argv) if v[0] == "--remount-ro"] == ["/dev", "/"]
    assert argv.index("/dev/shm") > argv.index("--dev")


def test_both_places_of_the_workspace_are_one_directory() -> None:
    assert [v[2] for v in pairs(bwrap_argv(PLAN)) if v[:2] == ("--bind", "/tmp/workspace")] == [
        "/workspace",
        "/home/node/workspace",
    ]


def test_a_split_system_has_its_directories_bound() -> None:
    argv = pairs(bwrap_argv(replace(PLAN, usr=SPLIT)))
    assert ("--ro-bind", "/bin", "/bin") in argv
    assert ("--symlink", "usr/bin", "/bin") in pairs(bwrap_argv(PLAN))


def test_a_mounted_folder_is_opened_and_guarded_by_the_launcher() -> None:
    mount = MountPlan("/f", read_only=False, pinned=(".git",), protected=(".git/hooks",))
    argv = launch_argv(replace(PLAN, mount=mount))
    ours = pairs(argv[: argv.index("--")])
    assert ours.index(("--folder", "workspace=/f")) < ours.index(("--pin", ".git"))
    assert ("--protect", ".git/hooks") in ours
    assert not any(".git" in word for word in argv[argv.index("--") :]), "bwrap follows links"


def test_a_read_only_folder_is_bound_read_only() -> None:
    argv = pairs(bwrap_argv(replace(PLAN, mount=MountPlan("/f", read_only=True))))
    assert ("--ro-bind", "/tmp/workspace", "/workspace") in argv
    assert ("--bind", "/tmp/workspace", "/workspace") not in argv
