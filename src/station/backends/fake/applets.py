"""The file primitives of docs/guest-protocol.md, over a tree in memory."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence

from station.core.errors import InternalError
from station.core.paths import link_leads_out
from station.guest.file_errors import ARCHIVE, DIGEST, NOT_REGULAR, REFUSED
from station.guest.frames import STDERR, STDOUT
from station.guest.packs import END, Entry, PackReader

from .process import FakeProcess, Program
from .tree import Directory, Fifo, File, Link, Node, Place, Tree, fail, walk_below

_CHUNK = 65_536
_DIGEST = 32
_MAX_DEPTH = 512
_CAPACITY = 1 << 30


class Refusal(Exception):
    """Ends an applet with a code of its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


_Args = Sequence[bytes]
_Applet = Callable[[FakeProcess, Tree, _Args], Awaitable[None]]


def applet(argv: Sequence[bytes], tree: Tree) -> Program:
    """The program of an applet's start record. Raises OSError ENOENT for one that does not exist."""
    body, least = _APPLETS.get(argv[0], (None, 0))
    if body is None:
        raise fail(errno.ENOENT)

    async def run(process: FakeProcess) -> int:
        try:
            if len(argv) - 1 < least:
                raise Refusal(errno.EINVAL, "too few arguments")
            await body(process, tree, argv[1:])
        except Refusal as error:
            code, text = error.code, str(error)
        except OSError as error:
            escapes = error.errno == errno.EXDEV
            code, text = REFUSED if escapes else error.errno or errno.EIO, str(error.strerror)
        except ValueError:
            code, text = errno.EINVAL, "an argument is no number"
        else:
            return 0
        await process.err(f"{os.fsdecode(argv[0])}: {text}\n")
        return code

    return run


# --- what several need -----------------------------------------------------------------------------------------------


def _find(tree: Tree, root: bytes, path: bytes, *, follow: bool, parents: bool = False) -> Place:
    if path.startswith(b"/") or b".." in path.split(b"/") or not path:
        raise Refusal(REFUSED, "the path leads out of its root")
    return tree.find(path, root=tree.directory(root), follow=follow, parents=parents)


def _there(place: Place) -> Node:
    if place.node is None:
        raise fail(errno.ENOENT)
    return place.node


def entry(node: Node, path: bytes) -> Entry:
    """What the protocol tells of a node."""
    kind, size, target = "o", node.size, None
    links = 1
    if isinstance(node, File):
        kind = "f"
    elif isinstance(node, Directory):
        kind, links = "d", 2 + sum(isinstance(child, Directory) for child in node.children.values())
    elif isinstance(node, Link):
        kind, target = "l", os.fsdecode(node.target)
    elif isinstance(node, Fifo):
        size = 0
    return Entry(kind, node.mode, size, node.mtime_ns, links, os.fsdecode(path), target)  # type: ignore[arg-type]


def _mode(text: bytes) -> int:
    return int(text, 8) & 0o777


async def _checked(process: FakeProcess, take: Callable[[bytes], None]) -> None:
    """Stdin but for its last 32 bytes, which must be the SHA-256 of the rest."""
    digest, held = hashlib.sha256(), b""
    while piece := await process.stdin.read():
        held += piece
        ready, held = held[:-_DIGEST], held[-_DIGEST:]
        digest.update(ready)
        take(ready)
    if held != digest.digest():
        raise Refusal(DIGEST, "the bytes are not those of their digest")


# --- the applets -----------------------------------------------------------------------------------------------------


async def _stat(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, flags = args[:3]
    node = _there(_find(tree, root, path, follow=b"f" in flags))
    await process.write(STDOUT, entry(node, path).encode())


async def _list(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, flags, limit, after = args[:5]
    node = _there(_find(tree, root, path, follow=True))
    if not isinstance(node, Directory):
        raise fail(errno.ENOTDIR)
    below = walk_below(node) if b"r" in flags else sorted(node.children.items())
    if any(name.count(b"/") >= _MAX_DEPTH for name, _ in below):
        raise fail(errno.ELOOP)
    later = [item for item in below if not after or item[0].split(b"/") > after.split(b"/")]
    shown = later[: int(limit)] if int(limit) else later
    for name, child in shown:
        await process.write(STDOUT, entry(child, name).encode())
    if len(shown) < len(later):
        await process.write(STDOUT, b"m\0")


async def _read(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, offset, length = args[0], args[1], int(args[2]), int(args[3])
    node = _there(_find(tree, root, path, follow=True))
    if isinstance(node, Directory):
        raise fail(errno.EISDIR)
    if not isinstance(node, File):
        raise Refusal(NOT_REGULAR, "not a regular file")
    await process.write(STDERR, entry(node, path).encode())
    end = node.size if length < 0 else min(node.size, offset + length)
    digest = hashlib.sha256()
    while offset < end:
        piece = node.read(offset, min(_CHUNK, end - offset))
        if not piece:
            raise fail(errno.EIO)
        digest.update(piece)
        await process.write(STDOUT, piece)
        offset += len(piece)
    await process.write(STDERR, digest.hexdigest().encode() + b"\0")


async def _write(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, mode, flags = args[:4]
    place = _replaceable(tree, root, path, flags)
    file = tree.new_file(mode=_mode(mode))

    def take(data: bytes) -> None:
        tree.check_room()
        file.append(data)

    await _checked(process, take)
    place = _replaceable(tree, root, path, flags)
    tree.add(place, file)
    await process.write(STDOUT, (b"r\0" if place.node else b"c\0") + entry(file, path).encode())


def _replaceable(tree: Tree, root: bytes, path: bytes, flags: bytes) -> Place:
    place = _find(tree, root, path, follow=False, parents=b"p" in flags)
    if isinstance(place.node, Directory):
        raise fail(errno.EISDIR)
    if place.node is not None and b"x" in flags:
        raise fail(errno.EEXIST)
    if isinstance(place.node, Fifo):
        raise Refusal(NOT_REGULAR, "not a regular file")
    return place


async def _mkdir(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, mode, flags = args[:4]
    place = _find(tree, root, path, follow=False, parents=b"p" in flags)
    if place.node is not None and not (b"p" in flags and isinstance(place.node, Directory)):
        raise fail(errno.EEXIST)
    if place.node is None:
        tree.add(place, tree.new_directory(_mode(mode)))
    await process.write(STDOUT, b"r\0" if place.node else b"c\0")


async def _rename(_process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, root2, path2, flags = args[:5]
    source = _find(tree, root, path, follow=False)
    _there(source)
    goal = _find(tree, root2, path2, follow=False, parents=b"p" in flags)
    if goal.node is not None and b"x" in flags:
        raise fail(errno.EEXIST)
    tree.move(source, goal)


async def _remove(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, flags = args[:3]
    try:
        place = _find(tree, root, path, follow=False)
    except FileNotFoundError:
        place = None
    count = 0
    if place is not None and place.node is not None:
        if isinstance(place.node, Directory):
            if b"r" not in flags:
                raise fail(errno.EISDIR)
            count = len(walk_below(place.node))
        tree.unlink(place)
        count += 1
    await process.out(f"{count}\0")


async def _chmod(_process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, mode = args[:3]
    _there(_find(tree, root, path, follow=True)).mode = _mode(mode)


async def _space(process: FakeProcess, tree: Tree, args: _Args) -> None:
    used = tree.directory(args[0])
    free = 0 if tree.full else max(0, _CAPACITY - sum(node.size for _, node in walk_below(used)))
    await process.out(f"{free} {_CAPACITY}\0")


async def _pack(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, limit = args[0], args[1], int(args[2])
    node = _there(_find(tree, root, path, follow=True))
    if not isinstance(node, Directory):
        raise fail(errno.ENOTDIR)
    packed = walk_below(node)
    if limit >= 0 and sum(child.size for _, child in packed) > limit:
        raise fail(errno.EFBIG)
    for name, child in packed:
        if isinstance(child, File | Directory | Link):
            await process.write(STDOUT, entry(child, name).encode())
        if isinstance(child, File):
            size = child.size
            for offset in range(0, size, _CHUNK):
                await process.write(STDOUT, child.read(offset, min(_CHUNK, size - offset)))
    await process.write(STDOUT, END)


async def _unpack(process: FakeProcess, tree: Tree, args: _Args) -> None:
    root, path, mode, flags = args[:4]
    goal = _find(tree, root, path, follow=False, parents=b"p" in flags)
    if goal.node is not None and not isinstance(goal.node, Directory):
        raise fail(errno.ENOTDIR)
    staging = _Staging(tree)
    await _checked(process, staging.take)
    staging.finish()
    if goal.node is None:
        tree.add(goal, tree.new_directory(_mode(mode)))
    here = goal.parent.children[goal.name] if goal.name else goal.parent
    assert isinstance(here, Directory)
    _merge(tree, staging.top, here)
    await process.out(f"{staging.count}\0")


class _Staging:
    """An archive as it comes in, beside the files that are there."""

    def __init__(self, tree: Tree) -> None:
        self.top = tree.new_directory()
        self.count = 0
        self._tree = tree
        self._reader = PackReader()
        self._file = tree.new_file()

    def take(self, data: bytes) -> None:
        self._tree.check_room()
        try:
            events = self._reader.feed(data)
        except InternalError as error:
            raise Refusal(ARCHIVE, error.message) from error
        for event in events:
            if isinstance(event, bytes):
                self._file.append(event)
            else:
                self._add(event)

    def finish(self) -> None:
        try:
            self._reader.finish()
        except InternalError as error:
            raise Refusal(ARCHIVE, error.message) from error

    def _add(self, item: Entry) -> None:
        path = os.fsencode(item.path)
        parts = path.split(b"/")
        if path.startswith(b"/") or b".." in parts or item.kind == "o":
            raise Refusal(ARCHIVE, "an entry that is refused")
        try:
            for end in range(1, len(parts)):
                if isinstance(self._tree.find(b"/".join(parts[:end]), root=self.top, follow=False).node, Link):
                    raise Refusal(ARCHIVE, "an entry goes through a link")
            place = self._tree.find(path, root=self.top, follow=False, parents=True)
        except OSError as error:
            raise Refusal(ARCHIVE, "an entry goes through a file, or comes before its directory") from error
        self.count += 1
        if item.kind == "d" and isinstance(place.node, Directory):
            place.node.mode = item.mode & 0o777
            return
        self._tree.add(place, self._node(item, depth=len(parts) - 1))

    def _node(self, item: Entry, *, depth: int) -> Node:
        if item.kind == "d":
            return self._tree.new_directory(item.mode & 0o777)
        if item.kind == "l":
            target = item.target or ""
            if not target or (not target.startswith("/") and link_leads_out(target, depth)):
                raise Refusal(ARCHIVE, "a link that leads out")
            return self._tree.new_link(os.fsencode(target))
        self._file = self._tree.new_file(mode=item.mode & 0o777)
        return self._file


def _merge(tree: Tree, source: Directory, goal: Directory) -> None:
    """Moves what is in `source` into `goal`; directories that are in both become one."""
    _check_merge(source, goal)
    todo = [(source, goal)]
    while todo:
        new, old = todo.pop()
        for name, node in new.children.items():
            there = old.children.get(name)
            if isinstance(node, Directory) and isinstance(there, Directory):
                todo.append((node, there))
            else:
                tree.add(Place(old, name, there), node)


def _check_merge(source: Directory, goal: Directory) -> None:
    for path, node in walk_below(source):
        here: Node | None = goal
        for part in path.split(b"/"):
            here = here.children.get(part) if isinstance(here, Directory) else None
        if here is not None and isinstance(here, Directory) != isinstance(node, Directory):
            raise fail(errno.EISDIR if isinstance(here, Directory) else errno.ENOTDIR)


_APPLETS: dict[bytes, tuple[_Applet | None, int]] = {
    b"stat": (_stat, 3),
    b"list": (_list, 5),
    b"read": (_read, 4),
    b"write": (_write, 4),
    b"mkdir": (_mkdir, 4),
    b"rename": (_rename, 5),
    b"remove": (_remove, 3),
    b"chmod": (_chmod, 3),
    b"pack": (_pack, 3),
    b"unpack": (_unpack, 4),
    b"space": (_space, 1),
}
