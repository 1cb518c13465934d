"""Which credentials a registry gets, decided without one."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from station.backends.docker.config import check_image
from station.backends.docker.registry import (
    Credentials,
    Logins,
    RegistryAuth,
    allowed,
    registries,
    registry_of,
)
from station.core.errors import BackendUnavailable, InvalidInput
from station.server.loading import load
from station.server.settings import SandboxSettings
from station.validate import from_plain

ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("image", "server"),
    [
        ("python", "docker.io"),
        ("python:3.11-slim", "docker.io"),
        ("someone/thing:1", "docker.io"),
        ("docker.io/library/python", "docker.io"),
        ("index.docker.io/someone/thing", "docker.io"),
        ("ghcr.io/someone/thing@sha256:" + "a" * 64, "ghcr.io"),
        (f"{ECR}/thing", ECR),
        ("localhost/thing", "localhost"),
        ("localhost:5000/thing:1", "localhost:5000"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000"),
        # Engines take these for hosts, too.
        ("EVIL/x", "evil"),
        ("eVil/x:1", "evil"),
        ("LOCALHOST/x", "localhost"),
        ("evil:/x", "evil:"),
        ("evil./x", "evil."),
        ("[::1]:5000/x", "[::1]:5000"),
        ("GHCR.IO/someone/thing", "ghcr.io"),
        ("docker.io/EVIL/x", "docker.io"),
        ("someone/EVIL.example/x", "docker.io"),
    ],
)
def test_the_registry_of_an_image_is_the_one_that_the_engine_asks(image: str, server: str) -> None:
    assert registry_of(image) == server


FORMS = [
    (RegistryAuth("me", "pat-1234", server_address="ghcr.io"), "ghcr.io/me/x", ("me", "pat-1234", "ghcr.io")),
    (RegistryAuth("me", "tok-1234", server_address="docker.io"), "me/x", ("me", "tok-1234", "docker.io")),
    (RegistryAuth("me", "tok-1234"), "me/x", ("me", "tok-1234", "docker.io")),
    (
        RegistryAuth("me", "tok-1234", server_address="https://index.docker.io/v1/"),
        "x",
        ("me", "tok-1234", "docker.io"),
    ),
    (RegistryAuth("AWS", "ecr-1234", server_address=ECR), f"{ECR}/x:1", ("AWS", "ecr-1234", ECR)),
    (RegistryAuth("", "ecr-1234", server_address=f"https://{ECR}"), f"{ECR}/x:1", ("AWS", "ecr-1234", ECR)),
]


@pytest.mark.parametrize(("auth", "image", "told"), FORMS)
async def test_the_three_forms_of_credentials(auth: RegistryAuth, image: str, told: tuple[str, str, str]) -> None:
    login = await Logins(auth, {}).for_image(image)
    assert login is not None
    assert (login.username, login.password, login.server) == told


async def test_an_identity_token_goes_without_a_user() -> None:
    login = await Logins(RegistryAuth(identity_token="idt-1234", server_address="reg.example"), {}).for_image(
        "reg.example/x"
    )
    assert login is not None
    told = json.loads(base64.urlsafe_b64decode(login.header()))
    assert told == {"identitytoken": "idt-1234", "serveraddress": "reg.example"}


async def test_what_is_for_docker_hub_is_for_no_host_in_capitals() -> None:
    logins = Logins(RegistryAuth("me", "tok-1234"), {})
    for image in ("EVIL/x", "Evil/me/x", "LOCALHOST/x"):
        assert await logins.for_image(image) is None
    assert await logins.for_image("evil/x") is not None


def test_images_come_from_the_operators_registries_and_docker_hub() -> None:
    assert allowed(None, [], RegistryAuth()) == {"docker.io"}
    auth = RegistryAuth("me", "pat-1234", server_address="https://GHCR.io/")
    found = allowed(None, ["reg.example:5000/a/b", "python"], auth)
    assert found == {"docker.io", "ghcr.io", "reg.example:5000"}


def test_a_list_of_registries_holds_as_it_is() -> None:
    auth = RegistryAuth("me", "pat-1234", server_address="ghcr.io")
    assert allowed(["Reg.Example:5000", "index.docker.io"], ["other.example/x"], auth) == {
        "reg.example:5000", "docker.io",
    }  # fmt: skip
    assert allowed([], ["other.example/x"], auth) == set()
    assert registries(["[::1]:5000", "localhost", "10.0.0.1"]) == {"[::1]:5000", "localhost", "10.0.0.1"}


@pytest.mark.parametrize("name", ["", "a b", "https://ghcr.io", "ghcr.io/me", "*.io", "ghcr.io:x", "-a", "me@host"])
def test_what_is_no_registry_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"sandbox\.pull_from"):
        registries([name])
    with pytest.raises(InvalidInput, match=r"sandbox\.pull_from"):
        from_plain(SandboxSettings, {"pull_from": [name]}, where="here: ")


def test_a_list_of_registries_may_be_a_string() -> None:
    settings = load(Path("/none"), {"STN_SANDBOX_PULL_FROM": "ghcr.io, reg.example:5000"})
    assert settings.sandbox.pull_from == ("ghcr.io", "reg.example:5000")
    assert load(Path("/none"), {"STN_SANDBOX_PULL_FROM": ""}).sandbox.pull_from is None


@pytest.mark.parametrize("name", ["../containers/x", "a/../../b", "a//b", "/a", "a/", "./a", "a/."])
def test_no_name_of_an_image_leads_elsewhere(name: str) -> None:
    """An engine is asked for it by a path."""
    with pytest.raises(InvalidInput, match="name of an image"):
        check_image(name)
    check_image("a.b/..c/d:1")


@pytest.mark.parametrize(
    "image", ["ghcr.io.evil.example/x", "evil.example/ghcr.io/x", "python", "ghcr.io:444/x", "xghcr.io/x"]
)
async def test_no_other_registry_gets_them(image: str) -> None:
    logins = Logins(RegistryAuth("me", "pat-1234", server_address="ghcr.io"), {})
    assert await logins.for_image(image) is None
    assert await logins.for_image("ghcr.io/x") is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"username": "me"},
        {"password": "pw"},
        {"password": "pw", "server_address": "ghcr.io"},
        {"server_address": "ghcr.io"},
    ],
)
def test_a_half_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="registry_auth"):
        RegistryAuth(**fields)


def test_nothing_shows_a_secret() -> None:
    auth = (RegistryAuth("me", "pw-of-me"), RegistryAuth(identity_token="idt-of-me"))
    login = Credentials("reg.example", "me", "pw-of-me", "idt-of-me")
    assert "of-me" not in repr(auth) + "".join(map(str, auth)) + repr(login) + str(login)
    basic = base64.b64encode(b"me:pw-of-me").decode()
    said = f"got {login.header()} and {basic} and pw-of-me and idt-of-me"
    assert login.hide(said) == "got *** and *** and *** and ***"


def helper(folder: Path, name: str, script: str) -> dict[str, str]:
    """The environment in which docker-credential-NAME is found."""
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SEEN": str(folder / "seen")}


def config(folder: Path, **document: object) -> RegistryAuth:
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return RegistryAuth(docker_config_path=str(folder))


async def test_a_docker_config_file_knows_many(tmp_path: Path) -> None:
    packed = base64.b64encode(b"me:with:colon").decode()
    auths = {
        "https://index.docker.io/v1/": {"auth": packed},
        "https://ghcr.io": {"username": "you", "password": "plain"},
        "reg.example": {"auth": "", "identitytoken": "idt"},
        "empty.example": {},
    }
    logins = Logins(config(tmp_path, auths=auths), {})
    assert await logins.for_image("python") == Credentials("docker.io", "me", "with:colon")
    assert await logins.for_image("ghcr.io/x") == Credentials("ghcr.io", "you", "plain")
    assert await logins.for_image("reg.example/x") == Credentials("reg.example", identity_token="idt")
    assert await logins.for_image("empty.example/x") is None
    assert await logins.for_image("other.example/x") is None


async def test_the_settings_own_credentials_go_before_the_file(tmp_path: Path) -> None:
    packed = base64.b64encode(b"me:file").decode()
    config(tmp_path, auths={"ghcr.io": {"auth": packed}, "reg.example": {"auth": packed}})
    own = RegistryAuth("me", "own", server_address="ghcr.io", docker_config_path=str(tmp_path / "config.json"))
    logins = Logins(own, {})
    assert await logins.for_image("ghcr.io/x") == Credentials("ghcr.io", "me", "own")
    assert await logins.for_image("reg.example/x") == Credentials("reg.example", "me", "file")


async def test_a_helper_is_asked_as_docker_asks_it(tmp_path: Path) -> None:
    script = """echo "$*" >"$SEEN"; read -r server; echo "$server" >>"$SEEN"
echo '{"ServerURL": "x", "Username": "AWS", "Secret": "ecr-secret"}'"""
    environ = helper(tmp_path, "ecr-login", script)
    logins = Logins(config(tmp_path, credHelpers={ECR: "ecr-login"}, credsStore="absent"), environ)
    assert await logins.for_image(f"{ECR}/x:1") == Credentials(ECR, "AWS", "ecr-secret")
    assert (tmp_path / "seen").read_text() == f"get\n{ECR}\n"


async def test_a_store_answers_for_all_with_a_token_or_with_nothing(tmp_path: Path) -> None:
    script = """read -r server
case $server in
    *index.docker.io*) echo '{"Username": "<token>", "Secret": "idt"}' ;;
    *) echo "credentials not found in native keychain"; exit 1 ;;
esac"""
    logins = Logins(config(tmp_path, credsStore="store"), helper(tmp_path, "store", script))
    assert await logins.for_image("python") == Credentials("docker.io", identity_token="idt")
    assert await logins.for_image("ghcr.io/x") is None


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (None, "docker-credential-h about ghcr.io, and there is none on the station's PATH"),
        ("echo the-secret; exit 3", "docker-credential-h ended with 3"),
        ("echo the-secret", "answered no credentials"),
        ("echo '[\"the-secret\"]'", "answered no credentials"),
    ],
)
async def test_a_helper_that_fails_is_named_and_not_quoted(tmp_path: Path, script: str | None, sentence: str) -> None:
    environ = helper(tmp_path, "h", script) if script else {"PATH": str(tmp_path)}
    with pytest.raises(BackendUnavailable) as error:
        await Logins(config(tmp_path, credHelpers={"ghcr.io": "h"}), environ).for_image("ghcr.io/x")
    assert sentence in error.value.message
    assert "sandbox.registry_auth.docker_config_path" in error.value.message
    assert "the-secret" not in error.value.message + repr(error.value.__cause__)


async def test_a_helper_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("station.backends.docker.registry.HELPER_SECONDS", 0.2)
    environ = helper(tmp_path, "h", 'echo $$ >"$SEEN"; exec sleep 600')
    with pytest.raises(BackendUnavailable, match=r"did not answer about ghcr\.io"):
        await Logins(config(tmp_path, credsStore="h"), environ).for_image("ghcr.io/x")
    assert not Path(f"/proc/{(tmp_path / 'seen').read_text().strip()}").exists()


@pytest.mark.parametrize("name", ["../../bin/sh", "a/b", "", "-x", "a b"])
async def test_the_name_of_a_helper_leads_nowhere(tmp_path: Path, name: str) -> None:
    logins = Logins(config(tmp_path, credHelpers={"ghcr.io": name}), dict(os.environ))
    if not name:
        assert await logins.for_image("ghcr.io/x") is None
        return
    with pytest.raises(BackendUnavailable, match="is none"):
        await logins.for_image("ghcr.io/x")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [(None, "No such file"), ("{", "no JSON"), ("[]", "no keys"), ('{"auths": {"ghcr.io": {"auth": "*"}}}', "base64")],
)
async def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    path = str(tmp_path / "config.json")
    with pytest.raises(BackendUnavailable, match=sentence):
        await Logins(RegistryAuth(docker_config_path=path), {}).for_image("ghcr.io/x")
