"""The id of a station, made once and kept in its state directory: boxes carry it as a label."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from station.core.errors import Unavailable
from station.durable import write_private


def station_id(home: Path) -> str:
    """The id in `<home>/station_id`; made, durably, where there is none. Raises Unavailable for a file that holds no
    id: a new one would orphan every box."""
    path = home / "station_id"
    if not path.exists():
        write_private(path, f"st-{secrets.token_hex(8)}\n".encode())
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch(r"st-[0-9a-f]{16}", text):
        raise Unavailable(
            f"{path} holds no station id; restore it, or remove it if no sandbox matters", retryable=False
        )
    return text
