"""The host backend: a guest as sub-reaper on the machine itself, with directories of its own and nothing else."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from station.backends._box import LocalBox
from station.backends._boxdir import BoxDirectory
from station.backends._cgroups import BoxCgroup, CgroupLimits, Cgroups
from station.backends._layout import box_layout, interpreters, look_at_usr, require_runtime, write_root_files
from station.backends._limits import for_spec, refuse_unenforced, refuse_unknown_here
from station.backends._local import LocalBackend, check_uid
from station.backends._mounts import plan_mount
from station.backends._processes import has_marker
from station.backends._spawn import INFO_FD, LAST_FD, LISTEN_FD
from station.backends._trees import remove_below
from station.backends._users import Users, choose
from station.backends._users import look as look_at_users
from station.backends.base import Labels, Layout
from station.core.capabilities import UNRESTRICTED, Capabilities, Grade, Level, LimitReport
from station.core.codec import to_plain
from station.core.errors import BackendUnavailable, CannotEnforce, InternalError
from station.core.spec import Spec
from station.guest.binary import guest_binary

ROOT_FILES = Path("/var/lib/station-host")
"""Where files are if the station is root: its state directory is closed to the user that code runs as."""
_NETWORKS = ("none", "public", UNRESTRICTED)
"""`none` is what a spec says where nobody asked; the answer says `unrestricted`."""


@dataclass(frozen=True)
class HostSettings:
    spare_uid: int | None = None
    """As root: the user that code runs as; `None`: the first that nobody has."""
    as_root: bool = False
    """Runs code as root where the station is: for throw-away machines alone."""
    files: Path | None = None
    """Where homes, workspaces and /tmp are; `None`: the state directory, or `ROOT_FILES` for another user."""
    guest: Path | None = None


class HostBackend(LocalBackend):
    name = "host"
    polite = True

    def __init__(self, state_dir: Path, *, station_id: str, settings: HostSettings = HostSettings()) -> None:
        super().__init__(state_dir, station_id=station_id)
        self._settings = settings
        self._capabilities: Capabilities | None = None
        self._runtimes: dict[str, str] = {}
        self._users: Users | None = None
        """Whom to become; `None`: nobody else."""
        self._files = settings.files or state_dir / "host"

    async def probe(self) -> Capabilities:
        if self._capabilities is None:
            self._capabilities = self._probe()
        return self._capabilities

    def check(self, spec: Spec) -> None:
        capabilities = self._capabilities
        if capabilities is None:
            raise InternalError("host was used before its probe")
        if not capabilities.available:
            raise BackendUnavailable(f"host does not work here: {capabilities.reason}", backend=self.name)
        if spec.network not in _NETWORKS:
            raise CannotEnforce(
                f"host cannot hold code to the allow list {spec.network!r}: it has the network of this machine",
                network=spec.network,
            )
        refuse_unknown_here(capabilities, Spec(self.name, image=spec.image, network=UNRESTRICTED))
        refuse_unenforced(capabilities, spec, in_memory=False)
        require_runtime(spec.runtime, self._runtimes)
        if spec.mount is not None:
            if spec.mount.read_only or spec.mount.protect:
                raise CannotEnforce("host cannot make files of a folder read-only; give protect: false", field="mount")
            plan_mount(spec.mount, state=self.state)

    async def create(self, spec: Spec, labels: Labels) -> LocalBox:
        capabilities = await self.probe()
        self.check(spec)
        effective = spec.effective
        memory = effective.memory_mb << 20 if effective.memory_mb is not None else None
        cgroup = self._cgroups.of(labels.box_id)
        places = self._places(spec, labels)
        facts: dict[str, Any] = {
            "layout": to_plain(self._layout(places)),
            "capabilities": to_plain(for_spec(capabilities, spec, in_memory=False)),
            "cgroups": [str(path) for path in cgroup.paths],
            "files": str(self._files / "boxes" / labels.box_id),
        }

        def prepare() -> list[str]:
            self._cgroups.create(labels.box_id, CgroupLimits(memory, effective.cpus, effective.pids))
            self._make_places(places, labels)
            return self._argv(spec, labels, cgroup)

        return await self.start(labels, facts, prepare)

    async def aclose(self) -> None:
        """Lets go of all boxes, and removes what is empty without them: elsewhere than in the state nobody would."""
        await super().aclose()
        kept = [self._files / "boxes", self._files / "sandboxes"]
        if not any(place.is_dir() and any(place.iterdir()) for place in kept):
            await self._remove_below(self._files.parent, self._files.name)

    def is_first(self, pid: int, directory: BoxDirectory) -> bool:
        return has_marker(pid, self.marker(directory.box_id)) and super().is_first(pid, directory)

    def child_of_ours(self, first: int) -> int | None:
        return first

    async def remove_box_files(self, facts: dict[str, Any]) -> None:
        """Of a box the temporary directory; of an ephemeral one its home and workspace too."""
        path = Path(facts["files"]) if "files" in facts else None
        if path is not None and path.is_relative_to(self._files) and path.parent.is_dir():
            await self._remove_below(path.parent, path.name)

    async def remove_files(self, uid: str) -> None:
        check_uid(uid)
        await self._remove_below(self._files / "sandboxes", uid)

    async def _remove_below(self, parent: Path, name: str) -> None:
        try:
            await asyncio.to_thread(remove_below, parent, name)
        except OSError as error:
            raise InternalError(f"{parent / name} could not be removed: {error}") from error

    def _places(self, spec: Spec, labels: Labels) -> dict[str, Path]:
        own = self._files / "boxes" / labels.box_id
        kept = own if spec.ephemeral else self._files / "sandboxes" / labels.uid
        places = {"tmp": own / "tmp", "home": kept / "home", "workspace": kept / "workspace"}
        if spec.mount is not None:
            places["workspace"] = Path(plan_mount(spec.mount, state=self.state).source)
        return places

    def _make_places(self, places: dict[str, Path], labels: Labels) -> None:
        if not labels.pool:
            check_uid(labels.uid)
        for name, place in places.items():
            if not place.is_relative_to(self._files):
                continue  # the user's own folder
            for parent in (self._files, place.parent.parent, place.parent):
                parent.mkdir(parents=True, exist_ok=True)
                parent.chmod(0o711)
            place.mkdir(exist_ok=True)
            place.chmod(0o755 if name == "workspace" else 0o700)
            if self._users is not None:
                os.chown(place, self._users.user, self._users.group, follow_symlinks=False)
        write_root_files(self._files / "rootfs", look_at_usr(), self._runtimes)
        again = places["home"] / "workspace"
        if not again.is_symlink() and not again.exists():
            again.symlink_to(places["workspace"])

    def _layout(self, places: dict[str, Path]) -> Layout:
        return box_layout(
            self._runtimes,
            workspace=str(places["workspace"]),
            home=str(places["home"]),
            tmp=str(places["tmp"]),
            links=str(self._files / "rootfs" / "links"),
        )

    def _argv(self, spec: Spec, labels: Labels, cgroup: BoxCgroup) -> list[str]:
        guest = str(self._settings.guest or guest_binary())
        effective = spec.effective
        argv = [guest, "launch", "--last-fd", str(LAST_FD), "--info-fd", str(INFO_FD)]
        for procs in cgroup.procs:
            argv += ["--cgroup", procs]
        if self._users is not None:
            argv += ["--become", f"{self._users.user}:{self._users.group}"]
        argv += ["--rlimit", f"nofile={effective.open_files}:{effective.open_files}", "--rlimit", "core=0:0"]
        if effective.max_file_size_bytes is not None:
            argv += ["--rlimit", f"fsize={effective.max_file_size_bytes}:{effective.max_file_size_bytes}"]
        argv += ["--", guest, "serve", "--fd", str(LISTEN_FD), "--box", self.marker(labels.box_id)]
        return [*argv, "--containment", "subreaper"]

    def _probe(self) -> Capabilities:
        settings = self._settings
        try:
            if settings.guest is None:
                guest_binary()
            elif not os.access(settings.guest, os.X_OK):
                raise BackendUnavailable(f"there is no guest at {settings.guest}")
        except BackendUnavailable as error:
            return Capabilities(
                self.name, available=False, grade=Grade.NONE, network=UNRESTRICTED, reason=error.message
            )
        root = os.geteuid() == 0
        if root and not settings.as_root:
            self._users = choose(look_at_users(), settings.spare_uid)
            self._files = settings.files or ROOT_FILES / self.station_id
        self._runtimes = interpreters()
        self._cgroups = Cgroups.probe(self.station_id)
        return Capabilities(
            self.name,
            available=True,
            grade=Grade.NONE,
            limits=self._limits(),
            network=UNRESTRICTED,
            containment="subreaper",
            mounts=True,
            powers=("measurable",),
            notes=("code runs on this machine itself and sees all that its user may see",)
            + (("code runs as root",) if root and settings.as_root else ()),
        )

    def _limits(self) -> dict[str, LimitReport]:
        def of(controller: str, without: Level, why: str) -> LimitReport:
            version = self._cgroups.has(controller)
            if version is None:
                return LimitReport(without, why, "the backend bubblewrap, or a station run as root")
            return LimitReport(Level.ENFORCED, f"cgroup v{version} {controller}")

        disk = LimitReport(Level.NOT_ENFORCED, "a plain directory of this machine")
        return {
            "memory_mb": of("memory", Level.WATCHED, "no memory cgroup; the station looks now and then"),
            "cpus": of("cpu", Level.NOT_ENFORCED, "no cpu cgroup"),
            "pids": of("pids", Level.NOT_ENFORCED, "no pids cgroup, and the kernel counts by user"),
            "open_files": LimitReport(Level.ENFORCED, "RLIMIT_NOFILE, for each process"),
            "workspace_mb": disk,
            "tmp_mb": disk,
            "shm_mb": LimitReport(Level.NOT_ENFORCED, "this machine's own /dev/shm"),
            "max_file_size_bytes": LimitReport(Level.ENFORCED, "RLIMIT_FSIZE"),
        }
