"""Where a station listens on TCP: on loopback alone, and told to whoever looks for it."""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import socket
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
    """One of loopback."""

    host: str
    """An IPv4 or IPv6 address, never a name."""
    port: int

    @property
    def authority(self) -> str:
        """As in a URL, without the port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.authority}:{self.port}"


def parse(text: str) -> Address:
    """`HOST:PORT`. Raises InvalidInput where it is something else, or not of loopback."""
    found = _FORM.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise InvalidInput(f"listen: {text!r} is not HOST:PORT, {_HELP}", field="listen")
    host = found["six"] if found["six"] is not None else found["host"]
    # Not looked up: what a resolver says of it is not ours to trust.
    address = _ip("127.0.0.1" if host.lower() == "localhost" else host)
    here = isinstance(address, ipaddress.IPv6Address) == (found["six"] is not None) and _is_loopback(address)
    if not here:
        raise InvalidInput(
            f"listen: {host!r} is no loopback address (127.0.0.0/8, [::1] or localhost). Another address needs TLS, "
            "which is not there yet: listen on a loopback address and put a TLS proxy in front of it",
            field="listen",
        )
    return Address(str(address), int(found["port"]))


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
