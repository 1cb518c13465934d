"""Which network a container gets: none, or the one that the operator has chosen, and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from station.core.capabilities import ASSERTED, UNRESTRICTED
from station.core.errors import BackendUnavailable, CannotEnforce, InvalidInput
from station.core.spec import ENGINE_NETWORKS, NETWORK_NONE, NETWORK_OPERATOR, may_be_given

if TYPE_CHECKING:
    from station.backends.docker.engine import Engine

SETTING = "sandbox.docker_network"


@dataclass(frozen=True)
class OperatorNetwork:
    """The settings `sandbox.docker_network` and `sandbox.docker_network_restricted`."""

    name: str = NETWORK_NONE
    """`none`, `bridge`, or a network that the operator has made in the engine."""
    restricted: bool = False
    """Whether the operator asserts that something else holds what the network reaches. It installs nothing."""

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if not may_be_given(self.name):
            raise InvalidInput(
                f"{SETTING} is {self.name[:128]!r}; it must be none, bridge, or the name of a network of the engine: "
                f"1 to 128 letters, digits and _.- alone, and not {', '.join(ENGINE_NETWORKS)}",
                field=SETTING,
            )
        if self.restricted and self.name in (NETWORK_NONE, "bridge"):
            raise InvalidInput(
                f"sandbox.docker_network_restricted: true says that something holds what {SETTING} reaches; with "
                f"{self.name} nothing does: name a network of your own, or leave it out",
                field="sandbox.docker_network_restricted",
            )

    @property
    def given(self) -> bool:
        return self.name != NETWORK_NONE

    @property
    def report(self) -> str:
        """For capabilities: `none`, `unrestricted`, or `asserted by operator`."""
        if not self.given:
            return NETWORK_NONE
        return ASSERTED if self.restricted else UNRESTRICTED

    @property
    def word(self) -> str:
        """For `Capabilities.given`: its name, and what that is worth."""
        return f"{self.name} ({self.report})" if self.given else NETWORK_NONE

    def of(self, wanted: str) -> str:
        """The engine's network for a spec's word. Raises CannotEnforce for a word that means neither nothing nor the
        operator's."""
        if wanted == NETWORK_NONE:
            return NETWORK_NONE
        if wanted == NETWORK_OPERATOR:
            return self.name
        raise CannotEnforce(
            f"docker gives the network none, or the operator's ({SETTING}, here {self.name}) to whoever names no "
            f"network; {wanted!r} comes with a later version",
            network=wanted,
        )

    def report_of(self, wanted: str) -> str:
        return NETWORK_NONE if self.of(wanted) == NETWORK_NONE else self.report


async def check(engine: Engine, name: str) -> None:
    """Raises BackendUnavailable, with the remedy, where the engine has no such network, or one that is the machine's:
    an engine takes the beginning of an id for a name, and starts a box without a network where its bridge is off."""
    if name == NETWORK_NONE:
        return
    found = await engine.network(name)
    if found is None or found.get("Name") != name:
        remedy = "set it to none" if name == "bridge" else f"docker network create --internal {name}"
        raise BackendUnavailable(
            f"the Docker engine has no network {name}, which {SETTING} names", network=name, remedy=remedy
        )
    if found.get("Driver") in ("host", "null"):
        raise BackendUnavailable(
            f"the engine's network {name}, which {SETTING} names, is of the kind {found.get('Driver')}; a box never "
            "gets the machine's own network",
            network=name,
            remedy=f"name another in {SETTING}",
        )


async def confirm(engine: Engine, container: str, name: str) -> None:
    """Raises BackendUnavailable where a container that was started for that network is in another, or in none."""
    if name == NETWORK_NONE:
        return
    wrong = differs(await engine.inspect(container) or {}, name)
    if wrong is not None:
        raise BackendUnavailable(f"a box was to have the network {name} ({SETTING}): {wrong}", network=name)


def differs(found: Mapping[str, Any], name: str) -> str | None:
    """Why an inspected container that runs is not in that network and in no other; `None`: it is."""
    networks = (found.get("NetworkSettings") or {}).get("Networks") or {}
    has = sorted(networks) if isinstance(networks, dict) else ["unknown"]
    # Of a box without a network engines say `none`, or nothing.
    if has == [name] or (name == NETWORK_NONE and not has):
        return None
    return f"the engine has put it into {' and '.join(has) or 'no network'}, not {name}"
