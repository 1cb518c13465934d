"""Which limit holds, by what, and what is refused: pure functions of what was found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from station.core.capabilities import Capabilities, Level, LimitReport
from station.core.errors import CannotEnforce
from station.core.spec import Spec

GUEST_SPARE_PIDS = 32
"""What the guest may have beyond user code, so that a full box can still be told to stop."""


_DELEGATE = "run the station as root, or under `systemd-run --user --scope -p Delegate=yes`"


def limit_reports(cgroups: Mapping[str, int | None], *, nproc_is_per_box: bool) -> dict[str, LimitReport]:
    """`cgroups`: by controller the version that has it, or `None`."""
    return {
        "memory_mb": _memory(cgroups.get("memory")),
        "cpus": _cpus(cgroups.get("cpu")),
        "pids": _pids(cgroups.get("pids"), nproc_is_per_box),
        "open_files": LimitReport(Level.ENFORCED, "RLIMIT_NOFILE, for each process"),
        "workspace_mb": LimitReport(
            Level.NOT_ENFORCED, "the workspace of a kept sandbox is a plain directory of this machine's disk"
        ),
        "tmp_mb": LimitReport(Level.ENFORCED, "size of the tmpfs"),
        "shm_mb": LimitReport(Level.ENFORCED, "size of the tmpfs"),
        "max_file_size_bytes": LimitReport(Level.ENFORCED, "RLIMIT_FSIZE"),
    }


def _memory(version: int | None) -> LimitReport:
    if version is not None:
        return LimitReport(Level.ENFORCED, f"cgroup v{version} memory")
    return LimitReport(Level.WATCHED, "no memory cgroup may be made here; the station looks now and then", _DELEGATE)


def _cpus(version: int | None) -> LimitReport:
    if version is not None:
        return LimitReport(Level.ENFORCED, f"cgroup v{version} cpu")
    return LimitReport(Level.NOT_ENFORCED, "no cpu cgroup may be made here", _DELEGATE)


def _pids(version: int | None, nproc_is_per_box: bool) -> LimitReport:
    if nproc_is_per_box:
        return LimitReport(Level.ENFORCED, "RLIMIT_NPROC in the box's own user namespace")
    if version is not None:
        return LimitReport(Level.ENFORCED, f"cgroup v{version} pids")
    return LimitReport(Level.NOT_ENFORCED, "this kernel counts processes by user only", "a kernel of 5.14 or later")


def for_spec(capabilities: Capabilities, spec: Spec, *, in_memory: bool = True) -> Capabilities:
    """As they hold for a box of that spec, with the values. `in_memory`: ephemeral files are on a sized tmpfs."""
    effective = spec.effective
    reports = {}
    for name, report in capabilities.limits.items():
        value = getattr(effective, name)
        reports[name] = replace(_of_spec(name, report, spec, in_memory=in_memory), value=value)
    return replace(capabilities, limits=reports)


def _of_spec(name: str, report: LimitReport, spec: Spec, *, in_memory: bool) -> LimitReport:
    if name == "workspace_mb" and spec.ephemeral and spec.mount is None and in_memory:
        return LimitReport(Level.ENFORCED, "size of the tmpfs")
    if name == "max_file_size_bytes" and spec.effective.max_file_size_bytes is None:
        return LimitReport(Level.NOT_ENFORCED, "not asked for")
    if name == "pids" and report.level is Level.ENFORCED:
        return replace(report, by=f"{report.by} (the guest itself has {GUEST_SPARE_PIDS} more)")
    return report


def refuse_unenforced(capabilities: Capabilities, spec: Spec, *, in_memory: bool = True) -> None:
    """Raises CannotEnforce for the first named limit that would not hold, unless best effort is accepted."""
    refuse_named(for_spec(capabilities, spec, in_memory=in_memory), spec)


def refuse_named(capabilities: Capabilities, spec: Spec) -> None:
    """The same by what is told of a box of that very spec."""
    if spec.best_effort:
        return
    for name in spec.limits.named():
        report = capabilities.limits[name]
        if report.level is not Level.ENFORCED:
            help_ = f"; {report.remedy}" if report.remedy else ""
            raise CannotEnforce(
                f"limits.{name} cannot be enforced by {capabilities.backend} here: {report.by}{help_}; "
                "best_effort: true accepts that",
                limit=name,
                backend=capabilities.backend,
                level=report.level.value,
            )


def refuse_unknown_here(capabilities: Capabilities, spec: Spec) -> None:
    """Raises CannotEnforce for an image or a network that this backend has not."""
    if spec.image is not None and not capabilities.images:
        raise CannotEnforce(
            f"{capabilities.backend} runs programs of this machine's /usr and knows no images; "
            "leave the image out, or take backend: docker, which runs them",
            image=spec.image,
            alternative="docker",
        )
    if spec.network != capabilities.network:
        raise CannotEnforce(
            f"{capabilities.backend} gives the network {capabilities.network!r} alone; {spec.network!r} comes with a "
            "later version",
            network=spec.network,
        )
