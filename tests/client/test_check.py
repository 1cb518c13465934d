"""What a new sandbox would be, asked before one is made; and a delete that minds who uses it."""

from __future__ import annotations

import pytest

import station
from station import errors
from station.client._build import Isolated


def test_a_check_tells_the_isolation_and_makes_nothing(real: str):
    with station.connect() as client:
        told = client.check(limits={"open_files": 70})
        assert (told.backend, told.limits["open_files"].value) == (real, 70)
        assert client.list() == []
        with client.open("checked", limits={"open_files": 70}) as sandbox:
            has = sandbox.isolation
            assert (has.grade, has.network, has.image) == (told.grade, told.network, told.image)
            assert {name: has.limits[name].value for name in told.limits} == {
                name: report.value for name, report in told.limits.items()
            }
            sandbox.delete()


def test_a_check_refuses_what_an_open_would(real: str):
    with station.connect() as client:
        wrong: list[Isolated] = [{"image": "x:1"}, {"backend": "none"}, {"network": "host"}]
        for refused in wrong:
            with pytest.raises(errors.StationError) as opened:
                client.open("checked", **refused)
            with pytest.raises(type(opened.value)) as checked:
                client.check(**refused)
            assert checked.value.message == opened.value.message


def test_a_delete_that_minds_a_command_waits_for_nothing(real: str):
    with station.connect() as client, client.open("minded") as sandbox:
        running = sandbox.start("sleep 1000")
        with pytest.raises(errors.Busy):
            sandbox.delete(unless_busy=True)
        with pytest.raises(errors.Busy):
            client.delete("minded", unless_busy=True)
        assert running.info().state == "running"
        running.kill()
        running.wait(20)
        sandbox.delete(unless_busy=True)
        with pytest.raises(errors.SandboxNotFound):
            sandbox.info()
