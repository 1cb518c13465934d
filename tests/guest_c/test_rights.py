"""A guest that is root, as in a container: what it does for its user, it does with the rights of its user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest_c.client import NOBODY, Guest
from tests.guest_c.test_applets import code, fields, write

pytestmark = pytest.mark.root
EACCES = 13


@pytest.fixture
def guest(binary: Path) -> Iterator[Guest]:
    """In a directory that its user can walk to."""
    with tempfile.TemporaryDirectory(prefix="stn-guest-") as directory:
        Path(directory).chmod(0o755)
        copy = Path(directory) / "stn-guest"
        shutil.copy(binary, copy)
        options = ("--containment", "subreaper", "--uid", str(NOBODY), "--gid", str(NOBODY))
        made = Guest(copy, Path(directory), boxed=False, options=options, user=None)
        os.chown(made.workspace, NOBODY, NOBODY)
        try:
            yield made
        finally:
            made.stop()


def test_a_file_operation_has_no_rights_of_the_guest(guest: Guest) -> None:
    """The control: the same file opened to all is read."""
    secret = guest.workspace / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    with guest.connect() as client:
        assert code(client.applet("read", guest.root, "secret", "0", "-1")) == EACCES
        secret.chmod(0o644)
        assert client.applet("read", guest.root, "secret", "0", "-1").data[1] == b"of root"
        fields(write(client, guest, "made", b"x"))
        assert (guest.workspace / "made").stat().st_uid == NOBODY
