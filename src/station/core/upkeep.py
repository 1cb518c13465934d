"""What takes room on a station's disk, and what of it may go: the answers of its upkeep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One kind of thing."""

    what: str
    items: int
    bytes: int
    """Of the disk."""


@dataclass(frozen=True)
class SandboxRoom:
    """What one sandbox takes."""

    id: str
    name: str
    backend: str
    files_bytes: int | None
    """Home and workspace. `None`: they are with an engine, which is not asked."""
    output_bytes: int
    """Of its commands, those that ended and are kept among them."""


@dataclass(frozen=True)
class UsageView:
    """GET /usage."""

    home: str
    disk_bytes: int
    """Of the file system that the state directory is in."""
    free_bytes: int
    total_bytes: int
    """Of the state directory."""
    parts: tuple[Part, ...]
    """All of the state directory by kind: sandboxes, output, boxes, files, uploads, records, logs, other."""
    sandboxes: tuple[SandboxRoom, ...]
    """The largest first."""


@dataclass(frozen=True)
class PruneView:
    """POST /prune."""

    dry_run: bool
    """Whether nothing was removed: this is what would be."""
    bytes: int
    parts: tuple[Part, ...]
    """Kinds of which there is something."""
