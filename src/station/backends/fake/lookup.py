"""Which program a command line starts in a fake box."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping, Sequence

from .process import Program
from .tree import Directory, File, Tree, fail

_BIN = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where the registered programs are, as far as a command line can tell."""
_DEFAULT_PATH = "/bin:/usr/bin"


def find_program(
    argv: Sequence[str], *, search: str | None, cwd: str, tree: Tree, programs: Mapping[str, Program]
) -> tuple[Program, list[str]]:
    """The program and the argv that it gets. Raises OSError: ENOENT, EACCES, ENOTDIR, ELOOP, as execve would."""
    name = argv[0]
    if "/" not in name:
        path = _DEFAULT_PATH if search is None else search
        return _search(argv, path.split(":"), cwd=cwd, tree=tree, programs=programs)
    directory, base = posixpath.split(posixpath.normpath(posixpath.join(cwd, name)))
    if directory in _BIN and base in programs:
        return programs[base], list(argv)
    node = tree.get(os.fsencode(posixpath.join(cwd, name)))
    if isinstance(node, Directory) or not isinstance(node, File) or not node.mode & 0o111:
        raise fail(errno.EACCES)
    return _interpreter(name, node, argv, programs)


def _search(
    argv: Sequence[str], path: Sequence[str], *, cwd: str, tree: Tree, programs: Mapping[str, Program]
) -> tuple[Program, list[str]]:
    found = fail(errno.ENOENT)
    for directory in path:
        if directory in _BIN and argv[0] in programs:
            return programs[argv[0]], list(argv)
        try:
            node = tree.get(os.fsencode(posixpath.join(cwd, directory, argv[0])))
        except OSError:
            continue
        if isinstance(node, File) and node.mode & 0o111:
            return _interpreter(posixpath.join(directory, argv[0]), node, argv, programs)
        found = fail(errno.EACCES)
    raise found


def _interpreter(
    script: str, file: File, argv: Sequence[str], programs: Mapping[str, Program]
) -> tuple[Program, list[str]]:
    """A file runs by its first line, without one by sh."""
    first = file.read(0, 256).split(b"\n")[0]
    words = os.fsdecode(first[2:]).split(maxsplit=1) if first.startswith(b"#!") else ["/bin/sh"]
    if not words:
        raise fail(errno.ENOEXEC)
    if posixpath.basename(words[0]) == "env" and len(words) == 2:
        words = words[1].split()
    base = posixpath.basename(words[0])
    if base not in programs:
        raise fail(errno.ENOENT)
    return programs[base], [*words, script, *argv[1:]]
