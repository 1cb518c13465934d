"""Failures as a model gets them: what went wrong, whether to try again, and what to do next."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types

from station.core.display import escape
from station.core.errors import StationError

_NEXT = {
    "file_not_found": "sandbox_fs_list shows what there is.",
    "path_refused": "Use a path below /workspace, /home/node or /tmp; a relative one counts from /workspace.",
    "process_not_found": "Use the process_id of sandbox_start or sandbox_exec, and the sandbox_id it ran in.",
    "already_exists": "Give overwrite=true to replace it.",
    "storage_full": "Delete files that are no longer needed.",
    "limit_reached": "End a running program with sandbox_kill, or wait for one to end.",
}
_MOST_CHARS = 2000
"""Of one text in it: what it quotes may be of any length."""


def failure(error: StationError) -> types.CallToolResult:
    """A tool error: the model sees it, and its run goes on.

    Its text is JSON, as programs look for it too. Not structured content: several clients hold that against the schema
    of a good answer, errors or not, and would show their own complaint instead.
    """
    body = error.to_body()
    del body["error"]
    if error.code in _NEXT:
        body["message"] = f"{error.message.rstrip('.')}. {_NEXT[error.code]}"
    text = json.dumps({"ok": False, "error": _shown(body)}, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _shown(value: Any) -> Any:
    """What it quotes from a caller or a sandbox, harmless to look at."""
    if isinstance(value, str):
        return escape(value if len(value) <= _MOST_CHARS else f"{value[:_MOST_CHARS]}...", keep="\n")
    if isinstance(value, dict):
        return {_shown(str(name)): _shown(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    return value if isinstance(value, (int, float, bool)) or value is None else _shown(str(value))
