"""API keys, deployments and identity tokens: what is kept of them, and what travels. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .errors import InvalidInput
from .records import Owner
from .spec import FORBID_EXTRA

MAX_KEYS, MAX_DEPLOYMENTS = 1000, 10_000
ACTS_FOR = "x-station-deployment"
"""The header by which who is on the unix socket acts for a deployment, by its id."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_DEPLOYMENT = re.compile(r"dep_[0-9A-HJKMNP-TV-Z]{26}")


def check_access_name(name: str) -> str:
    """`name` itself, if a key or a deployment may have it: 1 to 63 letters, digits, `-`, `_`. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is no name for a key or a deployment: 1 to 63 letters, digits, '-' and '_', the first a "
            "letter or a digit",
            field="name",
        )
    return name


def is_deployment_id(text: str) -> bool:
    return _DEPLOYMENT.fullmatch(text) is not None


@dataclass(frozen=True)
class ApiKey:
    """What is kept of a key; of its secret the digest alone."""

    id: str
    """`key_` and a ULID."""
    name: str
    sha256: str
    """Of the secret part, hex."""
    created_at: float
    last_used_at: float | None = None
    expires_at: float | None = None
    """`None`: never."""


@dataclass(frozen=True)
class Deployment:
    """What is kept of a deployment."""

    id: str
    """`dep_` and a ULID: a deployment that is made anew under an old name is another one."""
    name: str
    created_at: float
    account: str = Owner.account
    generation: int = 1
    """Of its tokens: one of an earlier generation is good for nothing."""
    going: bool = False
    """It is being deleted: nothing new is made for it."""

    @property
    def owner(self) -> Owner:
        return Owner(self.account, self.id)


@dataclass(frozen=True)
class KeyRequest:
    """POST /keys."""

    __pydantic_config__ = FORBID_EXTRA

    name: str
    ttl: str | None = None
    """As `7d`; `None`: it does not expire."""


@dataclass(frozen=True)
class KeyView:
    """What is told of a key."""

    id: str
    name: str
    created_at: float
    last_used_at: float | None
    """To the minute; `None`: never."""
    expires_at: float | None


@dataclass(frozen=True)
class KeyMade:
    """The answer to POST /keys, the only one that has the key itself."""

    key: str = field(repr=False)
    id: str
    name: str
    expires_at: float | None


@dataclass(frozen=True)
class DeploymentRequest:
    """POST /deployments."""

    __pydantic_config__ = FORBID_EXTRA

    name: str


@dataclass(frozen=True)
class DeploymentView:
    """What is told of a deployment."""

    id: str
    name: str
    created_at: float
    generation: int
    """Of its tokens, from 1 on."""
    sandboxes: int
    going: bool = False
    """Its deletion has begun and did not come to its end: delete it again."""


@dataclass(frozen=True)
class TokenRequest:
    """POST /deployments/{name}/token."""

    __pydantic_config__ = FORBID_EXTRA

    ttl: str | None = None
    """As `7d`; `None`: it holds until the tokens are rotated or the deployment is deleted."""


@dataclass(frozen=True)
class TokenMade:
    """An identity token; no other answer has it."""

    token: str = field(repr=False)
    deployment: str
    """The id, as its `sub` has it."""
    url: str
    """Its `iss`: where it holds."""
    expires_at: float | None
