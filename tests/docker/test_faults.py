"""An engine that is away, slow, or says what it should not. The box goes on, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from station.backends.docker import DockerBackend
from station.core.errors import NotFound, StationError, Unavailable
from station.core.spec import Spec
from station.guest.frames import StartRecord

from .conftest import Bed, run, session_of
from .proxy import FaultProxy

pytestmark = pytest.mark.docker
KEPT = Spec("docker")
SHORT = Spec("docker", ephemeral=True)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


async def nothing_is_left(bed: Bed) -> None:
    assert [item async for item in bed.backend().boxes()] == []


async def test_no_engine_is_a_retryable_answer_and_is_asked_again(bed: Bed, proxy: FaultProxy) -> None:
    backend = bed.backend(url=proxy.url)
    await proxy.go_away()
    with within(2):
        found = await backend.probe()
    assert (found.available, found.passing) == (False, True)
    assert "does not answer" in (found.reason or "")
    with pytest.raises(Unavailable) as error:
        await backend.create(SHORT, bed.labels())
    assert error.value.retryable
    await proxy.come_back()
    assert (await backend.probe()).available
    await (await backend.create(SHORT, bed.labels())).destroy()


async def test_hd_d09_a_box_goes_on_while_the_engine_is_away(bed: Bed, proxy: FaultProxy) -> None:
    backend = bed.backend(url=proxy.url)
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    ended = asyncio.create_task(box.ended())
    async with session_of(box) as session:
        line = "for i in $(seq 200); do echo $i; sleep 0.01; done"
        argv = ("bash", "-c", line)
        record = StartRecord(argv=argv, env=dict(box.layout.env), cwd="/workspace")
        process = session.start(record, guest_id=session.next_id())
        await process.pid()
        await proxy.go_away()
        with pytest.raises(Unavailable) as error, within(2):
            await backend.create(SHORT, bed.labels("other"))
        assert error.value.retryable
        with pytest.raises(Unavailable), within(2):
            await backend.adopt(box.ref)
        await asyncio.sleep(1.0)
        await proxy.come_back()
        async with asyncio.timeout(20):
            text = b"".join([chunk.data async for chunk in process.chunks()])
            assert text.split() == [b"%d" % number for number in range(1, 201)]
            assert (await process.exit()).value == 0
    assert not ended.done()
    ended.cancel()
    await asyncio.gather(ended, return_exceptions=True)
    again = await bed.backend().adopt(box.ref)
    async with session_of(again) as session:
        assert (await run(session, again, "echo", "there")) == (0, "there\n")


async def test_hd_d10_a_slow_engine_is_not_waited_for_and_its_late_success_is_swept(
    bed: Bed, proxy: FaultProxy
) -> None:
    backend = bed.backend(url=proxy.url, call_seconds=1.0)
    await backend.probe()
    proxy.delay_seconds = 20
    with pytest.raises(Unavailable, match="no answer within 1 s") as error, within(35):
        await backend.create(SHORT, bed.labels())
    assert error.value.retryable
    proxy.delay_seconds = 0
    await (await backend.create(SHORT, bed.labels())).destroy()
    await nothing_is_left(bed)


@pytest.mark.parametrize("call", [r"POST \S+containers/create", r"POST \S+/start", r"POST \S+/attach"])
async def test_hd_d11_a_lost_reply_leaves_nothing_and_the_retry_succeeds(
    bed: Bed, proxy: FaultProxy, call: str
) -> None:
    backend = bed.backend(url=proxy.url)
    await backend.probe()
    proxy.lost.append(call)
    with pytest.raises(Unavailable) as error:
        await backend.create(KEPT, bed.labels())
    assert error.value.retryable
    assert proxy.lost == []
    await nothing_is_left(bed)
    box = await backend.create(KEPT, bed.labels())
    async with session_of(box) as session:
        assert (await run(session, box, "true"))[0] == 0
    await box.destroy()
    await nothing_is_left(bed)


async def test_hd_d11_control_what_nobody_discards_is_left(
    bed: Bed, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(*_: object) -> None:
        return

    monkeypatch.setattr(DockerBackend, "_discard", keep)
    backend = bed.backend(url=proxy.url)
    await backend.probe()
    proxy.lost.append(r"POST \S+containers/create")
    with pytest.raises(Unavailable):
        await backend.create(KEPT, bed.labels())
    assert [item async for item in backend.boxes()] != []


async def test_hd_d11_a_lost_reply_to_a_removal_leaves_nothing(bed: Bed, proxy: FaultProxy) -> None:
    backend = bed.backend(url=proxy.url)
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    proxy.lost.append("DELETE")
    # HTTP lets a client send a removal again by itself: then the first call has succeeded already.
    with suppress(Unavailable):
        await box.destroy()
    assert proxy.lost == []
    await box.destroy()
    await nothing_is_left(bed)


LIES = [
    (r"POST \S+containers/create", "201 Created", b"{}"),
    (r"POST \S+containers/create", "201 Created", b"[]"),
    (r"POST \S+containers/create", "201 Created", b"<html>hello"),
    (r"POST \S+containers/create", "201 Created", b'{"Id": 7}'),
    (r"POST \S+containers/create", "201 Created", b'{"Id": "nobody"}'),
    (r"POST \S+containers/create", "500 Oops", b"not json"),
    (r"POST \S+containers/create", "500 Oops", b'{"no": "message"}'),
    (r"POST \S+containers/create", "409 Conflict", b'{"message": "already in use"}'),
    (r"POST \S+/start", "404 Not Found", b'{"message": "No such container"}'),
    (r"POST \S+/start", "500 Oops", b'{"message": "OCI runtime: /var/lib/docker/x exploded"}'),
    (r"POST \S+/attach", "200 OK", b"hello"),
    (r"POST \S+/attach", "500 Oops", b'{"message": "no"}'),
    (r"GET \S+images/\S+/json", "200 OK", b"null"),
    (r"GET \S+images/\S+/json", "200 OK", b'{"Id": "../../etc"}'),
    (r"GET \S+images/\S+/json", "200 OK", b"\xff\xfe"),
    (r"GET \S+volumes/", "200 OK", b"[]"),
]


@pytest.mark.parametrize(("call", "status", "body"), LIES)
async def test_hd_d10_nonsense_is_an_error_of_ours_and_leaves_nothing(
    bed: Bed, proxy: FaultProxy, call: str, status: str, body: bytes
) -> None:
    backend = bed.backend(url=proxy.url)
    await backend.probe()
    proxy.answer(call, status, body)
    with pytest.raises(StationError) as error, within(10):
        await backend.create(KEPT, bed.labels())
    assert "/var/lib" not in error.value.message
    proxy.lies.clear()
    await nothing_is_left(bed)
    await (await backend.create(KEPT, bed.labels())).destroy()


@pytest.mark.parametrize(
    ("call", "status", "body"),
    [
        ("GET /_ping", "200 OK", b"OK"),
        (r"GET \S+/info", "200 OK", b"[]"),
        (r"GET \S+/info", "200 OK", b"{}"),
        (r"GET \S+/info", "200 OK", b'{"Runtimes": 7, "SecurityOptions": 7, "OSType": "linux"}'),
        (r"GET \S+/info", "503 Busy", b"wait"),
    ],
)
async def test_a_probe_never_raises(bed: Bed, proxy: FaultProxy, call: str, status: str, body: bytes) -> None:
    proxy.answer(call, status, body)
    found = await bed.backend(url=proxy.url).probe()
    assert not found.available
    assert found.reason


async def test_hd_d10_an_engine_that_says_the_box_has_ended_is_not_believed(bed: Bed, proxy: FaultProxy) -> None:
    backend = bed.backend(url=proxy.url)
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    proxy.answer(r"POST \S+/wait", "200 OK", b'{"StatusCode": 0}')
    ended = asyncio.create_task(box.ended())
    await asyncio.sleep(0.5)
    assert not ended.done()
    ended.cancel()
    await asyncio.gather(ended, return_exceptions=True)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("409 Conflict", b'{"message": "removal of container x is already in progress"}'),
        ("500 Oops", b'{"message": "driver failed to remove root filesystem: device or resource busy"}'),
    ],
)
async def test_hd_d12_a_removal_that_goes_on_is_waited_for(
    bed: Bed, proxy: FaultProxy, status: str, body: bytes
) -> None:
    backend = bed.backend(url=proxy.url)
    await backend.probe()
    box = await backend.create(KEPT, bed.labels())
    proxy.answer("DELETE", status, body)
    destroying = asyncio.create_task(box.destroy())
    await asyncio.sleep(0.3)
    assert not destroying.done()
    proxy.lies.clear()
    async with asyncio.timeout(30):
        await destroying
    with pytest.raises((NotFound, StationError)):
        await backend.adopt(box.ref)
    await nothing_is_left(bed)
