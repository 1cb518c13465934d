"""Who calls, and what each kind of caller may do: one table. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .errors import Refused
from .records import Owner


class Kind(StrEnum):
    LOCAL = "local"
    """On the unix socket: the user of the station."""
    OPERATOR = "operator"
    """On TCP with the operator's token or an API key."""
    DEPLOYMENT = "deployment"
    """With an identity token, or named by somebody on the socket who acts for it."""
    NOBODY = "nobody"
    """Without a token."""


class Action(StrEnum):
    ASK = "ask"
    """Whether the station lives and is ready."""
    LOOK = "look"
    """What the station says of itself, and the description of its API."""
    USE = "use"
    """Sandboxes, runs, processes, files, staging, uploads: one's own."""
    TOOLS = "tools"
    """The agent's tools."""
    OPERATE = "operate"
    """All else: stop, doctor, keys, deployments, metrics, upkeep."""


_ALL = frozenset(Action)
_MAY = {
    Kind.LOCAL: _ALL,
    Kind.OPERATOR: _ALL,
    Kind.DEPLOYMENT: _ALL - {Action.OPERATE},
    Kind.NOBODY: frozenset({Action.ASK}),
}


@dataclass(frozen=True)
class Principal:
    kind: Kind
    owner: Owner = field(default_factory=Owner)
    """Whose sandboxes it opens and lists, and whose files it stores."""
    key_id: str | None = None
    """Of the API key that was shown; `None`: another token, or none."""
    name: str | None = None
    """Of a deployment, as the operator calls it."""

    @property
    def is_deployment(self) -> bool:
        return self.kind is Kind.DEPLOYMENT

    @property
    def tag(self) -> str:
        """What it is told apart from all others by; no secret, the same for its whole life."""
        return self.owner.deployment if self.is_deployment else self.key_id or self.kind.value


LOCAL, OPERATOR = Principal(Kind.LOCAL), Principal(Kind.OPERATOR)
NOBODY = Principal(Kind.NOBODY, Owner("nobody", "nobody"))


def may(principal: Principal, action: Action) -> bool:
    return action in _MAY[principal.kind]


def check_may(principal: Principal, action: Action) -> None:
    """Raises Refused."""
    if not may(principal, action):
        raise Refused(
            "this is for the operator of the station: a deployment has its own sandboxes, runs and files, and no more",
            action=action.value,
        )
