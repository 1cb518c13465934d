"""What a box of volumes is made ready with: places of its user, a link, the program itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

OTHER = 12345


def serve(binary: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """A guest whose stream is at its end at once."""
    command = [str(binary), "serve", "--fd", "-", "--box", "test", "--uid", str(OTHER), "--gid", str(OTHER), *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)


@pytest.mark.root
def test_places_are_given_to_the_user_and_the_link_is_made(binary: Path, tmp_path: Path) -> None:
    for name in ("home", "workspace"):
        (tmp_path / name).mkdir()
    words = (
        "--own",
        f"{tmp_path}/home",
        "--own",
        f"{tmp_path}/workspace",
        "--link",
        f"{tmp_path}/home/w:{tmp_path}/workspace",
    )
    for _ in range(2):
        done = serve(binary, *words)
        assert b"cannot be given" not in done.stderr
    assert {(tmp_path / name).stat().st_uid for name in ("home", "workspace")} == {OTHER}
    assert (tmp_path / "home/w").lstat().st_uid == OTHER
    assert os.readlink(tmp_path / "home/w") == f"{tmp_path}/workspace"


@pytest.mark.root
def test_what_is_no_directory_is_not_given_away(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/etc")
    for name in ("file", "link", "none"):
        done = serve(binary, "--own", f"{tmp_path}/{name}")
        assert (done.returncode, b"cannot be given" in done.stderr) == (1, True), name
    assert Path("/etc").stat().st_uid == 0
    assert (tmp_path / "file").stat().st_uid == 0


@pytest.mark.parametrize("words", [("--own", "relative"), ("--link", "/a"), ("--link", "a:b"), ("--own", "/x") * 5])
def test_what_cannot_be_meant_is_refused(binary: Path, words: tuple[str, ...]) -> None:
    assert serve(binary, *words).returncode == 2


def test_the_program_installs_itself_whole_and_closed(binary: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o755)
    (place / "guest").write_text("an older one")
    for _ in range(2):
        assert subprocess.run([binary, "install", place], capture_output=True).returncode == 0
    assert (place / "guest").read_bytes() == binary.read_bytes()
    assert os.listdir(place) == ["guest"]
    assert (place.stat().st_mode & 0o777, (place / "guest").stat().st_mode & 0o777) == (0o700, 0o500)


def test_an_installation_that_fails_says_so(binary: Path, tmp_path: Path) -> None:
    assert subprocess.run([binary, "install"], capture_output=True).returncode == 2
    done = subprocess.run([binary, "install", tmp_path / "none"], capture_output=True)
    assert (done.returncode, b"installed" in done.stderr) == (1, True)
