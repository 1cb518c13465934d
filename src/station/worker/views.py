"""What the API says of a process."""

from __future__ import annotations

from station.core.endings import EndingKind
from station.core.records import ProcessRecord
from station.core.wire import ProcessView

from .spool import ProcessSpool


def process_view(record: ProcessRecord, output: ProcessSpool | None = None) -> ProcessView:
    """The record as clients see it, with the output so far where `output` is given."""
    ending = record.ending
    return ProcessView(
        id=record.id,
        sandbox=record.sandbox_uid,
        command=list(record.command),
        shell=record.shell,
        cwd=record.cwd,
        state=record.state.value,
        started_at=record.started_at,
        pid=record.pid,
        ended_at=record.ended_at,
        ending=ending,
        exit_code=ending.exit_code if ending else None,
        status=ending.status if ending else "running",
        timed_out=ending is not None and ending.kind is EndingKind.TIMED_OUT,
        ended_children=record.ended_children,
        usage=record.usage,
        stdout=output.stdout.view() if output else None,
        stderr=output.stderr.view() if output else None,
    )
