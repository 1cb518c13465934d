"""The operator's choices, through the container adapter: networks (33, W11) and seccomp profiles (24 to 26)."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from station._adapter.adapter import Adapter
from station.backends.docker.profile import own_profile
from tests.chaos.test_kill import REFUSED_SOCKET
from tests.engine import Engine

from .conftest import Bed, bed_of, container_of, done, is_held, refused, write

pytestmark = [pytest.mark.docker, pytest.mark.filterwarnings(REFUSED_SOCKET), pytest.mark.timeout(180)]
SMALL = "station-test/busybox"


@pytest.fixture
async def bed(engine_url: Callable[[str], None], ran: Callable[[str], None]) -> AsyncIterator[Bed]:
    engine_url("docker")
    async with bed_of("docker") as made:
        yield made
    ran("docker")


async def quarantined(adapter: Adapter, workspace: str, why: str) -> None:
    """Nothing can be done with it but to list and to destroy it."""
    for call in (
        lambda: adapter.get(workspace),
        lambda: adapter.exec(workspace, "true"),
        lambda: adapter.read_file(workspace, "file"),
        lambda: adapter.list_files(workspace),
        lambda: write(adapter, workspace, "file", b"other"),
        lambda: adapter.remove_file(workspace, "file"),
    ):
        with refused("invalid_state", 409, why):
            await call()
    assert workspace in {each.id for each in await adapter.list()}


async def filled(adapter: Adapter) -> str:
    workspace = (await adapter.create()).id
    await write(adapter, workspace, "file", b"kept")
    return workspace


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_ws_33_a_workspace_with_a_network_is_not_opened_without_one(network: str, bed: Bed, engine: Engine):
    """The other way round than in test_docker: a box without a network would look harmless, and is another one."""
    given = {"image": SMALL, "network": network, "network_restricted": True}
    async with bed.ready(**given) as adapter:
        networked = await filled(adapter)
        assert "eth0" in (await done(adapter, networked, "cat /proc/net/dev")).stdout
    async with bed.ready(image=SMALL) as adapter:
        await quarantined(adapter, networked, f"network '{network} .asserted by operator.'.*'none'")
        assert container_of(bed, engine, networked) == "", "its box with the network still runs"
        closed = await filled(adapter)
        assert (await done(adapter, closed, "cat file")).stdout == "kept"
    # Back again it opens, and the one without a network is in quarantine.
    async with bed.ready(**given) as adapter:
        assert "eth0" in (await done(adapter, networked, "cat file /proc/net/dev")).stdout
        await quarantined(adapter, closed, "network 'none'")
        await adapter.destroy(closed)
        assert {each.id for each in await adapter.list()} == {networked}


async def test_ws_33_what_a_network_is_worth_is_part_of_it(network: str, bed: Bed, engine: Engine):
    """So is which one it is."""
    async with bed.ready(image=SMALL, network=network, network_restricted=True) as adapter:
        asserted = await filled(adapter)
    async with bed.ready(image=SMALL, network=network) as adapter:
        await quarantined(adapter, asserted, "asserted by operator")
        engine.docker("rm", "-f", container_of(bed, engine, asserted))
        await quarantined(adapter, asserted, "asserted by operator")
    other = f"{network}-other"
    engine.docker("network", "create", "--internal", other)
    try:
        async with bed.ready(image=SMALL, network=other, network_restricted=True) as adapter:
            await quarantined(adapter, asserted, f"{network} .*{other} ")
        async with bed.ready(image=SMALL, network=network, network_restricted=True) as adapter:
            assert (await done(adapter, asserted, "cat file")).stdout == "kept"
    finally:
        engine.docker("network", "rm", other)


# ── seccomp profiles ─────────────────────────────────────────────────────────────────────────────────────────────────


def profile_without(*calls: str) -> str:
    """Ours, without these calls."""
    found: dict[str, Any] = json.loads(own_profile())
    for rule in found["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in calls]
    return json.dumps(found)


MAKE_PIPE = "mkfifo pipe && echo made"


@pytest.fixture
def profile(bed: Bed) -> Path:
    path = bed.root.with_name("profile.json")
    path.write_text(profile_without("mknod", "mknodat"))
    return path


def copies(bed: Bed) -> list[Path]:
    return sorted((bed.root / "boxes" / "docker" / "seccomp").glob("*.json"))


async def test_ws_24_a_profile_holds_and_is_pinned_by_its_hash(bed: Bed, engine: Engine, profile: Path):
    async with bed.ready(image=SMALL, seccomp_profile=profile) as adapter:
        workspace = await filled(adapter)
        run = await done(adapter, workspace, MAKE_PIPE)
        assert (run.status, run.stdout) == ("failed", "")
        assert "not permitted" in run.stderr
        digest = hashlib.sha256(profile.read_bytes()).hexdigest()
        (copy,) = copies(bed)
        assert copy.name == f"{digest}.json"
        assert copy.read_bytes() == profile.read_bytes()
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        first = container_of(bed, engine, workspace)
        label = engine.docker("inspect", "-f", '{{index .Config.Labels "station.seccomp"}}', first)
        assert label == digest
    # Again it is the same profile, the same copy and the same box.
    bed.end_station()
    async with bed.ready(image=SMALL, seccomp_profile=profile) as adapter:
        assert (await done(adapter, workspace, "cat file")).stdout == "kept"
        assert container_of(bed, engine, workspace) == first
        assert copies(bed) == [copy]
    # The control: without the option it is ours, which lets a program make a pipe.
    async with bed.ready(image=SMALL) as adapter:
        assert (await done(adapter, await filled(adapter), MAKE_PIPE)).stdout == "made\n"


async def test_ws_25_a_copy_that_was_changed_is_seen(bed: Bed, profile: Path):
    async with bed.ready(image=SMALL, seccomp_profile=profile) as adapter:
        workspace = await filled(adapter)
    bed.end_station()
    (copy,) = copies(bed)
    copy.write_text(own_profile())
    adapter = bed.adapter(image=SMALL, seccomp_profile=profile)
    for call in (adapter.ready, adapter.create, lambda: adapter.exec(workspace, "true")):
        with refused("unsupported", 422, copy.name):
            await call()
    assert not is_held(bed.root)
    copy.write_bytes(profile.read_bytes())
    await adapter.ready()
    assert (await done(adapter, workspace, "cat file")).stdout == "kept"


async def test_ws_26_a_profile_that_breaks_the_rules_stops_everything_with_the_reason(bed: Bed, profile: Path):
    good = profile.read_text()
    adapter = bed.adapter(image=SMALL, seccomp_profile=profile)
    for text, mode, why in (
        (good.replace("SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW", 1), 0o600, "defaultAction"),
        (good.replace('"read"', '"rea*"'), 0o600, "in full"),
        ("{", 0o600, "no JSON"),
        (good, 0o622, "chmod go-w"),
    ):
        profile.write_text(text)
        profile.chmod(mode)
        for call in (adapter.ready, adapter.create):
            with refused("unsupported", 422, why):
                await call()
        assert not is_held(bed.root)
    profile.rename(profile.with_name("elsewhere"))
    profile.symlink_to("elsewhere")
    with refused("unsupported", 422, "symbolic link"):
        await adapter.ready()
    assert copies(bed) == []
    profile.unlink()
    profile.write_text(good)
    await adapter.ready()
    assert (await done(adapter, await filled(adapter), MAKE_PIPE)).status == "failed"


async def test_ws_w11_another_profile_quarantines_what_was_made_with_the_first(bed: Bed, profile: Path):
    async with bed.ready(image=SMALL) as adapter:
        ours = await filled(adapter)
    async with bed.ready(image=SMALL, seccomp_profile=profile) as adapter:
        await quarantined(adapter, ours, "seccomp 'station'")
        theirs = await filled(adapter)
    async with bed.ready(image=SMALL) as adapter:
        assert (await done(adapter, ours, "cat file")).stdout == "kept"
        await quarantined(adapter, theirs, "seccomp 'operator:")
    # The same file with another content is another profile.
    bed.end_station()
    profile.write_text(profile_without("mknod", "mknodat", "sync"))
    async with bed.ready(image=SMALL, seccomp_profile=profile) as adapter:
        await quarantined(adapter, theirs, "seccomp 'operator:.*operator:")
        assert len(copies(bed)) == 2
    bed.end_station()
    profile.write_text(profile_without("mknod", "mknodat"))
    async with bed.ready(image=SMALL, seccomp_profile=profile) as adapter:
        assert (await done(adapter, theirs, "cat file")).stdout == "kept"
