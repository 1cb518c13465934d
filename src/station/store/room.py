"""What the bodies of the files port count, check and say alike."""

from __future__ import annotations

from station.core.errors import AlreadyExists, InternalError, InvalidInput, StorageFull, TooLarge
from station.core.stored import MAX_FILES, StoredFile

from .files import Facts, MayReplace, Room

GIB = 1 << 30


class Quota:
    """How much is stored and on its way, and how much may be."""

    def __init__(self, *, max_file_bytes: int, max_bytes: int) -> None:
        self._max_file_bytes, self._max_bytes = max_file_bytes, max_bytes
        self.files = self.used = 0
        """Keys, and the bytes of distinct contents of each owner: whoever stores keeps them true. Whether a content
        takes room must not depend on what others have, who would learn of it."""
        self._coming = 0
        """Bytes under way, which have taken their room."""

    def reserve(self, size: int, *, anyway: bool = False) -> None:
        """See `FileStore.reserve`."""
        if not anyway:
            self.check_size(size)
            self._check_room(size)
        self._coming += size

    def release(self, size: int) -> None:
        self._coming -= size

    def room(self) -> Room:
        return Room(self.files, self.used, self._max_bytes)

    def check_size(self, size: int) -> None:
        """Raises TooLarge."""
        if size > self._max_file_bytes:
            raise TooLarge(
                f"a stored file has at most {self._max_file_bytes} bytes; files.max_file_bytes sets it",
                limit=self._max_file_bytes,
            )

    def check_key(self, key: str, before: StoredFile | None, may_replace: MayReplace) -> None:
        """Whether `key` may be written, where `before` is what it has now. Raises AlreadyExists and StorageFull."""
        if before is not None and not may_replace(before):
            raise AlreadyExists(f"{key} is there already, and somebody else's; name another key", key=key)
        if before is None and self.files >= MAX_FILES:
            raise StorageFull(f"the file store has {MAX_FILES} files, which is the most; delete some", limit=MAX_FILES)

    def _check_room(self, size: int) -> None:
        # No figures: of all owners they are the operator's alone, who asks `room`.
        if self.used + self._coming + size > self._max_bytes:
            raise StorageFull(
                "the file store has no room for it; delete files, or raise files.max_bytes", setting="files.max_bytes"
            )


def check_announced(size: int, checksum: str, facts: Facts) -> None:
    """Whether what came is what was announced. Raises InvalidInput."""
    if facts.size is not None and size != facts.size:
        raise InvalidInput(f"{facts.size} bytes were announced and {size} came; nothing was stored", field="size")
    if facts.checksum is not None and checksum != facts.checksum.lower():
        raise InvalidInput(
            f"the content has the SHA-256 {checksum}, not {facts.checksum}; nothing was stored", field="checksum"
        )


def check_offset(offset: int, file: StoredFile) -> None:
    """Raises InvalidInput."""
    if offset > file.size:
        raise InvalidInput(f"offset {offset} is beyond the end, {file.size}", field="offset")


def living(found: StoredFile | None, now: float) -> StoredFile | None:
    """`None` too for what has expired."""
    return None if found is None or (found.expires_at is not None and found.expires_at <= now) else found


def damaged(file: StoredFile) -> InternalError:
    return InternalError(
        f"the stored content of {file.key} is damaged or gone: it is not what was acknowledged as {file.checksum}",
        key=file.key,
    )
