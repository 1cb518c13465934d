"""Ids and names. Ids are opaque on input; a name never becomes a path, host or label."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

from .errors import InvalidInput

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
MAX_NAME_BYTES = 256
_UID = re.compile(r"[a-z2-7]{52}")
_PROCESS_ID = re.compile(r"prc_[A-Za-z0-9_-]{1,64}")
_TOOL_ID = re.compile(rf"ses_[{_CROCKFORD}]{{26}}")


def new_id(prefix: str, now: float) -> str:
    """`prefix_` and a ULID: 48 bits of `now` (seconds since the epoch), 80 random bits."""
    value = (int(now * 1000) & (1 << 48) - 1) << 80 | secrets.randbits(80)
    text = "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -5, -5))
    return f"{prefix}_{text}"


def new_tool_id(now: float) -> str:
    """The id of one life of a sandbox (`SandboxRecord.tool_id`)."""
    return new_id("ses", now)


def check_name(name: str) -> str:
    """`name` itself, if it may name a sandbox: 1 to 256 bytes of UTF-8, no control character, no blank at either end.

    Raises InvalidInput otherwise. Names are compared byte by byte, never folded.
    """
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("a sandbox name must be valid UTF-8", field="name") from error
    if not 1 <= len(raw) <= MAX_NAME_BYTES:
        raise InvalidInput(f"a sandbox name has 1 to {MAX_NAME_BYTES} bytes; this one has {len(raw)}", field="name")
    if name != name.strip():
        raise InvalidInput("a sandbox name must not begin or end with a blank", field="name")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        raise InvalidInput("a sandbox name must not contain control characters", field="name")
    return name


def is_uid(text: str) -> bool:
    """Whether it has the shape of a wire uid."""
    return _UID.fullmatch(text) is not None


def is_tool_id(text: str) -> bool:
    """Whether it has the shape of the id of one life of a sandbox (`SandboxRecord.tool_id`)."""
    return _TOOL_ID.fullmatch(text) is not None


def is_process_id(text: str) -> bool:
    """Whether it may name a process: `prc_` and up to 64 letters, digits, `_` or `-`."""
    return _PROCESS_ID.fullmatch(text) is not None


def uid_of(deployment: str, name: str) -> str:
    """The wire uid of `(deployment, name)`: the same for ever, and fit for a path."""
    digest = hashlib.sha256(deployment.encode() + b"\0" + name.encode()).digest()
    return base64.b32encode(digest).decode().rstrip("=").lower()
