"""What processes hold, read from /proc: proportional set sizes, so that shared pages count once."""

from __future__ import annotations

import os
from pathlib import Path


def _kib(text: str, key: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(key)), 0)


def pss(pid: int) -> int:
    """Bytes; 0 for a process that is gone or not ours to look at."""
    try:
        return _kib(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss:") * 1024
    except OSError:
        return 0


def _station(home: str | os.PathLike[str]) -> int:
    return int((Path(home) / "station.lock").read_text().split()[0])


def station_pss(home: str | os.PathLike[str]) -> int:
    return pss(_station(home))


def station_rss(home: str | os.PathLike[str]) -> int:
    return _kib(Path(f"/proc/{_station(home)}/status").read_text(), "VmRSS:") * 1024


def available() -> int:
    return _kib(Path("/proc/meminfo").read_text(), "MemAvailable:") * 1024


def boxes_pss(home: str | os.PathLike[str]) -> int:
    """All guests and their bubblewrap monitors, by the names of the boxes' directories in their command lines."""
    names = [path.name for path in (Path(home) / "boxes").glob("*/*")]
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(name in line for name in names):
            total += pss(int(pid))
    return total
