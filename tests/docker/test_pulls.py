"""What the lines and refusals of a pull mean, and how Podman is asked: without an engine."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from station.backends.docker import podman
from station.backends.docker.pulls import Progress, refusal
from station.backends.docker.registry import Credentials
from station.core.errors import BackendUnavailable, InvalidInput, Refused, StationError, StorageFull, Unavailable

IMAGE = "ghcr.io/me/thing:1"
LINES: list[Any] = [
    {"status": "Pulling from me/thing", "id": "1"},
    {"status": "Pulling fs layer", "progressDetail": {}, "id": "a"},
    {"status": "Pulling fs layer", "progressDetail": {}, "id": "b"},
    {"status": "Already exists", "progressDetail": {}, "id": "c"},
    {"status": "Waiting", "progressDetail": {}, "id": "b"},
    {"status": "Downloading", "progressDetail": {"current": 10, "total": 100}, "id": "a"},
    {"status": "Downloading", "progressDetail": {"current": 60, "total": 100}, "id": "a"},
    {"status": "Downloading", "progressDetail": {"current": 5, "total": 50}, "id": "b"},
]
END: list[Any] = [
    {"status": "Verifying Checksum", "progressDetail": {}, "id": "a"},
    {"status": "Download complete", "progressDetail": {}, "id": "a"},
    {"status": "Extracting", "progressDetail": {"current": 7, "total": 100}, "id": "a"},
    {"status": "Pull complete", "progressDetail": {}, "id": "a"},
    {"status": "Pull complete", "progressDetail": {}, "id": "b"},
    {"status": "Digest: sha256:00"},
]


def test_the_lines_of_an_engine_add_up() -> None:
    progress = Progress()
    for line in LINES:
        progress.tell(line)
    view = progress.view(IMAGE, 1.26)
    assert (view.layers, view.layers_done, view.done_bytes, view.total_bytes, view.seconds) == (3, 1, 65, 150, 1.3)
    for line in END:
        progress.tell(line)
    view = progress.view(IMAGE, 2)
    assert (view.layers, view.layers_done, view.done_bytes, view.total_bytes) == (3, 3, 150, 150)


@pytest.mark.parametrize(
    "line",
    [None, [], "x", {}, {"id": 7}, {"id": "a", "status": None}, {"id": "a", "progressDetail": 3},
     {"id": "a", "status": "Downloading", "progressDetail": {"current": "x", "total": -1}}],
)  # fmt: skip
def test_a_line_of_nonsense_is_left_out(line: Any) -> None:
    progress = Progress()
    progress.tell(line)
    assert progress.view(IMAGE, 0).done_bytes == 0


DENIED = [
    (500, 'Head "https://ghcr.io/v2/me/thing/manifests/1": no basic auth credentials'),
    (500, "unauthorized: authentication required"),
    (404, "pull access denied for me/thing, repository does not exist or may require 'docker login': denied"),
    (500, "error parsing HTTP 403 response body: 403 Forbidden"),
    (500, "received unexpected HTTP status 401"),
    (401, "who are you"),
    (403, "no"),
]


@pytest.mark.parametrize(("status", "message"), DENIED)
def test_a_refusal_of_the_registry_names_the_setting(status: int, message: str) -> None:
    error = refusal(IMAGE, None, status, message, f"pull {IMAGE}")
    assert isinstance(error, Refused)
    assert "sandbox.registry_auth" in error.message
    assert "server_address: ghcr.io" in error.message
    assert error.detail["setting"] == "sandbox.registry_auth"


OTHERS: list[tuple[int, str, type[StationError], str]] = [
    (404, "manifest for ghcr.io/me/thing:1 not found: manifest unknown: manifest unknown", InvalidInput, "no image"),
    (500, "manifest unknown", InvalidInput, "no image"),
    (404, "no matching manifest for linux/arm64 in the manifest list entries", InvalidInput, "no image"),
    (400, "invalid reference format", InvalidInput, "an image's name"),
    (500, "dial tcp 127.0.0.1:1: connect: connection refused", Unavailable, "out of its reach"),
    (500, "net/http: TLS handshake timeout", Unavailable, "out of its reach"),
    (500, "lookup x on 10.0.0.2:53: no such host", Unavailable, "out of its reach"),
    (500, 'error parsing HTTP 500 response body: "<html>"', Unavailable, "out of its reach"),
    (500, "filesystem layer verification failed for digest sha256:00", Unavailable, "damaged"),
    (500, "unexpected end of JSON input", Unavailable, "damaged"),
    (500, "write /var/lib/docker/tmp/x: no space left on device", StorageFull, "disk is full"),
]


@pytest.mark.parametrize(("status", "message", "kind", "sentence"), OTHERS)
def test_other_refusals_are_what_they_are(status: int, message: str, kind: type[StationError], sentence: str) -> None:
    error = refusal(IMAGE, None, status, message, f"pull {IMAGE}")
    assert type(error) is kind
    assert sentence in error.message
    assert error.retryable == (sentence == "out of its reach")


@pytest.mark.parametrize(("status", "message"), [*DENIED, *((status, text) for status, text, _, _ in OTHERS)])
def test_nobody_is_told_what_a_registry_has_said(status: int, message: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may be any server that the engine reaches, and its answer anything that it keeps."""
    said = f"{message}: canary-of-a-body\nsecond line"
    login = Credentials("ghcr.io", "user-of-ours", "pw-of-ours")
    caplog.set_level("DEBUG", "station")
    error = refusal(IMAGE, login, status, f"{said} {login.header()} pw-of-ours", "pull it")
    told = json.dumps(error.to_body())
    for word in ("canary", "second line", "pw-of-ours", "user-of-ours", login.header()):
        assert word not in told
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert "canary-of-a-body" in record.getMessage()
    assert "pw-of-ours" not in record.getMessage()
    assert "\n" not in record.getMessage()


# ── Podman ──────────────────────────────────────────────────────────────────────────────────────────────────────────

BODY = {
    "Image": "x",
    "HostConfig": {
        "Tmpfs": {"/tmp": "size=1048576,nr_inodes=1024,mode=1777,rw", "/run": "size=2,nr_inodes=9,mode=755"},
        "SecurityOpt": ["no-new-privileges", 'seccomp={"defaultAction": "SCMP_ACT_ERRNO"}'],
        "PidsLimit": 256,
    },
}


def test_podman_gets_a_body_that_it_understands(tmp_path: Path) -> None:
    before = json.dumps(BODY)
    host = podman.body_for(BODY, tmp_path / "profiles")["HostConfig"]
    assert json.dumps(BODY) == before
    small = "size=1048576,mode=1777,rw"
    assert host["Tmpfs"] == {"/tmp": small, "/run": "size=2,mode=755", "/var/tmp": small}
    assert host["PidsLimit"] == 256
    bare, profile = host["SecurityOpt"]
    assert bare == "no-new-privileges"
    copy = Path(profile.removeprefix("seccomp="))
    assert copy.read_text() == '{"defaultAction": "SCMP_ACT_ERRNO"}'
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_podman_without_a_place_for_the_profile_is_refused_and_never_goes_without_one() -> None:
    with pytest.raises(BackendUnavailable, match="its own disk"):
        podman.body_for(BODY, None)
    helper = {"Image": "x", "HostConfig": {"Mounts": []}}
    assert podman.body_for(helper, None) == helper
