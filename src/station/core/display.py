"""Text that is to be looked at: what a program, a file or a name says must not drive a terminal."""

from __future__ import annotations

import re

# Beside the control characters: what turns the direction of writing, ends a line unseen, or is text that nobody sees.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")


def escape(text: str, keep: str = "") -> str:
    """Control characters, and others that are not seen and act, show as their numbers."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def plain(text: str) -> str:
    """`text` without colours, and with what is left of control sequences escaped: lines, tabs and letters."""
    return escape(COLOUR.sub("", text).replace("\r\n", "\n"), keep="\n\t\r")


def _shown(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
