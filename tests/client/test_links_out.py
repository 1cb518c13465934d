"""A link of a sandbox that leads out of its folder does not come to this machine."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from station import errors
from station.client._transfer import unpack


def archive(*links: tuple[str, str]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("l", "/etc/passwd"),
        ("l", "/"),
        ("l", ".."),
        ("l", "../x"),
        ("a/l", "../../x"),
        ("./a/l", "../../x"),
        ("a/l", "b/../../../x"),
    ],
)
def test_a_link_that_leads_out_is_refused_and_named(tmp_path: Path, name: str, target: str) -> None:
    """The control: Python's own careless unpacking makes that link, and it leads out."""
    with pytest.raises(errors.PathRefused, match="leads out of the folder") as caught:
        unpack(archive(("before", "here"), (name, target)), tmp_path / "in")
    assert f"link to {target}, which" in caught.value.message
    assert not (tmp_path / "in").exists(), "nothing is written"
    with tarfile.open(fileobj=archive((name, target))) as tar:
        tar.extractall(tmp_path / "careless", filter="fully_trusted")
    led = Path(os.path.normpath((tmp_path / "careless" / name).parent / target))
    assert not led.is_relative_to(tmp_path / "careless")


def test_links_that_lead_out_can_be_left_out(tmp_path: Path) -> None:
    given = archive(("inside", "here"), ("bin/python", "/usr/bin/python3"), ("up", ".."))
    assert unpack(given, tmp_path / "in", skip_outer_links=True) == 1
    assert [path.name for path in (tmp_path / "in").rglob("*")] == ["inside"]


def test_links_that_stay_inside_come_through(tmp_path: Path) -> None:
    links = {"a/up": "../b", "here": ".", "./dot": "a/x", "a/deep/l": "../../x", "dangling": "nothing"}
    assert unpack(archive(*links.items()), tmp_path / "in") == len(links)
    assert {name: os.readlink(tmp_path / "in" / name) for name in links} == links
