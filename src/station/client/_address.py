"""Where a station is that answers on TCP, and the token for it. Its own machine's is found by its state directory."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from station.core.errors import InvalidInput
from station.core.identity import subject_of
from station.core.records import Owner

VARIABLE = "STN_TOKEN"
CA_FILE = "STN_CA_FILE"
_BARE = re.compile(r"(127(\.\d{1,3}){3}|localhost|\[::1\]):\d{1,5}/?")
"""Loopback and a port, as listeners are told of."""


@dataclass(frozen=True)
class Remote:
    """`url` without a path, and the token that is shown there."""

    url: str
    token: str = field(repr=False)
    ca_file: str | None = None
    """PEM file of the only authorities whose certificates are taken. `None`: those of this machine."""

    @property
    def deployment(self) -> str:
        """Whose sandboxes a name is of there, as the token says."""
        return subject_of(self.token) or Owner.deployment

    def context(self) -> ssl.SSLContext:
        """For `https`. Raises InvalidInput for a `ca_file` that is none."""
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # no PEM: that is one too
            why = error.strerror if not isinstance(error, ssl.SSLError) else "it holds no certificate in PEM"
            raise InvalidInput(f"{CA_FILE} {self.ca_file} cannot be used: {why}", field="ca_file") from error


def remote(url: str, token: str | None = None, ca_file: str | os.PathLike[str] | None = None) -> Remote:
    """`token`, `ca_file`: `None` takes STN_TOKEN, STN_CA_FILE. Raises InvalidInput for an address that is none, for
    plain HTTP to another machine, and without a token."""
    parts = urlsplit(url)
    try:
        plain, port = parts.scheme == "http", parts.port
    except ValueError:
        plain, port = False, -1
    if _BARE.fullmatch(url):
        raise InvalidInput(f"an address of a station begins with http:// or https://: http://{url}", field="station")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.username is not None:
        raise InvalidInput(
            f"{url[:80]!r} is no address of a station; it looks like https://station.example:7311", field="station"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidInput("the address of a station has no path", field="station")
    if plain and not _is_loopback(parts.hostname):
        raise InvalidInput(
            f"{parts.hostname} is another machine: its station is spoken to by https:// alone, as the token would go "
            "over the network unprotected",
            field="station",
        )
    shown = token if token is not None else os.environ.get(VARIABLE, "")
    if not re.fullmatch(r"[\x21-\x7e]+", shown):
        raise InvalidInput(
            f"a station on TCP asks for a token: set {VARIABLE} to an API key or an identity token, or to that in "
            "operator.token of its state directory",
            field="token",
        )
    authorities = os.fspath(ca_file) if ca_file is not None else os.environ.get(CA_FILE) or None
    return Remote(f"{parts.scheme}://{parts.netloc}", shown, authorities)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
