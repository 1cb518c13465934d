"""Certificates of an hour, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class Authority:
    """A CA, and what it signs, in a folder of its own."""

    def __init__(self, place: Path, name: str) -> None:
        self.place = place
        place.mkdir()
        options: list[str | Path] = [
            "-x509",
            "-subj",
            f"/CN={name}",
            "-keyout",
            place / "ca-key.pem",
            "-out",
            place / "ca.pem",
        ]
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-days", "1", *options)

    def sign(self, name: str, *, extension: str) -> Path:
        """A folder with `ca.pem`, `cert.pem` and `key.pem`, as DOCKER_CERT_PATH has them."""
        folder = self.place / name
        folder.mkdir()
        (folder / "extension").write_text(extension, encoding="ascii")
        request: list[str | Path] = ["-subj", f"/CN={name}", "-keyout", folder / "key.pem", "-out", folder / "request"]
        _openssl("req", "-newkey", "rsa:2048", "-nodes", *request)
        signing: list[str | Path] = [
            "-CA",
            self.place / "ca.pem",
            "-CAkey",
            self.place / "ca-key.pem",
            "-CAcreateserial",
            "-days",
            "1",
        ]
        given: list[str | Path] = [
            "-in",
            folder / "request",
            "-out",
            folder / "cert.pem",
            "-extfile",
            folder / "extension",
        ]
        _openssl("x509", "-req", *given, *signing)
        shutil.copy(self.place / "ca.pem", folder / "ca.pem")
        return folder

    def server(self, name: str = "server", *, address: str = "IP:127.0.0.1") -> Path:
        return self.sign(name, extension=f"subjectAltName={address}\nextendedKeyUsage=serverAuth\n")

    def client(self, name: str = "client") -> Path:
        return self.sign(name, extension="extendedKeyUsage=clientAuth\n")


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {words[0]}: {done.stderr[-500:]}")
