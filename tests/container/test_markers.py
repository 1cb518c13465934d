"""The root of an adapter: of programs that come to it at once one has it, and its options arrive as they were given."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from station._adapter import start
from station._adapter.root import MARKER, check_tenant, prepare, write_settings
from station.container import SandboxError
from station.core import placeholders
from station.host import HostSandboxAdapter
from station.server.loading import load

from .conftest import end, is_held, refused

ROUNDS = 300
VARIABLES = {"A": "value-of-a", "HOME": "/somewhere", "_x1": "value-of-x"}
TEXTS = st.one_of(
    st.text(st.sampled_from("${}:-AHOMEx_1 \"'\\\n"), max_size=24),
    st.lists(st.sampled_from(["$", "$$", "${", "}", ":-", "A", "HOME", "_x1", "${A}", "$${A}", "😀", "\\"])).map(
        "".join
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=24),
)
"""Such as come near to a placeholder, and such as come near to nothing."""


@contextmanager
def refused_or_not() -> Iterator[None]:
    try:
        yield
    except SandboxError as error:
        if error.code != "invalid_state":
            raise


@pytest.mark.timeout(120)
def test_of_those_who_come_to_an_empty_root_at_once_one_has_it(tmp_path: Path) -> None:
    """Each does what an adapter does: asks for it, has a station use it, and asks again."""
    tenants = ("t1", "t2", None)
    for number in range(ROUNDS):
        root = tmp_path / str(number)
        root.mkdir(mode=0o700)
        admitted: list[str | None] = []
        line = threading.Barrier(len(tenants))

        def come(tenant: str | None, root: Path = root, line: threading.Barrier = line, to: Any = admitted) -> None:
            line.wait()
            with refused_or_not():
                prepare(root, tenant)
                (root / "registry.db").touch()
                check_tenant(root, tenant)
                to.append(tenant)

        threads = [threading.Thread(target=come, args=(tenant,)) for tenant in tenants]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(admitted) == 1, (number, admitted)
        assert json.loads((root / MARKER).read_text()) == {"tenant": admitted[0]}


def test_who_came_first_without_a_tenant_is_told_that_the_root_was_bound_meanwhile(tmp_path: Path) -> None:
    prepare(tmp_path, None)
    prepare(tmp_path, "acme")
    (tmp_path / "registry.db").touch()
    check_tenant(tmp_path, "acme")
    with pytest.raises(SandboxError, match="bound to the tenant acme"):
        check_tenant(tmp_path, None)


async def test_a_root_that_was_bound_while_its_station_started_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"

    def bound_meanwhile(where: Path, document: dict[str, Any]) -> str:
        prepare(where, "acme")
        return write_settings(where, document)

    monkeypatch.setattr(start, "write_settings", bound_meanwhile)
    with refused("invalid_state", 409, "bound to the tenant acme"):
        await HostSandboxAdapter(root).ready()
    assert not is_held(root)
    monkeypatch.undo()
    # The control: with nobody else it is let in.
    async with HostSandboxAdapter(tmp_path / "other"):
        assert is_held(tmp_path / "other")
    await asyncio.to_thread(end, tmp_path / "other")


@settings(max_examples=400, deadline=None)
@given(TEXTS, TEXTS, st.floats(1e-9, 1e6))
@example("$${", "${A:-${HOME}}", 1e-3)
@example("😀\U0010ffff", "\x7f\x85\u2028\ufeff\ufffe", 1.0)
@example("$$${A}", "${A}$${HOME", 2.5)
@example("a\0\t\r\nb", "<<", 1e-7)
def test_options_come_back_from_the_file_as_they_were_given(image: str, path: str, minutes: float) -> None:
    document = {"sandbox": {"docker_image": image, "docker_seccomp": path, "idle_timeout_minutes": minutes}}
    with tempfile.TemporaryDirectory(prefix="stn-mk-") as directory:
        root = Path(directory)
        write_settings(root, document)
        found = load(root, VARIABLES).sandbox
        assert (found.docker_image, found.docker_seccomp, found.idle_timeout_minutes) == (image, path, minutes)
        (root / "station.yaml").write_text(yaml.safe_dump(yaml.safe_load((root / "station.yaml").read_bytes())))
        write_settings(root, document)  # somebody else's that says the same is left alone


@settings(max_examples=1000, deadline=None)
@given(TEXTS)
def test_what_is_literal_is_filled_with_nothing(text: str) -> None:
    def value_of(name: str, default: str | None) -> str:
        raise AssertionError(f"{name} was taken for a variable, with the default {default}")

    assert placeholders.filled(placeholders.literal(text), value_of) == text
