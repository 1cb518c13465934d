"""What a station does about the commands of the one before it: each is joined, ended as lost, or never was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from station.core.endings import Ending
from station.core.errors import BoxLost
from station.core.records import ProcessRecord, ProcessState

from .supervise import Supervisor

if TYPE_CHECKING:
    from station.guest.process import GuestProcess

    from .live import LiveBox

logger = logging.getLogger(__name__)

STRAY_SECONDS = 2.0


def wanted(supervisor: Supervisor, uid: str, generation: int) -> Mapping[int, tuple[int, int]]:
    """Where the guest is to go on, by guest id: what the spool does not have yet."""
    return {
        record.guest_id: supervisor.spool(uid, record.id, loaded=True).offsets
        for record in supervisor.journal.unfinished(uid)
        if record.generation == generation
    }


def recover(supervisor: Supervisor, live: LiveBox) -> None:
    """Joins what lives in an adopted box. Before anything starts in it: ids of what never started come again."""
    ours: set[int] = set()
    for record in supervisor.journal.unfinished(live.uid):
        if record.id in supervisor.running[live.uid]:
            ours.add(record.guest_id)
        elif record.generation != live.generation:
            supervisor.lose(record, f"its box, number {record.generation} of this sandbox, is gone")
        elif record.guest_id in live.session.hello.processes:
            ours.add(record.guest_id)
            _join(supervisor, live, record)
        elif record.guest_id > live.session.hello.last_id and record.state is ProcessState.ACCEPTED:
            # The guest has seen larger ids never: START did not reach it, so a retry may run it.
            supervisor.drop(record, supervisor.spool(live.uid, record.id, loaded=True))
        else:
            supervisor.lose(record, "Station was restarted, and the guest no longer knew how it ended")
    _end_strays(supervisor, live, ours)
    supervisor.prune(live.uid)


def _join(supervisor: Supervisor, live: LiveBox, record: ProcessRecord) -> None:
    spool = supervisor.spool(live.uid, record.id, loaded=True)
    given = spool.stdin()
    if (pid := live.session.hello.processes[record.guest_id].pid) != 0:
        record = replace(record, state=ProcessState.RUNNING, pid=pid)
    running = supervisor.run(live, record, spool, stdin_open=spool.stdin_open)
    try:
        running.process = live.session.join(record.guest_id, sink=running)
    except BoxLost as error:
        supervisor.lose(record, error.message)
        return
    supervisor.watch(running)
    if given is not None:
        rest = given[running.process.stdin_taken :]
        supervisor.tasks.start(running.feed(rest), name=f"stdin of {record.id}")


def _end_strays(supervisor: Supervisor, live: LiveBox, ours: set[int]) -> None:
    """What the guest still has and nobody waits for: file primitives of the station before, and what is written down as
    ended already."""
    for guest_id in live.session.hello.processes.keys() - ours:
        try:
            stray = live.session.join(guest_id)
        except BoxLost as error:
            logger.debug("stray process %d: %s", guest_id, error)
        else:
            supervisor.tasks.start(_end_stray(stray), name=f"end stray process {guest_id}")


async def _end_stray(stray: GuestProcess) -> None:
    """An end of file first: a file primitive that was being fed then takes away what it had staged, and ends."""
    try:
        async with asyncio.timeout(STRAY_SECONDS):
            await stray.close_stdin()
            async for _ in stray.chunks():
                pass
    except (TimeoutError, BoxLost) as error:
        logger.debug("stray process %d is ended: %s", stray.guest_id, error)
    finally:
        stray.abandon()


def box_lost(supervisor: Supervisor, uid: str, generation: int, reason: str) -> None:
    """Everything that ran in that box ends `lost`."""
    for running in list(supervisor.running[uid].values()):
        if running.record.generation == generation:
            supervisor.finish(running, Ending.lost(reason))
    for record in supervisor.journal.unfinished(uid):
        if record.generation == generation:
            supervisor.lose(record, reason)
    supervisor.forget_box(uid, generation)


def forget_sandbox(supervisor: Supervisor, uid: str) -> None:
    """The sandbox is deleted: records, ids and output go. Its box is gone already, or goes next."""
    for running in list(supervisor.running[uid].values()):
        supervisor.finish(running, Ending.lost("its sandbox was deleted"))
    supervisor.forget_box(uid)
    supervisor.journal.forget_sandbox(uid)
    supervisor.remove_sandbox_output(uid)
