"""The composition root: the one place that knows which body stands behind each port."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from station.backends.base import Backend
from station.backends.bubblewrap import BubblewrapSettings
from station.backends.docker import DockerSettings, OperatorNetwork, Pull, QuotaMode, RegistryAuth
from station.backends.host import HostBackend, HostSettings
from station.backends.registry import DEFAULTS, choose_default, make_backends
from station.control.decisions import Defaults, as_run, make_spec, with_image
from station.control.sandboxes import Sandboxes
from station.core.capabilities import Isolation
from station.core.errors import BoxLost, Refused, StationError
from station.core.ids import is_uid
from station.core.machine import Machine
from station.core.principals import Principal
from station.core.records import Owner, SandboxRecord
from station.core.spec import Spec
from station.core.wire import Diagnosis, OpenRequest, RunRequest
from station.machine import look
from station.store.answers import Answers
from station.store.files import FileStore
from station.store.identity import station_id
from station.store.principals_sqlite import SqliteDocuments
from station.store.registry import Damaged, Registry
from station.store.uploads import Uploads
from station.worker.audit import Audit, Policy
from station.worker.boxes import REACH_SECONDS, LiveBoxes
from station.worker.failpoints import failpoint
from station.worker.files import Files
from station.worker.journal import Journal
from station.worker.live import LiveBox, isolation_of
from station.worker.meter import Meter
from station.worker.orphans import Orphans
from station.worker.pool import Pool
from station.worker.processes import Processes
from station.worker.reconcile import Settling, reconcile
from station.worker.runs import Runs
from station.worker.staging import Staging
from station.worker.tasks import Tasks
from station.worker.watch import Watchdog

from .access.access import Access
from .activity import Activity
from .readiness import Readiness
from .settings import Settings
from .stores import open_stores
from .traffic import Traffic

log = logging.getLogger(__name__)

MakeBackends = Callable[[Path, str, Settings], Mapping[str, Backend]]
_HOST_FORBIDDEN = (
    "the backend host runs code as you, without isolation; to allow it set sandbox.allow_host: true in station.yaml "
    "or STN_SANDBOX_ALLOW_HOST=true (read when the station starts: `stn stop` first)"
)


def backends_of(home: Path, identity: str, settings: Settings) -> Mapping[str, Backend]:
    """Those of this machine, as the operator wants them."""
    sandbox = settings.sandbox
    return make_backends(
        home,
        identity,
        bubblewrap=BubblewrapSettings(spare_uid=sandbox.spare_uid),
        docker=DockerSettings(
            image=sandbox.docker_image,
            images={name: image for name, image in vars(sandbox.images).items() if image is not None},
            runtime=sandbox.docker_runtime,
            pull=Pull(sandbox.pull),
            pull_from=sandbox.pull_from,
            auth=RegistryAuth(**vars(sandbox.registry_auth)),
            network=OperatorNetwork(sandbox.docker_network, sandbox.docker_network_restricted),
            seccomp=sandbox.docker_seccomp,
            workspace_quota=QuotaMode(sandbox.docker_workspace_quota),
        ),
        host=HostSettings(spare_uid=sandbox.spare_uid),
        allow_host=sandbox.allow_host,
    )


class Station:
    """All roles of one state directory, whose lock the caller holds. Made by `start`, ended by `aclose`."""

    def __init__(
        self,
        settings: Settings,
        *,
        identity: str,
        backends: Mapping[str, Backend],
        registry: Registry,
        store: FileStore,
        journal: Journal,
        answers: Answers,
        access: Access,
        audit: Audit,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """Use `start`."""
        sandbox = settings.sandbox
        forbidden = {} if sandbox.allow_host else {HostBackend.name: _HOST_FORBIDDEN}
        usable = {name: backend for name, backend in backends.items() if name not in forbidden}
        self.settings = settings
        self.id = identity
        self.backends = backends
        """All there are, for `doctor`; those that may be used are in `boxes`."""
        self.default_backend: str | None = None
        """What a caller gets that names none; `None`: nothing that isolates works here."""
        self.started_at = now()
        self.now = now
        """Seconds since the epoch."""
        self._clock = clock
        self._cleanup_at = clock()
        self.activity = Activity(clock)
        self.traffic = Traffic()
        self.meter = Meter()
        self.answers = answers
        """Those that are given again (`idempotency`)."""
        self.readiness = Readiness(registry, settings.home, clock=clock)
        self.access = access
        self.request_stop: Callable[[], None] = lambda: None
        """Set by whoever serves: ends the station, gracefully and soon."""
        self.processes = Processes(
            journal,
            settings.home / "output",
            now=now,
            max_running=sandbox.max_processes,
            kept_bytes=sandbox.output_kept_bytes,
            timeout_seconds=sandbox.timeout_seconds,
            clock=clock,
            stuck=self._stuck,
            meter=self.meter,
        )
        self._audit = audit
        self.boxes = LiveBoxes(
            usable,
            station=identity,
            processes=self.processes,
            on_lost=self._box_lost,
            forbidden=forbidden,
            admit=audit.admit,
            meter=self.meter,
        )
        self.sandboxes = Sandboxes(
            registry,
            self.boxes,
            station=identity,
            defaults=self._defaults,
            now=now,
            max_sandboxes=sandbox.max_sandboxes,
            most_of=access.deployments.most_of,
            failpoint=failpoint,
            remove_stored=store.delete_below,
        )
        self.files = Files()
        self.store = store
        self.uploads = Uploads(settings.home / "uploads", store, now=now, max_bytes=settings.files.max_bytes)
        self.staging = Staging(self.files, store, now=now)
        self.pool = Pool(usable, station=identity, size=sandbox.pool_size, meter=self.meter)
        self.orphans = Orphans(self.boxes, self.pool, registry.get, station=identity, clock=clock)
        self.runs = Runs(
            self.pool, self._run_spec, now=now, clock=clock, timeout_seconds=sandbox.timeout_seconds, meter=self.meter
        )
        self._watchdog = Watchdog(lambda: [*self.processes.running(), *self.runs.running()])
        self._registry = registry
        self._owned = AsyncExitStack()

    @classmethod
    async def start(
        cls,
        settings: Settings,
        *,
        make_backends: MakeBackends = backends_of,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        machine: Callable[[Path], Machine] = look,
    ) -> Station:
        """A station that has made facts match records: what lived is adopted, what was half-way is finished or
        undone."""
        home = settings.home
        identity = station_id(home)
        backends = make_backends(home, identity, settings)
        policy = Policy(settings.sandbox.serves_others, settings.sandbox.minimum_isolation)
        async with AsyncExitStack() as stack:
            for backend in backends.values():
                stack.push_async_callback(backend.aclose)
            registry, store = await open_stores(settings, stack, now=now)
            documents = SqliteDocuments(home / "principals.db")
            stack.push_async_callback(documents.aclose)
            access = await Access.load(documents, settings, home, now=now, clock=clock)
            stack.push_async_callback(access.aclose)
            answers = Answers(home / "answers.db")
            stack.push_async_callback(answers.aclose)
            journal = Journal(home / "processes.db", kept_finished=settings.sandbox.max_history)
            stack.callback(journal.close)
            station = cls(
                settings,
                identity=identity,
                backends=backends,
                registry=registry,
                store=store,
                journal=journal,
                answers=answers,
                access=access,
                audit=Audit(backends, home, policy, clock=clock, machine=machine),
                now=now,
                clock=clock,
            )
            await station._begin(stack)
            station._owned = stack.pop_all()
        return station

    async def _begin(self, stack: AsyncExitStack) -> None:
        for part in (self.boxes, self.processes, self.sandboxes, self.pool, self.runs):
            stack.push_async_callback(part.aclose)
        await self._choose_backend()
        listing = await self._registry.list()
        self.sandboxes.ids.know(listing)
        report = await reconcile(listing, self.boxes.backends, self.sandboxes, station=self.id)
        log.info("station %s, pid %d: reconciled: %s", self.id, os.getpid(), report)
        self._forget_old()
        self.boxes.unsettled |= report.unsettled
        tasks = await stack.enter_async_context(Tasks())
        tasks.start(self._watchdog.run(), name="memory watchdog")
        tasks.start(self.traffic.watch_loop(), name="lag of the event loop")
        settling = Settling(self.boxes.unsettled, self._registry.get, self.sandboxes)
        tasks.start(settling.run(), name="settling what could not be asked")

    async def aclose(self) -> None:
        """Pool boxes are destroyed, kept boxes live on with what runs in them. Repeating is no error."""
        await self._owned.aclose()

    def uid(self, sid: str, principal: Principal) -> str:
        """The uid of a sandbox that `principal` addresses by that or by its tool id. Raises SandboxNotFound for one
        that is not his; the operator, who owns the machine, may name any by its uid."""
        if is_uid(sid) and not principal.is_deployment:
            return sid
        return self.sandboxes.ids.uid_of(sid, principal.owner)

    async def fetch(self, request: OpenRequest, owner: Owner) -> None:
        """What a new sandbox of that request needs and has to come from elsewhere: without its lock, and ended with
        its caller."""
        if not await self.sandboxes.exists(request.name, owner):
            await self._fetched(request)

    async def would_be(self, request: OpenRequest) -> Isolation:
        """How a new sandbox of that request would be isolated; raises as `open` would. Nothing is made."""
        spec = await self._fetched(request)
        told = isolation_of(await self.boxes.capabilities(spec.backend), spec)
        values = vars(spec.effective)
        return replace(told, limits={name: replace(it, value=values.get(name)) for name, it in told.limits.items()})

    async def live(self, sid: str, principal: Principal) -> LiveBox:
        """The box of a sandbox, addressed as in `uid`, in which a command can run; the next one is made where there is
        none. Raises Unavailable where it cannot be asked for, and is not back within a few seconds."""
        self.check_code_mode()
        uid = self.uid(sid, principal)
        live = self.boxes.get(uid)
        if live is None or self.sandboxes.is_going(uid):
            await self.sandboxes.ready(uid)
            # Asked again: meanwhile the name may have begun another life.
            live = self.boxes.get(self.uid(sid, principal))
        if live is None:
            raise BoxLost("the box of this sandbox ended as soon as it was made", uid=uid)
        if live.session.away is not None:
            await live.session.reachable(REACH_SECONDS)
        return live

    def last_use(self, record: SandboxRecord) -> float:
        """Now, while somebody uses it."""
        in_use = self.sandboxes.uses.under_way(record.uid) or self._is_busy(record.uid)
        return self.now() if in_use else record.last_active_at

    def check_enabled(self) -> None:
        """Raises Refused where the operator has switched sandboxes off."""
        if not self.settings.sandbox.enabled:
            raise Refused("sandboxes are switched off here: sandbox.enabled is false in station.yaml")

    def check_code_mode(self) -> None:
        """Raises Refused where the operator has switched off sandboxes that stay."""
        self.check_enabled()
        if self.settings.sandbox.code_mode_enabled is False:
            raise Refused("only runs are served here: sandbox.code_mode_enabled is false in station.yaml")

    async def records(self, owner: Owner | None = None) -> tuple[list[SandboxRecord], list[Damaged]]:
        """Those of `owner`, by name; `None`: all."""
        listing = await self.sandboxes.list()
        records = [it for it in listing.records if owner in (None, it.owner)]
        # Of a damaged one it may not be known whose it is; then it is the operator's to mend.
        damaged = [it for it in listing.damaged if owner in (None, it.owner or Owner())]
        return sorted(records, key=lambda record: record.name), damaged

    async def record(self, uid: str) -> SandboxRecord | Damaged | None:
        return await self._registry.get(uid)

    async def doctor(self) -> Diagnosis:
        """What each backend can do here, the host audit, and who may be served; looked at now."""
        return await self._audit.diagnose()

    async def admit(self, live: LiveBox) -> None:
        """Raises Refused where this station serves others and no new command may run in that box."""
        await self._audit.admit(live.capabilities, live.capabilities.network)

    async def housekeeping(self) -> None:
        """To be called now and then: writes what is only in memory, forgets what is old, removes what nobody uses."""
        for uid in {running.record.sandbox_uid for running in self.processes.running()}:
            if self._is_busy(uid):  # the end of a command is a use too, whoever still waits for it
                self.sandboxes.uses.touch(uid)
        await self.sandboxes.flush()
        await self._clean_up()
        await self.orphans.sweep_when_due()
        await self._sweep_store()
        await self.access.keys.flush()
        with _goes_on("old answers were not forgotten"):
            await self.answers.forget_old(self.now())
        self._forget_old()

    def _forget_old(self) -> None:
        with _goes_on("old commands were not forgotten"):
            self.processes.sweep()

    async def _sweep_store(self) -> None:
        """What has expired in the file store, and uploads that nobody goes on with."""
        with _goes_on("the file store was not swept"):
            await self.store.sweep(self.now())
            await self.uploads.sweep()

    async def delete_all(self) -> None:
        """Every sandbox, as far as that can be done."""
        for record in (await self.records())[0]:
            try:
                await self.sandboxes.delete(record.uid)
            except StationError as error:
                log.error("sandbox %s was not deleted: %s", record.uid, error)

    async def _clean_up(self) -> None:
        if self._clock() < self._cleanup_at:
            return
        self._cleanup_at = self._clock() + self.settings.sandbox.cleanup_interval_minutes * 60
        with _goes_on("unused sandboxes could not be looked for"):
            await self.sandboxes.remove_unused(self._is_busy)

    def _is_busy(self, uid: str) -> bool:
        """Whether a command with a time limit runs in it."""
        return any(running.timeout_seconds is not None for running in self.processes.running(uid))

    def is_idle(self) -> bool:
        return self.activity.is_idle(live_boxes=len(self.boxes), minutes=self.settings.idle_minutes)

    async def _choose_backend(self) -> None:
        """The operator's, else the strongest that works here. Never one without isolation."""
        self.default_backend = self.settings.sandbox.backend
        if self.default_backend is not None:
            self.boxes.backend(self.default_backend)
            return
        probes = {name: await self.boxes.capabilities(name) for name in DEFAULTS if name in self.boxes.backends}
        self.default_backend = choose_default(probes)

    def _defaults(self) -> Defaults:
        # Where nothing works, the best is asked for all the same: it tells the caller why not, and what would help.
        sandbox = self.settings.sandbox
        return Defaults(
            self.default_backend or DEFAULTS[0],
            sandbox.limits,
            timeout_seconds=sandbox.timeout_seconds,
            idle_timeout_seconds=sandbox.idle_timeout_minutes * 60,
        )

    async def _spec(self, request: OpenRequest | RunRequest) -> Spec:
        defaults = self._defaults()
        network = await self.boxes.default_network(request.backend or defaults.backend)
        return make_spec(request, backend=defaults.backend, defaults=defaults.limits, network=network)

    async def _fetched(self, request: OpenRequest | RunRequest) -> Spec:
        """Its spec, checked, and what a box of it needs is here."""
        spec = await self._spec(request)
        if isinstance(request, RunRequest):
            spec = as_run(spec)  # its files are in memory: other limits can be kept
        await self.boxes.check(spec)
        await self.boxes.fetch(spec)
        return spec

    async def _run_spec(self, request: RunRequest) -> Spec:
        spec = await self._fetched(request)
        return with_image(spec, await self.boxes.capabilities(spec.backend))

    async def _box_lost(self, uid: str, generation: int, reason: str) -> None:
        await self.sandboxes.box_lost(uid, generation, reason)

    def _stuck(self, live: LiveBox, reason: str) -> None:
        self.boxes.give_up(live, reason)


@contextmanager
def _goes_on(why: str) -> Iterator[None]:
    """What fails within is told in the log, and tried again with the next housekeeping."""
    try:
        yield
    except StationError as error:
        log.warning("%s: %s", why, error)
