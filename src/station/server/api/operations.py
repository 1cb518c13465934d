"""Every operation of the API: the one table that the router and the description are made from."""

from __future__ import annotations

from station.core.capabilities import Isolation
from station.core.errors import (
    ProcessNotFound,
    SandboxFailed,
    SandboxNotFound,
    StorageFull,
)
from station.core.wire import (
    API,
    Diagnosis,
    ExecRequest,
    OpenRequest,
    OutputEvent,
    ProcessView,
    RunRequest,
    RunResult,
    SandboxView,
    SignalRequest,
    StationView,
)
from station.server.access.guard import HEALTH, READY

from . import parameters as p
from . import routes_processes as processes
from . import routes_sandboxes as sandboxes
from . import routes_station as stations
from .metrics import MEDIA
from .operation import BOX, LIVE, Again, Errors, Facts, Lines, Link, Many, Operation, Raw, facts
from .operations_access import ACCESS
from .operations_files import FILES
from .operations_upkeep import UPKEEP

_ONE = f"{API}/sandboxes/{{sid}}"
_PROCESS = f"{_ONE}/processes/{{pid}}"

_OCTETS = "application/octet-stream"
_PROCESSES: Errors = (*LIVE, ProcessNotFound)

# The hot path stands first: the first path that fits is taken.
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        id="exec",
        method="POST",
        path=f"{_ONE}/exec",
        handler=processes.exec_,
        summary="Run a command to its end.",
        body=ExecRequest,
        again=Again.JOINS,
        answers={200: ProcessView},
        errors=LIVE,
    ),
    # ── the station ─────────────────────────────────────────────────────────────────────────────────────────────
    Operation(
        id="get_station",
        method="GET",
        path=f"{API}/station",
        handler=stations.info,
        summary="What this station is, and how much it has.",
        answers={200: StationView},
    ),
    Operation(
        id="stop_station",
        method="POST",
        path=f"{API}/station/stop",
        handler=stations.stop,
        summary="End the station. Answered before it happens; kept sandboxes live on.",
        answers={202: facts(status=str, pid=int)},
    ),
    Operation(
        id="get_diagnosis",
        method="GET",
        path=f"{API}/doctor",
        handler=stations.doctor,
        summary="What holds on this machine, looked at now.",
        answers={200: Diagnosis},
    ),
    Operation(
        id="get_description",
        method="GET",
        path=f"{API}/openapi.json",
        handler=stations.description,
        summary="This description.",
        answers={200: Facts({})},
    ),
    # ── runs and sandboxes ──────────────────────────────────────────────────────────────────────────────────────
    Operation(
        id="run",
        method="POST",
        path=f"{API}/runs",
        handler=sandboxes.run,
        summary="Run code in a fresh box, which is destroyed after it.",
        body=RunRequest,
        answers={200: RunResult},
        errors=BOX,
    ),
    Operation(
        id="cancel_run",
        method="DELETE",
        path=f"{API}/runs/{{rid}}",
        handler=sandboxes.cancel_run,
        summary="End a run by its id. Also where there is none: what comes under it within a minute is refused.",
        answers={204: None},
    ),
    Operation(
        id="open_sandbox",
        method="POST",
        path=f"{API}/sandboxes",
        handler=sandboxes.open_,
        summary="Get or create a sandbox by name. 201: it was made.",
        body=OpenRequest,
        answers={200: SandboxView, 201: SandboxView},
        errors=BOX,
        links=(
            Link(
                "sid",
                "$response.body#/id",
                (
                    "exec",
                    "get_sandbox",
                    "start_process",
                    "list_processes",
                    "write_file",
                    "list_files",
                    "stage_file",
                    "delete_sandbox",
                ),
            ),
        ),
    ),
    Operation(
        id="check_sandbox",
        method="POST",
        path=f"{API}/sandboxes/check",
        handler=sandboxes.check,
        summary="How a new sandbox would be isolated, or why it would be refused. Nothing is made.",
        body=OpenRequest,
        answers={200: Isolation},
        errors=BOX,
    ),
    Operation(
        id="list_sandboxes",
        method="GET",
        path=f"{API}/sandboxes",
        handler=sandboxes.list_,
        summary="The caller's sandboxes, damaged ones too.",
        query=(p.ALL,),
        answers={200: Many("sandboxes", SandboxView)},
    ),
    Operation(
        id="get_sandbox",
        method="GET",
        path=_ONE,
        handler=sandboxes.get,
        summary="One sandbox, by its uid or its tool id.",
        answers={200: SandboxView},
        errors=(SandboxNotFound, SandboxFailed),
    ),
    Operation(
        id="delete_sandbox",
        method="DELETE",
        path=_ONE,
        handler=sandboxes.delete,
        summary="End a sandbox and its files, for good. Repeating is no error.",
        query=(p.KEEP_FILES, p.UNLESS_BUSY),
        answers={204: None},
        errors=LIVE,
    ),
    # ── processes ───────────────────────────────────────────────────────────────────────────────────────────────
    Operation(
        id="start_process",
        method="POST",
        path=f"{_ONE}/processes",
        handler=processes.start,
        summary="Start a command.",
        body=ExecRequest,
        again=Again.JOINS,
        answers={201: ProcessView},
        errors=LIVE,
        links=(Link("pid", "$response.body#/id", ("get_process", "signal_process", "write_stdin", "get_output")),),
    ),
    Operation(
        id="list_processes",
        method="GET",
        path=f"{_ONE}/processes",
        handler=processes.list_,
        summary="Running commands, and ended ones that are kept, oldest first, without output.",
        answers={200: Many("processes", ProcessView)},
        errors=LIVE,
    ),
    Operation(
        id="get_process",
        method="GET",
        path=_PROCESS,
        handler=processes.get,
        summary="One command.",
        query=(p.WAIT, p.OUTPUT),
        answers={200: ProcessView},
        errors=_PROCESSES,
    ),
    Operation(
        id="signal_process",
        method="POST",
        path=f"{_PROCESS}/signal",
        handler=processes.signal,
        summary="Send a signal to its whole tree, or cancel it.",
        body=SignalRequest,
        answers={204: None},
        errors=_PROCESSES,
    ),
    Operation(
        id="write_stdin",
        method="POST",
        path=f"{_PROCESS}/stdin",
        handler=processes.stdin,
        summary="Feed the standard input of a command that was started with `stdin_open`.",
        query=(p.EOF,),
        body=Raw(_OCTETS, "The bytes."),
        answers={200: facts(taken=int)},
        errors=_PROCESSES,
    ),
    Operation(
        id="get_output",
        method="GET",
        path=f"{_PROCESS}/output",
        handler=processes.output,
        summary="Output from offsets on, one event a line.",
        query=(p.FOLLOW, p.AFTER_STDOUT, p.AFTER_STDERR),
        answers={200: Lines(OutputEvent)},
        errors=_PROCESSES,
    ),
    *FILES,
    *ACCESS,
    *UPKEEP,
    # ── for those who look after it ─────────────────────────────────────────────────────────────────────────────
    Operation(
        id="get_health",
        method="GET",
        path=HEALTH,
        handler=stations.health,
        summary="Whether the process answers.",
        answers={200: facts(status=str, version=str, pid=int)},
        to_all=True,
    ),
    Operation(
        id="get_readiness",
        method="GET",
        path=READY,
        handler=stations.ready,
        summary="Whether the station can do its work. The operator alone is told why not.",
        answers={200: facts(status=str)},
        to_all=True,
    ),
    Operation(
        id="get_metrics",
        method="GET",
        path="/metrics",
        handler=stations.metrics,
        summary="What it counts, for Prometheus.",
        answers={200: Raw(MEDIA.partition(";")[0], "One number a line.")},
        errors=(StorageFull,),
    ),
)
