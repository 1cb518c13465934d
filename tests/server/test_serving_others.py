"""A station that serves others refuses backends with a missing layer; what runs is left, and nobody else is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from station.backends.fake import FakeBackend
from station.backends.fake.backend import FakeBox
from station.core.capabilities import Capabilities, Grade, GuestUid, Level, LimitReport
from station.core.records import BoxRef
from station.core.spec import Spec
from station.server.settings import SandboxSettings, Settings

from .conftest import Api, Machine

HELD = LimitReport(Level.ENFORCED, "cgroup v2")
SOUND = Capabilities(
    "fake", True, Grade.CONTAINER, limits={"memory_mb": HELD, "pids": HELD}, guest_uid=GuestUid.SEPARATE, seccomp=True
)
WEAK = replace(SOUND, guest_uid=GuestUid.SHARED)


class Claiming(FakeBackend):
    """Says of itself, and of its boxes, what a test says."""

    claims = SOUND

    async def probe(self) -> Capabilities:
        return self.claims

    async def create(self, spec: Spec, labels: Any) -> FakeBox:
        return self._of(await super().create(spec, labels))

    async def adopt(self, ref: BoxRef) -> FakeBox:
        return self._of(await super().adopt(ref))

    def _of(self, box: FakeBox) -> FakeBox:
        box.capabilities = self.claims
        return box


class Bed(Machine):
    claims = SOUND

    def backend(self, home: Path, identity: str, _settings: Settings) -> dict[str, Any]:
        made = Claiming(home, station_id=identity, store=self.store, faults=self.faults)
        made.claims = self.claims
        return {"fake": made}

    def set(self, **sandbox: Any) -> None:
        self.settings = Settings(self.home, sandbox=SandboxSettings(backend="fake", pool_size=0, **sandbox))


@pytest.fixture
async def bed(tmp_path: Path) -> Any:
    made = Bed(tmp_path)
    yield made
    await made.store.aclose()


RUN = {"code": "echo hello", "runtime": "bash"}
COMMAND = {"argv": ["echo", "hello"]}


async def refused(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await api.call("POST", path, body)
    told: dict[str, Any] = answer.json()
    assert (answer.status_code, told["code"], told["retryable"]) == (403, "refused", False), told
    return told


async def test_without_the_setting_nothing_is_refused_whatever_is_missing(bed: Bed) -> None:
    """The control of all others; also where a minimum is named."""
    bed.claims = replace(WEAK, grade=Grade.NONE, seccomp=False)
    bed.set(minimum_isolation=Grade.VM)
    async with bed.api() as api:
        uid = await api.open("a")
        assert (await api.call("POST", f"/sandboxes/{uid}/exec", COMMAND)).json()["exit_code"] == 0
        assert (await api.call("POST", "/runs", RUN)).status_code == 200
        told = (await api.call("GET", "/doctor")).json()
        layers = [one["layer"] for one in told["serves_others"]["fake"]]
        assert (told["refuses"], told["minimum_isolation"], layers) == (False, "vm", ["grade", "guest_uid", "filter"])


async def test_with_every_layer_others_are_served(bed: Bed) -> None:
    bed.set(serves_others=True)
    async with bed.api() as api:
        uid = await api.open("a")
        assert (await api.call("POST", f"/sandboxes/{uid}/exec", COMMAND)).json()["exit_code"] == 0
        assert (await api.call("POST", "/runs", RUN)).status_code == 200


async def test_a_missing_layer_refuses_create_and_run_and_leaves_nothing(bed: Bed) -> None:
    bed.claims = WEAK
    bed.set(serves_others=True)
    async with bed.api() as api:
        for path, body in (("/sandboxes", {"name": "a"}), ("/runs", RUN)):
            told = await refused(api, path, body)
            assert told["detail"]["missing"][0]["layer"] == "guest_uid"
            assert "uidmap" in told["detail"]["remedy"]
            assert "sandbox.serves_others" in told["message"]
            assert "uidmap" in told["message"]
        assert (await api.call("GET", "/sandboxes")).json() == {"sandboxes": []}
        assert bed.store.live == {}


async def test_the_grade_is_the_operators(bed: Bed) -> None:
    bed.set(serves_others=True, minimum_isolation=Grade.USER_KERNEL)
    async with bed.api() as api:
        told = await refused(api, "/sandboxes", {"name": "a"})
        assert [one["layer"] for one in told["detail"]["missing"]] == ["grade"]
        assert "user-kernel" in told["message"]
    bed.claims = replace(SOUND, grade=Grade.PROCESS)
    bed.set(serves_others=True, minimum_isolation=Grade.PROCESS)
    async with bed.api() as api:
        await api.open("a")


async def test_what_runs_already_is_left_readable_and_deletable(bed: Bed) -> None:
    bed.claims = WEAK
    bed.set()
    async with bed.api() as api:
        uid = await api.open("a")
        await api.call("PUT", f"/sandboxes/{uid}/files", content=b"kept", params={"path": "note"})
        running = (await api.call("POST", f"/sandboxes/{uid}/processes", {"argv": ["sleep", "60"]})).json()["id"]
    bed.set(serves_others=True)
    async with bed.api() as api:
        at = f"/sandboxes/{uid}"
        assert await api.state(uid) == "running"
        assert (await api.call("POST", "/sandboxes", {"name": "a"})).status_code == 200
        assert (await api.call("GET", f"{at}/processes/{running}")).json()["state"] == "running"
        read = await api.call("GET", f"{at}/files", params={"path": "note"})
        assert read.status_code == 200
        assert read.content.startswith(b"kept")
        for path in ("exec", "processes"):
            told = await refused(api, f"{at}/{path}", COMMAND)
            assert told["detail"]["backend"] == "fake"
        assert len((await api.call("GET", f"{at}/processes")).json()["processes"]) == 1
        assert (await api.call("POST", f"{at}/processes/{running}/signal", {"signal": "KILL"})).status_code == 204
        assert (await api.call("DELETE", at)).status_code == 204
        assert bed.store.live == {}


async def test_a_sandbox_without_a_box_gets_no_new_one(bed: Bed) -> None:
    bed.claims = WEAK
    bed.set()
    async with bed.api() as api:
        uid = await api.open("a")
        await api.call("DELETE", f"/sandboxes/{uid}", params={"keep_files": "true"})
    bed.set(serves_others=True)
    async with bed.api() as api:
        await refused(api, f"/sandboxes/{uid}/exec", COMMAND)
        await refused(api, "/sandboxes", {"name": "a"})
        assert bed.store.live == {}
        assert [view["name"] for view in (await api.call("GET", "/sandboxes")).json()["sandboxes"]] == ["a"]
        assert (await api.call("DELETE", f"/sandboxes/{uid}")).status_code == 204


async def test_none_by_name_is_none_where_the_operator_has_given_a_network(bed: Bed) -> None:
    bed.claims = replace(SOUND, network="unrestricted", operator_network=True)
    bed.set(serves_others=True)
    async with bed.api() as api:
        told = await refused(api, "/sandboxes", {"name": "a", "network": "public"})
        assert [one["layer"] for one in told["detail"]["missing"]] == ["network"]
        answer = await api.call("POST", "/sandboxes", {"name": "b", "network": "none"})
        assert answer.status_code == 201, answer.text
