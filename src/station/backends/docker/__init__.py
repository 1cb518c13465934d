"""Boxes as containers of a Docker engine: runc, or gVisor by its runtime."""

from station.backends.docker.backend import DockerBackend, DockerSettings
from station.backends.docker.images import Pull

__all__ = ["DockerBackend", "DockerSettings", "Pull"]
