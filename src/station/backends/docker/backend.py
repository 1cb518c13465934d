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
from station.backends.docker import adoption, audit, config, facts, networks, seccomp, trial
from station.backends.docker.box import DockerBox, attach, is_running, why_ended
from station.backends.docker.config import Image, Plan, Runtime
from station.backends.docker.engine import Engine
from station.backends.docker.facts import EngineFacts, Verdict
from station.backends.docker.fence import Fence
from station.backends.docker.helpers import Helpers, remove, remove_volume
from station.backends.docker.images import Images, Pull
from station.backends.docker.registry import Logins
from station.backends.docker.seccomp import Profile
from station.backends.docker.settings import DockerSettings
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
from station.core.paths import HOME
from station.core.records import BoxRef
from station.core.spec import NETWORK_NONE, NETWORK_OPERATOR, Spec
from station.core.wire import PullView
from station.guest.binary import guest_binary

if TYPE_CHECKING:
    from station.backends.docker._api import Address

_NO_ENGINE = "there is no Docker engine here: DOCKER_HOST is unset, and no docker.sock is where engines have theirs"
_START_ENGINE = "apt install docker.io, or set DOCKER_HOST"
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
        self._settings = settings or DockerSettings()
        self._environ = environ
        self._engine: Engine | None = None
        self._images: Images | None = None
        self._helpers: Helpers | None = None
        self._found: _Found | None = None
        self._profile: Profile | None = None
        """The operator's, once it was read."""
        self._unsupported: CannotEnforce | None = None
        """Why no box is made, where that is a setting which cannot be kept."""
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
        if self._unsupported is not None:
            raise self._unsupported.again()
        if not capabilities.available:
            remedy = f"; {capabilities.remedy}" if capabilities.remedy else ""
            raise BackendUnavailable(
                f"docker does not work here: {capabilities.reason}{remedy}",
                backend=self.name,
                retryable=capabilities.passing,
            )
        if spec.image is not None:
            config.check_image(spec.image)
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
        return self._own(self._ref(ref.box_id, container, found.get("Image")), known)

    async def boxes(self) -> AsyncIterator[tuple[Labels, BoxRef]]:
        if not self._directory.exists():
            return  # none was ever made here, so that no engine need be asked
        for item in await self._ask().containers(f"station.station={self.station_id}"):
            names = item.get("Names") or [""]
            labels = self._ours(item.get("Labels"), str(names[0]))
            if labels is not None and isinstance(item.get("Id"), str):
                yield labels, self._ref(labels.box_id, item["Id"], item.get("ImageID"))

    async def remove_files(self, uid: str) -> None:
        names = config.volume_names(self.station_id, uid)
        if self._directory.exists():
            for name in names.values():
                await remove_volume(self._ask(), name)

    async def aclose(self) -> None:
        for box in list(self._live):
            await box.let_go()
        if self._images is not None:
            await self._images.aclose()
        if self._engine is not None:
            await self._engine.aclose()

    # ── finding out ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _probe(self) -> Capabilities:
        self._found = self._unsupported = None
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
            self._unsupported = error if isinstance(error, CannotEnforce) else None
            remedy = error.detail.get("remedy")
            return facts.unavailable(error.message, remedy, passing=error.retryable)

    async def _try(self, engine: Engine) -> Capabilities:
        found = self._found
        assert found is not None
        image = await self._trial_image(engine)
        box_id = f"probe-{secrets.token_hex(8)}"
        labels = Labels.ours(box_id, uid=box_id, generation=0, fence=0, station=self.station_id, pool=True)
        shell = Capabilities(self.name, available=True, grade=facts.grade_of(found.runtime, gvisor=False))
        spec = Spec(self.name, image=image, ephemeral=True, network=NETWORK_OPERATOR)
        box = await self._create(spec, labels, shell)
        try:
            told = await trial.ask(box, quota=await trial.has_quota(engine, f"stn-{self.station_id}-{box_id}"))
        finally:
            await box.destroy()
        if (verdict := facts.unconfined(found.runtime, told)) is not None:
            return facts.unavailable(verdict.reason, verdict.remedy)
        images = self._made_images().by_runtime()
        known = facts.capabilities_of(found.engine, found.runtime, told, images, profile=self._profile)
        network = self._settings.network
        return replace(known, network=network.report, operator_network=network.given)

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
        pinned = None if spec.ephemeral else await self._pinned(labels.uid)
        image = await self._made_images().resolve(self._made_images().name_for(spec), pinned=pinned)
        for again in range(START_TRIES):
            image = replace(image, shell=await helpers.shell_of(image, found.runtime))
            if not spec.ephemeral:
                await self._volumes(labels, image)
            plan = self._plan(spec, labels, image, capabilities=capabilities, volume=helpers.volume)
            try:
                return await self._start(engine, plan)
            except (NotFound, BackendUnavailable) as error:
                if again + 1 == START_TRIES or config.GUEST not in error.message + str(error.__cause__):
                    raise
                helpers.doubt()  # somebody has removed the guest's volume
        raise AssertionError

    def _plan(self, spec: Spec, labels: Labels, image: Image, *, capabilities: Capabilities, volume: str) -> Plan:
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
        told = facts.for_spec(capabilities, spec, image=image.name)
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

    async def _pinned(self, uid: str) -> str | None:
        """The image that the sandbox's first box was made from."""
        labels = await self._ask().volume_labels(config.volume_names(self.station_id, uid)[HOME])
        return labels.get("station.image") if labels else None

    async def _volumes(self, labels: Labels, image: Image) -> None:
        own = {"station.station": self.station_id, "station.id": labels.uid, "station.image": image.id}
        for name in config.volume_names(self.station_id, labels.uid).values():
            await self._ask().create_volume(name, own)

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
            copies = self._directory / "seccomp"
            self._profile = await asyncio.to_thread(seccomp.operators, self._settings.seccomp, copies)
        return self._profile

    def _address(self) -> Address | None:
        from station.backends.docker._api import address_of

        return address_of(self._environ)

    def _ask(self) -> Engine:
        if self._engine is None:
            address = self._address()
            if address is None:
                raise Unavailable(_NO_ENGINE, remedy=_START_ENGINE)
            profiles = self._directory / "seccomp"
            self._engine = Engine(address, call_seconds=self._settings.call_seconds, profiles=profiles)
        return self._engine

    def _made_images(self) -> Images:
        if self._images is None:
            settings = self._settings
            self._images = Images(
                self._ask(),
                by_runtime=settings.images,
                default=settings.image,
                pull=settings.pull,
                logins=Logins(settings.auth, self._environ),
            )
        return self._images

    def _made_helpers(self, engine: EngineFacts) -> Helpers:
        if self._helpers is None:
            guest = self._settings.guest or guest_binary(engine.machine)
            self._helpers = Helpers(self._ask(), self.station_id, guest)
        return self._helpers
