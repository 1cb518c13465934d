"""What a session has to send. One writer takes it all at once, so that many small frames cost one write."""

from __future__ import annotations

import asyncio
import itertools

from .frames import PING, ack_frame, credit_frame, frame, seal

CREDIT = 1 << 20
LAZY_SECONDS = 0.02


class Waiters:
    """Wakes all who wait at once; each looks again for itself. For one event loop."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            if future.cancelled():
                self._futures = [other for other in self._futures if other is not future]

    def wake(self) -> None:
        if self._futures:
            futures, self._futures = self._futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)


class Outbox:
    """Frames that wait for the writer, the newest acknowledgement of each stream, and the credit to be given back."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._acks: dict[tuple[int, int], int] = {}
        self._credit = 0
        self._ready = Waiters()
        self._drained = Waiters()
        self._sending = False
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)
        self._unconfirmed: dict[bytes, tuple[tuple[bytes, ...], asyncio.Future[None] | None]] = {}

    def put(self, *frames: bytes) -> None:
        self._frames += frames
        self._ready.wake()

    def put_lazily(self, *frames: bytes) -> None:
        """For what is not urgent: it goes along with the next one, or alone soon. To wake the guest at once would take
        the processor from the answer that a caller waits for."""
        self._frames += frames
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAZY_SECONDS, self._wake)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ready.wake()

    def put_confirmed(self, *before: bytes, answered: asyncio.Future[None] | None = None) -> bytes:
        """Frames that must not be lost with a connection: a ping follows them, and until its answer they are sent again
        over each new one. `answered` is resolved then. Returns the ping's payload, for `confirm`."""
        payload = next(self._numbers).to_bytes(8, "little")
        frames = (*before, frame(PING, 0, payload))
        self._unconfirmed[payload] = (frames, answered)
        self.put(*frames)
        return payload

    def confirm(self, payload: bytes) -> None:
        """The guest answered a ping, or nobody waits for it any more."""
        _, answered = self._unconfirmed.pop(payload, ((), None))
        if answered is not None and not answered.done():
            answered.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing will be answered any more."""
        self._wake()
        for _, answered in self._unconfirmed.values():
            if answered is not None and not answered.done():
                answered.set_exception(error)
        self._unconfirmed.clear()

    def acknowledge(self, guest_id: int, stream: int, offset: int) -> None:
        self._acks[guest_id, stream] = offset
        self._ready.wake()

    def forget_acks(self, guest_id: int) -> None:
        """The guest need not hear how far the output of an ended process got."""
        self._acks.pop((guest_id, 1), None)
        self._acks.pop((guest_id, 2), None)

    def received(self, count: int) -> None:
        """`count` bytes of credit are used up; they are given back by halves of the whole."""
        self._credit += count
        if self._credit >= CREDIT // 2:
            self.put(credit_frame(self._credit))
            self._credit = 0

    def restart(self) -> None:
        """A new connection: what was queued is made anew from what is known, and the hello has given full credit."""
        self._frames.clear()
        self._acks.clear()
        self._credit = 0
        self._sending = False

    def resume(self) -> None:
        """After the processes have queued what they need: what was never confirmed."""
        for frames, _ in self._unconfirmed.values():
            self.put(*frames)

    async def take(self, nonce: bytes) -> bytes:
        """All that is to be sent, sealed; waits for something. The one writer calls it when it has sent the last."""
        self._sending = False
        while not self._frames and not self._acks:
            self._drained.wake()
            await self._ready.wait()
        frames = self._frames
        if self._acks:
            frames += [ack_frame(guest_id, stream, offset) for (guest_id, stream), offset in self._acks.items()]
            self._acks.clear()
        self._frames = []
        self._sending = True
        return seal(frames, nonce)

    async def drained(self) -> None:
        """Waits until all is handed over."""
        self._wake()
        while self._frames or self._acks or self._sending:
            await self._drained.wait()
