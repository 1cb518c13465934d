"""The files of a fake box: a tree in memory. Names are bytes; failures are OSError with the errno of Linux."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_MAX_LINKS = 40


@dataclass(eq=False)
class Node:
    mode: int
    mtime_ns: int

    @property
    def size(self) -> int:
        return 0


@dataclass(eq=False)
class File(Node):
    """Regular file. Bytes beyond `data` up to `size` are a hole: zeros that take no memory."""

    data: bytearray = field(default_factory=bytearray)
    hole: int = 0

    @property
    def size(self) -> int:
        return len(self.data) + self.hole

    def read(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.size - offset))
        piece = bytes(self.data[offset : offset + length])
        return piece + bytes(length - len(piece))

    def append(self, data: bytes) -> None:
        self.data += bytes(self.hole) + data
        self.hole = 0

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.hole = size - len(self.data)


@dataclass(eq=False)
class Link(Node):
    target: bytes = b""

    @property
    def size(self) -> int:
        return len(self.target)


@dataclass(eq=False)
class Directory(Node):
    children: dict[bytes, Node] = field(default_factory=dict)
    mount: bool = False
    """A file system of its own; listings do not cross it."""


@dataclass(eq=False)
class Fifo(Node):
    """Neither file, directory nor link."""


@dataclass(frozen=True)
class Place:
    """Where a path leads: the name in its directory, and what is there. The root itself has no name."""

    parent: Directory
    name: bytes
    node: Node | None


def fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass
class _Walk:
    """The directories from the root to where the walk stands, and what is left to go."""

    stack: list[Directory]
    rest: deque[bytes]
    beneath: bool
    links: int = 0

    def step_up(self) -> None:
        if len(self.stack) > 1:
            self.stack.pop()
        elif self.beneath:
            raise fail(errno.EXDEV)

    def follow(self, link: Link) -> None:
        self.links += 1
        if self.links > _MAX_LINKS:
            raise fail(errno.ELOOP)
        if link.target.startswith(b"/"):
            if self.beneath:
                raise fail(errno.EXDEV)
            del self.stack[1:]
        self.rest.extendleft(reversed(link.target.split(b"/")))


class Tree:
    """One box's files. `now_ns` dates them; while `full()` says so, nothing can grow."""

    def __init__(self, now_ns: Callable[[], int], full: Callable[[], bool]) -> None:
        self._now_ns = now_ns
        self._full = full
        self.root = Directory(0o755, now_ns())

    # --- finding -----------------------------------------------------------------------------------------------------

    def find(self, path: bytes, *, root: Directory | None = None, follow: bool = True, parents: bool = False) -> Place:
        """Where `path` leads. With `root`, it is resolved beneath that directory and leaves it by no link (EXDEV); else
        as a process would from `/`. `follow`: also a link at the end. `parents`: missing directories are made."""
        if b"\0" in path:
            raise fail(errno.EINVAL)
        walk = _Walk([root or self.root], deque(path.split(b"/")), beneath=root is not None)
        while walk.rest:
            name = walk.rest.popleft()
            last = not any(part not in (b"", b".") for part in walk.rest)
            if name == b"..":
                walk.step_up()
            elif name not in (b"", b"."):
                place = self._enter(walk, name, last=last, follow=follow, parents=parents)
                if place:
                    return place
        return Place(walk.stack[-1], b"", walk.stack[-1])

    def _enter(self, walk: _Walk, name: bytes, *, last: bool, follow: bool, parents: bool) -> Place | None:
        """One component: the place, if the walk ends at it."""
        if len(name) > 255:
            raise fail(errno.ENAMETOOLONG)
        here = walk.stack[-1]
        node = here.children.get(name)
        if isinstance(node, Link) and (follow or not last):
            walk.follow(node)
            return None
        if last:
            return Place(here, name, node)
        if node is None and parents:
            node = self.add(Place(here, name, None), Directory(0o755, self._now_ns()))
        if node is None:
            raise fail(errno.ENOENT)
        if not isinstance(node, Directory):
            raise fail(errno.ENOTDIR)
        walk.stack.append(node)
        return None

    def get(self, path: bytes, *, root: Directory | None = None, follow: bool = True) -> Node:
        """What is at `path`; ENOENT if nothing is."""
        node = self.find(path, root=root, follow=follow).node
        if node is None:
            raise fail(errno.ENOENT)
        return node

    def directory(self, path: bytes, *, root: Directory | None = None) -> Directory:
        node = self.get(path, root=root)
        if not isinstance(node, Directory):
            raise fail(errno.ENOTDIR)
        return node

    # --- changing ----------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self._full()

    def check_room(self) -> None:
        """ENOSPC while the disk is full."""
        if self.full:
            raise fail(errno.ENOSPC)

    def touch(self, node: Node) -> None:
        node.mtime_ns = self._now_ns()

    def add(self, place: Place, node: Node) -> Node:
        """Puts `node` at `place`, over what was there."""
        self.check_room()
        if not place.name:
            raise fail(errno.EBUSY)
        place.parent.children[place.name] = node
        self.touch(place.parent)
        return node

    def new_file(self, data: bytes = b"", mode: int = 0o644) -> File:
        return File(mode, self._now_ns(), bytearray(data))

    def new_directory(self, mode: int = 0o755) -> Directory:
        return Directory(mode, self._now_ns())

    def new_fifo(self) -> Fifo:
        return Fifo(0o644, self._now_ns())

    def new_link(self, target: bytes) -> Link:
        return Link(0o777, self._now_ns(), target)

    def mount(self, path: bytes, directory: Directory) -> None:
        """Puts a directory that outlives this tree at an absolute path."""
        directory.mount = True
        self.add(self.find(path, parents=True), directory)

    def move(self, source: Place, goal: Place) -> None:
        """rename(2): atomic, replaces a file by a file, an empty directory by a directory."""
        if source.node is None:
            raise fail(errno.ENOENT)
        if not source.name or not goal.name:
            raise fail(errno.EBUSY)
        if source.node is goal.node:
            return
        self._check_replace(source.node, goal)
        del source.parent.children[source.name]
        goal.parent.children[goal.name] = source.node
        self.touch(source.parent)
        self.touch(goal.parent)

    def _check_replace(self, node: Node, goal: Place) -> None:
        if isinstance(node, Directory):
            if goal.parent is node or any(below is goal.parent for _, below in walk_below(node)):
                raise fail(errno.EINVAL)
            if goal.node is not None and not isinstance(goal.node, Directory):
                raise fail(errno.ENOTDIR)
            if isinstance(goal.node, Directory) and goal.node.children:
                raise fail(errno.ENOTEMPTY)
        elif isinstance(goal.node, Directory):
            raise fail(errno.EISDIR)
        if goal.node is None:
            self.check_room()

    def unlink(self, place: Place) -> None:
        if not place.name:
            raise fail(errno.EBUSY)
        del place.parent.children[place.name]
        self.touch(place.parent)


def walk_below(directory: Directory, prefix: bytes = b"") -> list[tuple[bytes, Node]]:
    """All that is below, with relative paths, sorted by components; other mounts are named, not entered."""
    found: list[tuple[bytes, Node]] = []
    todo = [(prefix, directory)]
    # Depth first by a stack of our own: a tree may be deeper than Python's.
    pending: list[tuple[bytes, Node]] = []
    while todo or pending:
        if todo:
            path, inside = todo.pop()
            below = [(path + name, node) for name, node in sorted(inside.children.items(), reverse=True)]
            pending.extend(below)
        if pending:
            path, node = pending.pop()
            found.append((path, node))
            if isinstance(node, Directory) and not node.mount:
                todo.append((path + b"/", node))
    return found
