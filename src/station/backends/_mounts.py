"""A folder of the user's as the workspace: which may be, and what in it stays read-only."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from station.core.errors import InvalidInput
from station.core.spec import Mount

_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
START_UP = (
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv",
    ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".inputrc", ".envrc", ".gitconfig",
    ".gitmodules", ".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".emacs", ".emacs.d", ".dir-locals.el",
    ".vim", ".vscode", ".idea", ".devcontainer", ".config/fish", ".config/nvim", ".config/git", ".mcp.json",
)  # fmt: skip
"""What a shell, git or an editor on this machine runs by itself when someone works in the folder."""
STATE_FILES = ("station.lock", "operator.token")
"""What only the state directory of a station has."""
_GIT_PARTS = ("hooks", "config", "config.worktree")
MAX_MODULES = 200
MAX_LOOKED = 20_000
MAX_GUARDED = 4096
"""As many as the launcher takes."""


@dataclass(frozen=True)
class MountPlan:
    """Paths are relative to the folder."""

    source: str
    """With every link resolved: only root's own links are followed."""
    read_only: bool
    pinned: tuple[str, ...] = ()
    """Directories bound onto themselves, so that they cannot be renamed away from over what is protected in them."""
    protected: tuple[str, ...] = ()
    owner: tuple[int, int] = (0, 0)
    open_to_others: bool = True
    """Whether any user may list and enter the folder itself."""


def plan_mount(mount: Mount, *, state: Path, homes: Iterable[str] | None = None) -> MountPlan:
    """Raises InvalidInput for a folder that may not be a workspace, or that is none."""
    source = Path(os.path.realpath(mount.source))
    _refuse_links(Path(os.path.normpath(mount.source)), source)
    refuse_source(source, state=state, homes=_homes() if homes is None else homes)
    try:
        facts = source.stat()
    except OSError as error:
        raise InvalidInput(f"the mount {mount.source} cannot be used: {error.strerror}", field="mount") from error
    if not stat.S_ISDIR(facts.st_mode):
        raise InvalidInput(f"the mount {mount.source} is not a directory", field="mount")
    pinned: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    if mount.protect and not mount.read_only:
        try:
            pinned, protected = protected_in(source)
        except OSError as error:  # who else writes it may be as hostile as what will run in it
            raise InvalidInput(
                f"the mount {mount.source} cannot be guarded, or changes meanwhile: {error.strerror}", field="mount"
            ) from error
    others = facts.st_mode & 0o005 == 0o005
    return MountPlan(str(source), mount.read_only, pinned, protected, (facts.st_uid, facts.st_gid), others)


def _refuse_links(given: Path, source: Path) -> None:
    """Raises InvalidInput where the way to a folder leads over a link that is not root's: code that worked in a folder
    above may have made it, and the caller would hand out another folder than the one he reads."""
    for place in (given, *given.parents):
        if place.is_symlink() and place.lstat().st_uid != 0:
            raise InvalidInput(f"{place} is a link; to mount the folder it leads to, name it: {source}", field="mount")


def refuse_source(source: Path, *, state: Path, homes: Iterable[str]) -> None:
    """Raises InvalidInput for `/`, a system directory, a home itself or above one, and Station's state."""
    state = Path(os.path.realpath(state))
    if source == Path("/"):
        raise InvalidInput("the root of this machine cannot be mounted; name the folder to work in", field="mount")
    if str(source) in _SYSTEM or (len(source.parts) > 1 and source.parts[1] in ("proc", "sys", "dev")):
        raise InvalidInput(f"{source} belongs to this machine's system and cannot be mounted", field="mount")
    for home in map(os.path.realpath, homes):
        if home != "/" and Path(home).is_relative_to(source):
            raise InvalidInput(
                f"{source} is or holds the home directory {home}, with its keys and settings; name a folder in it",
                field="mount",
            )
    if any((source / name).exists() for name in STATE_FILES):
        raise InvalidInput(f"{source} is the state of another station, with what lets callers in", field="mount")
    if source.is_relative_to(state) or state.is_relative_to(source):
        raise InvalidInput(f"{source} is or holds Station's own state ({state})", field="mount")


def protected_in(source: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What to pin and what to make read-only of what is there; never a name that leads out of the folder. Raises
    OSError. Nothing here may be trusted later: the launcher walks each name again, and follows no link."""
    pinned: list[str] = []
    protected = [name for name in START_UP if _is_plain(source, name)]
    protected += [target for name in START_UP if (target := _link_target(source, name)) is not None]
    git = source / ".git"
    if git.is_symlink() or git.is_file():
        # A worktree's `.git` is a file with the path of the real one: replaced, it would lead git to foreign hooks.
        protected += [".git"] if not git.is_symlink() else []
        target = _link_target(source, ".git")
        protected += [target] if target is not None else []
    elif git.is_dir():
        _protect_git(source, ".git", pinned, protected)
        modules = _modules(git / "modules")
        if modules is None:
            protected.append(".git/modules")
        for module in modules or ():
            _protect_git(source, str(module.relative_to(source)), pinned, protected)
    # Every directory above: it could be renamed with all that is mounted in it, and made again without.
    above = [str(parent) for name in (*pinned, *protected) for parent in reversed(Path(name).parents) if parent.name]
    protected = list(dict.fromkeys(protected))
    if len(above) > MAX_GUARDED or len(protected) > MAX_GUARDED:
        raise InvalidInput(f"more than {MAX_GUARDED} names in the folder would have to be guarded", field="mount")
    return tuple(sorted(dict.fromkeys((*pinned, *above)))), tuple(protected)


def _modules(top: Path) -> list[Path] | None:
    """The submodules' repositories below `top`, sorted. `None`: too many to guard each, or to look for them; code that
    ran in the folder may have made any number of names."""
    found: list[Path] = []
    waiting, looked = [top] if top.is_dir() else [], 0
    while waiting:
        directory = waiting.pop()
        below: list[Path] = []
        is_module = False
        with os.scandir(directory) as entries:
            for entry in entries:
                looked += 1
                if looked > MAX_LOOKED:
                    return None
                is_module = is_module or entry.name == "HEAD"
                if entry.is_dir(follow_symlinks=False):
                    below.append(directory / entry.name)
        if is_module:
            found.append(directory)
            below = [path for path in below if path.name == "modules"]
        waiting += below
        if len(found) > MAX_MODULES:
            return None
    return sorted(found)


def _protect_git(source: Path, git: str, pinned: list[str], protected: list[str]) -> None:
    parts = [f"{git}/{name}" for name in _GIT_PARTS]
    links = [name for name in parts if (source / name).is_symlink()]
    if links:
        # A link can be replaced however its target is guarded: then all of it is read-only.
        protected.append(git)
        protected += [target for name in links if (target := _link_target(source, name)) is not None]
        return
    if not (source / git / "hooks").exists():
        _make_directory(source, f"{git}/hooks")  # as `git init` would: what is missing cannot be guarded
    pinned.append(git)
    protected += [name for name in parts if _is_plain(source, name)]


def _make_directory(source: Path, name: str) -> None:
    """Below `source` without a link on the way: as root we would make it wherever that leads."""
    *above, last = Path(name).parts
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.open(source, flags)
    try:
        for part in above:
            below = os.open(part, flags, dir_fd=directory)
            os.close(directory)
            directory = below
        with suppress(FileExistsError):
            os.mkdir(last, dir_fd=directory)
    finally:
        os.close(directory)


def _is_plain(source: Path, name: str) -> bool:
    path = source / name
    return path.exists() and os.path.realpath(path) == str(path)


def _link_target(source: Path, name: str) -> str | None:
    """Where a link inside the folder leads, if that is inside too and exists."""
    path = source / name
    real = Path(os.path.realpath(path))
    if real in (path, source) or not real.exists() or not real.is_relative_to(source):
        return None
    return str(real.relative_to(source))


def _homes() -> set[str]:
    homes = {os.path.expanduser("~"), "/root", "/home"}
    homes |= {entry.pw_dir for entry in pwd.getpwall() if entry.pw_uid == 0 or 1000 <= entry.pw_uid < 60_000}
    return {home for home in homes if home.startswith("/") and home not in ("/", "/nonexistent")}
