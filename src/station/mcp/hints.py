"""What may help after a command failed: a sentence for the model, decided from what is known."""

from __future__ import annotations

import re

from station.core.endings import EndingKind
from station.core.wire import MAX_TIMEOUT_SECONDS

_NO_NAME = re.compile(
    r"temporary failure (in name resolution|resolving)|could not resolve|name or service not known|getaddrinfo"
    r"|network is unreachable|no address associated|failed to establish a new connection|unable to look up"
    r"|externally-managed-environment",
    re.IGNORECASE,
)
_SYSTEM_PACKAGES = re.compile(r"/var/lib/(apt|dpkg)|are you root|read-only file system", re.IGNORECASE)
_INSTALLS = re.compile(r"\b(apt|apt-get|dpkg|dnf|yum|apk)\b")
_DOWNLOADS = re.compile(
    r"\b(apt|apt-get|dnf|yum|apk|curl|wget|git +(clone|fetch|pull|push)"
    r"|(pip3?|npm|npx|pnpm|yarn|uv|cargo|gem|go|bundle) +(\S+ +)?(install|add|i|ci|get|sync|fetch|download|create))\b"
)
_USE = "Use what is installed, or ask the user to copy in what is needed (`stn cp`)"


def after(ending: EndingKind, command: str, said: str, network: str) -> str | None:
    """`command` is what was run, `said` what it wrote, `network` what the sandbox can reach. `None`: nothing known."""
    no_network = network == "none"
    if ending is EndingKind.TIMED_OUT:
        if no_network and _DOWNLOADS.search(command):
            return f"this sandbox has no network, so nothing that it waited for will come. {_USE}"
        return (
            f"timeout_seconds sets the time limit, up to {MAX_TIMEOUT_SECONDS:g}; sandbox_start runs what takes longer"
        )
    if ending is EndingKind.OOM:
        return "it needs more memory than the sandbox may use; work on less at once, or ask the operator for more"
    if ending is not EndingKind.EXITED or not no_network:
        return None
    if _INSTALLS.search(command) and (_SYSTEM_PACKAGES.search(said) or _NO_NAME.search(said)):
        return (
            f"this sandbox has no network and its system packages cannot be changed. {_USE}; `allow_network: true`, "
            "with which both can be had, is not in this release"
        )
    if _NO_NAME.search(said):
        return f"this sandbox has no network (network: none). {_USE}; `allow_network: true` is not in this release"
    return None
