"""The directory of one box on the station's side: who owns it, its socket, its lock. Never seen inside the box."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from station.backends._trees import remove_below
from station.backends.base import Labels
from station.core.codec import from_plain, to_plain
from station.core.errors import AlreadyExists, BoxLost, InvalidInput

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CHILD = re.compile(r'"child-pid":\s*(\d+)')
_NEW = ".new-"
BACKLOG = 16


class BoxDirectory:
    """`<state>/boxes/<box_id>`: `labels.json`, `box.json` (what adoption needs), `info.json` (the first
    process's pid, written by bwrap itself, so that it is there even if the station dies), `lock`, `sock`, `log`."""

    def __init__(self, boxes: Path, box_id: str) -> None:
        if not _ID.fullmatch(box_id):
            raise InvalidInput("a box id has 1 to 128 letters, digits, dots, dashes", field="box_id")
        self.boxes = boxes
        self.box_id = box_id
        self.path = boxes / box_id

    @classmethod
    def create(cls, boxes: Path, labels: Labels, facts: dict[str, Any]) -> BoxDirectory:
        """A new directory that has its labels from the first moment it bears its name. Raises AlreadyExists."""
        directory = cls(boxes, labels.box_id)
        boxes.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = boxes / f"{_NEW}{labels.box_id}"
        remove_below(boxes, new.name)
        new.mkdir(mode=0o700)
        (new / "labels.json").write_text(json.dumps(to_plain(labels)), encoding="utf-8")
        (new / "box.json").write_text(json.dumps(facts), encoding="utf-8")
        try:
            new.rename(directory.path)
        except OSError as error:
            remove_below(boxes, new.name)
            if directory.path.exists():
                raise AlreadyExists(f"a box {labels.box_id} is there already", box_id=labels.box_id) from error
            raise
        return directory

    @classmethod
    def all(cls, boxes: Path) -> Iterator[tuple[BoxDirectory, Labels]]:
        """Every box there is a directory of; one whose labels cannot be read hides no other. Removes what `create` had
        not yet given its name."""
        if not boxes.is_dir():
            return
        for name in sorted(os.listdir(boxes)):
            if name.startswith(_NEW):
                remove_below(boxes, name)
            elif _ID.fullmatch(name):
                directory = cls(boxes, name)
                try:
                    labels = directory.labels()
                except FileNotFoundError:  # destroyed while we look
                    continue
                except (ValueError, TypeError) as error:  # power was lost while it was made: nothing of it can run
                    log.warning("%s is left alone: its labels cannot be read (%s)", directory.path, error)
                    continue
                yield directory, labels

    def exists(self) -> bool:
        return self.path.is_dir()

    def labels(self) -> Labels:
        text = (self.path / "labels.json").read_text(encoding="utf-8")
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("no labels")
        return from_plain(Labels, data)

    def facts(self) -> dict[str, Any]:
        """What `create` was given; empty where the directory is gone."""
        try:
            data = json.loads((self.path / "box.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def child_pid(self) -> int | None:
        """The box's first process, if bwrap has told it yet."""
        try:
            found = _CHILD.search((self.path / "info.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return int(found[1]) if found else None

    def log(self) -> str:
        """What the launcher and bwrap complained of: at most 4 KiB."""
        try:
            return (self.path / "log").read_bytes()[-4096:].decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def listen(self) -> socket.socket:
        """The socket that the guest will accept on; bound below a descriptor, as its path may be over 108 bytes."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._descriptor() as directory:
                name = f"/proc/self/fd/{directory}/sock"
                sock.bind(name)
                os.chmod(name, 0o600)  # before anybody could connect; the directory is ours alone besides
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return sock

    def connect(self) -> socket.socket:
        """A connection to the guest. Raises BoxLost if nothing listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            with self._descriptor() as directory:
                sock.connect(f"/proc/self/fd/{directory}/sock")
        except OSError as error:
            sock.close()
            raise BoxLost(f"nothing answers in box {self.box_id}: {error.strerror}", box_id=self.box_id) from error
        return sock

    def lock(self) -> int:
        """A locked descriptor for the box to inherit: while any process of it lives, the lock is taken."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    def free(self) -> bool:
        """Whether no process of the box is left that was started with the lock."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def open_new(self, name: str) -> int:
        return os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def remove(self) -> None:
        """The directory and all in it; the labels last, so that what is left half-removed is still found."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                if name != "labels.json":
                    remove_below(self.path, name)
        remove_below(self.boxes, self.box_id)

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        fd = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
