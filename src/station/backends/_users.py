"""Who a box is on this machine: never root, and where possible two users, so that code cannot touch its guest."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from station.core.capabilities import GuestUid

SPARE_FIRST, SPARE_LAST = 60_578, 61_183
"""No distribution gives these to anybody (systemd's own table of ids), and a container's namespace still has them."""


@dataclass(frozen=True)
class Users:
    """The user of a box's code, outside, and of its guest."""

    user: int
    group: int
    become: bool
    """Whether the launcher must become them first: the station is root."""
    guest_user: int | None = None
    """`None`: the guest is the same user."""
    guest_group: int | None = None

    @property
    def guest_uid(self) -> GuestUid:
        return GuestUid.SHARED if self.guest_user is None else GuestUid.SEPARATE


@dataclass(frozen=True)
class UserFacts:
    uid: int
    gid: int
    names: frozenset[str]
    """Ours, as /etc/subuid may know us: name and number."""
    map_tools: bool
    """newuidmap and newgidmap are installed."""
    subuid: str = ""
    subgid: str = ""
    taken: frozenset[int] = frozenset()
    """Ids of /etc/passwd and /etc/group."""


def look() -> UserFacts:
    uid = os.geteuid()
    names = {str(uid)}
    with suppress(KeyError):  # a number without a name, as in many containers
        names.add(pwd.getpwuid(uid).pw_name)
    return UserFacts(
        uid,
        os.getegid(),
        frozenset(names),
        map_tools=all(shutil.which(tool) for tool in ("newuidmap", "newgidmap")),
        subuid=_read("/etc/subuid"),
        subgid=_read("/etc/subgid"),
        taken=frozenset(_ids("/etc/passwd")) | frozenset(_ids("/etc/group")),
    )


def choose(facts: UserFacts, spare: int | None = None) -> Users:
    """Pure. As root: `spare` or the first pair of ids that nobody has, whatever; else ourselves, and for the guest the
    last of our subordinate ids (the first is likely a container's). Raises LookupError if no spare id is free."""
    if facts.uid == 0:
        first = _free_pair(facts) if spare is None else spare
        return Users(first, first, become=True, guest_user=first + 1, guest_group=first + 1)
    user = last_of(facts.subuid, facts.names)
    group = last_of(facts.subgid, facts.names)
    if facts.map_tools and user is not None and group is not None:
        return Users(facts.uid, facts.gid, become=False, guest_user=user, guest_group=group)
    return Users(facts.uid, facts.gid, become=False)


def last_of(table: str, names: Iterable[str]) -> int | None:
    """The last id of the first range of us in /etc/subuid or /etc/subgid."""
    for start, count, who in ranges(table):
        if who in set(names):
            return start + count - 1
    return None


def ranges(table: str) -> Iterable[tuple[int, int, str]]:
    for line in table.splitlines():
        who, _, rest = line.partition(":")
        start, _, count = rest.partition(":")
        if start.isdigit() and count.isdigit() and int(count) > 0:
            yield int(start), int(count), who


def _free_pair(facts: UserFacts) -> int:
    tables = (facts.subuid, facts.subgid)
    subordinate = [(start, start + count) for table in tables for start, count, _ in ranges(table)]
    for first in range(SPARE_FIRST, SPARE_LAST, 2):
        pair = (first, first + 1)
        if not any(i in facts.taken or any(low <= i < high for low, high in subordinate) for i in pair):
            return first
    raise LookupError(f"no two free user ids between {SPARE_FIRST} and {SPARE_LAST}; name one by the setting spare_uid")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _ids(path: str) -> Iterable[int]:
    for line in _read(path).splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdigit():
            yield int(fields[2])
