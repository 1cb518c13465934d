"""The bubblewrap backend: finds out what holds here, makes plans, starts boxes."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from station.backends import _limits as limits
from station.backends._box import LocalBox
from station.backends._cgroups import BoxCgroup, CgroupLimits, Cgroups
from station.backends._layout import (
    HostUsr,
    box_layout,
    copy_etc,
    interpreters,
    look_at_usr,
    require_runtime,
    write_root_files,
)
from station.backends._limits import GUEST_SPARE_PIDS
from station.backends._local import LocalBackend
from station.backends._mounts import MountPlan, plan_mount
from station.backends._users import UserFacts, Users, choose
from station.backends._users import look as look_at_users
from station.backends.base import Labels
from station.backends.bubblewrap import diagnosis
from station.backends.bubblewrap.argv import RUN_BYTES, BoxPlan, Tmpfs, launch_argv
from station.backends.bubblewrap.programs import Bwrap, find_bwrap
from station.core.capabilities import Capabilities, Grade, GuestUid
from station.core.codec import to_plain
from station.core.errors import BackendUnavailable, InternalError, InvalidInput, StationError
from station.core.spec import Spec
from station.guest.binary import guest_binary
from station.guest.session import GuestSession
from station.machine import look

NPROC_PER_NAMESPACE_SINCE = (5, 14)
HOME_BYTES_EPHEMERAL = 1 << 30


@dataclass(frozen=True)
class BubblewrapSettings:
    spare_uid: int | None = None
    """As root: the user of boxes; that and the next one. `None`: the first two that nobody has."""
    separate_guest: bool = True
    """Gives the guest a user of its own where subordinate ids allow it."""
    cgroups: bool = True
    bwrap: Bwrap | None = None
    """`None`: the system's, else the wheel's."""
    guest: Path | None = None
    guest_options: tuple[str, ...] = ()
    """Of tests alone."""


@dataclass(frozen=True)
class _Found:
    """What a box here is made with, once the probe has found it."""

    guest: str
    bwrap: Bwrap
    users: Users
    usr: HostUsr
    runtimes: dict[str, str]


class BubblewrapBackend(LocalBackend):
    name = "bubblewrap"

    def __init__(
        self, state_dir: Path, *, station_id: str, settings: BubblewrapSettings = BubblewrapSettings()
    ) -> None:
        super().__init__(state_dir, station_id=station_id)
        self._settings = settings
        self._found: _Found | None = None
        self._capabilities: Capabilities | None = None
        self._probing = asyncio.Lock()

    async def probe(self) -> Capabilities:
        """Makes a trial box and asks its guest. Found once; ask a new backend for a second look."""
        async with self._probing:
            if self._capabilities is None:
                self._capabilities = await self._probe()
        return self._capabilities

    def check(self, spec: Spec) -> None:
        capabilities = self._ready()
        if not capabilities.available:
            remedy = f"; {capabilities.remedy}" if capabilities.remedy else ""
            raise BackendUnavailable(f"bubblewrap does not work here: {capabilities.reason}{remedy}", backend=self.name)
        limits.refuse_unknown_here(capabilities, spec)
        limits.refuse_unenforced(capabilities, spec)
        if self._found is not None:
            require_runtime(spec.runtime, self._found.runtimes)
        if spec.mount is not None:
            self._mount(spec)

    async def create(self, spec: Spec, labels: Labels) -> LocalBox:
        await self.probe()
        self.check(spec)
        return await self._create(spec, labels, self._ready())

    async def _create(self, spec: Spec, labels: Labels, capabilities: Capabilities) -> LocalBox:
        found = self._found
        if found is None:
            raise InternalError("a box was asked for before the probe")
        mount = self._mount(spec)
        users = self._users(found.users, mount)
        effective = spec.effective
        memory = effective.memory_mb << 20 if effective.memory_mb is not None else None
        pids = effective.pids or 0
        wanted = CgroupLimits(memory, effective.cpus, pids + GUEST_SPARE_PIDS)
        cgroup = self._cgroups.of(labels.box_id)
        facts: dict[str, Any] = {
            "layout": to_plain(box_layout(found.runtimes)),
            "capabilities": to_plain(limits.for_spec(replace(capabilities, guest_uid=users.guest_uid), spec)),
            "cgroups": [str(path) for path in cgroup.paths],
        }

        def prepare() -> list[str]:
            copy_etc(self.state / "rootfs")
            self._cgroups.create(labels.box_id, wanted)
            return launch_argv(self._plan(spec, labels, users=users, mount=mount, cgroup=cgroup))

        return await self.start(labels, facts, prepare)

    def _plan(self, spec: Spec, labels: Labels, *, users: Users, mount: MountPlan | None, cgroup: BoxCgroup) -> BoxPlan:
        found = self._found
        assert found is not None
        effective = spec.effective
        rootfs = self.state / "rootfs"
        binds = [("guest", found.guest), ("etc", str(rootfs / "etc")), ("links", str(rootfs / "links"))]
        workspace = Tmpfs((effective.workspace_mb or 0) << 20)
        tmpfs = [
            ("tmp", Tmpfs((effective.tmp_mb or 0) << 20, "1777")),
            ("shm", Tmpfs((effective.shm_mb or 0) << 20, "1777")),
            ("run", Tmpfs(RUN_BYTES)),
        ]
        if spec.ephemeral:
            tmpfs += [("home", Tmpfs(HOME_BYTES_EPHEMERAL))]
            tmpfs += [("workspace", workspace)] if mount is None else []
        else:
            owner = (users.user, users.group) if users.become else None
            places = self.persistent(labels.uid, owner)
            binds += [(name, str(path)) for name, path in places.items() if mount is None or name != "workspace"]
        return BoxPlan(
            marker=self.marker(labels.box_id),
            users=users,
            usr=found.usr,
            launcher=found.guest,
            bwrap=found.bwrap.run_as,
            bwrap_version=found.bwrap.version,
            pids=effective.pids or 0,
            open_files=effective.open_files or 0,
            max_file_size_bytes=effective.max_file_size_bytes,
            binds=(*binds, *found.bwrap.staged),
            tmpfs=tuple(tmpfs),
            mount=mount,
            cgroup_procs=tuple(cgroup.procs),
            guest_options=self._settings.guest_options,
        )

    def _mount(self, spec: Spec) -> MountPlan | None:
        if spec.mount is None:
            return None
        mount = plan_mount(spec.mount, state=self.state)
        if os.geteuid() == 0 and mount.owner[0] == 0 and not mount.read_only:
            raise InvalidInput(
                f"the folder {mount.source} belongs to root, and no box runs as root, so nothing could be written; "
                "give it to a user (chown), or mount it with :ro",
                field="mount",
            )
        users = self._found.users if self._found else None
        if users is not None and users.become and mount.read_only and not mount.open_to_others:
            raise InvalidInput(
                f"the folder {mount.source} is closed to other users, and no box runs as root, so nothing could be "
                "read: open it (chmod o+rx), or copy in what the code needs",
                field="mount",
            )
        return mount

    def _users(self, users: Users, mount: MountPlan | None) -> Users:
        """As root, code that works in a user's folder is that user."""
        if mount is None or not users.become or mount.read_only:
            return users
        return replace(users, user=mount.owner[0], group=mount.owner[1])

    def _ready(self) -> Capabilities:
        if self._capabilities is None:
            raise InternalError("bubblewrap was used before its probe")
        return self._capabilities

    async def _probe(self) -> Capabilities:
        settings = self._settings
        bwrap = settings.bwrap or await asyncio.to_thread(find_bwrap)
        guest = _guest_path(settings)
        facts = diagnosis.Facts(bwrap.path if bwrap else None, bwrap.version if bwrap else (), guest, look())
        unavailable = Capabilities(self.name, available=False, grade=Grade.PROCESS, notes=diagnosis.notes(facts))
        hopeless = diagnosis.before_trial(facts)
        if hopeless is not None or bwrap is None or guest is None:
            verdict = hopeless or diagnosis.Verdict("something is missing")
            return replace(unavailable, reason=verdict.reason, remedy=verdict.remedy)
        users = look_at_users()
        runtimes, usr = interpreters(), look_at_usr()
        write_root_files(self.state / "rootfs", usr, runtimes)
        complaint = ""
        for who, groups in self._choices(users):
            self._found = _Found(guest, bwrap, who, usr, runtimes)
            self._cgroups = groups
            try:
                return await self._trial(facts)
            except StationError as error:
                complaint = complaint or error.message
        self._found = None
        verdict = diagnosis.after_failure(facts, complaint)
        return replace(unavailable, reason=verdict.reason, remedy=verdict.remedy)

    def _choices(self, facts: UserFacts) -> list[tuple[Users, Cgroups]]:
        """Best first: a user for the guest, cgroups; each is worth less than a box at all."""
        settings = self._settings
        without = Cgroups((), self.station_id)
        cgroups = Cgroups.probe(self.station_id) if settings.cgroups else without
        best = choose(replace(facts, map_tools=facts.map_tools and settings.separate_guest), settings.spare_uid)
        users = [best]
        if not best.become and best.guest_user is not None:
            users.append(replace(best, guest_user=None, guest_group=None))
        groups = [cgroups, without] if cgroups.parents else [without]
        return [(who, group) for group in groups for who in users]

    async def _trial(self, facts: diagnosis.Facts) -> Capabilities:
        """Raises StationError where a box with what is chosen now does not start or answer."""
        box_id = f"probe-{secrets.token_hex(8)}"
        labels = Labels.ours(box_id, uid=box_id, generation=0, fence=0, station=self.station_id, pool=True)
        shell = Capabilities(self.name, available=True, grade=Grade.PROCESS)
        box = await self._create(Spec(self.name, ephemeral=True), labels, shell)
        try:
            session = await GuestSession.connect(box.connect)
            can = session.hello.capabilities
            await session.aclose()
        finally:
            await box.destroy()
        groups = {name: self._cgroups.has(name) for name in ("memory", "cpu", "pids")}
        assert self._found is not None
        return Capabilities(
            self.name,
            available=True,
            grade=Grade.PROCESS,
            limits=limits.limit_reports(groups, nproc_is_per_box=facts.release >= NPROC_PER_NAMESPACE_SINCE),
            network="none",
            guest_uid=self._found.users.guest_uid,
            containment="pidns" if "pidns" in can else "subreaper",
            seccomp="seccomp" in can,
            mounts=True,
            powers=("measurable",),
            notes=self._notes(facts),
        )

    def _notes(self, facts: diagnosis.Facts) -> tuple[str, ...]:
        found = self._found
        assert found is not None
        said = list(diagnosis.notes(facts))
        said.append("runtimes of the host's /usr: " + (", ".join(sorted(found.runtimes)) or "none"))
        if found.users.become:
            said.append(
                f"the station is root: boxes are user {found.users.user}, their guests {found.users.guest_user}"
            )
        if found.users.guest_uid is GuestUid.SHARED:
            said.append(
                "guest and code share a user; for two: apt install uidmap, and a range in /etc/subuid and /etc/subgid"
            )
        return tuple(said)


def _guest_path(settings: BubblewrapSettings) -> str | None:
    if settings.guest is not None:
        return str(settings.guest)
    try:
        return str(guest_binary())
    except BackendUnavailable:
        return None
