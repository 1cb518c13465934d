"""Files of the store: their keys, how long they stay, and what is told of them. Pure; the bodies are in `store`."""

from __future__ import annotations

import mimetypes
import re
from dataclasses import dataclass, field

from .errors import InvalidInput
from .spec import FORBID_EXTRA

FILES, RUNS, SESSIONS = "files/", "runs/", "sessions/"
PREFIXES = (FILES, RUNS, SESSIONS)
"""Uploads of users, until deleted; outputs of runs, for seven days; what belongs to a sandbox, gone with it."""
RUN_OUTPUT_SECONDS = 7 * 86400.0
MAX_KEY_BYTES = 1024
_MAX_SEGMENT_BYTES = 255
UPLOAD_BYTES = 4 * 1024 * 1024
"""How much one request of a resumable upload carries at most; each such piece is checked by its own digest."""
MAX_TTL_SECONDS = 10 * 365 * 86400.0
MAX_FILES = 100_000
"""Of one store: their names and metadata take room that no quota of bytes counts."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")
_TYPES = {".yaml": "application/yaml", ".yml": "application/yaml", ".py": "text/x-python"}
OCTETS = "application/octet-stream"


@dataclass(frozen=True)
class StoredFile:
    """What is known of one file of the store; its wire shape too."""

    __pydantic_config__ = FORBID_EXTRA

    key: str
    size: int
    content_type: str
    checksum: str
    """SHA-256 of the content, hex."""
    created_at: float
    """Of this content: a key that is written again has a new one. Seconds since the epoch."""
    expires_at: float | None = None
    """`None`: stays until it is deleted, or until its sandbox is."""
    metadata: dict[str, str] = field(default_factory=dict)
    """`original_filename` of uploads; `original_path`, `sandbox_id` of what a sandbox published."""


@dataclass(frozen=True)
class FileListing:
    """GET /files."""

    files: list[StoredFile]
    count: int
    """Of these."""
    next: str | None = None
    """Give it as `after` to go on; `None`: that was all."""


@dataclass(frozen=True)
class UploadRequest:
    """POST /uploads: a file that comes in pieces."""

    __pydantic_config__ = FORBID_EXTRA

    size: int
    checksum: str
    """SHA-256 of the whole, hex."""
    key: str | None = None
    """`None`: `files/` and a new id."""
    ttl: str | None = None
    content_type: str | None = None
    """`None`: by the end of `filename`, else of the key."""
    filename: str | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidInput(f"size must not be below zero; it is {self.size}", field="size")


@dataclass(frozen=True)
class StageRequest:
    """POST /sandboxes/{id}/stage: from the store into a sandbox."""

    __pydantic_config__ = FORBID_EXTRA

    key: str
    destination: str
    """Percent-coded (`core.paths`). Relative: below /workspace. Its parents are made."""
    mode: str = "644"
    """Octal permission bits."""
    overwrite: bool = True
    own: bool = False
    """As code of an agent asks: of `sessions/` only what is this sandbox's."""

    def mode_bits(self) -> int:
        """Raises InvalidInput for what is no octal number from 0 to 777."""
        if not re.fullmatch(r"0?[0-7]{1,3}", self.mode):
            raise InvalidInput(f"mode is octal permission bits from 0 to 777, not {self.mode[:40]!r}", field="mode")
        return int(self.mode, 8)


@dataclass(frozen=True)
class PublishRequest:
    """POST /sandboxes/{id}/publish: from a sandbox into the store."""

    __pydantic_config__ = FORBID_EXTRA

    source: str
    """Percent-coded (`core.paths`). Relative: below /workspace."""
    key: str | None = None
    """`None`: `files/` and a new id."""
    ttl: str | None = None
    content_type: str | None = None
    """`None`: by the end of `source`."""
    own: bool = False
    """As code of an agent asks: of `sessions/` only what is this sandbox's, nothing into `runs/`, and over no file that
    this sandbox has not published itself."""


@dataclass(frozen=True)
class Staged:
    """What was brought into a sandbox."""

    path: str
    """Absolute in the sandbox, percent-coded."""
    size: int
    checksum: str
    created: bool
    """False: it replaced something."""


@dataclass(frozen=True)
class Upload:
    """One that has begun."""

    id: str
    key: str
    size: int
    checksum: str
    offset: int = 0
    """How much has come: the next piece begins there."""


def check_key(text: str) -> str:
    """The key that `text` means: without a leading slash, below `files/` where it names no other place.

    `f_01J…`, `files/f_01J…` and `/files/f_01J…` are one. Raises InvalidInput for what can be none: empty, over 1,024
    bytes, a segment that is empty, `.`, `..` or over 255 bytes, a control character, no UTF-8.
    """
    key = text.removeprefix("/")
    if not key.startswith(PREFIXES):
        key = FILES + key
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput("a file key must be valid UTF-8", field="key") from error
    if size > MAX_KEY_BYTES:
        raise InvalidInput(f"a file key has at most {MAX_KEY_BYTES} bytes; this one has {size}", field="key")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in key):
        raise InvalidInput("a file key must not contain control characters", field="key")
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidInput(
                f"{text[:80]!r} is no file key: it has segments between slashes, none of them empty, '.' or '..'",
                field="key",
            )
        if len(segment.encode()) > _MAX_SEGMENT_BYTES:
            raise InvalidInput(f"a segment of a file key has at most {_MAX_SEGMENT_BYTES} bytes", field="key")
    return key


def check_prefix(text: str) -> str:
    """A prefix to list by: empty for all, the beginning of a place (`sess`) is that place, else as `check_key` reads
    it, but it may end within a segment."""
    if not text.strip("/"):
        return ""
    if place := next((place for place in PREFIXES if place.startswith(text.removeprefix("/"))), None):
        return place
    return check_key(text.removesuffix("/")) + ("/" if text.endswith("/") else "")


def session_prefix(uid: str) -> str:
    """Where the files of one sandbox are; they go when it is deleted."""
    return f"{SESSIONS}{uid}/"


def expires_at(key: str, now: float, ttl_seconds: float | None) -> float | None:
    """When a file that is stored now is to go; `ttl_seconds` goes before what its place says."""
    if ttl_seconds is not None:
        return now + ttl_seconds
    return now + RUN_OUTPUT_SECONDS if key.startswith(RUNS) else None


def parse_ttl(text: str) -> float:
    """Seconds of `90s`, `15m`, `12h`, `7d`, `2w`. Raises InvalidInput for anything else, and for none at all."""
    found = _DURATION.fullmatch(text.strip())
    if not found or not int(found[1]):
        raise InvalidInput(f"{text[:40]!r} is no time to live; it looks like 90s, 15m, 12h, 7d or 2w", field="ttl")
    if (seconds := int(found[1]) * _UNITS[found[2]]) > MAX_TTL_SECONDS:
        raise InvalidInput("a time to live is at most ten years; leave it out for ever", field="ttl")
    return seconds


def check_content_type(text: str) -> str:
    """Raises InvalidInput for what is no media type: it becomes a header."""
    if len(text) > 255 or not re.fullmatch(r"[\w.+-]+/[\w.+-]+(; ?[\w.-]+=[\w.+-]+)*", text, re.ASCII):
        raise InvalidInput(f"{text[:80]!r} is no content type; it looks like text/csv", field="content_type")
    return text


def content_type_of(name: str) -> str:
    """By the end of a name; `application/octet-stream` where that says nothing."""
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    return _TYPES.get(suffix) or mimetypes.guess_type(f"x{suffix}", strict=True)[0] or OCTETS


def file_name(text: str) -> str:
    """The last part of a path that a client gave, as a hint for whoever downloads: what cannot be shown, or is no
    UTF-8, reads `_`; at most 255 bytes."""
    name = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "_" for c in text.rpartition("/")[2])
    while len(name.encode()) > _MAX_SEGMENT_BYTES:
        name = name[:-1]
    return name


def is_own(key: str, *sandbox_ids: str) -> bool:
    """Whether a sandbox may have it: all but `sessions/` of another one."""
    return not key.startswith(SESSIONS) or key.split("/")[1] in sandbox_ids
