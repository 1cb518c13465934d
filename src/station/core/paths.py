"""Paths inside a sandbox, and how a name that is not text travels.

Names are bytes. In Python they are `str` with surrogate escapes (`os.fsdecode`); on the wire they are percent-coded.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from .errors import InvalidInput, PathRefused

WORKSPACE = "/workspace"
HOME = "/home/node"
HOME_WORKSPACE = f"{HOME}/workspace"
"""The other name of the workspace."""
TMP = "/tmp"  # noqa: S108 - the sandbox's own, not this machine's
ROOTS = (WORKSPACE, HOME, TMP)
MAX_PATH_BYTES = 4096
MAX_COMPONENT_BYTES = 255


@dataclass(frozen=True)
class SandboxPath:
    """A checked place inside a sandbox: one of the roots, and a relative path below it without `..`."""

    root: str
    relative: str
    """`.` is the root itself."""

    @property
    def absolute(self) -> str:
        return self.root if self.relative == "." else f"{self.root}/{self.relative}"

    @property
    def is_root(self) -> bool:
        return self.relative == "."


def resolve(path: str, *, cwd: str = WORKSPACE) -> SandboxPath:
    """The place that `path` names, before links are looked at (the guest refuses those that lead out).

    An absolute path means itself, a relative one is below `cwd`; `workspace/a` and `/workspace/a` are one file, and so
    is `/home/node/workspace/a`. Raises InvalidInput for NUL or too long names, PathRefused outside the roots.
    """
    if "\0" in path:
        raise InvalidInput("a path must not contain NUL", field="path")
    if path in ("workspace", "workspace/") or path.startswith("workspace/"):
        path = "/" + path
    absolute = posixpath.normpath(posixpath.join(cwd, path))
    absolute = "/" + absolute.lstrip("/")
    if absolute == HOME_WORKSPACE or absolute.startswith(f"{HOME_WORKSPACE}/"):
        absolute = WORKSPACE + absolute[len(HOME_WORKSPACE) :]
    _check_lengths(absolute)
    for root in ROOTS:
        if absolute == root:
            return SandboxPath(root, ".")
        if absolute.startswith(root + "/"):
            return SandboxPath(root, absolute[len(root) + 1 :])
    raise PathRefused(
        f"{encode_name(path)} is outside {WORKSPACE}, {HOME} and {TMP}; the file tools work only below these "
        "(a command may read the rest)",
        path=encode_name(path),
    )


def _check_lengths(absolute: str) -> None:
    raw = absolute.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_PATH_BYTES:
        raise InvalidInput(f"a path has at most {MAX_PATH_BYTES} bytes; this one has {len(raw)}", field="path")
    longest = max(len(part) for part in raw.split(b"/"))
    if longest > MAX_COMPONENT_BYTES:
        raise InvalidInput(
            f"a file name has at most {MAX_COMPONENT_BYTES} bytes; one of this path has {longest}", field="path"
        )


def link_leads_out(target: str, depth: int) -> bool:
    """Whether a link in a directory `depth` levels below the top of a tree may lead out of it: an absolute one, and one
    that climbs too far. The guest has the same rule for relative ones (`link_is_let_in` in guest/src/path.c)."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    # A `..` after a name could climb out of a link of that name; at the front it is counted from real directories.
    return target.startswith("/") or ups > depth or ".." in parts[ups:]


_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f%\ud800-\udfff]+")


def encode_name(name: str) -> str:
    """`name` for the wire and for people: text stays as it is; `%`, control characters and bytes that are no UTF-8
    become `%XX`. `decode_name` is the way back, byte for byte."""
    return _ODD.sub(lambda odd: "".join(f"%{byte:02X}" for byte in odd[0].encode("utf-8", "surrogateescape")), name)


def decode_name(text: str) -> str:
    """The name that `encode_name` made `text` from."""
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape") if "%" in text else text
