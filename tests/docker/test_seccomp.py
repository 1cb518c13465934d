"""Which system calls a container may make: the rules for an operator's profile, and Station's own, tried."""

from __future__ import annotations

import json
import os
import platform
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from station.backends.docker import facts, seccomp
from station.backends.docker.config import GUEST, Runtime, container_name
from station.backends.docker.engine import Engine as Spoken
from station.backends.docker.facts import Trial
from station.backends.docker.profile import own_profile
from station.core.errors import BoxLost, CannotEnforce
from station.core.spec import Spec
from station.guest.binary import guest_binary
from tests.engine import Engine

from .conftest import Bed, in_fresh, run, session_of

KEPT = Spec("docker")
SHORT = Spec("docker", ephemeral=True)
GOOD: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "syscalls": [{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}],
}
RULE: dict[str, Any] = GOOD["syscalls"][0]

# Prints, for each call, the name of its errno; `open` where it was done, or came so far as to complain of its argument.
TRY = """
import ctypes, errno, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
def tell(name, result):
    code = ctypes.get_errno()
    print(name, "open" if result >= 0 or code in (errno.EFAULT, errno.EINVAL) else errno.errorcode[code])
def call(name, number, *arguments):
    tell(name, libc.syscall(number, *arguments))
intel = platform.machine() == "x86_64"
call("io_uring_setup", 425, 1, None)
call("keyctl", 250 if intel else 219, 6, 0)
call("bpf", 321 if intel else 280, 0, None, 0)
call("userfaultfd", 323 if intel else 282, 0)
call("memfd_secret", 447, 0)
call("ptrace", 101 if intel else 117, 0, 0, 0, 0)
call("unshare", 272 if intel else 97, 0x10000000)
call("open_tree", 428, -1, None, 0)
call("clone3", 435, None, 0)
call("clone_newuser", 56 if intel else 220, 0x10000200, 0, 0, 0, 0)  # with CLONE_FS: never made, EINVAL if looked at
for name, family in (("vsock", 40), ("alg", 38), ("packet", 17), ("inet", 2), ("unix", 1)):
    try:
        socket.socket(family, 1).close()
        print(name, "open")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""
REFUSED = (
    "io_uring_setup",
    "keyctl",
    "bpf",
    "userfaultfd",
    "memfd_secret",
    "ptrace",
    "unshare",
    "open_tree",
    "vsock",
    "alg",
)


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Path]:
    def write(content: object = GOOD, *, mode: int = 0o644, name: str = "profile.json") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        path.chmod(mode)
        return path

    return write


def refused(path: object, copies: Path) -> str:
    with pytest.raises(CannotEnforce) as error:
        seccomp.operators(str(path), copies)
    assert "sandbox.docker_seccomp" in error.value.message
    assert error.value.detail["setting"] == "sandbox.docker_seccomp"
    return error.value.message


# ── WS 24 to 26: which file is taken ─────────────────────────────────────────────────────────────────────────────────


def test_a_profile_is_copied_under_its_hash_for_this_user_alone(profile: Callable[..., Path], tmp_path: Path) -> None:
    path, copies = profile(), tmp_path / "copies"
    first = seccomp.operators(str(path), copies)
    assert first == seccomp.operators(str(path), copies)
    (copy,) = copies.iterdir()
    assert copy.name == f"{first.fingerprint}.json"
    assert copy.read_bytes() == path.read_bytes()
    assert (stat.S_IMODE(copy.stat().st_mode), stat.S_IMODE(copies.stat().st_mode)) == (0o600, 0o700)
    assert (first.operators, json.loads(first.text)) == (True, GOOD)
    other = seccomp.operators(str(profile({**GOOD, "defaultAction": "SCMP_ACT_TRAP"})), copies)
    assert other.fingerprint != first.fingerprint
    assert len(list(copies.iterdir())) == 2


@pytest.mark.parametrize("harm", ["content", "mode", "link"])
def test_a_copy_that_was_changed_is_seen(profile: Callable[..., Path], tmp_path: Path, harm: str) -> None:
    path, copies = profile(), tmp_path / "copies"
    copy = copies / f"{seccomp.operators(str(path), copies).fingerprint}.json"
    if harm == "content":
        copy.write_text(json.dumps({**GOOD, "defaultAction": "SCMP_ACT_ALLOW"}))
    elif harm == "mode":
        copy.chmod(0o644)
    else:
        copy.unlink()
        copy.symlink_to(path)
    assert "copy" in refused(path, copies)


@pytest.mark.parametrize("path", ["", "relative.json", "./x", "/a\nb", "/a\rb", "/a\0b"])
def test_a_path_is_absolute_and_of_one_line(path: str, tmp_path: Path) -> None:
    assert "absolute" in refused(path, tmp_path / "copies")
    assert not (tmp_path / "copies").exists()


def test_a_file_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none", tmp_path / "copies")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_is_refused(profile: Callable[..., Path], tmp_path: Path, mode: int) -> None:
    assert "may write" in refused(profile(mode=mode), tmp_path / "copies")


@pytest.mark.root
def test_a_file_of_another_user_is_refused(profile: Callable[..., Path], tmp_path: Path) -> None:
    path = profile()
    os.chown(path, 12345, 0)
    assert "12345" in refused(path, tmp_path / "copies")
    os.chown(path, 0, 12345)
    seccomp.operators(str(path), tmp_path / "copies")


@pytest.fixture
def nested(profile: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """A directory, and a profile two below it."""
    above = tmp_path / "above"
    (above / "below").mkdir(parents=True, mode=0o755)
    return above, profile(name="above/below/profile.json")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o770])
def test_a_directory_above_it_that_others_may_write_is_refused(
    nested: tuple[Path, Path], tmp_path: Path, mode: int
) -> None:
    above, path = nested
    above.chmod(mode)
    assert f"{above} above it" in refused(path, tmp_path / "copies")
    above.chmod(mode & 0o755)
    seccomp.operators(str(path), tmp_path / "copies")


@pytest.mark.root
def test_a_directory_of_another_user_above_it_is_refused(nested: tuple[Path, Path], tmp_path: Path) -> None:
    above, path = nested
    os.chown(above, 12345, 0)
    assert "12345" in refused(path, tmp_path / "copies")


@pytest.mark.root
def test_below_a_sticky_directory_each_step_has_to_be_of_a_trusted_user(
    nested: tuple[Path, Path], tmp_path: Path
) -> None:
    above, path = nested
    above.chmod(0o1777)
    seccomp.operators(str(path), tmp_path / "copies")
    os.chown(above / "below", 12345, 0)
    assert "12345" in refused(path, tmp_path / "copies")


@pytest.mark.root
def test_a_link_above_it_is_followed_where_nobody_else_has_made_it(nested: tuple[Path, Path], tmp_path: Path) -> None:
    above, path = nested
    for number, target in enumerate((str(above), "above", "./below/../above")):
        (tmp_path / "below").mkdir(exist_ok=True)
        link = tmp_path / f"link{number}"
        link.symlink_to(target)
        way = link / "below" / path.name
        assert json.loads(seccomp.operators(str(way), tmp_path / "copies").text) == GOOD
        os.lchown(link, 12345, 0)
        assert "12345" in refused(way, tmp_path / "copies")
        # What it leads over is looked at too.
        os.lchown(link, 0, 0)
        above.chmod(0o777)
        assert f"{above} above it" in refused(way, tmp_path / "copies")
        above.chmod(0o755)
    (tmp_path / "round").symlink_to("round")
    assert "too many" in refused(tmp_path / "round" / "x", tmp_path / "copies")


def test_a_link_a_folder_and_a_pipe_are_refused_at_once(profile: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(profile())
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    assert "symbolic link" in refused(tmp_path / "link", tmp_path / "copies")
    for name in ("pipe", "folder"):
        assert "regular file" in refused(tmp_path / name, tmp_path / "copies")


def test_what_is_read_is_what_was_looked_at(
    profile: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is another file's by the time that it could be asked again."""
    path, real = profile(), os.fstat
    swapped: list[int] = []

    def swap(fd: int) -> os.stat_result:
        if not swapped and stat.S_ISREG(real(fd).st_mode):
            swapped.append(fd)
            os.replace(profile({**GOOD, "defaultAction": "SCMP_ACT_KILL"}, mode=0o666, name="other"), path)
        return real(fd)

    monkeypatch.setattr(os, "fstat", swap)
    taken = seccomp.operators(str(path), tmp_path / "copies")
    assert swapped
    assert json.loads(taken.text) == GOOD


def test_a_large_file_is_refused_and_the_largest_is_not(profile: Callable[..., Path], tmp_path: Path) -> None:
    text = json.dumps(GOOD).encode()
    seccomp.operators(str(profile(text.ljust(seccomp.MOST_BYTES))), tmp_path / "copies")
    assert "more than" in refused(profile(text.ljust(seccomp.MOST_BYTES + 1)), tmp_path / "copies")


@pytest.mark.parametrize("action", ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP"])
def test_a_profile_refuses_what_it_does_not_name(profile: Callable[..., Path], tmp_path: Path, action: str) -> None:
    taken = seccomp.operators(str(profile({**GOOD, "defaultAction": action})), tmp_path / "copies")
    assert json.loads(taken.text)["defaultAction"] == action


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"defaultAction":"SCMP_ACT_ERRNO","defaultAction":"SCMP_ACT_ALLOW","syscalls":[]}',
        b'{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":NaN,"syscalls":[]}',
        [],
        {},
        {**GOOD, "defaultAction": "SCMP_ACT_ALLOW"},
        {**GOOD, "defaultAction": "SCMP_ACT_LOG"},
        {**GOOD, "defaultAction": ["SCMP_ACT_ERRNO"]},
        {**GOOD, "DefaultAction": "SCMP_ACT_ALLOW"},
        {**GOOD, "listenerPath": "/run/x"},
        {"defaultAction": "SCMP_ACT_ERRNO"},
        {**GOOD, "syscalls": []},
        {**GOOD, "syscalls": {}},
        {**GOOD, "syscalls": ["read"]},
        {**GOOD, "syscalls": [{"action": "SCMP_ACT_ALLOW"}]},
        {**GOOD, "syscalls": [{**RULE, "names": []}]},
        {**GOOD, "syscalls": [{**RULE, "names": "read"}]},
        {**GOOD, "syscalls": [{**RULE, "names": ["*"]}]},
        {**GOOD, "syscalls": [{**RULE, "names": ["read*"]}]},
        {**GOOD, "syscalls": [{**RULE, "names": ["READ"]}]},
        {**GOOD, "syscalls": [{**RULE, "names": [""]}]},
        {**GOOD, "syscalls": [{**RULE, "names": [1]}]},
        {**GOOD, "syscalls": [{**RULE, "name": "read"}]},
        {**GOOD, "syscalls": [{**RULE, "Names": ["mount"]}]},
        {**GOOD, "syscalls": [{**RULE, "action": "SCMP_ACT_NOTIFY"}]},
        {**GOOD, "syscalls": [{"names": ["read"]}]},
    ],
    ids=lambda content: str(content)[:60],
)
def test_what_is_no_such_profile_is_refused(profile: Callable[..., Path], tmp_path: Path, content: object) -> None:
    refused(profile(content), tmp_path / "copies")
    assert not (tmp_path / "copies").exists()


# ── Station's own ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ours_keeps_the_rules_for_operators(profile: Callable[..., Path], tmp_path: Path) -> None:
    for text in (own_profile(), own_profile(own_kernel=True)):
        assert seccomp.operators(str(profile(text.encode())), tmp_path / "copies").text == text


def test_ours_names_each_call_once_and_no_large_door() -> None:
    rules = json.loads(own_profile())["syscalls"]
    free = [
        name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule for name in rule["names"]
    ]
    assert len(free) == len(set(free))
    held = {"clone", "socket", "socketpair", "personality", "clone3"}
    doors = {
        "io_uring_setup",
        "bpf",
        "ptrace",
        "keyctl",
        "mount",
        "setns",
        "unshare",
        "userfaultfd",
        "open_by_handle_at",
    }
    assert not set(free) & (held | doors)
    assert {"setuid", "prctl", "seccomp", "chown", "openat2", "execve"} <= set(free)
    own_kernel = json.loads(own_profile(own_kernel=True))["syscalls"]
    more = {name for rule in own_kernel if "args" not in rule for name in rule["names"]} - set(free)
    assert more == {"chroot", "mount", "pivot_root", "setns", "umount2", "unshare", "clone", "clone3"}


def test_what_the_guest_refuses_to_user_code_is_refused_to_the_guest_too() -> None:
    source = (Path(__file__).parents[2] / "guest" / "src" / "seccomp.c").read_text(encoding="utf-8")
    denied = set(re.findall(r"\{SYS_(\w+?)_?, DENY", source))
    assert {"mount", "io_uring_setup", "open_tree_attr"} <= denied
    rules = json.loads(own_profile())["syscalls"]
    assert not denied & {name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}


TOLD = Trial(
    gvisor=False,
    containment="subreaper",
    seccomp=True,
    separate_uid=True,
    tmp_bytes=None,
    filtered=True,
    doors_shut=True,
)
GVISOR = Runtime("runsc", sandboxed_kernel=True)


@pytest.mark.parametrize(
    ("runtime", "trial", "refused_"),
    [
        (Runtime("runc"), TOLD, False),
        (Runtime("runc"), replace(TOLD, filtered=False), True),
        (Runtime("kata"), replace(TOLD, filtered=False), True),
        (GVISOR, replace(TOLD, filtered=False, gvisor=True), False),
        (GVISOR, replace(TOLD, filtered=False), True),
    ],
)
def test_a_runtime_without_the_filter_is_refused(runtime: Runtime, trial: Trial, refused_: bool) -> None:
    verdict = facts.unconfined(runtime, trial)
    assert (verdict is not None) == refused_
    assert verdict is None or "docker_runtime" in (verdict.remedy or "")


def test_doctor_says_which_layer_holds_whom() -> None:
    theirs = seccomp.Profile("{}", operators=True)
    assert "Station's own profile on everything" in facts.seccomp_notes(Runtime("runc"), TOLD, None)[0]
    assert theirs.fingerprint[:12] in facts.seccomp_notes(Runtime("runc"), TOLD, theirs)[0]
    assert "does not apply it" in facts.seccomp_notes(GVISOR, replace(TOLD, filtered=False), None)[0]
    assert "AF_VSOCK" in facts.seccomp_notes(Runtime("runc"), replace(TOLD, doors_shut=False), theirs)[-1]
    assert "cannot filter" in facts.seccomp_notes(Runtime("runc"), replace(TOLD, seccomp=False), None)[1]


# ── tried in containers ──────────────────────────────────────────────────────────────────────────────────────────────


def everything_but(*doors: str) -> dict[str, Any]:
    """Ours, with these calls too."""
    found: dict[str, Any] = json.loads(own_profile())
    found["syscalls"].append({"names": list(doors), "action": "SCMP_ACT_ALLOW"})
    return found


async def tried(bed: Bed, generation: int, **settings: Any) -> dict[str, str]:
    """What the container's profile alone says: the guest's own filter is off."""
    backend = bed.backend(guest_options=("--no-seccomp",), **settings)
    code, text = await in_fresh(backend, bed.labels(generation=generation), SHORT, "python3", "-c", TRY)
    assert code == 0, text
    return dict(line.split() for line in text.splitlines())


@pytest.mark.docker
async def test_ours_shuts_what_the_engine_leaves_open(bed: Bed, engine: Engine) -> None:
    doors = ("io_uring_setup", "socket", "unshare", "keyctl", "clone")
    path = bed.state / "doors.json"
    path.write_text(json.dumps(everything_but(*doors)))
    told = await tried(bed, 1)
    assert {told[name] for name in REFUSED} == {"EPERM"}
    assert told["clone_newuser"] == "EPERM"
    assert (told["clone3"], told["inet"], told["unix"]) == ("ENOSYS", "open", "open")
    control = await tried(bed, 2, seccomp=str(path))
    assert {control[name] for name in ("io_uring_setup", "keyctl", "unshare", "clone_newuser")} == {"open"}
    assert control["vsock"] != "EPERM"


@pytest.mark.docker
async def test_the_guest_itself_is_held_and_has_tried(bed: Bed) -> None:
    path = bed.state / "doors.json"
    path.write_text(json.dumps(everything_but("io_uring_setup")))
    for number, (profile, shut) in enumerate(((None, True), (str(path), False)), 1):
        backend = bed.backend(seccomp=profile)
        notes = " ".join((await backend.probe()).notes)
        assert ("is open to the guest itself" not in notes) == shut
        box = await backend.create(SHORT, bed.labels(generation=number))
        async with session_of(box) as session:
            assert "filtered" in session.hello.capabilities
            assert ("doors_shut" in session.hello.capabilities) == shut
            status = (await run(session, box, "cat", "/proc/1/status"))[1]
            assert "Seccomp:\t2" in status
        await box.destroy()


@pytest.mark.docker
async def test_an_operators_profile_is_in_force_and_labelled(bed: Bed, engine: Engine) -> None:
    path = bed.state / "mine.json"
    mine: dict[str, Any] = json.loads(own_profile())
    mine["syscalls"][0]["names"].remove("mknodat")
    mine["syscalls"][0]["names"].remove("mknod")
    path.write_text(json.dumps(mine))
    backend = bed.backend(seccomp=str(path))
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    async with session_of(box) as session:
        code, text = await run(session, box, "sh", "-c", "touch a && mv a b && exec mkfifo c 2>&1")
        assert code != 0
        assert "not permitted" in text
    label = engine.docker(
        "inspect", "-f", '{{index .Config.Labels "station.seccomp"}}', container_name(bed.station, "uid1-1")
    )
    assert label == seccomp.Profile(path.read_text()).fingerprint
    assert (bed.state / "boxes" / "docker" / "seccomp" / f"{label}.json").read_text() == path.read_text()
    await box.let_go()
    again = await bed.backend(seccomp=str(path)).adopt(box.ref)
    await again.destroy()


@pytest.mark.docker
async def test_a_box_of_another_profile_is_remade_and_keeps_its_files(bed: Bed) -> None:
    path = bed.state / "mine.json"
    path.write_text(json.dumps(everything_but("keyctl")))
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    async with session_of(box) as session:
        assert (await run(session, box, "sh", "-c", "echo kept > file"))[0] == 0
    await box.let_go()
    changed = bed.backend(seccomp=str(path))
    with pytest.raises(BoxLost, match="docker_seccomp"):
        await changed.adopt(box.ref)
    assert [item async for item in changed.boxes()] == []
    assert await in_fresh(changed, bed.labels(generation=2), KEPT, "cat", "file") == (0, "kept\n")


@pytest.mark.docker
async def test_a_profile_that_cannot_be_used_stops_every_box_and_ends_none(bed: Bed) -> None:
    path = bed.state / "mine.json"
    path.write_text(json.dumps({**GOOD, "defaultAction": "SCMP_ACT_ALLOW"}))
    backend = bed.backend()
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    await box.let_go()
    broken = bed.backend(seccomp=str(path))
    found = await broken.probe()
    assert not found.available
    assert "sandbox.docker_seccomp" in (found.reason or "")
    with pytest.raises(CannotEnforce, match="defaultAction"):
        broken.check(KEPT)
    with pytest.raises(CannotEnforce, match="defaultAction"):
        await broken.adopt(box.ref)
    path.write_text(own_profile())
    assert (await broken.probe()).available
    await (await backend.adopt(box.ref)).destroy()


@pytest.mark.docker
async def test_hd_no_container_of_a_station_is_under_the_engines_own_profile(
    bed: Bed, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those that look into an image, and put a guest where no station has put it yet."""
    new = tmp_path / "guest"
    new.write_bytes(guest_binary(platform.machine()).read_bytes() + os.urandom(8))
    made: list[dict[str, Any]] = []
    create = Spoken.create

    async def noted(self: Spoken, name: str, body: Mapping[str, Any]) -> str:
        made.append(dict(body))
        return await create(self, name, body)

    monkeypatch.setattr(Spoken, "create", noted)
    backend = bed.backend(guest=new)
    assert (await backend.probe()).available
    assert backend._helpers
    engine.docker("volume", "rm", backend._helpers.volume)
    programs = {body["Entrypoint"][0] for body in made}
    assert programs == {"/none", "/stn-guest-installer", GUEST}
    for body in made:
        options = body["HostConfig"]["SecurityOpt"]
        assert options == ["no-new-privileges", f"seccomp={seccomp.OWN.text}"], body["Entrypoint"]
