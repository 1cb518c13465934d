"""A folder of the user's as the workspace: which may be, and what in it stays read-only."""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
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
    ".dir-locals-2.el", ".vim", ".vscode", ".idea", ".devcontainer", ".devcontainer.json", ".config/fish",
    ".config/nvim", ".config/git", ".mcp.json", ".hg/hgrc",
    # Agents: servers, hooks and plugins that their settings name are started with them.
    ".claude", ".cursor", ".codex", ".gemini", ".qwen", ".opencode", "opencode.json", "opencode.jsonc", ".windsurf",
    ".kiro", ".roo", ".continue", ".github/hooks",
    # Editors that start the language servers named there.
    ".zed", ".helix",
    # Run at each commit, once their hook is installed.
    ".husky", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml",
    # Evaluated by a shell that enters: mise trusts the path, not the content; `path:` names the programs to run.
    ".mise.toml", "mise.toml", ".mise.local.toml", "mise.local.toml", ".mise", ".config/mise", ".config/mise.toml",
    ".tool-versions",
)  # fmt: skip
"""What a shell, git, an editor or an agent on this machine runs by itself when someone works in the folder. Not here:
`.nvmrc` (a version only), `.direnvrc` (read in a home only), `.fleet` (runs when asked to)."""
STATE_FILES = ("station.lock", "operator.token")
"""What only the state directory of a station has."""
_GIT_DIRECTORIES = ("hooks", "branches", "remotes", "worktrees")
"""`branches` and `remotes` name repositories to push to, the directories of worktrees the settings that hold there."""
_GIT_FILES = {"config": b"", "config.worktree": b"", "commondir": b"./\n"}
"""With what means the same as none. `commondir` leads git to the settings it takes: `./` is where it is already, also
to libgit2, which takes `.` for the working directory."""
MAX_MODULES = 200
MAX_LOOKED = 20_000
MAX_GUARDED = 4096
"""As many as the launcher takes."""
_MAX_SETTINGS = 1 << 20
_QUOTED = r"(?:[^\"\\]|\\[\s\S])*"
_SETTING = re.compile(
    rf"\s*(?:[#;].*|\[\s*([\w.-]+)(?:\s+\"({_QUOTED})\")?\s*\]|([A-Za-z][\w-]*)[ \t]*"
    rf"(?:=((?:\"{_QUOTED}\"|\\[\s\S]|[^\n\\\"#;])*))?|.)"
)


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
    _guard_git(source, pinned, protected)
    # Every directory above: it could be renamed with all that is mounted in it, and made again without.
    above = [str(parent) for name in (*pinned, *protected) for parent in reversed(Path(name).parents) if parent.name]
    protected = list(dict.fromkeys(protected))
    if len(above) > MAX_GUARDED or len(protected) > MAX_GUARDED:
        raise InvalidInput(f"more than {MAX_GUARDED} names in the folder would have to be guarded", field="mount")
    return tuple(sorted(dict.fromkeys((*pinned, *above)))), tuple(protected)


def _guard_git(source: Path, pinned: list[str], protected: list[str]) -> None:
    git = source / ".git"
    if git.is_symlink():
        raise _unguardable(".git", "is a link, which can be replaced")
    if (source / "HEAD").exists() and (source / "objects").is_dir() and (source / "refs").is_dir():
        raise _unguardable(".", "is a bare git repository: who writes it says what git runs")
    if git.is_file():
        # A worktree's `.git` is a file with the path of the real one: replaced, it would lead git to foreign hooks.
        protected.append(".git")
        protected += _repositories_of(source, git)
    elif git.is_dir():
        _protect_git(source, ".git", pinned, protected)
        modules = _modules(git / "modules")
        if modules is None:
            protected.append(".git/modules")
        for module in modules or ():
            _protect_git(source, str(module.relative_to(source)), pinned, protected)
            protected += _git_file_of(source, module)
        _guard_named(source, git / "config", protected)


def _repositories_of(source: Path, git: Path) -> list[str]:
    """Where a `.git` that is a file leads, as far as that is in the folder: read-only altogether."""
    pointer = _read(git).strip()
    if not pointer.startswith("gitdir:"):
        return []
    real = Path(os.path.realpath(source / pointer.removeprefix("gitdir:").strip()))
    common = real / "commondir"
    shared = Path(os.path.realpath(real / _read(common).strip())) if common.is_file() else real
    inside = {path for path in (real, shared) if path != source and path.is_relative_to(source) and path.is_dir()}
    return sorted(str(path.relative_to(source)) for path in inside)


def _git_file_of(source: Path, module: Path) -> list[str]:
    """A submodule's `.git`: git enters it from above, with the settings of what this file names."""
    for key, value in settings_in(_read(module / "config")):
        if key == "core.worktree":
            name = os.path.relpath(os.path.normpath(module / value / ".git"), source)
            return [name] if not name.startswith("..") and _is_plain(source, name) else []
    return []


def _guard_named(source: Path, config: Path, protected: list[str]) -> None:
    """The hooks and further settings in the folder that git's settings name."""
    waiting, seen = [config], {config}
    while waiting:
        file = waiting.pop()
        for key, value in settings_in(_read(file)):
            is_file = key == "include.path" or (key.startswith("includeif.") and key.endswith(".path"))
            path = Path(os.path.normpath((file.parent if is_file else source) / value))
            if not (is_file or key == "core.hookspath") or value.startswith(("~", "%")) or path in seen:
                continue
            if not path.is_relative_to(source) or path.is_relative_to(source / ".git" / "hooks"):
                continue
            seen.add(path)
            name = str(path.relative_to(source))
            if not path.exists():
                _make(source, name, b"" if is_file else None)  # what is missing could be made
            if name == "." or not _is_plain(source, name):
                raise _unguardable(name, "is named by .git/config, and is the folder itself or a link")
            protected.append(name)
            waiting += [path] if is_file else []


def _unguardable(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"{name} cannot be guarded: it {why}; mount the folder with :ro, or give a copy", field="mount")


def settings_in(text: str) -> list[tuple[str, str]]:
    """`section.subsection.key` in small letters, and the value, of each line of git's settings."""
    found: list[tuple[str, str]] = []
    section = ""
    for match in _SETTING.finditer(text):
        name, sub, key, value = match.groups()
        if name is not None:
            section = f"{name}.{sub}" if sub is not None else name
        elif key is not None:
            found.append((f"{section}.{key}".lower(), _unquoted(value or "")))
    return found


def _unquoted(value: str) -> str:
    escapes = {"\\\n": "", "\\n": "\n", "\\t": "\t", '"': ""}
    return re.sub(r'\\[\s\S]|"', lambda match: escapes.get(match[0], match[0][-1]), value.strip())


def _read(path: Path) -> str:
    """Empty for what is missing; no link is followed, no pipe waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with open(fd, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read(_MAX_SETTINGS) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    if "\0" in text or len(text) == _MAX_SETTINGS:
        raise OSError(errno.EINVAL, f"{path.name} is not what git reads")
    return text


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
    parts = [f"{git}/{name}" for name in (*_GIT_DIRECTORIES, *_GIT_FILES)]
    links = [name for name in parts if (source / name).is_symlink()]
    common = _read(source / git / "commondir").strip()
    if os.path.realpath(source / git / common) != os.path.realpath(source / git):
        raise _unguardable(f"{git}/commondir", f"leads git to {common} (remove it, if that was not you)")
    settings = dict(settings_in(_read(source / git / "config"))) if not links else {}
    # Where `commondir` stands, git passes these two over.
    is_bare = settings.get("core.bare", "").lower() in ("true", "yes", "on", "1")
    is_elsewhere = git == ".git" and "core.worktree" in settings
    if links or is_bare or is_elsewhere or not _complete(source, git):
        # A link can be replaced however its target is guarded: then all of it is read-only.
        protected.append(git)
        protected += [target for name in links if (target := _link_target(source, name)) is not None]
        return
    pinned.append(git)
    protected += [name for name in parts if _is_plain(source, name)]


def _complete(source: Path, git: str) -> bool:
    """Makes what is missing, since only what is there can be guarded. Whether all is there now."""
    try:
        for name, content in (*((name, None) for name in _GIT_DIRECTORIES), *_GIT_FILES.items()):
            if not (source / git / name).exists():
                _make(source, f"{git}/{name}", content)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return False
    return True


def _make(source: Path, name: str, content: bytes | None) -> None:
    """A file, or a directory for `None`, below `source` without a link on the way: as root we would make it wherever
    that leads. It belongs to whom the directory above belongs."""
    *above, last = Path(name).parts
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.open(source, flags)
    try:
        for part in above:
            with suppress(FileExistsError):
                _make_in(directory, part, None)
            below = os.open(part, flags, dir_fd=directory)
            os.close(directory)
            directory = below
        with suppress(FileExistsError):
            _make_in(directory, last, content)
    finally:
        os.close(directory)


def _make_in(directory: int, name: str, content: bytes | None) -> None:
    owner = os.fstat(directory)
    if content is None:
        os.mkdir(name, dir_fd=directory)
        if os.geteuid() == 0:
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=directory, follow_symlinks=False)
        return
    made = f".{name}.{secrets.token_hex(8)}"  # git must never find it without its content
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory)
    try:
        with open(fd, "wb") as file:
            if os.geteuid() == 0:
                os.fchown(fd, owner.st_uid, owner.st_gid)
            file.write(content)
        os.link(made, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        os.unlink(made, dir_fd=directory)


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
