"""The network that an operator gives to boxes, and that nobody else can ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from station.backends.docker import DockerBackend, OperatorNetwork
from station.backends.docker.adoption import worth_now
from station.backends.docker.config import container_name
from station.core.capabilities import Capabilities, Grade
from station.core.errors import BackendUnavailable, BoxLost, CannotEnforce, Conflict, InvalidInput, Refused
from station.core.principals import LOCAL
from station.core.spec import Spec, check_network
from station.core.wire import OpenRequest, RunRequest
from station.server.settings import SandboxSettings, Settings
from station.server.station import Station
from station.validate import from_plain
from station.worker.live import isolation_of
from tests.engine import Engine

from .conftest import IMAGE, Bed, in_fresh, run, session_of

KEPT = Spec("docker", network="operator")
NONE = Spec("docker", network="none")
INTERFACES = ("ls", "/sys/class/net")

# ── 1.4's refusals ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["none", "bridge", "mine", "a.b-c_d", "x" * 128])
def test_a_network_has_a_name(name: str) -> None:
    assert OperatorNetwork(name).name == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 129, "a b", "a\n", "a/b", "--x=y z", "container:x", "ns:/proc/1", "host", "HOST", "default", "private",
     "slirp4netns", "pasta", "pasta:--map", "naïve"],
)  # fmt: skip
def test_what_is_no_network_of_boxes_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"sandbox\.docker_network"):
        OperatorNetwork(name)
    with pytest.raises(InvalidInput, match=r"sandbox\.docker_network"):
        from_plain(SandboxSettings, {"docker_network": name}, where="here: ")


@pytest.mark.parametrize("name", ["none", "bridge"])
def test_nobody_can_assert_that_nothing_or_everything_is_held(name: str) -> None:
    with pytest.raises(InvalidInput, match="docker_network_restricted"):
        OperatorNetwork(name, restricted=True)
    with pytest.raises(InvalidInput, match="docker_network_restricted"):
        from_plain(SandboxSettings, {"docker_network": name, "docker_network_restricted": True}, where="here: ")


def test_restricted_is_true_or_false() -> None:
    with pytest.raises(InvalidInput, match="docker_network_restricted"):
        from_plain(SandboxSettings, {"docker_network": "mine", "docker_network_restricted": "firewall"}, where="here: ")


@pytest.mark.parametrize(
    ("network", "report"),
    [
        (OperatorNetwork(), "none"),
        (OperatorNetwork("bridge"), "unrestricted"),
        (OperatorNetwork("mine"), "unrestricted"),
        (OperatorNetwork("mine", restricted=True), "asserted by operator"),
    ],
)
def test_a_network_is_reported_as_what_it_is_worth(network: OperatorNetwork, report: str) -> None:
    assert network.report == network.report_of("operator") == report
    assert network.report_of("none") == "none"
    assert (network.of("none"), network.of("operator")) == ("none", network.name)
    for other in ("public", "one.example", "mine"):
        with pytest.raises(CannotEnforce):
            network.of(other)


@pytest.mark.parametrize(("given", "asked", "told"), [(True, "none", "none"), (True, "operator", "unrestricted")])
def test_an_answer_tells_what_a_sandbox_of_that_spec_would_reach(given: bool, asked: str, told: str) -> None:
    found = Capabilities("docker", True, Grade.CONTAINER, network="unrestricted", operator_network=given, images=True)
    assert isolation_of(found, Spec("docker", network=asked)).network == told


def test_a_host_that_isolates_nothing_still_says_so_where_none_was_asked_for() -> None:
    found = Capabilities("host", True, Grade.NONE, network="unrestricted")
    assert isolation_of(found, Spec("host")).network == "unrestricted"


# ── HD-A12: what a caller may not ask for ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "network", ["host", "Host ", "bridge", "default", "container:x", "ns:/proc/1/ns/net", "pasta", ""]
)
def test_hd_a12_no_caller_names_a_network_of_the_machine(network: str) -> None:
    with pytest.raises(InvalidInput, match="network"):
        check_network(network)
    with pytest.raises(InvalidInput, match="network"):
        from_plain(OpenRequest, {"name": "a", "network": network}, where="")
    with pytest.raises(InvalidInput, match="network"):
        from_plain(RunRequest, {"runtime": "python", "code": "1", "network": network}, where="")


@pytest.mark.parametrize("network", [None, "none", "operator", "public", "one.example,two.example"])
def test_what_a_caller_may_name_passes(network: str | None) -> None:
    check_network(network)


@pytest.mark.parametrize(
    "key",
    ["labels", "binds", "privileged", "Privileged", "HostConfig", "cap_add", "devices", "pid", "security_opt", "user"],
)
def test_hd_a12_no_caller_reaches_the_create_body(key: str) -> None:
    value: Any = {"station.id": "x"} if key == "labels" else True
    with pytest.raises(InvalidInput, match=key):
        from_plain(OpenRequest, {"name": "a", key: value}, where="")
    with pytest.raises(InvalidInput, match=key):
        from_plain(RunRequest, {"runtime": "python", "code": "1", key: value}, where="")


# ── in an engine ─────────────────────────────────────────────────────────────────────────────────────────────────────


def given(bed: Bed, name: str, *, restricted: bool = False) -> DockerBackend:
    return bed.backend(network=OperatorNetwork(name, restricted))


def mode_of(engine: Engine, bed: Bed, box_id: str) -> str:
    return engine.docker("inspect", "-f", "{{.HostConfig.NetworkMode}}", container_name(bed.station, box_id))


@pytest.mark.docker
@pytest.mark.parametrize("restricted", [False, True])
async def test_who_names_nothing_gets_the_operators_network_and_who_names_none_gets_none(
    bed: Bed, engine: Engine, network: str, restricted: bool
) -> None:
    backend = given(bed, network, restricted=restricted)
    found = await backend.probe()
    report = "asserted by operator" if restricted else "unrestricted"
    assert (found.network, found.operator_network) == (report, True), found.reason
    for number, (spec, told, mode) in enumerate(((KEPT, report, network), (NONE, "none", "none")), 1):
        box = await backend.create(spec, bed.labels(generation=number))
        assert box.capabilities.network == told
        assert mode_of(engine, bed, f"uid1-{number}") == mode
        async with session_of(box) as session:
            seen = (await run(session, box, *INTERFACES))[1].split()
            assert ("eth0" in seen) == (mode == network)
        await box.let_go()
        again = await given(bed, network, restricted=restricted).adopt(box.ref)
        assert again.capabilities.network == told
        await again.destroy()


@pytest.mark.docker
async def test_a_network_that_the_engine_lacks_is_named_with_the_remedy(bed: Bed) -> None:
    backend = given(bed, "no-such-network")
    found = await backend.probe()
    assert not found.available
    assert "no-such-network" in (found.reason or "")
    assert found.remedy == "docker network create --internal no-such-network"
    with pytest.raises(BackendUnavailable, match="no-such-network"):
        backend.check(NONE)


@pytest.mark.docker
async def test_the_machines_own_network_is_not_given_under_another_name(bed: Bed, engine: Engine) -> None:
    """An engine takes the beginning of an id for a name."""
    for driver in ("host", "null"):
        identity = engine.docker("network", "ls", "-q", "--no-trunc", "--filter", f"driver={driver}")
        found = await given(bed, identity[:12]).probe()
        assert not found.available
        assert identity[:12] in (found.reason or "")


@pytest.mark.docker
async def test_a_bridge_that_the_engine_has_not_is_not_replaced_by_nothing(bed: Bed, engine: Engine) -> None:
    if "bridge" in engine.docker("network", "ls", "--format", "{{.Name}}").split():
        assert (await given(bed, "bridge").probe()).network == "unrestricted"
        return
    # Control: the engine itself makes such a container, and says nothing.
    engine.docker("run", "--rm", "--network", "bridge", "station-test/static")
    found = await given(bed, "bridge").probe()
    assert not found.available
    assert "no network bridge" in (found.reason or "")


@pytest.mark.docker
async def test_a_network_that_was_removed_meanwhile_is_told_at_the_next_box(
    bed: Bed, engine: Engine, network: str
) -> None:
    backend = given(bed, network)
    await backend.probe()
    engine.docker("network", "rm", network)
    try:
        with pytest.raises(BackendUnavailable, match=network):
            await backend.create(KEPT, bed.labels())
        assert [item async for item in backend.boxes()] == []
        assert (await in_fresh(backend, bed.labels(generation=2), NONE, "true"))[0] == 0
    finally:
        engine.docker("network", "create", "--internal", network)


@pytest.mark.docker
async def test_ws_33_a_changed_network_remakes_that_box_alone(bed: Bed, engine: Engine, network: str) -> None:
    backend = given(bed, network)
    await backend.probe()
    networked = await backend.create(KEPT, bed.labels("uid1"))
    closed = await backend.create(NONE, bed.labels("uid2"))
    async with session_of(networked) as session:
        assert (await run(session, networked, "sh", "-c", "echo kept > file"))[0] == 0
    for box in (networked, closed):
        await box.let_go()
    narrowed = bed.backend()
    with pytest.raises(BoxLost, match="docker_network"):
        await narrowed.adopt(networked.ref)
    await (await narrowed.adopt(closed.ref)).destroy()
    await narrowed.probe()
    again = await narrowed.create(KEPT, bed.labels("uid1", generation=2))
    assert again.capabilities.network == "none"
    async with session_of(again) as session:
        assert await run(session, again, "cat", "file") == (0, "kept\n")
        assert "eth0" not in (await run(session, again, *INTERFACES))[1]
    await again.destroy()


@pytest.mark.docker
async def test_a_box_that_was_put_into_another_network_is_not_adopted(bed: Bed, engine: Engine, network: str) -> None:
    other = f"{network}-other"
    engine.docker("network", "create", "--internal", other)
    try:
        backend = given(bed, network)
        await backend.probe()
        box = await backend.create(KEPT, bed.labels())
        await box.let_go()
        engine.docker("network", "connect", other, container_name(bed.station, "uid1-1"))
        with pytest.raises(BoxLost, match=other):
            await given(bed, network).adopt(box.ref)
        assert [item async for item in backend.boxes()] == []
    finally:
        engine.docker("network", "rm", other)


@pytest.mark.docker
async def test_a_station_gives_the_operators_network_to_who_names_nothing(
    bed: Bed, engine: Engine, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    sandbox = SandboxSettings(backend="docker", docker_image=IMAGE, docker_runtime="runc", docker_network=network)
    station = await Station.start(
        Settings(bed.state, sandbox=replace(sandbox, docker_network_restricted=True, pool_size=0))
    )
    try:
        for name, asked, told in (("a", None, "asserted by operator"), ("b", "none", "none")):
            record, made = await station.sandboxes.open(OpenRequest(name, network=asked))
            isolation = await station.boxes.isolation(record)
            assert made
            assert isolation is not None
            assert (isolation.network, record.spec.network) == (told, asked or "operator")
            assert (await station.sandboxes.open(OpenRequest(name)))[1] is False
        with pytest.raises(Conflict, match="network"):
            await station.sandboxes.open(OpenRequest("a", network="none"))
        run = await station.runs.run(RunRequest(code="ls /sys/class/net", runtime="bash"))
        assert run.isolation is not None
        assert run.isolation.network == "asserted by operator"
        assert (await station.would_be(OpenRequest("c", network="none"))).network == "none"
        assert [found.network for found in (await station.doctor()).backends if found.backend == "docker"] == [
            "asserted by operator"
        ]
    finally:
        await station.delete_all()
        await station.aclose()


@pytest.mark.docker
async def test_an_allow_list_is_refused_whatever_the_operator_gives(bed: Bed, network: str) -> None:
    backend = given(bed, network)
    await backend.probe()
    for wanted in ("public", "one.example"):
        with pytest.raises(CannotEnforce):
            backend.check(replace(KEPT, network=wanted))


def test_a_box_that_stays_is_worth_what_its_network_is_worth_now() -> None:
    asserted = {"network": "operator", "capabilities": {"backend": "docker", "network": "asserted by operator"}}
    now = worth_now(asserted, OperatorNetwork("mine"))
    assert now == {"network": "operator", "capabilities": {"backend": "docker", "network": "unrestricted"}}
    assert worth_now(now, OperatorNetwork("mine", restricted=True)) == asserted
    none = {"network": "none", "capabilities": {"network": "none"}}
    assert worth_now(none, OperatorNetwork("mine")) == none


@pytest.mark.docker
async def test_hd_a_withdrawn_assertion_is_withdrawn_from_live_boxes(
    bed: Bed, engine: Engine, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    common = SandboxSettings(
        backend="docker", docker_image=IMAGE, docker_runtime="runc", docker_network=network, pool_size=0
    )

    async def missing(**more: Any) -> set[str]:
        """The layers without which nothing is run there."""
        station = await Station.start(Settings(bed.state, sandbox=replace(common, **more)))
        try:
            if not (await station.records())[0]:
                await station.sandboxes.open(OpenRequest("there"))
            (record,) = (await station.records())[0]
            uids.add((record.uid, record.box.box_id if record.box else ""))
            live = await station.live(record.uid, LOCAL)
            await station.admit(live)
            return set()
        except Refused as error:
            return {one["layer"] for one in error.detail["missing"]}
        finally:
            await station.aclose()

    uids: set[tuple[str, str]] = set()
    assert await missing(docker_network_restricted=True) == set()
    held = await missing(docker_network_restricted=True, serves_others=True)
    assert await missing(serves_others=True) == held | {"network"}
    assert "network" not in held
    ((uid, box_id),) = uids  # it was adopted each time
    assert box_id
    station = await Station.start(Settings(bed.state, sandbox=common))
    await station.sandboxes.delete(uid)
    await station.aclose()
