from station.client._async.client import AsyncClient as AsyncClient
from station.client._async.client import aconnect as aconnect
from station.client._async.client import aimap as aimap
from station.client._async.client import amap as amap
from station.client._async.client import arun as arun
from station.client._async.processes import AsyncProcess as AsyncProcess
from station.client._async.sandbox import AsyncSandbox as AsyncSandbox
from station.client._sync.client import Client as Client
from station.client._sync.client import connect as connect
from station.client._sync.client import imap as imap
from station.client._sync.client import map as map  # noqa: A004 - as in concurrent.futures
from station.client._sync.client import run as run
from station.client._sync.processes import Process as Process
from station.client._sync.sandbox import Sandbox as Sandbox
from station.client.results import Chunk as Chunk
from station.client.results import CommandFailed as CommandFailed
from station.client.results import ExecResult as ExecResult
from station.client.results import RunResult as RunResult
from station.core import errors as errors
from station.core.capabilities import Grade as Grade
from station.core.capabilities import Isolation as Isolation
from station.core.endings import Ending as Ending
from station.core.endings import EndingKind as EndingKind
from station.core.errors import StationError as StationError
from station.core.spec import Limits as Limits
from station.core.spec import Mount as Mount

__version__: str
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
