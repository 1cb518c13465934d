"""A Linux sandbox for an agent, by name, on your own machines.

    station.run(code)          code in a fresh box, which is gone afterwards; also `map` and `imap` for many
    station.Sandbox.open(name) a sandbox with files and processes that stays until it is deleted

`arun`, `amap`, `aimap`, `aconnect` and `AsyncSandbox` are the same for asyncio. Nothing is loaded before it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncProcess",
    "AsyncSandbox",
    "Chunk",
    "Client",
    "CommandFailed",
    "Ending",
    "EndingKind",
    "ExecResult",
    "Grade",
    "Isolation",
    "Limits",
    "Mount",
    "Process",
    "RunResult",
    "Sandbox",
    "StationError",
    "__version__",
    "aconnect",
    "aimap",
    "amap",
    "arun",
    "connect",
    "errors",
    "imap",
    "map",
    "run",
]

# Type checkers read the same from __init__.pyi: an import here would tie every layer to the client.
_MODULES = {
    "client._async.client": ("AsyncClient", "aconnect", "aimap", "amap", "arun"),
    "client._async.processes": ("AsyncProcess",),
    "client._async.sandbox": ("AsyncSandbox",),
    "client._sync.client": ("Client", "connect", "imap", "map", "run"),
    "client._sync.processes": ("Process",),
    "client._sync.sandbox": ("Sandbox",),
    "client.results": ("Chunk", "CommandFailed", "ExecResult", "RunResult"),
    "core.capabilities": ("Grade", "Isolation"),
    "core.endings": ("Ending", "EndingKind"),
    "core.errors": ("StationError",),
    "core.spec": ("Limits", "Mount"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("station.core.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'station' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"station.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
