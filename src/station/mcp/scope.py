"""Which sandboxes a caller may reach, by their names."""

from __future__ import annotations

from dataclasses import dataclass

from station.core.ids import check_name, new_id

DEFAULT_KEY = "default"


@dataclass(frozen=True)
class Scope:
    """The names of one caller: `default`, and everything below `prefix:`.

    The seed's keys: `agent:<run id>:<name>`. Whoever is named by a user or operator may be the user's own sandbox.
    """

    prefix: str
    default: str
    chosen: bool
    """Whether somebody chose `default` by name: it is kept like any that a person opens. Else it is temporary."""

    @classmethod
    def of_process(cls, sandbox: str | None, now: float) -> Scope:
        """Of one process on stdio: `sandbox` as its default, or names that no other process has.

        Raises InvalidInput for a name that no sandbox can have.
        """
        return cls._of(new_id("agent", now).replace("_", ":"), sandbox)

    @classmethod
    def of_principal(cls, principal: str, sandbox: str | None) -> Scope:
        """Of whoever has one token: the same names in every connection. Raises InvalidInput as `of_process`."""
        return cls._of(f"token:{principal}", sandbox)

    @classmethod
    def _of(cls, prefix: str, sandbox: str | None) -> Scope:
        if sandbox is None:
            return cls(prefix, f"{prefix}:{DEFAULT_KEY}", chosen=False)
        return cls(check_name(sandbox), sandbox, chosen=True)

    def name_of(self, key: str | None) -> str:
        """The sandbox that a `session_key` names; `None`, empty and `default` are the default one."""
        return self.default if key in (None, "", DEFAULT_KEY) else check_name(f"{self.prefix}:{key}")

    def owns(self, name: str) -> bool:
        return name == self.default or name.startswith(f"{self.prefix}:")

    def is_temporary(self, name: str) -> bool:
        """Whether it ends by itself when nobody uses it: nobody chose it by its whole name."""
        return not (self.chosen and name == self.default)
