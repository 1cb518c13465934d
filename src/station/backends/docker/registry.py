"""Who the station is at a registry: the settings' own credentials, or those of a docker config file and its helpers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from station.core.errors import BackendUnavailable, InvalidInput

HUB = "docker.io"
SETTING = "sandbox.registry_auth"
FROM_SETTING = "sandbox.pull_from"
HELPER_SECONDS = 30.0
_CONFIG_BYTES = 1 << 20
_HUB_NAMES = ("docker.io", "index.docker.io", "registry-1.docker.io")
_HUB_KEY = "https://index.docker.io/v1/"
"""Docker Hub's name in config files and for helpers."""
_ECR = re.compile(r"\d+\.dkr\.ecr(?:-fips)?\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?")
_ECR_USER = "AWS"
_USER_OF_TOKENS = "<token>"
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
_SHORTEST_HIDDEN = 4
_REGISTRY = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class RegistryAuth:
    """The section `sandbox.registry_auth`: empty strings are unset."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    server_address: str = ""
    """The only registry that gets them. Empty: Docker Hub."""
    docker_config_path: str = ""
    """A docker `config.json`, or its folder, for every other registry."""

    def __post_init__(self) -> None:
        """Raises InvalidInput for a half of what is needed."""
        if self.username and not (self.password or self.identity_token):
            raise InvalidInput(f"{SETTING}.username needs a password or an identity_token beside it", field=SETTING)
        if self.password and not self.username and not _is_ecr(self.server_address):
            raise InvalidInput(f"{SETTING}.password needs a username beside it", field=f"{SETTING}.username")
        if self.password and self.identity_token:
            raise InvalidInput(
                f"{SETTING} has a password and an identity_token; a registry is told one of them: leave the other out",
                field=SETTING,
            )
        if _path_of(self.server_address):
            raise InvalidInput(
                f"{SETTING}.server_address is a registry as HOST or HOST:PORT, without a path",
                field=f"{SETTING}.server_address",
            )
        if self.server_address and not (self.password or self.identity_token):
            raise InvalidInput(
                f"{SETTING}.server_address needs a password or an identity_token beside it", field=SETTING
            )


@dataclass(frozen=True)
class Credentials:
    """What one registry is told."""

    server: str
    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def header(self) -> str:
        """The value of `X-Registry-Auth`."""
        told = {
            "username": self.username,
            "password": self.password,
            "identitytoken": self.identity_token,
            "serveraddress": _HUB_KEY if self.server == HUB else self.server,
        }
        text = json.dumps({key: value for key, value in told.items() if value})
        return base64.urlsafe_b64encode(text.encode()).decode()

    def hide(self, text: str) -> str:
        """`text` without them, whoever wrote it: an engine or a registry may say back what it was told."""
        basic = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        for secret in (self.header(), basic, self.password, self.identity_token):
            if len(secret) >= _SHORTEST_HIDDEN:
                text = text.replace(secret, "***")
        return text


def registry_of(image: str) -> str:
    """The registry that an engine would ask for it, in small letters: a first part with a dot, a colon or a capital
    letter is a host, as engines read names."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        return _server(first)
    return HUB


def registries(named: Iterable[str]) -> frozenset[str]:
    """The registries of that list. Raises InvalidInput for what is none: each is a host, with a port where it has
    one."""
    found = frozenset(HUB if name.lower() in _HUB_NAMES else name.lower() for name in named)
    for name in found:
        if not _REGISTRY.fullmatch(name):
            raise InvalidInput(
                f"{FROM_SETTING} names registries, each as HOST or HOST:PORT, like docker.io; {name[:80]!r} is none",
                field=FROM_SETTING,
            )
    return found


def allowed(named: Iterable[str] | None, images: Iterable[str], auth: RegistryAuth) -> frozenset[str]:
    """The registries that callers' images may be pulled from: those named; `None`: Docker Hub, which the built-in
    images come from, and those of the operator's images and credentials."""
    if named is not None:
        return registries(named)
    return frozenset({HUB, _server(auth.server_address or HUB), *map(registry_of, images)})


class Logins:
    """Finds the credentials for an image. A config file is read each time: tokens in it change."""

    def __init__(self, auth: RegistryAuth, environ: Mapping[str, str] = os.environ) -> None:
        """`environ`: where helpers are looked for, and what they see."""
        self._auth = auth
        self._environ = environ

    async def for_image(self, image: str) -> Credentials | None:
        """`None`: it is asked for by nobody in particular. Raises BackendUnavailable where the config file or its
        helper cannot be used."""
        server = registry_of(image)
        auth = self._auth
        if (auth.password or auth.identity_token) and _server(auth.server_address or HUB) == server:
            user = auth.username or (_ECR_USER if auth.password else "")
            return Credentials(server, user, auth.password, auth.identity_token)
        if auth.docker_config_path:
            return await self._from_config(server)
        return None

    async def _from_config(self, server: str) -> Credentials | None:
        # Of a user that there is not it stays as it is, and is named.
        path = Path(os.path.expanduser(self._auth.docker_config_path))
        document = _read_config(path / "config.json" if path.is_dir() else path)
        helpers = _table(document, "credHelpers")
        helper = next((name for key, name in helpers.items() if _server(key) == server), document.get("credsStore"))
        if helper:
            return await self._ask(str(helper), server)
        for key, entry in _table(document, "auths").items():
            if _server(key) == server and isinstance(entry, dict):
                return _entry(server, entry)
        return None

    async def _ask(self, helper: str, server: str) -> Credentials | None:
        """As docker does: `docker-credential-NAME get`, the registry on its standard input."""
        if not _HELPER.fullmatch(helper):
            raise _unusable(f"the name of its credential helper, {helper[:80]!r}, is none")
        program = f"docker-credential-{helper}"
        key = _HUB_KEY if server == HUB else server
        try:
            code, said = await _run(program, "get", key.encode(), self._environ)
        except (FileNotFoundError, PermissionError) as error:
            raise _unusable(f"it asks {program} about {server}, and there is none on the station's PATH") from error
        except TimeoutError as error:
            raise _unusable(f"{program} did not answer about {server} within {HELPER_SECONDS:g} s") from error
        if code != 0 and b"credentials not found" in said:
            return None
        # What it said is not repeated: it may be half of a secret.
        if code != 0:
            raise _unusable(f"{program} ended with {code} when it was asked about {server}")
        try:
            answer = json.loads(said)
            user, secret = str(answer["Username"]), str(answer["Secret"])
        except (ValueError, KeyError, TypeError):
            raise _unusable(f"{program} answered no credentials about {server}") from None
        if user == _USER_OF_TOKENS:
            return Credentials(server, identity_token=secret)
        return Credentials(server, user, secret)


async def _run(program: str, word: str, told: bytes, environ: Mapping[str, str]) -> tuple[int, bytes]:
    """Exit code and standard output. It does not outlive this call, whatever ends that."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, word, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=dict(environ)
    )
    try:
        async with asyncio.timeout(HELPER_SECONDS):
            said, _ = await process.communicate(told)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_CONFIG_BYTES))
    except OSError as error:
        raise _unusable(f"{path}: {error.strerror or 'it cannot be read'}") from error
    except ValueError:
        raise _unusable(f"{path} is no JSON") from None
    if not isinstance(found, dict):
        raise _unusable(f"{path} holds no keys and values")
    return found


def _entry(server: str, entry: Mapping[str, Any]) -> Credentials | None:
    """One of `auths`: `auth` is user and password in base64."""
    token = str(entry.get("identitytoken") or "")
    user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if packed := entry.get("auth"):
        try:
            user, _, password = base64.b64decode(str(packed), validate=True).decode().partition(":")
        except ValueError:
            raise _unusable(f"what it holds for {server} is not base64") from None
    if token:
        return Credentials(server, identity_token=token)
    return Credentials(server, user, password.rstrip("\0")) if user and password else None


def _table(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _server(address: str) -> str:
    """`https://index.docker.io/v1/` is `docker.io`."""
    host = re.sub(r"^https?://", "", address.strip()).partition("/")[0].lower()
    return HUB if host in _HUB_NAMES else host


def _path_of(address: str) -> str:
    """Docker Hub's name in config files has one, which is none."""
    path = re.sub(r"^https?://", "", address.strip()).partition("/")[2].strip("/")
    return "" if _server(address) == HUB else path


def _is_ecr(address: str) -> bool:
    return _ECR.fullmatch(_server(address)) is not None


def _unusable(why: str) -> BackendUnavailable:
    setting = f"{SETTING}.docker_config_path"
    return BackendUnavailable(f"the docker config file of {setting} cannot be used: {why}", field=setting)
