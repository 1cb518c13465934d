"""What bounds the home and the workspace of a kept sandbox: pure functions. The reasons are in docs/decisions/0019."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from station.core.capabilities import Level, LimitReport
from station.core.paths import HOME

SETTING = "sandbox.docker_workspace_quota"
TURNED_OFF = f"{SETTING} is off"
_NO_QUOTA = "the workspace of a kept sandbox is a volume on the engine's disk, which has no quota"
LEAST_HOME_MB = 1024
"""As an ephemeral box has: package managers put more there than into a small workspace."""
FILES_PER_MB = 128
_LEAST_FILES = 1024
_INODE_BYTES = 256
_SMALL_MB = 16
_MIB = 1 << 20
_LABEL = "station.quota"
_MOUNTED = "nosuid,nodev"


class QuotaMode(StrEnum):
    """What the operator wants."""

    AUTO = "auto"
    OFF = "off"


class Quota(StrEnum):
    """What holds a volume within its size."""

    NONE = "none"
    PROJECT = "project"
    """The engine's own, where its file system has project quotas."""
    IMAGE = "image"
    """The volume is a file system of its own, in a file of the station's."""


@dataclass(frozen=True)
class Bound:
    """Of one sandbox, decided for its first box and kept: written into the labels of its volumes."""

    quota: Quota = Quota.NONE
    workspace_mb: int = 0

    @property
    def home_mb(self) -> int:
        return max(self.workspace_mb, LEAST_HOME_MB)

    def size_of(self, place: str) -> int:
        """In MiB."""
        return self.home_mb if place == HOME else self.workspace_mb

    @property
    def labels(self) -> dict[str, str]:
        return {} if self.quota is Quota.NONE else {_LABEL: f"{self.quota}:{self.workspace_mb}"}

    def options(self, place: str, device: str) -> dict[str, str]:
        """Of the engine's volume driver. `device`: the path under which the engine finds the image of the place."""
        if self.quota is Quota.IMAGE:
            return {"type": "ext4", "o": _MOUNTED, "device": device}
        return {"size": f"{self.size_of(place)}m"} if self.quota is Quota.PROJECT else {}


def bound_of(labels: Mapping[str, str]) -> Bound:
    """What the volumes with these labels were made with; nothing bounds those without ours."""
    word, _, size = labels.get(_LABEL, "").partition(":")
    if word in set(Quota) and size.isascii() and size.isdigit():
        return Bound(Quota(word), int(size))
    return Bound()


def files_for(size_mb: int) -> int:
    return max(_LEAST_FILES, size_mb * FILES_PER_MB)


def image_bytes(size_mb: int) -> int:
    """Of an image that has not more than `size_mb` for files, and little less, beside its own tables."""
    return (size_mb + _journal_mb(size_mb)) * _MIB + files_for(size_mb) * _INODE_BYTES


def _journal_mb(size_mb: int) -> int:
    """A journal has at least 1024 blocks."""
    return 1 if size_mb < _SMALL_MB else 4


def mkfs_arguments(size_mb: int) -> list[str]:
    """Without the program and the file. The tables are written now, as holes: a kernel that did it later would fill
    the disk with zeros."""
    return [
        "-q", "-F", "-b", "1024" if size_mb < _SMALL_MB else "4096", "-m", "0", "-I", f"{_INODE_BYTES}",
        "-N", f"{files_for(size_mb)}", "-e", "remount-ro", "-J", f"size={_journal_mb(size_mb)}",
        "-O", "has_journal,^resize_inode", "-E", "lazy_itable_init=0,lazy_journal_init=1",
    ]  # fmt: skip


def report(quota: Quota, why_no_image: str) -> LimitReport:
    """Of `workspace_mb`, for sandboxes that are made now."""
    if quota is Quota.PROJECT:
        return LimitReport(Level.ENFORCED, "project quota of the engine's volume")
    if quota is Quota.IMAGE:
        return LimitReport(Level.ENFORCED, "size of an ext4 image")
    why = f"; {why_no_image}" if why_no_image else ""
    if why_no_image == TURNED_OFF:
        return LimitReport(Level.NOT_ENFORCED, f"{_NO_QUOTA}{why}", f"{SETTING}: auto")
    return LimitReport(
        Level.NOT_ENFORCED,
        f"{_NO_QUOTA}{why}",
        "run the station as root beside the engine, with e2fsprogs and loop devices, or put the engine's data on XFS "
        "mounted with pquota",
    )


def report_of(bound: Bound, *, new: LimitReport) -> LimitReport:
    """Of one sandbox, where `new` ones have that."""
    if bound.quota is not Quota.NONE:
        return report(bound.quota, "")
    if new.level is not Level.ENFORCED:
        return new
    return LimitReport(
        Level.NOT_ENFORCED, "the volumes of this sandbox were made without a quota", "open a new sandbox, and copy over"
    )
