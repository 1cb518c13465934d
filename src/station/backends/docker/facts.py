"""What an engine and a trial box told, and what follows from it: pure functions."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from station.backends.docker import quota
from station.backends.docker.config import GVISOR_HOST_PIDS, Runtime
from station.backends.docker.quota import Bound, Quota
from station.backends.docker.seccomp import SETTING, Profile
from station.core.capabilities import Capabilities, Grade, GuestUid, Level, LimitReport
from station.core.spec import Spec

_MIB = 1 << 20


@dataclass(frozen=True)
class EngineFacts:
    """From `GET /info`. What is not told counts as missing."""

    version: str
    api: tuple[int, int]
    cgroup_version: int
    seccomp: str | None
    """The name of its default profile; `None`: no seccomp."""
    apparmor: bool
    rootless: bool
    userns: bool
    controllers: frozenset[str]
    """Of memory, swap, cpu, pids: those that can be limited."""
    runtimes: Mapping[str, str] = field(default_factory=dict)
    """By name the program."""
    default_runtime: str = "runc"
    kernel: str = ""
    os_type: str = ""
    machine: str = ""
    live_restore: bool = False
    podman: bool = False

    @classmethod
    def parse(cls, info: Mapping[str, Any], api: tuple[int, int]) -> EngineFacts:
        options = _options(info.get("SecurityOptions"))
        controllers = {"memory": "MemoryLimit", "swap": "SwapLimit", "cpu": "CpuCfsQuota", "pids": "PidsLimit"}
        told = info.get("Runtimes")
        runtimes = told if isinstance(told, dict) else {}
        return cls(
            version=str(info.get("ServerVersion", "")),
            api=api,
            cgroup_version=2 if str(info.get("CgroupVersion", "1")) == "2" else 1,
            seccomp=options.get("seccomp"),
            apparmor="apparmor" in options,
            rootless="rootless" in options,
            userns="userns" in options,
            controllers=frozenset(name for name, key in controllers.items() if info.get(key) is True),
            runtimes={str(name): _program(entry) for name, entry in runtimes.items()},
            default_runtime=str(info.get("DefaultRuntime") or "runc"),
            kernel=str(info.get("KernelVersion", "")),
            os_type=str(info.get("OSType", "")),
            machine=str(info.get("Architecture", "")),
            live_restore=info.get("LiveRestoreEnabled") is True,
            podman="Podman" in str(info.get("ServerVersion", "")),
        )


def _options(found: Any) -> dict[str, str]:
    """`name=seccomp,profile=default` becomes {"seccomp": "default"}."""
    options = {}
    for line in found if isinstance(found, list) else ():
        pairs = dict(part.partition("=")[::2] for part in str(line).split(","))
        options[pairs.get("name", str(line))] = pairs.get("profile", "")
    return options


def _program(entry: Any) -> str:
    found = entry if isinstance(entry, dict) else {}
    return str(found.get("path") or found.get("runtimeType") or "")


@dataclass(frozen=True)
class Trial:
    """What a box told that was made to see whether one can be made."""

    gvisor: bool
    """Whether its /proc is gVisor's, not the machine's."""
    containment: str
    seccomp: bool
    """Whether the guest can filter user code."""
    separate_uid: bool
    tmp_bytes: int | None
    """Size of /tmp as programs see it."""
    filtered: bool
    """Whether the container's seccomp profile is in force on the guest itself."""
    doors_shut: bool
    """Whether the guest has tried io_uring and the sockets that engines' own profiles let through, in vain."""
    workspace_bytes: int | None = None
    """Size of its workspace as programs see it."""
    quota: Quota = Quota.NONE
    """What holds the workspaces of kept sandboxes."""
    why_no_image: str = ""


@dataclass(frozen=True)
class Verdict:
    reason: str
    remedy: str | None = None


def choose_runtime(facts: EngineFacts, wanted: str | None) -> Runtime | Verdict:
    """The one that is asked for, or the engine's default: never another one."""
    name = wanted or facts.default_runtime
    if name not in facts.runtimes:
        known = ", ".join(sorted(facts.runtimes)) or "none"
        return Verdict(
            f"the Docker engine has no runtime {name!r}; it has {known}",
            "add it to `runtimes` in the engine's daemon.json and restart the engine, or change sandbox.docker_runtime",
        )
    program = posixpath.basename(facts.runtimes[name]) or name
    return Runtime(name, sandboxed_kernel=program.startswith("runsc") or "runsc" in facts.runtimes[name])


def refusal(facts: EngineFacts) -> Verdict | None:
    """Why no box may be made with such an engine; `None`: try it."""
    if facts.os_type != "linux":
        return Verdict(f"the engine runs {facts.os_type or 'unknown'} containers; Station needs Linux ones")
    if facts.machine not in ("x86_64", "amd64", "aarch64", "arm64"):
        return Verdict(f"the engine runs on {facts.machine or 'an unknown machine'}, for which Station has no guest")
    if facts.seccomp is None:
        return Verdict(
            "the engine reports no seccomp, without which no box is confined",
            "use a kernel with CONFIG_SECCOMP_FILTER and an engine built with seccomp",
        )
    return None


def unconfined(runtime: Runtime, trial: Trial) -> Verdict | None:
    """Why no more boxes are made once one has run: its container's profile was not in force; `None`: it was, or the box
    has a kernel of its own, which system calls of the machine's do not reach."""
    if trial.filtered or (runtime.sandboxed_kernel and trial.gvisor):
        return None
    return Verdict(
        f"a box of the runtime {runtime.name} ran without the seccomp profile that it was made with",
        "let the runtime apply seccomp (runc: built with seccomp; Kata: disable_guest_seccomp = false), or choose "
        "another in sandbox.docker_runtime",
    )


def grade_of(runtime: Runtime, *, gvisor: bool) -> Grade:
    """A kernel of its own is believed when the box shows it."""
    return Grade.USER_KERNEL if runtime.sandboxed_kernel and gvisor else Grade.CONTAINER


def capabilities_of(
    facts: EngineFacts,
    runtime: Runtime,
    trial: Trial,
    images: Mapping[str, str],
    *,
    profile: Profile | None = None,
) -> Capabilities:
    """What `probe` answers once a trial box has run. `images`: by runtime, `linux` for none; `profile`: the operator's,
    where there is one."""
    return Capabilities(
        "docker",
        available=True,
        grade=grade_of(runtime, gvisor=trial.gvisor),
        limits=limit_reports(facts, runtime, trial),
        network="none",
        guest_uid=GuestUid.SEPARATE if trial.separate_uid else GuestUid.SHARED,
        containment=trial.containment,
        seccomp=trial.seccomp,
        images=True,
        image=images["linux"],
        runtime_images={name: image for name, image in images.items() if name != "linux"},
        mounts=False,
        powers=("measurable",),
        notes=(*notes(facts, runtime, trial, images["linux"]), *seccomp_notes(runtime, trial, profile)),
    )


def limit_reports(facts: EngineFacts, runtime: Runtime, trial: Trial) -> dict[str, LimitReport]:
    version = f"cgroup v{facts.cgroup_version}"
    # The engine's word for a rootless one: limits need cgroup v2 with systemd, which it tells by these flags.
    help_ = "cgroup v2 with systemd and delegation" if facts.rootless else "an engine with this cgroup controller"
    gvisor = runtime.sandboxed_kernel
    reports = {
        name: LimitReport(Level.ENFORCED, f"{version} {controller}{' of the whole box' if gvisor else ''}")
        if controller in facts.controllers
        else LimitReport(Level.NOT_ENFORCED, f"the engine cannot limit {controller}", help_)
        for name, controller in (("memory_mb", "memory"), ("cpus", "cpu"), ("pids", "pids"))
    }
    if gvisor:
        # Its threads on the machine are counted, not processes inside.
        reports["pids"] = LimitReport(
            Level.NOT_ENFORCED,
            f"gVisor counts threads of its own on the machine, not processes ({GVISOR_HOST_PIDS} for the whole box)",
            "the runtime runc",
        )
    reports["open_files"] = LimitReport(Level.ENFORCED, "RLIMIT_NOFILE, for each process")
    reports["workspace_mb"] = quota.report(trial.quota, trial.why_no_image)
    sizes = LimitReport(Level.ENFORCED, "size of the tmpfs")
    reports |= {"tmp_mb": sizes, "shm_mb": sizes}
    reports["max_file_size_bytes"] = LimitReport(Level.ENFORCED, "RLIMIT_FSIZE")
    return reports


def notes(facts: EngineFacts, runtime: Runtime, trial: Trial, default_image: str) -> tuple[str, ...]:
    """For doctor."""
    engine = "Engine" if facts.podman else "Docker Engine"
    name = f"{engine} {facts.version}, API {facts.api[0]}.{facts.api[1]}, cgroup v{facts.cgroup_version}"
    said = [f"{name}, runtime {runtime.name}{' (gVisor)' if runtime.sandboxed_kernel else ''}, image {default_image}"]
    layers = ["seccomp"] if trial.filtered or trial.seccomp else []
    layers += ["AppArmor"] if facts.apparmor else []
    layers += ["rootless"] if facts.rootless else []
    layers += ["user namespaces"] if facts.userns else []
    said.append("in force: " + (", ".join(layers) or "nothing beyond namespaces and capabilities"))
    if "swap" not in facts.controllers:
        said.append("the kernel does not account swap: memory may be swapped beyond the limit (swapaccount=1)")
    if facts.podman:
        said.append("Podman ends a box with its connection: what runs does not survive its station, files do")
    elif not facts.live_restore:
        said.append('boxes end when the engine restarts; "live-restore": true in its daemon.json keeps them')
    if runtime.sandboxed_kernel and not trial.gvisor:
        said.append(f"the runtime {runtime.name} shows the machine's own kernel: its grade is container")
    return tuple(said)


def seccomp_notes(runtime: Runtime, trial: Trial, profile: Profile | None) -> tuple[str, ...]:
    """Which filter holds whom, as a trial box has shown it."""
    whose = f"the operator's profile {profile.fingerprint[:12]}" if profile else "Station's own profile"
    if trial.filtered:
        said = [f"seccomp: {whose} on everything in a box"]
    else:
        said = [f"seccomp: {whose} is given, but {runtime.name} has a kernel of its own and does not apply it"]
    said[0] += "; the guest's filter on user code" if trial.seccomp else ""
    if not trial.seccomp:
        said.append("the guest cannot filter system calls of user code in this runtime")
    if trial.filtered and not trial.doors_shut:
        help_ = f"leave them out of the file of {SETTING}" if profile else "only the guest's filter keeps user code out"
        said.append(f"io_uring, AF_VSOCK or AF_ALG is open to the guest itself: {help_}")
    return tuple(said)


def for_spec(
    capabilities: Capabilities, spec: Spec, *, image: str | None = None, bound: Bound | None = None
) -> Capabilities:
    """As they hold for one box, with the values, and its image and what bounds its volumes where that is known."""
    effective = spec.effective
    reports = {}
    for name, report in capabilities.limits.items():
        told = report
        if name == "workspace_mb" and spec.ephemeral:
            told = LimitReport(Level.ENFORCED, "size of the tmpfs")
        if name == "max_file_size_bytes" and effective.max_file_size_bytes is None:
            told = LimitReport(Level.NOT_ENFORCED, "not asked for")
        value = getattr(effective, name)
        if name == "workspace_mb" and bound is not None and not spec.ephemeral:
            told, value = quota.report_of(bound, new=report), bound.workspace_mb or value
        reports[name] = replace(told, value=value)
    return replace(capabilities, limits=reports, image=image or capabilities.image, runtime_images={})


def unavailable(reason: str, remedy: str | None = None, *, passing: bool = False, unkept: bool = False) -> Capabilities:
    grade = Grade.CONTAINER
    return Capabilities("docker", False, grade, reason=reason, remedy=remedy, passing=passing, unkept=unkept)
