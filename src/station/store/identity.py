"""The id of a station, made once and kept in its state directory: boxes carry it as a label."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from station.core.errors import Unavailable


def station_id(home: Path) -> str:
    """The id in `<home>/station_id`; made, durably, where there is none. Raises Unavailable for a file that holds no
    id: a new one would orphan every box."""
    path = home / "station_id"
    if not path.exists():
        _write_durably(path, f"st-{secrets.token_hex(8)}\n")
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch(r"st-[0-9a-f]{16}", text):
        raise Unavailable(
            f"{path} holds no station id; restore it, or remove it if no sandbox matters", retryable=False
        )
    return text


def _write_durably(path: Path, text: str) -> None:
    temporary = path.with_name(f".stn-{secrets.token_hex(6)}")
    with temporary.open("x", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
