"""Who a box is, what may be mounted, why it does not work here, which limit holds: tables."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from station.backends._limits import for_spec, limit_reports, refuse_unenforced, refuse_unknown_here
from station.backends._mounts import plan_mount, refuse_source, settings_in
from station.backends._users import UserFacts, Users, choose, last_of
from station.backends.bubblewrap.diagnosis import Facts, after_failure, before_trial
from station.backends.bubblewrap.programs import parse_version
from station.backends.registry import choose_default, make_backends
from station.core.capabilities import Capabilities, Grade, GuestUid, Level
from station.core.errors import CannotEnforce, InvalidInput
from station.core.machine import Machine, container_of, wsl_of
from station.core.spec import Limits, Mount, Spec
from station.machine import candidates

USER = UserFacts(1000, 1000, frozenset({"1000", "ada"}), map_tools=True)
RANGE = "bob:100000:65536\nada:165536:65536\n"


@pytest.mark.parametrize(
    ("facts", "guest"),
    [
        (replace(USER, subuid=RANGE, subgid=RANGE), 231_071),
        (replace(USER, subuid=RANGE), None),
        (replace(USER, subuid=RANGE, subgid=RANGE, map_tools=False), None),
        (replace(USER, subuid="bob:1:2", subgid="bob:1:2"), None),
        (replace(USER, subuid="1000:5:1", subgid="1000:7:1"), 5),
    ],
)
def test_a_guest_gets_its_own_user_where_subordinate_ids_allow_it(facts: UserFacts, guest: int | None) -> None:
    users = choose(facts)
    assert (users.user, users.become, users.guest_user) == (1000, False, guest)
    assert users.guest_uid is (GuestUid.SHARED if guest is None else GuestUid.SEPARATE)


def test_root_takes_two_ids_that_nobody_has() -> None:
    root = UserFacts(0, 0, frozenset({"0", "root"}), map_tools=False)
    assert choose(root) == Users(60_578, 60_578, become=True, guest_user=60_579, guest_group=60_579)
    assert choose(replace(root, taken=frozenset({60_579}))).user == 60_580
    assert choose(replace(root, subuid="ada:60578:10")).user == 60_588
    assert choose(root, spare=7000).guest_user == 7001
    with pytest.raises(LookupError, match="spare_uid"):
        choose(replace(root, subgid="ada:60000:5000"))


def test_a_damaged_line_of_subordinate_ids_is_passed_over() -> None:
    assert last_of("ada:x:y\nada\nada:5:0\nada:7:3\n", ["ada"]) == 9


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("/", "root of this machine"),
        ("/etc", "system"),
        ("/proc/self", "system"),
        ("/home/ada", "home"),
        ("/home", "home"),
        ("/srv/state", "state"),
        ("/srv/state/sandboxes/x", "state"),
        ("/srv", "state"),
    ],
)
def test_a_folder_that_may_not_be_a_workspace(source: str, word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        refuse_source(Path(source), state=Path("/srv/state"), homes=["/home/ada", "/"])


def test_a_link_to_a_forbidden_folder_is_followed_before_it_is_judged(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    with pytest.raises(InvalidInput, match="home"):
        plan_mount(Mount(str(tmp_path / "link")), state=Path("/srv/state"), homes=[str(tmp_path / "home")])


@pytest.mark.root
@pytest.mark.parametrize("name", ["link", "link/below"])
def test_a_way_over_a_link_that_code_may_have_made_is_refused_with_where_it_leads(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("secret")
    given = Mount(str(tmp_path / name))
    plan = plan_mount(given, state=Path("/srv/state"), homes=[])
    assert plan.source == str(tmp_path / name.replace("link", "secret")), "the control: a link of root's is followed"
    os.lchown(tmp_path / "link", 1000, 1000)
    with pytest.raises(InvalidInput, match=r"is a link; to mount the folder it leads to, name it: .*/secret"):
        plan_mount(given, state=Path("/srv/state"), homes=[])


def test_a_mount_must_be_a_directory_that_exists(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(InvalidInput, match=name):
            plan_mount(Mount(str(tmp_path / name)), state=Path("/srv/state"), homes=[])


def folder(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").touch()
    (root / ".vscode").mkdir()
    (root / ".bashrc").touch()
    return root


@pytest.mark.parametrize("name", ["station.lock", "operator.token"])
def test_the_state_of_another_station_is_no_mount(tmp_path: Path, name: str) -> None:
    refuse_source(tmp_path, state=Path("/srv/state"), homes=[])
    (tmp_path / name).touch()
    with pytest.raises(InvalidInput, match="another station"):
        refuse_source(tmp_path, state=Path("/srv/state"), homes=[])


def test_git_hooks_and_start_up_files_are_protected_and_git_is_pinned(tmp_path: Path) -> None:
    plan = plan_mount(Mount(str(folder(tmp_path))), state=Path("/srv/state"), homes=[])
    assert plan.pinned == (".git",)
    parts = {f".git/{name}" for name in ("hooks", "branches", "remotes", "worktrees")}
    parts |= {f".git/{name}" for name in ("config", "config.worktree", "commondir")}
    assert set(plan.protected) == {*parts, ".vscode", ".bashrc"}
    open_ = plan_mount(Mount(str(folder(tmp_path / "2")), protect=False), state=Path("/srv/state"), homes=[])
    assert (open_.pinned, open_.protected) == ((), ())


def test_missing_hooks_are_made_so_that_they_can_be_protected(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / ".git" / "hooks").rmdir()
    plan = plan_mount(Mount(str(root)), state=Path("/srv/state"), homes=[])
    assert ".git/hooks" in plan.protected
    assert (root / ".git" / "hooks").is_dir()


def test_linked_hooks_make_all_of_git_read_only(tmp_path: Path) -> None:
    """FB-B59."""
    root = folder(tmp_path)
    (root / ".git" / "hooks").rmdir()
    (root / "tools").mkdir()
    (root / ".git" / "hooks").symlink_to("../tools")
    plan = plan_mount(Mount(str(root)), state=Path("/srv/state"), homes=[])
    assert plan.pinned == ()
    assert {".git", "tools"} <= set(plan.protected)


def test_the_git_file_of_a_worktree_is_protected(tmp_path: Path) -> None:
    """FB-B59."""
    (tmp_path / ".git").write_text("gitdir: /elsewhere/.git/worktrees/w\n")
    plan = plan_mount(Mount(str(tmp_path)), state=Path("/srv/state"), homes=[])
    assert plan.protected == (".git",)


def test_submodules_are_protected_too(tmp_path: Path) -> None:
    root = folder(tmp_path)
    module = root / ".git" / "modules" / "sub"
    module.mkdir(parents=True)
    (module / "HEAD").touch()
    (module / "config").touch()
    plan = plan_mount(Mount(str(root)), state=Path("/srv/state"), homes=[])
    assert {".git/modules/sub/hooks", ".git/modules/sub/config"} <= set(plan.protected)


def test_every_directory_above_a_guarded_name_is_pinned(tmp_path: Path) -> None:
    """Renamed, it would take the mounts in it along, and another could be made in its place."""
    root = folder(tmp_path)
    module = root / ".git" / "modules" / "libs" / "sub"
    module.mkdir(parents=True)
    (module / "HEAD").touch()
    plan = plan_mount(Mount(str(root)), state=Path("/srv/state"), homes=[])
    assert plan.pinned == (".git", ".git/modules", ".git/modules/libs", ".git/modules/libs/sub")


@pytest.mark.parametrize(
    "name", [".claude", ".codex", ".cursor", ".gemini", ".opencode", "opencode.json", ".zed", ".helix", ".husky",
             ".pre-commit-config.yaml", "mise.toml", ".mise.toml", ".tool-versions", ".devcontainer.json"],
)  # fmt: skip
def test_what_agents_editors_and_hooks_start_by_themselves_is_protected(tmp_path: Path, name: str) -> None:
    assert plan_mount(Mount(str(tmp_path)), state=Path("/srv/state"), homes=[]).protected == ()
    (tmp_path / name).touch()
    assert plan_mount(Mount(str(tmp_path)), state=Path("/srv/state"), homes=[]).protected == (name,)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[core]\n\thooksPath = ".husky/_" # x\n\tbare\n', [("core.hookspath", ".husky/_"), ("core.bare", "")]),
        ("; hooksPath = no\n[core] hooksPath = a\\\nb ; c\n", [("core.hookspath", "ab")]),
        ('[includeIf "gitdir:~/x]"]\n path=a b', [("includeif.gitdir:~/x].path", "a b")]),
        ('[CORE]\nx = "a # b" c\\\\d\\"\n', [("core.x", 'a # b c\\d"')]),
        ('[a "' + "\\" * 500_000, None),
    ],
)
def test_settings_of_git_are_read_as_git_reads_them(text: str, found: list[tuple[str, str]] | None) -> None:
    begun = time.monotonic()
    told = settings_in(text)
    assert time.monotonic() - begun < 2
    assert found is None or told == found


@pytest.mark.parametrize(("made", "what"), [(201, "{}/HEAD"), (20_001, "{}")])
def test_more_submodules_than_can_be_guarded_are_read_only_altogether(tmp_path: Path, made: int, what: str) -> None:
    """And soon: code that ran in the folder may have made any number of names, while the station waits."""
    root = folder(tmp_path)
    for number in range(made):
        name = root / ".git" / "modules" / what.format(f"m{number}")
        name.parent.mkdir(parents=True, exist_ok=True)
        name.touch()
    begun = time.monotonic()
    plan = plan_mount(Mount(str(root)), state=Path("/srv/state"), homes=[])
    assert time.monotonic() - begun < 1
    assert ".git/modules" in plan.protected
    assert not any(name.startswith(".git/modules/") for name in plan.protected)


FINE = Facts("/usr/bin/bwrap", (0, 8, 0), "/g", Machine(user=1000, sysctls={"user.max_user_namespaces": 1000}))


def on(*, user: int = 1000, **sysctls: int) -> Facts:
    named = {name.replace("__", "."): value for name, value in sysctls.items()}
    return replace(FINE, machine=Machine(user=user, sysctls=named))


def in_(**facts: Any) -> Facts:
    return replace(FINE, machine=replace(FINE.machine, **facts))


@pytest.mark.parametrize(
    ("facts", "reason", "remedy"),
    [
        (replace(FINE, bwrap=None), "not installed", "apt install bubblewrap"),
        (replace(FINE, guest=None), "guest", "pip install"),
        (in_(release="4.4.0-19041-Microsoft"), "WSL 1", "wsl --set-version"),
    ],
)
def test_what_makes_a_trial_pointless(facts: Facts, reason: str, remedy: str) -> None:
    verdict = before_trial(facts)
    assert verdict is not None
    assert reason in verdict.reason
    assert remedy in (verdict.remedy or "")
    assert before_trial(FINE) is None


@pytest.mark.parametrize(
    ("facts", "trial", "reason", "remedy"),
    [
        (on(user__max_user_namespaces=0), "", "max_user_namespaces", "sysctl -w user.max"),
        (on(kernel__unprivileged_userns_clone=0), "", "unprivileged_userns_clone", "sysctl -w kernel.unpriv"),
        (on(kernel__apparmor_restrict_unprivileged_userns=1), "", "Ubuntu", "apparmor_restrict_unprivileged_userns=0"),
        (in_(container="docker"), "bwrap: Can't mount proc on /newroot/proc", "masks", "systempaths"),
        (in_(container="podman"), "launch: unshare user namespace", "seccomp", "seccomp=unconfined"),
        (in_(chroot=True), "bwrap: oh", "chroot", "nspawn"),
        (in_(release="5.15.90.1-microsoft-standard-WSL2"), "bwrap: oh", "WSL 2", None),
        (FINE, "bwrap: oh", "bwrap: oh", None),
    ],
)
def test_why_a_trial_box_did_not_start(facts: Facts, trial: str, reason: str, remedy: str | None) -> None:
    verdict = after_failure(facts, trial)
    assert reason in verdict.reason
    assert (remedy in (verdict.remedy or "")) if remedy else verdict.remedy is None


def test_a_switch_that_stops_users_does_not_stop_root() -> None:
    switches = {"kernel__unprivileged_userns_clone": 0, "kernel__apparmor_restrict_unprivileged_userns": 1}
    assert after_failure(on(user=0, **switches), "bwrap: oh").reason.endswith("bwrap: oh")
    assert after_failure(on(user=0, user__max_user_namespaces=0), "bwrap: oh").reason.startswith("user namespaces")


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.1.0-18-amd64", None), ("4.4.0-19041-Microsoft", 1), ("5.15.90.1-microsoft-standard-WSL2", 2)],
)
def test_wsl_is_known_by_its_kernel(release: str, version: int | None) -> None:
    assert wsl_of(release) == version


@pytest.mark.parametrize(
    ("cgroup", "environ", "marks", "name"),
    [
        ("0::/", "", set(), None),
        ("1:name=x:/docker/abc", "", set(), "docker"),
        ("0::/kubepods.slice/x", "", set(), "kubernetes"),
        ("0::/", "a=b\0container=lxc\0", set(), "lxc"),
        ("0::/", "", {"/run/.containerenv"}, "podman"),
        ("0::/", "", {"/.dockerenv"}, "docker"),
    ],
)
def test_a_container_is_known_by_its_traces(cgroup: str, environ: str, marks: set[str], name: str | None) -> None:
    assert container_of(cgroup, environ, frozenset(marks)) == name


@pytest.mark.parametrize(
    ("text", "version"), [("bubblewrap 0.8.0\n", (0, 8, 0)), ("bubblewrap 0.11", (0, 11)), ("what", ()), ("", ())]
)
def test_versions_of_bwrap(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


UNPRIVILEGED = Capabilities("bubblewrap", True, Grade.CONTAINER, limits=limit_reports({}, nproc_is_per_box=True))
ROOT = replace(UNPRIVILEGED, limits=limit_reports({"memory": 1, "cpu": 1, "pids": 1}, nproc_is_per_box=True))


@pytest.mark.parametrize("limit", [Limits(memory_mb=64), Limits(cpus=0.5), Limits(workspace_mb=10)])
def test_a_named_limit_that_does_not_hold_is_refused_unless_best_effort(limit: Limits) -> None:
    (name,) = limit.named()
    with pytest.raises(CannotEnforce, match=rf"limits\.{name}.*best_effort: true"):
        refuse_unenforced(UNPRIVILEGED, Spec("bubblewrap", limits=limit))
    refuse_unenforced(UNPRIVILEGED, Spec("bubblewrap", limits=limit, best_effort=True))


@pytest.mark.parametrize(
    ("capabilities", "spec"),
    [
        (UNPRIVILEGED, Spec("bubblewrap")),
        (UNPRIVILEGED, Spec("bubblewrap", limits=Limits(pids=64, tmp_mb=1, shm_mb=1, open_files=64))),
        (UNPRIVILEGED, Spec("bubblewrap", limits=Limits(max_file_size_bytes=5))),
        (UNPRIVILEGED, Spec("bubblewrap", limits=Limits(workspace_mb=10), ephemeral=True)),
        (ROOT, Spec("bubblewrap", limits=Limits(memory_mb=64, cpus=0.5))),
    ],
)
def test_limits_that_hold_are_accepted(capabilities: Capabilities, spec: Spec) -> None:
    refuse_unenforced(capabilities, spec)


def test_a_report_says_the_value_and_the_truth() -> None:
    limits = for_spec(UNPRIVILEGED, Spec("bubblewrap", limits=Limits(pids=64))).limits
    assert (limits["pids"].level, limits["pids"].value) == (Level.ENFORCED, 64)
    assert (limits["memory_mb"].level, limits["memory_mb"].value) == (Level.WATCHED, 1024)
    assert limits["cpus"].level is limits["workspace_mb"].level is Level.NOT_ENFORCED
    assert for_spec(UNPRIVILEGED, Spec("bubblewrap", ephemeral=True)).limits["workspace_mb"].level is Level.ENFORCED


def test_images_are_refused_by_naming_docker() -> None:
    with pytest.raises(CannotEnforce, match="docker"):
        refuse_unknown_here(UNPRIVILEGED, Spec("bubblewrap", image="debian:12"))


@pytest.mark.parametrize("network", ["public", "example.org"])
def test_another_network_than_none_is_refused(network: str) -> None:
    with pytest.raises(CannotEnforce, match="network"):
        refuse_unknown_here(UNPRIVILEGED, Spec("bubblewrap", network=network))


V1 = """30 20 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 20 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
"""
V2 = "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_cgroups_of_version_1_are_found_where_this_process_is() -> None:
    found = candidates(V1, "3:cpu,cpuacct:/a\n2:memory:/b/c\n1:name=systemd:/\n")
    assert [(p.version, str(p.path), set(p.controllers)) for p in found] == [
        (1, "/sys/fs/cgroup/cpu,cpuacct/a", {"cpu"}),
        (1, "/sys/fs/cgroup/memory/b/c", {"memory"}),
    ]


def test_of_version_2_the_parent_stands_too_but_nothing_above_the_mount() -> None:
    found = candidates(V2, "0::/user.slice/app.slice/x.scope\n")
    assert [str(p.path) for p in found] == [
        "/sys/fs/cgroup/user.slice/app.slice/x.scope",
        "/sys/fs/cgroup/user.slice/app.slice",
    ]
    assert [str(p.path) for p in candidates(V2, "0::/\n")] == ["/sys/fs/cgroup"]


def test_a_cgroup_namespace_hides_the_path_above_it() -> None:
    found = candidates(
        "31 20 0:27 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "2:memory:/docker/x/y\n"
    )
    assert [str(p.path) for p in found] == ["/sys/fs/cgroup/memory/y"]


def test_host_is_never_chosen_and_only_there_when_allowed(tmp_path: Path) -> None:
    assert set(make_backends(tmp_path, "s")) == {"bubblewrap", "docker"}
    assert set(make_backends(tmp_path, "s", allow_host=True)) == {"bubblewrap", "docker", "host"}
    without = Capabilities("bubblewrap", False, Grade.CONTAINER)
    host = Capabilities("host", True, Grade.NONE)
    assert choose_default({"bubblewrap": without, "host": host}) is None
    docker = Capabilities("docker", True, Grade.CONTAINER)
    assert choose_default({"bubblewrap": without, "docker": docker}) is None
    assert choose_default({"bubblewrap": UNPRIVILEGED, "docker": docker}) == "bubblewrap"
    assert choose_default({"bubblewrap": UNPRIVILEGED, "host": host}) == "bubblewrap"
