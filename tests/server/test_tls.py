"""TLS on TCP: real certificates, real clients."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from station import connect
from station.core.errors import InvalidInput, Refused, StationUnreachable
from station.server.net.http import MAX_HANDSHAKES
from station.server.net.tls import Tls, names_of

from .served import Served

TOKEN = "0123456789abcdef"


def certify(folder: Path, *names: str, passphrase: bytes | None = None) -> tuple[Path, Path]:
    """A certificate of an hour that is its own authority, and its key."""
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "station")])
    hosts: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    hosts += [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    pem, private = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.touch(0o600)
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return pem, private


def variables(pem: Path, key: Path, listen: str = "127.0.0.1:0") -> dict[str, str]:
    return {"STN_LISTEN": listen, "STN_TLS_CERTIFICATE": str(pem), "STN_TLS_KEY": str(key), "STN_TOKEN": TOKEN}


def asked(served: Served, pem: Path, **headers: str) -> int:
    url = served.told["url"].replace("station.example", "127.0.0.1")
    trusted = ssl.create_default_context(cafile=pem)
    headers = {"authorization": f"Bearer {TOKEN}", **headers}
    with httpx2.Client(verify=trusted, trust_env=False, timeout=30) as client:
        return client.get(f"{url}/api/v1/station", headers=headers).status_code


def port_of(served: Served) -> int:
    return int(served.told["url"].rpartition(":")[2])


def test_a_station_is_spoken_to_over_tls(
    serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, key = certify(tmp_path / "tls", "station.example", "*.example")
    served = serve(**variables(pem, key, "0.0.0.0:0"), STN_HOSTS="other.example,[::2]")
    assert served.ready, served.wait()
    assert served.told["url"].startswith("https://127.0.0.1:")
    for host, status in (
        ("127.0.0.1", 200), ("station.example", 200), ("STATION.example:7", 200), ("other.example", 200),
        ("[::2]", 200),
        ("a.example", 421), ("0.0.0.0", 421),
    ):  # fmt: skip
        assert asked(served, pem, host=host) == status, host
    assert asked(served, pem, authorization="Bearer x") == 401

    url = f"https://127.0.0.1:{port_of(served)}"
    with connect(url=url, token=TOKEN, ca_file=pem) as client, client.open("box") as sandbox:
        data = os.urandom(300_000)
        sandbox.files.write("x", data)
        assert sandbox.files.read("x") == data
        assert sandbox.exec("echo hello").stdout == "hello\n"
    with connect(url=url, token=TOKEN) as client, pytest.raises(StationUnreachable, match="certificate verify failed"):
        client.info()
    with connect(url=url, token=TOKEN, ca_file=key) as client, pytest.raises(InvalidInput, match="no certificate in"):
        client.info()
    monkeypatch.setenv("STN_CA_FILE", str(pem))
    with connect(url=url, token=TOKEN) as client:
        assert client.info().pid == served.process.pid
    code, words = served.end()
    assert (code, "listening on https://" in words) == (0, True)


def test_who_speaks_no_tls_or_an_old_one_is_refused_and_holds_up_nobody(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    pem, key = certify(tmp_path / "tls")
    served = serve(**variables(pem, key))
    address = ("127.0.0.1", port_of(served))
    with socket.create_connection(address, timeout=30) as plain:
        plain.sendall(f"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode())
        answer = b""
        while piece := _received(plain):
            answer += piece
        assert b"HTTP" not in answer
    for newest, taken in ((b"", True), (b"TLSv1.2", True), (b"TLSv1.1", False)):
        assert _greeted(address, pem, newest.decode()) is taken, newest
    assert asked(served, pem) == 200
    assert served.end()[0] == 0


def _greeted(address: tuple[str, int], pem: Path, newest: str) -> bool:
    """Whether a client that speaks no newer version comes through."""
    client = ssl.create_default_context(cafile=pem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if newest:
            client.minimum_version = client.maximum_version = ssl.TLSVersion[newest.replace(".", "_")]
            client.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(address, timeout=30) as raw:
        try:
            client.wrap_socket(raw, server_hostname="127.0.0.1").close()
        except (ssl.SSLError, ConnectionError):
            return False
    return True


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        return b""


def test_handshakes_of_strangers_are_bounded(serve: Callable[..., Served], tmp_path: Path) -> None:
    pem, key = certify(tmp_path / "tls")
    served = serve(**variables(pem, key))
    address = ("127.0.0.1", port_of(served))
    strangers = [socket.create_connection(address, timeout=30) for _ in range(MAX_HANDSHAKES)]
    try:
        with pytest.raises((httpx2.TransportError, OSError)):
            asked(served, pem)
        strangers.pop().close()
        while True:
            try:
                assert asked(served, pem) == 200
                break
            except (httpx2.TransportError, OSError):  # it has not been seen to go yet
                continue
        assert len(list(Path(f"/proc/{served.process.pid}/fd").iterdir())) < 200
    finally:
        for each in strangers:
            each.close()
    assert served.end()[0] == 0


def test_a_renewed_certificate_is_read_without_a_restart(tmp_path: Path) -> None:
    pem, key = certify(tmp_path)
    tls = Tls(pem, key)
    assert _shown(tls) == pem.read_text()
    certify(tmp_path)
    assert _shown(tls) != pem.read_text()
    tls.refresh()
    assert _shown(tls) == pem.read_text()
    before = pem.read_text()
    pem.write_text("broken")
    tls.refresh()
    assert _shown(tls) == before


def test_a_renewal_that_is_half_done_or_wrong_changes_nothing(tmp_path: Path) -> None:
    """A context that refuses a key has put the certificate in place by then, and can shake no more hands."""
    pem, key = certify(tmp_path / "now")
    other, others = certify(tmp_path / "next")
    now, later = (pem.read_bytes(), key.read_bytes()), (other.read_bytes(), others.read_bytes())
    tls = Tls(pem, key)
    halves = ((later[0], now[1]), (now[0], later[1]), (b"broken", now[1]), (later[0], b"broken"), (b"", b""))
    for certificate, private in halves:
        pem.write_bytes(certificate)
        key.write_bytes(private)
        tls.refresh()
        assert _shown(tls) == now[0].decode()
    pem.write_bytes(later[0])
    key.write_bytes(later[1])
    tls.refresh()
    assert _shown(tls) == later[0].decode()


def _shown(tls: Tls) -> str:
    """The certificate that a client sees, in PEM."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(to_client, to_server)
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    pem, key = certify(tmp_path)
    key.chmod(mode)
    if os.geteuid() == 0 and mode == 0o640:
        Tls(pem, key)  # as distributions have it, for a group of root's choice
        return
    with pytest.raises(Refused, match=rf"open to others .mode {mode:o}.*chmod 600"):
        Tls(pem, key)


def test_what_is_no_certificate_with_its_key_is_refused(tmp_path: Path) -> None:
    pem, key = certify(tmp_path / "a")
    _, other = certify(tmp_path / "b")
    _, closed = certify(tmp_path / "c", passphrase=b"secret")
    with pytest.raises(InvalidInput, match="the key is not that of the certificate"):
        Tls(pem, other)
    for certificate, private in ((pem, closed), (key, key)):
        with pytest.raises(InvalidInput, match="no PEM of them, or the key has a passphrase"):
            Tls(certificate, private)
    with pytest.raises(InvalidInput, match=r"tls\.key .*none cannot be read: No such file"):
        Tls(pem, tmp_path / "none")
    assert names_of(pem.read_bytes()) == {"127.0.0.1", "[::1]"}
    assert names_of(b"x") == frozenset()


def test_a_bad_key_starts_nothing(serve: Callable[..., Served], tmp_path: Path) -> None:
    pem, key = certify(tmp_path / "tls")
    key.chmod(0o644)
    served = serve(**variables(pem, key))
    code, words = served.wait()
    assert (served.ready, code) == (False, 125)
    assert "open to others" in words
    assert not (served.home / "registry.db").exists()
