"""The docker backend: finds out what the engine can do, makes containers, finds them again."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from station.backends._limits import refuse_named, refuse_unknown_here
from station.backends.base import Labels
from station.backends.docker import adoption, audit, config, facts, networks, registry, seccomp, trial
from station.backends.docker.box import DockerBox, attach, is_running, why_ended
from station.backends.docker.config import Image, Plan, Runtime
from station.backends.docker.engine import Engine
from station.backends.docker.facts import EngineFacts, Verdict
from station.backends.docker.fence import Fence
from station.backends.docker.helpers import Helpers, remove
from station.backends.docker.images import Images, Pull, missing
from station.backends.docker.quota import Bound, Quota
from station.backends.docker.registry import Logins
from station.backends.docker.seccomp import Profile
from station.backends.docker.settings import DockerSettings
from station.backends.docker.volumes import TRIAL, TRIAL_MB, Volumes
from station.core import machine
from station.core.capabilities import Capabilities
from station.core.codec import to_plain
from station.core.errors import (
    AlreadyExists,
    BackendUnavailable,
    BoxLost,
    CannotEnforce,
    InternalError,
    InvalidInput,
    NotFound,
    StationError,
    Unavailable,
)
from station.core.records import BoxRef
from station.core.spec import NETWORK_NONE, NETWORK_OPERATOR, Limits, Spec
from station.core.wire import PullView
from station.guest.binary import guest_binary

if TYPE_CHECKING:
    from station.backends.docker._api import Address

_NO_ENGINE = (
    "there is no Docker engine here: DOCKER_HOST was unset where the station was started, and no docker.sock is where "
    "engines have theirs"
)
_START_ENGINE = "apt install docker.io, or set DOCKER_HOST and `stn stop`: a station reads it when it starts"
START_TRIES = 2


@dataclass(frozen=True)
class _Found:
    """What a box here is made with, once the probe has found it."""

    runtime: Runtime
    engine: EngineFacts


class DockerBackend:
    """See `station.backends.base.Backend`. The engine is asked for nothing before `probe` or the first box."""

    name = "docker"

    def __init__(
        self,
        state_dir: Path,
        *,
        station_id: str,
        settings: DockerSettings | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.station_id = station_id
        self._directory = state_dir / "boxes" / self.name
        self._profiles = self._directory / "seccomp"
        self._settings = settings or DockerSettings()
        self._environ = environ
        self._engine: Engine | None = None
        self._images: Images | None = None
        self._helpers: Helpers | None = None
        self._volumes: Volumes | None = None
        self._found: _Found | None = None
        self._profile: Profile | None = None
        """The operator's, once it was read."""
        self._without_image = False
        """Nothing is amiss but that the engine has no image at all."""
        self._capabilities: Capabilities | None = None
        self._live: set[DockerBox] = set()
        self._probing = asyncio.Lock()

    # ── the port ────────────────────────────────────────────────────────────────────────────────────────────────

    async def probe(self) -> Capabilities:
        """Makes a trial box and asks its guest. A good answer is kept; an engine that is away may be back."""
        async with self._probing:
            if self._capabilities is None or not self._capabilities.available:
                self._capabilities = await self._probe()
        return self._capabilities

    def check(self, spec: Spec) -> None:
        capabilities = self._capabilities
        if capabilities is None:
            raise InternalError("docker was used before its probe")
        if spec.image is not None:
            config.check_image(spec.image)
            if self._without_image:
                raise missing(spec.image)
        if not capabilities.available:
            remedy = f"; {capabilities.remedy}" if capabilities.remedy else ""
            kind = CannotEnforce if capabilities.unkept else BackendUnavailable
            raise kind(
                f"docker does not work here: {capabilities.reason}{remedy}",
                backend=self.name,
                retryable=capabilities.passing,
            )
        if spec.mount is not None:
            raise CannotEnforce(
                "docker mounts no folder of this machine: its engine may be elsewhere; copy it in (stn cp, "
                "sandbox.files.upload), or use the backend bubblewrap",
                field="mount",
                alternative="bubblewrap",
            )
        self._settings.network.of(spec.network)
        refuse_unknown_here(capabilities, replace(spec, network=capabilities.network))
        refuse_named(facts.for_spec(capabilities, spec), spec)

    async def examine(self) -> machine.Engine | None:
        if self._address() is None:
            return None
        return await audit.examine(self._ask(), backend=self.name, runtime=self._settings.runtime)

    async def fetch(self, spec: Spec) -> None:
        await self._made_images().fetch(self._made_images().name_for(spec))

    def fetches(self) -> Sequence[PullView]:
        return self._images.pulls() if self._images is not None else ()

    async def create(self, spec: Spec, labels: Labels) -> DockerBox:
        capabilities = await self.probe()
        self.check(spec)
        return await self._create(spec, labels, capabilities)

    async def adopt(self, ref: BoxRef) -> DockerBox:
        """Raises BoxLost for a box that is gone, stopped, changed from outside, not ours, or not what a box would be
        now; Unavailable, or CannotEnforce for the profile, and nothing is decided, where that cannot be found out."""
        engine = self._ask()
        name = config.container_name(self.station_id, ref.box_id)
        found = await engine.inspect(str(ref.data.get("container") or name))
        if found is None:
            self._fence(ref.box_id).forget()
            raise BoxLost(f"box {ref.box_id} is gone", box_id=ref.box_id)
        labels = self._ours(found.get("Config", {}).get("Labels"), str(found.get("Name", "")))
        if labels is None or labels.box_id != ref.box_id:
            raise BoxLost(f"the container of box {ref.box_id} is another's now; it was left alone", box_id=ref.box_id)
        container = str(found["Id"])
        known = config.facts_of(found.get("Config", {}).get("Labels"))
        profile = await self._operators_profile() or seccomp.OWN
        network = self._settings.network.of(str((known or {}).get("network", NETWORK_NONE)))
        gone = None if is_running(found) else why_ended(found)
        gone = gone or adoption.drift(found, known, profile=profile, network=network)
        if gone is not None or known is None:
            await remove(engine, container)
            self._fence(ref.box_id).forget()
            raise BoxLost(f"box {ref.box_id} is gone: {gone}", box_id=ref.box_id)
        if (found.get("State") or {}).get("Paused") is True:
            await engine.unpause(container)
        known = adoption.worth_now(known, self._settings.network)
        return self._own(self._ref(ref.box_id, container, found.get("Image")), known)

    async def boxes(self) -> AsyncIterator[tuple[Labels, BoxRef]]:
        if not self._directory.exists():
            return  # none was ever made here, so that no engine need be asked
        for item in await self._ask().containers(f"station.station={self.station_id}"):
            names = item.get("Names") or [""]
            labels = self._ours(item.get("Labels"), str(names[0]))
            if labels is not None and isinstance(item.get("Id"), str):
                yield labels, self._ref(labels.box_id, item["Id"], item.get("ImageID"))

    async def kept(self) -> list[str]:
        return await self._made_volumes().kept() if self._directory.exists() else []

    async def remove_files(self, uid: str) -> None:
        if self._directory.exists():
            await self._made_volumes().remove(uid)

    async def aclose(self) -> None:
        for box in list(self._live):
            await box.let_go()
        if self._images is not None:
            await self._images.aclose()
        if self._engine is not None:
            await self._engine.aclose()

    # ── finding out ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _probe(self) -> Capabilities:
        self._found, self._without_image = None, False
        try:
            address = self._address()
            if address is None:
                return facts.unavailable(_NO_ENGINE, _START_ENGINE)
            await self._operators_profile()
            engine = self._ask()
            api = await engine.version()
            found = EngineFacts.parse(await engine.info(), api)
            runtime = facts.choose_runtime(found, self._settings.runtime)
            verdict = facts.refusal(found) or (runtime if isinstance(runtime, Verdict) else None)
            if verdict is not None or isinstance(runtime, Verdict):
                assert verdict is not None
                return facts.unavailable(verdict.reason, verdict.remedy)
            self._found = _Found(runtime, found)
            return await self._try(engine)
        except StationError as error:
            self._found = None
            self._without_image = self._settings.pull is Pull.NEVER and "image" in error.detail
            remedy, unkept = error.detail.get("remedy"), isinstance(error, CannotEnforce)
            return facts.unavailable(error.message, remedy, passing=error.retryable, unkept=unkept)

    async def _try(self, engine: Engine) -> Capabilities:
        found = self._found
        assert found is not None
        image, volumes = await self._trial_image(engine), self._made_volumes()
        why_no_image = await volumes.choose(found.engine)
        told = None
        if volumes.quota is Quota.IMAGE:
            try:
                told = await self._trial_box(image, kept=True)
                why_no_image = trial.why_not_held(told, TRIAL_MB)
            except StationError as error:
                why_no_image = f"a trial of an image failed: {error.message}"
            volumes.quota = Quota.NONE if why_no_image else Quota.IMAGE
        told = told or await self._trial_box(image, kept=False)
        told = replace(told, quota=volumes.quota, why_no_image=why_no_image)
        if (verdict := facts.unconfined(found.runtime, told)) is not None:
            return facts.unavailable(verdict.reason, verdict.remedy)
        images = self._made_images().by_runtime()
        known = facts.capabilities_of(found.engine, found.runtime, told, images, profile=self._profile)
        network = self._settings.network
        given = {"network": network.word, "seccomp": adoption.seccomp_word(self._profile or seccomp.OWN)}
        told_too = (*known.notes, *self._settings.notes())
        return replace(known, network=network.report, operator_network=network.given, given=given, notes=told_too)

    async def _trial_box(self, image: str, *, kept: bool) -> facts.Trial:
        found = self._found
        assert found is not None
        box_id = f"probe-{secrets.token_hex(8)}"
        uid = TRIAL if kept else box_id
        labels = Labels.ours(box_id, uid=uid, generation=0, fence=0, station=self.station_id, pool=True)
        shell = Capabilities(self.name, available=True, grade=facts.grade_of(found.runtime, gvisor=False))
        limits = Limits(workspace_mb=TRIAL_MB)
        spec = Spec(self.name, image=image, ephemeral=not kept, network=NETWORK_OPERATOR, limits=limits)
        if kept:
            await self.remove_files(uid)  # of a trial that was killed
        try:
            box = await self._create(spec, labels, shell)
            try:
                return await trial.ask(box)
            finally:
                await box.destroy()
        finally:
            if kept:
                await self.remove_files(uid)

    async def _trial_image(self, engine: Engine) -> str:
        """One that is there: nothing is pulled to look around, unless boxes could not be made otherwise."""
        images = self._made_images()
        for name in images.known():
            if await engine.image(name) is not None:
                return name
        if self._settings.pull is Pull.NEVER and (other := await engine.any_image()) is not None:
            return other
        return (await images.resolve(images.known()[0])).name

    # ── making ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _create(self, spec: Spec, labels: Labels, capabilities: Capabilities) -> DockerBox:
        found = self._found
        if found is None:
            raise InternalError("a box was asked for before the probe")
        engine, helpers = self._ask(), self._made_helpers(found.engine)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        volumes, bound = self._made_volumes(), Bound()
        known = None if spec.ephemeral else await volumes.labels(labels.uid)
        pinned = known.get("station.image") if known else None
        image = await self._made_images().resolve(self._made_images().name_for(spec), pinned=pinned)
        for again in range(START_TRIES):
            image = replace(image, shell=await helpers.shell_of(image, found.runtime))
            if not spec.ephemeral:
                size = spec.effective.workspace_mb or 0
                bound = await volumes.make(labels.uid, known, image=image.id, workspace_mb=size)
            told = facts.for_spec(capabilities, spec, image=image.name, bound=bound)
            plan = self._plan(spec, labels, image, told=told, volume=helpers.volume)
            try:
                async with volumes.attached(labels.uid, bound):
                    return await self._start(engine, plan)
            except (NotFound, BackendUnavailable) as error:
                if again + 1 == START_TRIES or config.GUEST not in error.message + str(error.__cause__):
                    raise
                helpers.doubt()  # somebody has removed the guest's volume
        raise AssertionError

    def _plan(self, spec: Spec, labels: Labels, image: Image, *, told: Capabilities, volume: str) -> Plan:
        found = self._found
        assert found is not None
        plan = Plan(
            spec=spec,
            labels=labels,
            image=image,
            runtime=found.runtime,
            guest_volume=volume,
            swappiness=found.engine.cgroup_version == 1 and "memory" in found.engine.controllers,
            profile=self._profile or (seccomp.OWN_KERNEL if found.runtime.sandboxed_kernel else seccomp.OWN),
            network=self._settings.network.of(spec.network),
            guest_options=self._settings.guest_options,
            labels_beside=self._settings.labels,
        )
        known = {
            "layout": to_plain(config.box_layout(image)),
            "capabilities": to_plain(replace(told, network=self._settings.network.report_of(spec.network))),
            "network": spec.network,
            "seccomp": adoption.seccomp_word(plan.profile),
            "fingerprint": adoption.fingerprint(config.container_body(plan)),
        }
        return replace(plan, facts=known)

    async def _start(self, engine: Engine, plan: Plan) -> DockerBox:
        """On failure, also by cancellation, nothing is left that the engine lets us remove."""
        box_id = plan.labels.box_id
        name = config.container_name(self.station_id, box_id)
        fence = self._fence(box_id)
        stream = box = None
        await networks.check(engine, plan.network)
        container = await self._made(engine, name, plan)
        try:
            stream = await attach(engine, fence, container)
            await engine.start(container)
            await networks.confirm(engine, container, plan.network)
            box = self._own(self._ref(box_id, container, plan.image.id), plan.facts, first=stream, fence=fence)
        except OSError as error:
            raise Unavailable(f"the box was not started: {error}") from error
        finally:
            if box is None:
                if stream is not None:
                    await stream.aclose()
                fence.forget()
                await self._discard(engine, container)
        return box

    async def _made(self, engine: Engine, name: str, plan: Plan) -> str:
        """The container's id. What an earlier try of the same box left before it was started is replaced."""
        body = config.container_body(plan)
        try:
            return await engine.create(name, body)
        except AlreadyExists:
            found = await engine.inspect(name)
            labels = self._ours((found or {}).get("Config", {}).get("Labels"), name)
            if found is None or labels is None or is_running(found) or labels.box_id != plan.labels.box_id:
                raise
            await remove(engine, str(found["Id"]))
            return await engine.create(name, body)
        except Unavailable:
            # It may be made all the same: the answer was lost.
            await self._discard(engine, name)
            raise

    async def _discard(self, engine: Engine, container: str) -> None:
        try:
            await remove(engine, container)
        except StationError:
            return  # its labels tell the next sweep; what went wrong before is the better reason

    # ── small things ────────────────────────────────────────────────────────────────────────────────────────────

    def _own(self, ref: BoxRef, known: Mapping[str, Any], first: Any = None, fence: Fence | None = None) -> DockerBox:
        fence = fence or self._fence(ref.box_id)
        box = DockerBox(ref, self._ask(), fence, facts=known, forget=self._live.discard, first=first)
        self._live.add(box)
        return box

    def _ref(self, box_id: str, container: str, image: object) -> BoxRef:
        return BoxRef(self.name, box_id, {"container": container, "image": str(image or "")})

    def _ours(self, labels: Any, name: str) -> Labels | None:
        """`None` for what is another's: labels can come from an image, so the name must fit them too."""
        found = config.labels_from(labels) if isinstance(labels, dict) else None
        if found is None or found.station != self.station_id:
            return None
        try:
            expected = config.container_name(found.station, found.box_id)
        except InvalidInput:
            return None
        return found if name.lstrip("/") == expected else None

    def _fence(self, box_id: str) -> Fence:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Fence(self._directory / f"{box_id}.lock")

    async def _operators_profile(self) -> Profile | None:
        """Read once; `None`: the operator names none. Raises CannotEnforce."""
        if self._profile is None and self._settings.seccomp is not None:
            self._profile = await asyncio.to_thread(seccomp.operators, self._settings.seccomp, self._profiles)
        return self._profile

    def _address(self) -> Address | None:
        from station.backends.docker._api import address_of

        return address_of(self._environ)

    def _ask(self) -> Engine:
        if self._engine is None:
            address = self._address()
            if address is None:
                raise Unavailable(_NO_ENGINE, remedy=_START_ENGINE)
            self._engine = Engine(address, call_seconds=self._settings.call_seconds, profiles=self._profiles)
        return self._engine

    def _made_images(self) -> Images:
        if self._images is None:
            settings = self._settings
            self._images = Images(
                self._ask(),
                by_runtime=settings.images,
                default=settings.image,
                pull=settings.pull,
                registries=registry.allowed(settings.pull_from, settings.own_images(), settings.auth),
                logins=Logins(settings.auth, self._environ),
            )
        return self._images

    def _made_volumes(self) -> Volumes:
        if self._volumes is None:
            place, mode = self._directory / "quota", self._settings.workspace_quota
            self._volumes = Volumes(self._ask(), self.station_id, place, mode)
        return self._volumes

    def _made_helpers(self, engine: EngineFacts) -> Helpers:
        if self._helpers is None:
            guest = self._settings.guest or guest_binary(engine.machine)
            self._helpers = Helpers(self._ask(), self.station_id, guest)
        return self._helpers
