"""The host audit of a station, and the refusal that follows from it: code of others runs only where no required layer
is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from station.backends.base import Backend, Examinable
from station.core.audit import Check, engine_checks, machine_checks, unexamined
from station.core.capabilities import Capabilities, Grade
from station.core.errors import Refused, StationError
from station.core.machine import Machine
from station.core.tenancy import MINIMUM, missing_layers, sentence
from station.core.wire import Diagnosis
from station.machine import look

FRESH_SECONDS = 30.0
"""How long an admission goes by what was found before: an engine may be another one after a restart."""

_NONE_ANY_MORE = "there is no engine any more"


@dataclass(frozen=True)
class Policy:
    """What the operator has declared."""

    serves_others: bool = False
    """Whether this station runs code of others."""
    minimum_isolation: Grade = MINIMUM


@dataclass(frozen=True)
class _Seen:
    checks: list[Check]
    at: float


class Audit:
    """Looks at the machine and at the engines, and decides who may run what."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        home: Path,
        policy: Policy,
        *,
        clock: Callable[[], float],
        machine: Callable[[Path], Machine] = look,
    ) -> None:
        """`clock`: monotonic seconds. `machine`: tells of this machine, with the disk of a directory."""
        self._backends = backends
        self._home = home
        self._policy = policy
        self._clock = clock
        self._machine = machine
        self._seen: dict[str, _Seen] = {}

    async def diagnose(self) -> Diagnosis:
        """Everything, looked at now; never raises for what is merely missing."""
        checks = await self._of_machine()
        found = []
        for name, backend in self._backends.items():
            capabilities, of_engine = await self._now(name, await backend.probe())
            found.append(capabilities)
            checks += of_engine
        others = {one.backend: missing_layers(one, checks, minimum=self._policy.minimum_isolation) for one in found}
        return Diagnosis(
            backends=found,
            checks=checks,
            serves_others=others,
            refuses=self._policy.serves_others,
            minimum_isolation=self._policy.minimum_isolation,
        )

    async def admit(self, capabilities: Capabilities, network: str) -> None:
        """Raises Refused where code of others may not be run in a box of that backend with that network, with every
        missing layer and what would help. Where the station serves nobody but its operator, everything is admitted."""
        if not self._policy.serves_others:
            return
        checks = await self._recent(capabilities)
        wanted = replace(capabilities, network=network)
        missing = missing_layers(wanted, checks, minimum=self._policy.minimum_isolation)
        if missing:
            name = capabilities.backend
            raise Refused(
                sentence(name, missing),
                backend=name,
                missing=[vars(one) for one in missing],
                remedy=next((one.remedy for one in missing if one.remedy), None),
            )

    async def _recent(self, capabilities: Capabilities) -> list[Check]:
        """Of the machine and the engine of one backend; what was found last, while the engine cannot be asked."""
        name = capabilities.backend
        seen = self._seen.get(name)
        if seen is not None and self._clock() - seen.at < FRESH_SECONDS:
            return seen.checks
        try:
            checks = [*await self._of_machine(), *await self._of_engine(name, capabilities)]
        except StationError:
            if seen is None:
                raise
            return seen.checks
        self._seen[name] = _Seen(checks, self._clock())
        return checks

    async def _now(self, name: str, capabilities: Capabilities) -> tuple[Capabilities, list[Check]]:
        """A probe keeps its good answer: what it says of an engine that cannot be asked any more is not repeated."""
        try:
            checks = await self._of_engine(name, capabilities)
        except StationError as error:
            if not capabilities.available:
                return capabilities, []
            checks = [unexamined(name, error.message)]
            gone = error.message if error.retryable else None
        else:
            gone = _NONE_ANY_MORE if unexamined(name, _NONE_ANY_MORE) in checks else None
        if gone is None:
            return capabilities, checks
        return replace(capabilities, available=False, reason=gone, remedy=None, passing=True), checks

    async def _of_machine(self) -> list[Check]:
        return machine_checks(await asyncio.to_thread(self._machine, self._home))

    async def _of_engine(self, name: str, capabilities: Capabilities) -> list[Check]:
        backend = self._backends.get(name)
        if not isinstance(backend, Examinable):
            return []
        engine = await backend.examine()
        if engine is not None:
            return engine_checks(engine, capabilities)
        return [unexamined(name, _NONE_ANY_MORE)] if capabilities.available else []
