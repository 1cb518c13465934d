"""Places where a test may strike Station: `STN_FAIL=create.after_start:kill9[,exec.after_end:error]`.

Actions: `kill9` (SIGKILL to this process), `stop` (SIGSTOP), `error` (InternalError), `sleepN` (the process does
nothing for N seconds: a stalled disk). Unset, a failpoint costs one look at an empty dict.
"""

from __future__ import annotations

import os
import signal
import time

from station.core.errors import InternalError, InvalidInput

NAMES = (
    "create.after_claim",
    "create.after_intent",
    "create.after_start",
    "create.after_ready",
    "exec.after_accept",
    "exec.after_start",
    "exec.after_end",
    "delete.after_mark",
    "delete.after_destroy",
    "delete.after_files",
)

_armed: dict[str, str] = {}


def arm(text: str | None) -> None:
    """Replaces what is armed. Raises InvalidInput for a name or action that does not exist, so that no test is void."""
    _armed.clear()
    for item in filter(None, (text or "").split(",")):
        name, _, action = item.strip().partition(":")
        if name not in NAMES:
            raise InvalidInput(f"STN_FAIL: no failpoint {name!r}; there are {', '.join(NAMES)}", field="STN_FAIL")
        if action not in ("kill9", "stop", "error") and not (action.startswith("sleep") and action[5:].isdigit()):
            raise InvalidInput(f"STN_FAIL: {action!r} is none of kill9, stop, error, sleepN", field="STN_FAIL")
        _armed[name] = action


def failpoint(name: str) -> None:
    """Does what `STN_FAIL` says for `name`; else nothing."""
    if _armed and (action := _armed.get(name)):
        _strike(name, action)


def _strike(name: str, action: str) -> None:
    match action:
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "error":
            raise InternalError(f"failpoint {name}", failpoint=name)
        case _:
            time.sleep(int(action[5:]))


arm(os.environ.get("STN_FAIL"))
