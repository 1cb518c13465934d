"""`stn-guest launch` by itself."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from station.guest.binary import guest_binary

SHOW = ("/bin/sh", "-c", "env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; pwd; umask; ulimit -n; ulimit -c")


def launch(*arguments: str, before: Callable[[], object] | None = None, fds: tuple[int, ...] = ()) -> tuple[int, str]:
    done = subprocess.run(
        [str(guest_binary()), "launch", *arguments], capture_output=True, text=True, preexec_fn=before, pass_fds=fds
    )
    return done.returncode, done.stdout + done.stderr


def test_a_program_gets_no_variable_the_root_as_directory_and_its_limits() -> None:
    code, out = launch("--rlimit", "nofile=100:200", "--rlimit", "core=0:0", "--", *SHOW, before=lambda: os.umask(0))
    assert (code, out.split()) == (0, ["/", "0022", "100", "0"])


def test_a_limit_above_the_station_s_own_is_lowered_to_it() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code, out = launch("--rlimit", f"nofile={hard + 5}:{hard + 5}", "--", "/bin/sh", "-c", "ulimit -n")
    assert (code, int(out)) == (0, hard)


def test_ignored_signals_are_not_inherited() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    code, _ = launch("--", "/bin/sh", "-c", "kill -TERM $$; exit 5", before=ignore)
    assert code == -signal.SIGTERM
    # posix_spawn of the GNU libc leaves two ignored that it uses itself.
    pid = os.posix_spawn(
        str(guest_binary()), ["x", "launch", "--", "/bin/sh", "-c", "grep -q 'SigIgn:.0*$' /proc/self/status"], {}
    )
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_descriptor_above_the_last_passes() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    high = os.dup2(fd, 77)
    listing = ("--", "/bin/sh", "-c", "test -e /proc/self/fd/77 && echo there")
    assert launch(*listing, fds=(high,)) == (0, "there\n")
    assert launch("--last-fd", "5", *listing, fds=(high,))[1] == ""
    os.close(fd)
    os.close(high)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--",),
        ("--what", "x", "--", "/bin/true"),
        ("--users",),
        ("--users", "a:b", "--", "/bin/true"),
        ("--rlimit", "nproc=x", "--", "/bin/true"),
        ("--rlimit", "other=1:1", "--", "/bin/true"),
        ("--bind", "noname", "--stage", "/tmp", "--users", "shared", "--", "/bin/true"),
        ("--cgroup", "/nonexistent", "--", "/bin/true"),
        ("--", "/nonexistent"),
    ],
)
def test_a_mistake_is_one_line_and_exit_125(arguments: tuple[str, ...]) -> None:
    code, out = launch(*arguments)
    assert code == 125
    assert out.startswith("launch: ")
    assert out.count("\n") == 1


def test_the_stage_is_seen_by_the_program_alone(state: Path) -> None:
    (state / "file").write_text("x")
    code, out = launch(
        "--users", "shared", "--stage", "/tmp", "--bind", f"f={state}/file", "--tmpfs", "t=65536:10:700",
        "--", "/bin/sh", "-c", "cat /tmp/f; id -u; stat -c %a /tmp/t; ls /tmp | wc -l",
    )  # fmt: skip
    assert (code, out.split()) == (0, ["x1000", "700", "2"])
    assert not Path("/tmp/f").exists()


def test_no_user_namespace_beyond_the_allowed_number() -> None:
    code, out = launch("--users", "shared", "--max-userns", "0", "--", "/usr/bin/unshare", "--user", "true")
    assert code != 0
    assert "No space left" in out


@pytest.mark.root
def test_a_program_becomes_the_given_user_for_good() -> None:
    code, out = launch(
        "--become", "60578:60578", "--", "/bin/sh", "-c", "id -u; id -G; grep -c 0000000000000000 /proc/self/status"
    )
    assert (code, out.split()[:2]) == (0, ["60578", "60578"])
    code, out = launch(
        "--become", "60578:60578", "--users", "60579:60579", "--", "/bin/sh", "-c", "id -u; cat /proc/self/uid_map"
    )
    assert out.split() == ["0", "0", "60579", "1", "1000", "60578", "1"]


@pytest.mark.parametrize("what", ["folder", "above", "pinned", "protected"])
def test_a_link_on_the_way_to_a_folder_or_in_it_is_not_followed(tmp_path: Path, what: str) -> None:
    """Where it was none when the station looked, somebody has put it there since."""
    folder = tmp_path / "above" / "folder"
    for name in ("pinned", "protected/in"):
        (folder / name).mkdir(parents=True)
    link = tmp_path / what if what == "above" else folder if what == "folder" else folder / what
    stage = ("--stage", "/mnt", "--users", "shared")
    arguments = (*stage, "--folder", f"w={folder}", "--pin", "pinned", "--protect", "protected/in")
    look = ("--", "/bin/sh", "-c", "mkdir /mnt/w/protected/in/x && echo written; mkdir /mnt/w/pinned/x && echo ok")
    first, second = launch(*arguments, *look)[1].splitlines()
    assert first == "ok"
    assert "Read-only" in second
    link.rename(tmp_path / "away")
    link.symlink_to(tmp_path / "away")
    code, out = launch(*arguments, *look)
    assert (code, len(out.splitlines())) == (125, 1)
