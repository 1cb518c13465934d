"""Boxes as containers of a Docker engine: runc, or gVisor by its runtime."""

from station.backends.docker.backend import DockerBackend
from station.backends.docker.images import Pull
from station.backends.docker.networks import OperatorNetwork
from station.backends.docker.quota import QuotaMode
from station.backends.docker.registry import RegistryAuth, registries
from station.backends.docker.settings import DockerSettings

__all__ = ["DockerBackend", "DockerSettings", "OperatorNetwork", "Pull", "QuotaMode", "RegistryAuth", "registries"]
