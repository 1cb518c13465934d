"""TCP beside the socket: where it is listened, how that is told, and the token."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from station.core.errors import Busy, InvalidInput, Refused
from station.server.access.operator_token import operator_token, take
from station.server.home import Lock
from station.server.loading import load
from station.server.net.http import MAX_TCP_CONNECTIONS
from station.server.net.listen import Address, bind, parse

from .served import Served


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("127.9.8.7:0", "127.9.8.7:0"),
        ("localhost:65535", "127.0.0.1:65535"),
        ("LOCALHOST:1", "127.0.0.1:1"),
        ("[::1]:80", "[::1]:80"),
        ("[0:0:0:0:0:0:0:1]:80", "[::1]:80"),
    ],
)
def test_addresses_of_loopback_are_listened_on(text: str, shown: str) -> None:
    assert str(parse(text)) == shown


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "[::]", "192.168.0.1", "10.0.0.1", "128.0.0.1", "[::ffff:127.0.0.1]", "[fe80::1]"],
)
def test_any_other_address_needs_tls_here_or_in_front(host: str, tmp_path: Path) -> None:
    environ = {"STN_LISTEN": f"{host}:8080"}
    with pytest.raises(InvalidInput, match=r"needs TLS: set tls\.certificate and tls\.key, or listen_behind_proxy"):
        load(tmp_path, environ)
    load(tmp_path, environ | {"STN_LISTEN_BEHIND_PROXY": "true"})
    load(tmp_path, environ | {"STN_TLS_CERTIFICATE": "c", "STN_TLS_KEY": "k"})
    with pytest.raises(InvalidInput, match="belong together"):
        load(tmp_path, environ | {"STN_TLS_CERTIFICATE": "c"})


@pytest.mark.parametrize(
    "host",
    ["[::1%lo]", "", "*", "[127.0.0.1]", " localhost", "example.org", "localhost.example.org", "127.1", "127.0.0.01",
     "[localhost]", "[]"],
)  # fmt: skip
def test_what_is_no_address_of_a_machine_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="is no IP address of this machine, as in"):
        parse(f"{host}:8080")


def test_every_address_goes_by_the_names_that_are_told() -> None:
    everywhere = parse("0.0.0.0:80")
    assert (everywhere.names, everywhere.reached_as(frozenset({"b.example", "a.example"}))) == (
        frozenset(),
        "a.example:80",
    )
    assert everywhere.reached_as(frozenset()) == "0.0.0.0:80"
    assert parse("[::1]:80").names == frozenset({"[::1]"})


@pytest.mark.parametrize("host", ["", "a b", "a.example:80", "::1", "https://a"])
def test_a_host_that_no_header_can_name_is_refused(host: str, tmp_path: Path) -> None:
    (tmp_path / "station.yaml").write_text(json.dumps({"hosts": [host]}))
    with pytest.raises(InvalidInput, match="is no host, as in"):
        load(tmp_path, {})


@pytest.mark.parametrize(
    "text", ["8080", "127.0.0.1", "127.0.0.1:", "::1:80", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:٣", "[::1]80"]
)  # fmt: skip
def test_what_is_no_address_is_told_what_one_is(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not HOST:PORT, as in 127\.0\.0\.1:8080"):
        parse(text)


def test_port_0_takes_a_free_one_and_a_taken_one_is_named() -> None:
    for host in ("127.0.0.1", "::1"):
        sock, address = bind(Address(host, 0))
        try:
            assert address.port > 0
            with pytest.raises(Busy, match=r"another program listens on .*--listen or STN_LISTEN"):
                bind(address)
        finally:
            sock.close()
        again, _ = bind(address)
        again.close()


def test_the_token_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        first = operator_token(tmp_path)
    finally:
        os.umask(before)
    assert first.file == tmp_path / "operator.token"
    assert stat.S_IMODE(first.file.stat().st_mode) == 0o600
    assert first.secret.startswith(b"stn_op_")
    assert len(first.secret) >= 50
    assert first.secret.decode() not in repr(first)
    assert operator_token(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["operator.token"]
    first.file.unlink()
    assert operator_token(tmp_path).secret != first.secret


def test_a_token_that_others_could_know_is_refused(tmp_path: Path) -> None:
    file = operator_token(tmp_path).file
    assert file is not None
    for mode in (0o640, 0o604, 0o620, 0o610):
        file.chmod(mode)
        with pytest.raises(Refused, match=f"open to others .mode {mode:o}.*remove it"):
            operator_token(tmp_path)
    file.chmod(0o600)
    operator_token(tmp_path)
    file.write_text("short\n")
    with pytest.raises(Refused, match="holds no token"):
        operator_token(tmp_path)


def test_a_link_and_a_fifo_are_no_token(tmp_path: Path) -> None:
    file = tmp_path / "operator.token"
    (tmp_path / "other").write_text("0123456789abcdef\n")
    (tmp_path / "other").chmod(0o600)
    makers: list[Callable[[], None]] = [
        lambda: file.symlink_to(tmp_path / "other"),
        lambda: file.symlink_to(tmp_path / "nothing"),
        lambda: os.mkfifo(file, 0o600),
    ]
    for make in makers:
        make()
        with pytest.raises(Refused, match=r"symbolic link|no regular file"):
            operator_token(tmp_path)
        file.unlink()
    assert not (tmp_path / "nothing").exists()


@pytest.mark.root
def test_the_token_of_another_user_is_refused(tmp_path: Path) -> None:
    file = operator_token(tmp_path).file
    assert file is not None
    os.chown(file, 12345, 12345)
    with pytest.raises(Refused, match="uid 12345"):
        operator_token(tmp_path)


def test_a_token_from_the_environment_goes_before_the_file_and_leaves_the_environment(tmp_path: Path) -> None:
    environ = {"STN_TOKEN": "0123456789abcdef", "HOME": "/x"}
    given = take(environ)
    assert environ == {"HOME": "/x"}
    token = operator_token(tmp_path, given)
    assert (token.secret, token.file) == (b"0123456789abcdef", None)
    assert list(tmp_path.iterdir()) == []
    assert take({"STN_TOKEN": ""}) is None


@pytest.mark.parametrize(
    "given", ["0123456789abcde", "0123456789 abcdef", "0123456789abcdef\n", "0123456789abcdé", "x" * 513]
)
def test_a_token_that_is_short_or_cannot_be_sent_is_refused_unspoken(tmp_path: Path, given: str) -> None:
    with pytest.raises(InvalidInput, match="16 to 512") as error:
        operator_token(tmp_path, given)
    assert given not in f"{error.value}{error.value.detail}"


def test_where_it_listens_is_in_a_file_as_long_as_it_does(serve: Callable[..., Served]) -> None:
    served = serve(STN_LISTEN="127.0.0.1:0")
    told = served.told
    assert told["url"].startswith("http://127.0.0.1:")
    assert told["token_file"] == str(served.home / "operator.token")
    assert (told["socket"], told["pid"]) == (str(served.home / "station.sock"), served.process.pid)
    assert stat.S_IMODE((served.home / "listening.json").stat().st_mode) == 0o600
    code, words = served.end()
    assert code == 0
    assert f"listening on {told['url']}, token in {told['token_file']}" in words
    assert not (served.home / "listening.json").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(told["url"].rpartition(":")[2]))).close()


def _descriptors(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(descriptor)


def test_without_the_setting_no_port_is_opened_and_no_token_made(serve: Callable[..., Served]) -> None:
    served = serve("json")
    assert (served.told["url"], served.told["token_file"]) == (None, None)
    inodes = set(_descriptors(served.process.pid))
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    assert [line for line in lines if f"socket:[{line[9]}]" in inodes] == []
    assert not (served.home / "operator.token").exists()
    assert served.end()[0] == 0
    assert json.loads(served.printed)["pid"] == served.process.pid


def test_with_json_one_line_tells_all(serve: Callable[..., Served]) -> None:
    served = serve("json", STN_LISTEN="[::1]:0", STN_TOKEN="0123456789abcdef")
    told = served.told
    assert served.end()[0] == 0
    assert served.printed.count("\n") == 1
    assert json.loads(served.printed) == told
    assert set(told) == {"url", "token_file", "socket", "pid", "version"}
    assert told["url"].startswith("http://[::1]:")
    assert told["token_file"] is None


def test_a_port_that_is_taken_leaves_nothing_behind(serve: Callable[..., Served]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        served = serve("json", STN_LISTEN=f"127.0.0.1:{port}")
        code, words = served.wait()
        assert (served.ready, code) == (False, 125)
        assert f"stn: another program listens on 127.0.0.1:{port}; choose another port" in words
        assert json.loads(served.printed)["code"] == "busy"
        left = {path.name for path in served.home.iterdir()}
        assert left == {"station.lock"}
        Lock(served.home).release()
    again = serve(STN_LISTEN=f"127.0.0.1:{port}")
    assert again.ready
    assert again.told["url"].endswith(f":{port}")


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"STN_LISTEN": "0.0.0.0:8080"}, "needs TLS"),
        ({"STN_LISTEN": "127.0.0.1:0", "STN_TOKEN": "hunter2"}, "16 to 512"),
    ],
)
def test_what_cannot_be_guarded_is_not_started(
    serve: Callable[..., Served], env: dict[str, str], sentence: str
) -> None:
    served = serve(**env)
    code, words = served.wait()
    assert (served.ready, code) == (False, 125)
    assert sentence in words
    assert "hunter2" not in words
    assert not (served.home / "registry.db").exists()


async def test_the_api_answers_over_tcp_as_over_the_socket(listening: Served) -> None:
    async with listening.tcp() as tcp, listening.client() as local:
        view = (await tcp.get("/api/v1/station")).json()
        assert view["pid"] == listening.process.pid
        uid = (await tcp.post("/api/v1/sandboxes", json={"name": "over-tcp"})).json()["id"]
        done = await tcp.post(f"/api/v1/sandboxes/{uid}/exec", json={"argv": ["echo", "hello"]})
        assert done.json()["stdout"]["head"]["data"] == "hello\n"
        data = os.urandom(300_000)
        assert (await tcp.put(f"/api/v1/sandboxes/{uid}/files?path=x", content=data)).is_success
        assert (await local.get(f"/api/v1/sandboxes/{uid}/files?path=x")).content == data
        assert (await tcp.delete(f"/api/v1/sandboxes/{uid}")).status_code == 204


async def test_a_token_of_the_environment_is_the_only_one(serve: Callable[..., Served]) -> None:
    served = serve(STN_LISTEN="127.0.0.1:0", STN_TOKEN="0123456789abcdef")
    assert not (served.home / "operator.token").exists()
    for token, status in (("0123456789abcdef", 200), ("0123456789abcdeg", 401)):
        async with served.tcp(authorization=f"Bearer {token}") as tcp:
            assert (await tcp.get("/api/v1/station")).status_code == status
    code, words = served.end()
    assert code == 0
    assert "token from STN_TOKEN" in words
    assert "0123456789abcdef" not in words


@pytest.mark.root
def test_another_user_reads_neither_token_nor_address(listening: Served) -> None:
    def read(name: str, *prefix: str) -> int:
        return subprocess.run([*prefix, "cat", listening.home / name], capture_output=True).returncode

    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    for name in ("operator.token", "listening.json"):
        assert read(name) == 0
        assert read(name, *other) != 0
        (listening.home / name).stat()
    mode = listening.home.stat().st_mode
    parents = [path for path in (listening.home, *listening.home.parents) if not path.stat().st_mode & 1]
    before = {path: path.stat().st_mode for path in parents}
    try:
        # The mode of the file alone, too: with every directory above it open.
        for path in parents:
            path.chmod(0o755)
        assert read("operator.token", *other) != 0
        assert read("station.lock") == 0
    finally:
        for path, was in before.items():
            path.chmod(stat.S_IMODE(was))
    assert listening.home.stat().st_mode == mode


async def test_connections_of_strangers_take_no_room_from_the_socket(serve: Callable[..., Served]) -> None:
    served = serve(STN_LISTEN="127.0.0.1:0")
    strangers = [served.connect() for _ in range(MAX_TCP_CONNECTIONS)]
    try:
        async with served.tcp() as tcp:
            with pytest.raises(httpx2.TransportError):
                await tcp.get("/healthz")
        async with served.client() as local:
            assert (await local.get("/api/v1/station")).status_code == 200
        strangers.pop().close()

        async with served.tcp() as tcp:
            assert (await tcp.get("/healthz")).status_code == 200
    finally:
        for each in strangers:
            each.close()
