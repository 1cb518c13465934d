"""What an attack on the kernel would change outside: looked at from the host, before and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostState:
    mounts: tuple[str, ...]
    settings: dict[str, str]
    network: dict[str, str]
    clock: float
    """Wall clock minus monotonic clock."""

    @classmethod
    def look(cls) -> HostState:
        files = ("core_pattern", "hostname", "sysrq", "modprobe", "domainname")
        settings = {name: _text(Path("/proc/sys/kernel", name)) for name in files}
        settings |= {name: _text(Path("/proc", name)) for name in ("swaps", "modules")}
        return cls(
            tuple(sorted(line.split()[4] for line in _text(Path("/proc/self/mountinfo")).splitlines())),
            settings,
            {path.name: _text(path / "flags") for path in Path("/sys/class/net").iterdir()},
            time.time() - time.monotonic(),
        )

    def changed(self, before: HostState) -> list[str]:
        """Names of what differs. Mounts of boxes come and go by themselves and are not of anybody's program."""
        found = [name for name, value in self.settings.items() if before.settings[name] != value]
        found += [f"network {name}" for name, flags in self.network.items() if before.network.get(name, flags) != flags]
        gone = [place for place in before.mounts if place not in self.mounts and not _of_a_box(place)]
        new = [place for place in self.mounts if place not in before.mounts and not _of_a_box(place)]
        found += [f"mount {place}" for place in (*gone, *new)]
        if abs(self.clock - before.clock) > 0.5:
            found.append("clock")
        return found


def _of_a_box(place: str) -> bool:
    return any(word in place for word in ("/overlay2/", "/containers/", "/netns/", "/boxes/", "/sandboxes/"))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
