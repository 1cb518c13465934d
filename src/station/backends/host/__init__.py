"""No isolation: programs run on this machine itself. Only where an operator has asked for it by name."""

from station.backends.host.backend import HostBackend, HostSettings

__all__ = ["HostBackend", "HostSettings"]
