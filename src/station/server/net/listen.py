"""Where a station listens on TCP: on loopback unless TLS guards it, and told to whoever looks for it."""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import socket
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from station.core.errors import Busy, InvalidInput, Unavailable
from station.durable import write_private

FILE = "listening.json"
_FORM = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_HELP = "as in 127.0.0.1:8080 or [::1]:8080; port 0 takes a free one"
_BACKLOG = 2048


@dataclass(frozen=True)
class Address:
    """Of this machine."""

    host: str
    """An IPv4 or IPv6 address, never a name."""
    port: int

    @property
    def authority(self) -> str:
        """As in a URL, without the port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def names(self) -> frozenset[str]:
        """What it goes by in a Host header; every address of the machine has no name."""
        return frozenset() if self.is_any else frozenset({self.authority})

    @property
    def is_any(self) -> bool:
        return ipaddress.ip_address(self.host).is_unspecified

    def reached_as(self, hosts: Collection[str]) -> str:
        """Host and port for a URL, with one of `hosts` where this is every address of the machine."""
        return f"{min(hosts)}:{self.port}" if self.is_any and hosts else str(self)

    def __str__(self) -> str:
        return f"{self.authority}:{self.port}"


def parse(text: str) -> Address:
    """`HOST:PORT`. Raises InvalidInput where it is something else."""
    found = _FORM.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise InvalidInput(f"listen: {text!r} is not HOST:PORT, {_HELP}", field="listen")
    host = found["six"] if found["six"] is not None else found["host"]
    # Not looked up: what a resolver says of it is not ours to trust.
    address = _ip("127.0.0.1" if host.lower() == "localhost" else host)
    is_six = isinstance(address, ipaddress.IPv6Address)
    if address is None or is_six != (found["six"] is not None) or "%" in host:
        raise InvalidInput(f"listen: {host!r} is no IP address of this machine, {_HELP}", field="listen")
    return Address(str(address), int(found["port"]))


def check(address: Address, *, guarded: bool) -> None:
    """Raises InvalidInput where tokens would go over a network unprotected. `guarded`: TLS is here or in front."""
    if not guarded and not _is_loopback(_ip(address.host)):
        raise InvalidInput(
            f"listen: {address.host!r} is no loopback address (127.0.0.0/8, [::1] or localhost). Another address needs "
            "TLS: set tls.certificate and tls.key, or listen_behind_proxy: true where a TLS proxy in front is all that "
            "reaches it",
            field="listen",
        )


def bind(address: Address) -> tuple[socket.socket, Address]:
    """A socket that listens there, and where that is: port 0 has become a number. Raises Busy where another program
    has the port, Unavailable where this machine has no such address."""
    sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port whose last connections are only being forgotten is free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Busy(
                f"another program listens on {address}; choose another port with --listen or STN_LISTEN, {_HELP}",
                address=str(address),
            ) from error
        raise Unavailable(f"{address} cannot be listened on: {error.strerror}", retryable=False) from error
    return sock, Address(address.host, sock.getsockname()[1])


@dataclass(frozen=True)
class Listening:
    """How this station is reached: what `stn serve --json` prints, and the file in the state directory has as long as
    requests are answered."""

    url: str | None
    """`None`: by the socket alone."""
    token_file: str | None
    """`None`: without `url`, or the token came from STN_TOKEN."""
    socket: str
    pid: int
    version: str

    def line(self) -> str:
        return json.dumps(asdict(self))

    def write(self, home: Path) -> None:
        """Whole or not at all, for this user alone."""
        write_private(home / FILE, f"{self.line()}\n".encode())


def forget(home: Path) -> None:
    """Removes the file; also one that a station left that was killed."""
    (home / FILE).unlink(missing_ok=True)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    # Not `is_loopback`: of IPv6 it takes mapped addresses too, in some versions of Python.
    return address == ipaddress.ip_address("::1") or (
        isinstance(address, ipaddress.IPv4Address) and address in ipaddress.ip_network("127.0.0.0/8")
    )
