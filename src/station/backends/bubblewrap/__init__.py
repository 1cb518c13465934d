"""Boxes by bubblewrap over the host's own /usr: no image, no daemon, no root."""

from station.backends.bubblewrap.backend import BubblewrapBackend, BubblewrapSettings

__all__ = ["BubblewrapBackend", "BubblewrapSettings"]
