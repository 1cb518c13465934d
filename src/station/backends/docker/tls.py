"""TLS to an engine over TCP: the certificates, and what it means where the two do not come together."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

from station.core.errors import BackendUnavailable

NEEDS_TLS = "HTTP request to an HTTPS server"
"""What an engine says to a request without TLS where it wants that."""
_OUR_CERTIFICATE = (
    "CERTIFICATE_REQUIRED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "ALERT_CERTIFICATE",
    "HANDSHAKE_FAILURE",
)
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


def client_context(directory: Path) -> ssl.SSLContext:
    """By `ca.pem`, `cert.pem` and `key.pem`. Raises BackendUnavailable where they cannot be read."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(directory / "ca.pem"))
        context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    except (OSError, ssl.SSLError) as error:
        missing = [name for name in ("ca.pem", "cert.pem", "key.pem") if not (directory / name).is_file()]
        why = f"{', '.join(missing)} missing in it" if missing else f"{error}"
        raise BackendUnavailable(
            f"the certificates for the Docker engine cannot be read from {directory}: {why}",
            field="DOCKER_CERT_PATH",
            remedy="set DOCKER_CERT_PATH to the folder with ca.pem, cert.pem and key.pem, or unset DOCKER_TLS_VERIFY",
        ) from error
    return context


def tls_trouble(address: str, error: BaseException) -> BackendUnavailable | None:
    """What to put right where no TLS came about. `None`: that is not what went wrong."""
    # Those of the library are SSLErrors too, and know no reason.
    found = next((one for one in _chain(error) if isinstance(one, ssl.SSLError) and getattr(one, "reason", None)), None)
    if found is None:
        return None
    reason = str(found.reason)
    if isinstance(found, ssl.SSLCertVerificationError):
        return _unavailable(
            f"the Docker engine at {address} shows a certificate that is not believed: {found.verify_message}",
            "put the CA that signed the engine's certificate into ca.pem in DOCKER_CERT_PATH, or DOCKER_HOST to a "
            "name that the certificate has",
        )
    if any(word in reason for word in _OUR_CERTIFICATE):
        return _unavailable(
            f"the Docker engine at {address} does not accept the station's certificate: {reason}",
            "put a cert.pem and key.pem signed by the CA that the engine trusts into DOCKER_CERT_PATH",
        )
    if any(word in reason for word in _NO_TLS):
        return _unavailable(
            f"the Docker engine at {address} speaks no TLS",
            "unset DOCKER_TLS_VERIFY for an engine without TLS, or correct DOCKER_HOST",
        )
    return None


def wants_tls(address: str) -> BackendUnavailable:
    return _unavailable(
        f"the Docker engine at {address} wants TLS",
        "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the folder with ca.pem, cert.pem and key.pem",
    )


def _unavailable(reason: str, remedy: str) -> BackendUnavailable:
    return BackendUnavailable(reason, remedy=remedy, engine="engine_unreachable")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """It and what it was made of."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [
            getattr(one, "os_error", None),
            getattr(one, "certificate_error", None),
            one.__cause__,
            one.__context__,
        ]
