"""TLS of the TCP listener: the certificate and its key, watched for ones that were renewed."""

from __future__ import annotations

import logging
import os
import ssl
import stat
from pathlib import Path
from typing import TypeAlias

from station.core.errors import InvalidInput, Refused
from station.durable import in_memory

log = logging.getLogger(__name__)

_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class Tls:
    """Reads both files when it is made, and again when they are others: a renewed certificate needs no restart."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises Refused for a key that others can read, InvalidInput for files that are no certificate with its
        key."""
        self._certificate, self._key = certificate, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamp = self._stamped()
        self._load()
        self.names = names_of(_bytes(certificate, "tls.certificate"))
        """The hosts that the certificate is for, as in a Host header."""

    def refresh(self) -> None:
        """To be called now and then. Files that cannot be used are told of, and what was read before goes on."""
        try:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._stamp = stamp
                self._load()
                log.info("the certificate %s was read anew", self._certificate)
        except (InvalidInput, Refused) as error:
            log.error("the certificate was not read anew: %s", error)

    def _load(self) -> None:
        with in_memory(_bytes(self._certificate, "tls.certificate")) as pem, in_memory(_private(self._key)) as key:
            # One that fails has changed the context by then: only what another one has taken whole goes into ours.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                self._load_into(context, pem, key)

    def _load_into(self, context: ssl.SSLContext, pem: int, key: int) -> None:
        try:
            # Without a passphrase nobody is asked for one.
            context.load_cert_chain(f"/proc/self/fd/{pem}", f"/proc/self/fd/{key}", password=b"")
        except ssl.SSLError as error:
            why = "the key is not that of the certificate" if "MISMATCH" in (error.reason or "") else "no PEM of them"
            raise InvalidInput(
                f"tls.certificate {self._certificate} and tls.key {self._key} cannot be used: {why}, or the key has a "
                "passphrase",
                field="tls",
            ) from None

    def _stamped(self) -> _Stamp:
        return tuple(
            _stamp(path, name) for path, name in ((self._certificate, "tls.certificate"), (self._key, "tls.key"))
        )


def names_of(pem: bytes) -> frozenset[str]:
    """DNS names and addresses of the first certificate; those with a `*` name no host, and are left out."""
    from cryptography import x509  # takes a while, which a station without TLS need not wait for

    try:
        found = x509.load_pem_x509_certificates(pem)[0]
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return frozenset()
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    hosts = [*names.get_values_for_type(x509.DNSName), *(f"[{it}]" if ":" in it else it for it in addresses)]
    return frozenset(host.lower() for host in hosts if "*" not in host)


def _check_private(key: Path, found: os.stat_result) -> None:
    """A key of root may be open to a group, as distributions have it."""
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(f"tls.key {key} is no regular file", field="tls.key")
    if found.st_uid not in (0, os.geteuid()):
        raise Refused(f"tls.key {key} belongs to the user with uid {found.st_uid}, this is uid {os.geteuid()}")
    open_to = 0o037 if found.st_uid == 0 else 0o077
    if found.st_mode & open_to:
        raise Refused(
            f"tls.key {key} is open to others (mode {stat.S_IMODE(found.st_mode):03o}), so it may be no secret: "
            f"chmod 600 {key}",
            file=str(key),
        )


def _stamp(path: Path, name: str) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidInput(f"{name} {path} cannot be read: {error.strerror}", field=name) from error
    return found.st_mtime_ns, found.st_ino, found.st_size


def _private(path: Path) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            # By descriptor: what was looked at is what is read.
            _check_private(path, os.fstat(opened.fileno()))
            return opened.read()
    except OSError as error:
        raise InvalidInput(f"tls.key {path} cannot be read: {error.strerror}", field="tls.key") from error


def _bytes(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{name} {path} cannot be read: {error.strerror}", field=name) from error
