"""A live box as the rest of the worker sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from station.core.capabilities import Capabilities, Isolation
from station.core.spec import NETWORK_NONE, Spec

if TYPE_CHECKING:
    from station.backends.base import Box, Layout
    from station.guest.files import GuestFiles
    from station.guest.session import GuestSession


@dataclass(frozen=True)
class LiveBox:
    """A box whose guest answers. Made and ended by its owner (`LiveBoxes` or the pool); everybody else only uses it."""

    uid: str
    """The sandbox's wire uid; of a pool box, its box id."""
    generation: int
    spec: Spec
    box: Box
    session: GuestSession
    files: GuestFiles
    timeout_seconds: float | None = None
    """Of a command run to its end that names none; `None`: the station's."""

    @property
    def layout(self) -> Layout:
        return self.box.layout

    @property
    def capabilities(self) -> Capabilities:
        return self.box.capabilities


def isolation_of(capabilities: Capabilities, spec: Spec) -> Isolation:
    """What an answer says about where code of `spec` runs."""
    return Isolation(
        backend=capabilities.backend,
        grade=capabilities.grade,
        network=network_of(capabilities, spec),
        guest_uid=capabilities.guest_uid,
        containment=capabilities.containment,
        image=_image_of(capabilities, spec),
        limits=dict(capabilities.limits),
    )


def network_of(capabilities: Capabilities, spec: Spec) -> str:
    """What a box of `spec` can reach: none by name is none, also where the operator gives boxes a network."""
    by_name = spec.network == NETWORK_NONE and capabilities.operator_network
    return NETWORK_NONE if by_name else capabilities.network


def _image_of(capabilities: Capabilities, spec: Spec) -> str:
    if not capabilities.images:
        return "host:/usr"
    of_runtime = capabilities.runtime_images.get(spec.runtime or "", capabilities.image)
    return spec.image or of_runtime or "default"
