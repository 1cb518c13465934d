"""The attacks that Station is tried with: what each does, where it is guaranteed to come to nothing, and what a try of
the attack program means there.

A target is a way of confining code: a backend, or a runtime of one. A case that is not guaranteed on a target is only
reported there.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

ALL = ("bubblewrap", "docker", "gvisor", "host")
CONFINED = ("bubblewrap", "docker", "gvisor")
OWN_LIMITS = ("bubblewrap", "docker")
"""Where the kernel of this machine counts for each box."""
ENGINE = ("docker", "gvisor")


@dataclass(frozen=True)
class Case:
    """One attack of the suite."""

    tried: str
    """One sentence: what code in a sandbox, or a caller of the API, does."""
    guaranteed: tuple[str, ...]
    """The targets on which it comes to nothing. Where parts of a case differ, the larger set."""
    later: str | None = None
    """What Station must have before the rest can be tried; None: nothing is missing."""
    nothing_yet: bool = False
    """Whether nothing of it is tried, where `later` is not None."""


_F13 = "a case on every backend; the tests of the file store try it on the default one"

# fmt: off
CASES: dict[str, Case] = {
    "R01": Case("A process forks for ever.", OWN_LIMITS),
    "R02": Case("A command touches four times the memory that it may have.", OWN_LIMITS),
    "R03": Case("Every file system and shared memory that can be written is filled.", CONFINED),
    "R04": Case("A million empty files are made and listed.", ALL),
    "R05": Case("A command writes output without an end.", ALL),
    "R06": Case("Output is written past Station: to the output of PID 1, to the console.", CONFINED),
    "R07": Case("A command reads its input for ever.", ALL),
    "R08": Case("A daemon forks twice, starts a session of its own and stays behind.", ALL),
    "R09": Case("A command ignores every signal that it can, beyond its time-out.", ALL),
    "R10": Case("A daemon hides behind another name, an empty environment and a session of its own.", ALL),
    "R11": Case("Ten thousand children end, and nobody waits for them.", OWN_LIMITS),
    "R12": Case("A process opens descriptors, sockets and file watches until none is left.", ALL),
    "R13": Case("A command computes on all processors at once.", ENGINE),
    "R14": Case("Code ends or stops everything that it may signal.", CONFINED),
    "R15": Case("A child in the background keeps the output of its command open.", ALL),
    "R16": Case("The first thread of a process ends and another goes on.", ALL),
    "R17": Case("A client leaves in the middle of the output.", ALL),
    "R18": Case("Two hundred commands, or terminals, are started at once.", ALL, "terminals"),
    "R19": Case("Directories lie ten thousand deep, and names are as long as they can be.", ALL),
    "K01": Case("Code mounts, unmounts, changes its root and opens mounts as files.", CONFINED),
    "K02": Case("Code makes namespaces, and enters those of PID 1.", CONFINED),
    "K03": Case("Code traces other processes and reads their memory.", CONFINED),
    "K04": Case("Code asks the kernel for what root alone may do: modules, BPF, reboot, swap.", CONFINED),
    "K05": Case("Code sets up a ring of io_uring.", CONFINED),
    "K06": Case("Code sets the clock.", CONFINED),
    "K07": Case("A sandbox puts a key into a keyring, and another one looks for it.", CONFINED),
    "K08": Case("Code writes settings of the kernel and of control groups.", CONFINED),
    "K09": Case("Code looks for engines, buses and ports of the machine.", CONFINED),
    "K10": Case("Code makes device files, and opens those that are there.", CONFINED),
    "K11": Case("A program is marked to run as root, and run.", CONFINED),
    "K12": Case("A sandbox locks a file that all share, and another one looks at the lock.", ENGINE),
    "K13": Case("System calls are made by the tables of older machines.", CONFINED),
    "K14": Case("Code reads what tells of the machine: memory, symbols, firmware, serial numbers.", CONFINED),
    "K15": Case("A terminal is made to type for its owner.", ALL, "terminals", nothing_yet=True),
    "K16": Case("Two sandboxes look for each other by shared memory, queues and sockets.", CONFINED),
    "N01": Case("Code asks a cloud's metadata service, by every form of its address.", CONFINED),
    "N02": Case("Code connects to the machine, its networks and its gateways.", CONFINED),
    "N03": Case("A sandbox listens, and another one connects to it.", CONFINED),
    "N04": Case("Code opens raw sockets and changes the network.", CONFINED),
    "N05": Case("Code asks a name server.", CONFINED),
    "N06": Case("A name is public at first, and private when asked for again.", CONFINED, "the door", nothing_yet=True),
    "N07": Case("A proxy is asked for a denied target by every form of it.", CONFINED, "the door", nothing_yet=True),
    "N08": Case("Names are spelled as if the allow list had them.", CONFINED, "the door", nothing_yet=True),
    "N09": Case("Connections are opened by the thousands.", CONFINED, "the door", nothing_yet=True),
    "F01": Case("A directory is swapped with a link while the API reads, writes, lists and removes in it.", ALL),
    "F02": Case("Paths lead out of the sandbox, openly or in disguise.", ALL),
    "F03": Case("Names hold every byte that they can, and some that they cannot.", ALL),
    "F04": Case("The API is asked to read what is no regular file, and never ends.", ALL),
    "F05": Case("The API writes onto what is no file, and onto a full disk.", ALL),
    "F06": Case("Links lead in circles, or nowhere.", ALL),
    "F07": Case("A directory of a hundred thousand names is listed.", ALL),
    "F08": Case("A file changes its size while it is read, or claims ten gigabytes.", ALL),
    "F09": Case("A hard link is made to a file of somebody else.", ALL),
    "F10": Case("An upload claims to belong to root and to run as root.", ALL),
    "F11": Case("An archive holds members that lead out, are no files, or expand without an end.", ALL),
    "F12": Case("A tree is exported while code changes it.", ALL),
    "F13": Case("A file is published while code rewrites it.", ALL, _F13, nothing_yet=True),
    "F14": Case("Two uploads go to one path, and one of them is removed meanwhile.", ALL),
    "F15": Case("A long file is overwritten by a short one, by many at once.", ALL),
    "S01": Case("Code looks for secrets in the environment and the memory of every process.", CONFINED),
    "S02": Case("Files, layers, records, logs and answers are searched for a secret of the platform.", ALL),
    "S03": Case("The machine's list of processes is searched for secrets while commands start.", ALL),
    "S04": Case("An environment holds names and values that cannot be, or that load code.", ALL),
    "S05": Case("A process crashes with a secret in its memory.", ALL),
}
# fmt: on

_OWN = "gVisor's own, not the machine's"
_SHOWN = "shown by gVisor to every user; the guest has nothing secret there (S01)"
EXCEPT: dict[tuple[str, str], dict[str, str]] = {
    ("K03", "gvisor"): {"/proc/1/environ": _SHOWN, "/proc/1/maps": _SHOWN, "list /proc/1/fd": _SHOWN},
    ("K10", "gvisor"): {"/dev/fuse": _OWN, "/dev/net/tun": _OWN},
    ("N04", "gvisor"): {"ping socket": "on gVisor's own network, which has loopback alone"},
}
"""By case and target: the tries that get somewhere and are no harm there, and why."""


@dataclass(frozen=True)
class Open:
    """What gets somewhere and should not: known, told as harm, and no run of the tests fails for it."""

    test: str
    """A part of the name of the test that shows it: the case's other tests must hold."""
    why: str
    remedy: str


OPEN: dict[tuple[str, str], Open] = {
    ("R12", "docker"): Open(
        "file_watches",
        "the kernel counts inotify instances by user, and the boxes of an engine are one user (1000) of the machine: a "
        "box can take all of them from the others, and from a person of this number",
        "a runtime with a kernel of its own (`docker_runtime: runsc`); `fs.inotify.max_user_instances` only raises the "
        "number",
    ),
}
"""By case and target."""


def guaranteed(case: str, target: str) -> bool:
    """Whether the case is guaranteed to come to nothing on the target."""
    return case in CASES and target in CASES[case].guaranteed


@dataclass(frozen=True)
class Line:
    """What the attack program said of one case."""

    case: str
    tries: tuple[dict[str, Any], ...]
    """Each with `what`, `errno` (a name, or None), `result` and `harm`: whether it got somewhere."""
    harm: bool

    @classmethod
    def read(cls, text: str) -> Line:
        """Raises ValueError or KeyError where the program did not come to its end."""
        found = json.loads(text)
        return cls(found["id"], tuple(found["tries"]), found["harm"])

    def harmful(self, but: Container[str] = ()) -> list[str]:
        """Tries that got somewhere, other than `but` these."""
        found = [one for one in self.tries if one["harm"] and one["what"] not in but]
        return [f"{one['what']}: {one['errno'] or one['result']}" for one in found]

    def harmful_on(self, target: str) -> list[str]:
        """Tries that got somewhere on the target, other than those of which EXCEPT says that they are no harm there."""
        return self.harmful(EXCEPT.get((self.case, target), {}))

    def value(self, what: str) -> int:
        return int(next(one["result"] for one in self.tries if one["what"] == what))
