"""The root of an adapter: whose it is, and with which settings its station is to run."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from station.core.placeholders import literal
from station.durable import write_private

from .errors import Code, SandboxError, invalid_state

MARKER = "tenant.json"
SETTINGS = "station.yaml"
_USED = "registry.db"
_NOT_PLAIN = re.compile(r"[^\x00-\x7e]")
_HEAD = "# Written by an adapter of Station from its options, with the SHA-256 of the rest: "


def prepare(root: Path, tenant_id: str | None) -> None:
    """The root is there, this user's alone, and bound to that tenant (or, without one, to none).

    Raises SandboxError (`invalid_state`) where it is another's, where it was used before without a marker, and where
    its marker cannot be read: nothing was asked of any engine then, and no station was started.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.stat()
        if found.st_uid != os.geteuid():
            raise invalid_state(f"{root} belongs to the user with uid {found.st_uid}, this is uid {os.geteuid()}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            root.chmod(0o700)
        _check_marker(root, tenant_id)
    except OSError as error:
        raise SandboxError(Code.STORAGE_ERROR, f"{root} cannot be used: {error.strerror}") from error


def check_tenant(root: Path, tenant_id: str | None) -> None:
    """To be called once the root is used: it is that tenant's from now on. Raises as `prepare`: until it was used,
    another program may have bound it."""
    try:
        _check_marker(root, tenant_id)
    except OSError as error:
        raise SandboxError(Code.STORAGE_ERROR, f"{root} cannot be used: {error.strerror}") from error


def _check_marker(root: Path, tenant_id: str | None) -> None:
    """Two programs that look at once would each see what the other is about to change."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _check_locked(root, tenant_id)
    finally:
        os.close(descriptor)


def _check_locked(root: Path, tenant_id: str | None) -> None:
    marker, used = root / MARKER, (root / _USED).exists()
    wanted = json.dumps({"tenant": tenant_id}) + "\n"
    if not marker.exists():
        if used:
            raise invalid_state(
                f"{root} was used, and has no {MARKER}: it was never bound, or its marker was lost. Choose an empty "
                "root_dir, or put the marker back from a backup"
            )
        write_private(marker, wanted.encode(), replace=False)
    bound = _bound(marker)
    if bound is None and tenant_id is not None and not used:
        write_private(marker, wanted.encode())
        bound = tenant_id
    if bound != tenant_id:
        raise invalid_state(f"{root} is bound to {_who(bound)}, this adapter to {_who(tenant_id)}")


def _bound(marker: Path) -> str | None:
    try:
        found = json.loads(marker.read_bytes())
        bound = found["tenant"]
    except (ValueError, KeyError, TypeError):
        found, bound = None, 0
    if not isinstance(found, dict) or set(found) != {"tenant"} or not isinstance(bound, str | None):
        raise invalid_state(f"{marker} cannot be read; put it back from a backup")
    return bound


def _who(tenant_id: str | None) -> str:
    return "no tenant" if tenant_id is None else f"the tenant {tenant_id}"


def write_settings(root: Path, document: Mapping[str, Any]) -> str:
    """The settings file says `document` when this returns; the SHA-256 of its bytes.

    Raises SandboxError (`invalid_state`), and has changed nothing, where somebody else has written a file that says
    otherwise.
    """
    path = root / SETTINGS
    body = _text_of(_literal(document))
    text = f"{_HEAD}{_digest(body)}\n{body}"
    try:
        there = path.read_text(encoding="utf-8") if path.exists() else None
        if there is not None and there != text and not _is_ours(there):
            if _parsed(there) != _parsed(text):
                raise invalid_state(
                    f"{path} was written by somebody else and says otherwise than the options of this adapter; it was "
                    "left alone. Choose another root_dir, or remove the file"
                )
            text = there
        if there != text:
            write_private(path, text.encode())
    except UnicodeDecodeError as error:
        raise invalid_state(f"{path} is no text; it was left alone") from error
    except OSError as error:
        raise SandboxError(Code.STORAGE_ERROR, f"{path} cannot be written: {error.strerror}") from error
    return _digest(text)


def _is_ours(text: str) -> bool:
    """Whether an adapter has written it, and nobody has changed it since."""
    head, _, body = text.partition("\n")
    return head == f"{_HEAD}{_digest(body)}"


def _parsed(text: str) -> Any:
    with suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return None


def _text_of(document: Any) -> str:
    """JSON that is YAML too: which reads no pair of surrogates as one character, and takes some that JSON leaves as
    they are for the end of a line."""
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return _NOT_PLAIN.sub(lambda found: f"\\U{ord(found[0]):08x}", text)


def _literal(value: Any) -> Any:
    """As a station must read it to get `value`: nothing of it is a variable."""
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_literal(item) for item in value]
    return literal(value) if isinstance(value, str) else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
