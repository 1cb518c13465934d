"""What a box without an image finds (docs/layout.md): programs from the host's /usr, an /etc of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from station.backends.base import Layout
from station.core.errors import InvalidInput
from station.core.interpreters import INTERPRETERS
from station.core.paths import HOME, TMP, WORKSPACE

LINKS = "/.stn/bin"
GUEST = "/.stn/guest"
HOSTNAME = "sandbox"
BOX_USER = 1000
_NAMES = {"python": ("python3", "python"), "node": ("node", "nodejs"), "bash": ("bash",)}
_LINKS = {"python": ("python", "python3"), "node": ("node",), "bash": ("bash",)}
_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin")
_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_DIRECTORIES = {"ssl": "", "pki": "", "ca-certificates": "extracted", "alternatives": "", "fonts": ""}
"""With what must be in it, else it is of no use: every mount makes every box slower to start."""
_ETC_COPIES = ("ld.so.cache", "localtime", "mime.types", "protocols", "services")


def interpreters(root: Path = Path("/")) -> dict[str, str]:
    """By runtime: the path of its program, if it lies in the host's /usr, where a box can see it."""
    found = {}
    for runtime, names in _NAMES.items():
        for place in (Path(d) / name for d in _DIRECTORIES for name in names):
            target = root / str(place).lstrip("/")
            if os.access(target, os.X_OK) and _inside_usr(target, root):
                found[runtime] = str(place)
                break
    return found


def _inside_usr(target: Path, root: Path) -> bool:
    real = target.resolve()
    return any(real.is_relative_to(root.resolve() / name) for name in ("usr", "bin"))


def require_runtime(runtime: str | None, found: Mapping[str, str]) -> None:
    """Raises InvalidInput naming the package of a missing interpreter."""
    if runtime is not None and runtime not in found:
        package = INTERPRETERS[runtime].package if runtime in INTERPRETERS else runtime
        raise InvalidInput(
            f"no {runtime} in this machine's /usr, which boxes without an image run from; "
            f"install the package {package} (apt install {package})",
            field="runtime",
            package=package,
        )


def box_layout(
    found: Mapping[str, str],
    *,
    workspace: str = WORKSPACE,
    home: str = HOME,
    tmp: str = TMP,
    links: str = LINKS,
) -> Layout:
    """Where things are, and the environment that every process starts from."""
    path = ":".join((links, f"{home}/.local/bin", f"{workspace}/node_modules/.bin", *_DIRECTORIES))
    shell = found.get("bash", "/bin/sh")
    env = {
        "HOME": home,
        "USER": "node",
        "LOGNAME": "node",
        "SHELL": shell,
        "PATH": path,
        "LANG": "C.UTF-8",
        "NPM_CONFIG_PREFIX": f"{home}/.local",
    }
    if tmp != TMP:
        env["TMPDIR"] = tmp
    return Layout(workspace=workspace, home=home, tmp=tmp, env=tuple(env.items()), shell=shell)


@dataclass(frozen=True)
class HostUsr:
    """How this machine lays out its programs: links into /usr, or directories of their own."""

    links: tuple[tuple[str, str], ...]
    directories: tuple[str, ...]
    etc_directories: tuple[str, ...]


def look_at_usr(root: Path = Path("/")) -> HostUsr:
    links, directories = [], []
    for name in _USR:
        place = root / name
        if place.is_symlink():
            links.append((str(place.readlink()), f"/{name}"))
        elif place.is_dir():
            directories.append(f"/{name}")
    etc = root / "etc"
    return HostUsr(
        tuple(links),
        tuple(directories),
        tuple(name for name, part in _ETC_DIRECTORIES.items() if (etc / name / part).is_dir()),
    )


def etc_files(shell: str) -> dict[str, str]:
    """The files of a box's /etc: no user of the host, no name server."""
    return {
        "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\nnode:x:{BOX_USER}:{BOX_USER}:node:{HOME}:{shell}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\nnode:x:{BOX_USER}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
        "hostname": f"{HOSTNAME}\n",
        "resolv.conf": "# no name server: the network is none\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\n",
    }


def copy_etc(directory: Path, root: Path = Path("/")) -> None:
    """Brings the copies of this machine's files in `directory`/etc up to date; boxes that run see them too."""
    for name in _ETC_COPIES:
        source, copy = root / "etc" / name, directory / "etc" / name
        try:
            facts = source.stat()
            if copy.exists() and copy.stat().st_mtime_ns == facts.st_mtime_ns:
                continue
            _replace(copy, source.read_bytes())
            os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        except OSError:  # not on this machine, or not for us to read: then boxes have none
            copy.unlink(missing_ok=True)


def write_root_files(directory: Path, usr: HostUsr, found: Mapping[str, str]) -> None:
    """`directory`/etc and `directory`/links, as they are mounted into every box; made anew only where they differ."""
    etc, links = directory / "etc", directory / "links"
    for place in (directory, etc, links):
        _directory(place)
    for name, text in etc_files(found.get("bash", "/bin/sh")).items():
        _replace_if_other(etc / name, text)
    for name in usr.etc_directories:
        _directory(etc / name)
    copy_etc(directory)
    _link(etc / "os-release", "../usr/lib/os-release")
    wanted = {name: found[runtime] for runtime, names in _LINKS.items() if runtime in found for name in names}
    for name, target in wanted.items():
        _link(links / name, target)
    for stale in set(os.listdir(links)) - set(wanted):
        (links / stale).unlink()


def _directory(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)  # whatever the umask: the box's user is another


def _replace_if_other(path: Path, text: str) -> None:
    with suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return
    _replace(path, text.encode())


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".stn-{os.getpid()}")
    new.write_bytes(data)
    new.chmod(0o644)
    new.replace(path)


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and str(path.readlink()) == target:
        return
    path.unlink(missing_ok=True)
    path.symlink_to(target)
