"""A form with a file in it (RFC 7578), read as it comes: what stands in the file is never in memory as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Self

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from station.core.errors import InvalidInput, UnsupportedMedia
from station.server.requests import body

_MAX_FIELD_BYTES = 64 * 1024
_MAX_PARTS = 32
_MAX_BOUNDARY_BYTES = 70
"""RFC 2046, 5.1.1."""
_MAX_HEADER_BYTES = 8 * 1024


class Form:
    """Its fields up to the file, and the file. Fields that come after the file are refused when they come."""

    def __init__(self, request: Request) -> None:
        """Raises UnsupportedMedia for a request that has no form in it, InvalidInput for one without an end."""
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data":
            raise UnsupportedMedia("this takes a form: multipart/form-data with a part named file", field="body")
        if not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES:
            raise InvalidInput(f"a form has a boundary of 1 to {_MAX_BOUNDARY_BYTES} characters", field="body")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.content_type: str | None = None
        self._parser = MultipartParser(
            boundary,
            callbacks={
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )
        self._chunks = body(request)
        self._part = _Part()
        self._parts = 0
        self._data: list[bytes] = []
        """Of the file, what the parser has found and nobody has taken yet."""
        self._in_file = False
        self._ended = False

    async def open(self) -> Self:
        """Reads on to the file. Raises InvalidInput where the form has none."""
        while not self._in_file and await self._read():
            pass
        if not self._in_file:
            raise InvalidInput("the form has no part named file", field="file")
        return self

    async def content(self) -> AsyncIterator[bytes]:
        """The file, to the end of the form. Raises InvalidInput for a form that is cut, or goes on with fields."""
        more = True
        while more:
            for data in self._take():
                yield data
            more = await self._read()
        for data in self._take():
            yield data
        if not self._ended:
            raise InvalidInput("the form has no end; nothing was stored", field="body")

    def _take(self) -> list[bytes]:
        taken, self._data = self._data, []
        return taken

    async def _read(self) -> bool:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            return False
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise InvalidInput(f"the form cannot be read: {error}", field="body") from error
        return True

    # ── what the parser tells ───────────────────────────────────────────────────────────────────────────────────

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise InvalidInput(f"a form has at most {_MAX_PARTS} parts", field="body")
        if self._in_file:
            raise InvalidInput("the fields of the form stand before its file", field="file")
        self._part = _Part()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._part.name += data[start:end]
        self._count_header(end - start)

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.header += data[start:end]
        self._count_header(end - start)

    def _count_header(self, size: int) -> None:
        self._part.header_bytes += size
        if self._part.header_bytes > _MAX_HEADER_BYTES:
            raise InvalidInput("the headers of a part of the form are too long", field="body")

    def _header_end(self) -> None:
        self._part.keep_header()

    def _headers_end(self) -> None:
        name = self._part.option(b"name")
        if name == "file":
            self._in_file = True
            self.filename = self._part.option(b"filename")
            self.content_type = self._part.headers.get("content-type", b"").decode(errors="replace") or None
        elif not name or name in self.fields:
            raise InvalidInput("each field of the form has a name of its own", field=name or "body")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._data.append(data[start:end])
            return
        self._part.value += data[start:end]
        if len(self._part.value) > _MAX_FIELD_BYTES:
            raise InvalidInput("a field of the form is too long", field=self._part.option(b"name"))

    def _part_end(self) -> None:
        if not self._in_file:
            self.fields[self._part.option(b"name") or ""] = self._part.value.decode(errors="surrogateescape")

    def _end(self) -> None:
        self._ended = True


class _Part:
    def __init__(self) -> None:
        self.headers: dict[str, bytes] = {}
        self.name = b""
        self.header = b""
        self.value = b""
        self.header_bytes = 0

    def option(self, name: bytes) -> str | None:
        _, options = parse_options_header(self.headers.get("content-disposition", b""))
        found = options.get(name)
        return None if found is None else found.decode(errors="surrogateescape")

    def keep_header(self) -> None:
        self.headers[self.name.decode("latin-1").lower()] = self.header
        self.name = self.header = b""
