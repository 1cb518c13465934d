"""Text that is to be looked at: what a program, a file or a name says must not drive a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")


def escape(text: str, keep: str = "") -> str:
    """Control characters, and those that turn the direction of writing, show as their numbers."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def plain(text: str) -> str:
    """`text` without colours, and with what is left of control sequences escaped: lines, tabs and letters."""
    return escape(COLOUR.sub("", text).replace("\r\n", "\n"), keep="\n\t\r")


def _shown(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
