"""Which worker may use a device: leases in the database, by its clock, and what the registry makes of them."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from search.device.spec import DeviceSpec
from tuner_service.db.engine import Database
from tuner_service.db.queries import workers as worker_queries
from tuner_service.workers.holding import Holding
from tuner_service.workers.registry import DeviceRegistry

pytestmark = pytest.mark.databases("sqlite", "postgresql")

LOST_SECONDS = 30.0
ELSEWHERE = {"host": "another", "pid": 1, "place": "another boot"}


@pytest.fixture
def hold(open_database: Callable[..., Database], device: DeviceSpec) -> Callable[..., Holding]:
    """A worker's holding, as in a process of its own; the same place makes it one of this host."""

    def make(name: str, *devices: DeviceSpec, **more: Any) -> Holding:
        row = {"id": name, "host": "here", "pid": os.getpid(), "place": "this boot", "version": "1", "compile_slots": 1}
        known = {one.id: one for one in devices or (device,)}
        return Holding(
            database=open_database(),
            row={**row, **more},
            devices=lambda: known,
            compile_keys=lambda: ["cpu-1"],
            lost_seconds=LOST_SECONDS,
        )

    return make


@pytest.fixture
def registry(database: Database) -> DeviceRegistry:
    return DeviceRegistry(database, lost_seconds=LOST_SECONDS)


def let_pass(database: Database, seconds: float) -> None:
    """Every stamp is so much older now."""
    with database.write() as session:
        now = worker_queries.database_now(session)
        for table, column in (("workers", "heartbeat_at"), ("device_leases", "renewed_at")):
            session.execute(
                text(f"UPDATE {table} SET {column} = :then"), {"then": worker_queries.earlier(now, seconds)}
            )


def test_of_two_workers_one_holds_the_device_and_the_other_says_who(
    hold: Callable[..., Holding], device: DeviceSpec, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = hold("first"), hold("second", **ELSEWHERE)
    first.beat()
    second.beat()
    assert first.serves(device.id)
    assert not second.serves(device.id)
    assert second.others == {device.id: "worker first on host here"}
    assert "held by worker first on host here" in caplog.text
    first.close()
    second.beat()
    assert second.serves(device.id)
    assert second.others == {}


def test_a_lease_that_is_not_renewed_is_taken_over_and_its_holder_finds_out(
    hold: Callable[..., Holding], database: Database, device: DeviceSpec, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = hold("first"), hold("second", **ELSEWHERE)
    first.beat()
    let_pass(database, LOST_SECONDS - 5)
    second.beat()
    assert not second.serves(device.id)
    let_pass(database, LOST_SECONDS + 1)
    second.beat()
    assert second.serves(device.id)
    first.beat()
    assert not first.serves(device.id)
    assert "was taken over by worker second" in caplog.text


def test_who_is_dead_for_sure_need_not_be_waited_for(hold: Callable[..., Holding], device: DeviceSpec) -> None:
    hold("killed", pid=2**22 + 1).beat()  # no pid is as large
    second = hold("second")
    second.beat()
    assert second.serves(device.id)
    hold("killed elsewhere", replace(device, id="cpu:2"), **ELSEWHERE).beat()
    third = hold("third", replace(device, id="cpu:2"))
    third.beat()
    assert not third.serves("cpu:2"), "pids of another boot say nothing here"


def test_the_uuid_is_what_is_leased(hold: Callable[..., Holding], device: DeviceSpec) -> None:
    gpu = replace(device, id="nvidia-x:1", uuid="GPU-1")
    first, second = hold("first", gpu), hold("second", replace(gpu, id="nvidia-x:other-name"), **ELSEWHERE)
    first.beat()
    second.beat()
    assert first.serves("nvidia-x:1")
    assert not second.serves("nvidia-x:other-name")


def test_what_times_nothing_may_be_offered_by_many_with_one_toolchain(
    hold: Callable[..., Holding], device: DeviceSpec
) -> None:
    untimed = replace(device, id="cuda-sm_90", kind="cuda-sm_90", timed=False)
    first, second = hold("first", untimed), hold("second", untimed, **ELSEWHERE)
    other = hold("third", replace(untimed, toolchain_fingerprint="f" * 64), **ELSEWHERE)
    for one in (first, second, other):
        one.beat()
    assert first.serves("cuda-sm_90")
    assert second.serves("cuda-sm_90")
    assert not other.serves("cuda-sm_90")
    assert "another toolchain" in other.others["cuda-sm_90"]


def test_a_killed_worker_is_gone_once_one_was_started_in_its_place(
    hold: Callable[..., Holding], database: Database, device: DeviceSpec
) -> None:
    untimed = replace(device, id="cuda-sm_90", kind="cuda-sm_90", timed=False)
    other = replace(untimed, id="cuda-sm_80", kind="cuda-sm_80")
    for name, place in (("killed", "this boot"), ("killed in a container", "a namespace that is no more")):
        hold(name, untimed, pid=2**22 + 1, place=place).beat()
    hold("serves more", untimed, other, pid=2**22 + 1).beat()
    hold("another host's", untimed, **ELSEWHERE).beat()
    sibling = hold("sibling", untimed)
    sibling.beat()
    assert states(database) == {**dict.fromkeys(states(database), "running"), "killed": "gone"}, "dead for sure"
    let_pass(database, LOST_SECONDS + 1)
    hold("started later", untimed).beat()
    here = {"killed": "gone", "killed in a container": "gone", "sibling": "gone", "started later": "running"}
    assert states(database) == {**here, "serves more": "running", "another host's": "running"}
    sibling.beat()
    assert states(database)["sibling"] == "running", "it lived, and says so"


def states(database: Database) -> dict[str, str]:
    with database.read() as session:
        return {row["id"]: row["state"] for row in worker_queries.list_workers(session)}


def test_a_worker_that_was_forgotten_registers_again(
    hold: Callable[..., Holding], database: Database, device: DeviceSpec
) -> None:
    worker = hold("first")
    worker.beat()
    with database.write() as session:
        session.execute(text("DELETE FROM workers"))
    worker.beat()
    with database.read() as session:
        (row,) = worker_queries.list_workers(session)
    assert (row["id"], row["state"], row["devices"]) == ("first", "running", [device.id])


def test_workers_that_nobody_heard_of_for_long_are_forgotten(hold: Callable[..., Holding], database: Database) -> None:
    hold("killed").beat()
    let_pass(database, worker_queries.FORGET_AFTER_SECONDS + 60)
    hold("new").beat()
    with database.read() as session:
        assert [row["id"] for row in worker_queries.list_workers(session)] == ["new"]


def test_the_registry_knows_why_a_device_cannot_be_used(
    hold: Callable[..., Holding], registry: DeviceRegistry, database: Database, device: DeviceSpec
) -> None:
    assert registry.refresh() is False
    assert registry.known == {}
    worker = hold("first")
    worker.beat()
    assert registry.refresh()
    assert registry.known[device.id] == device
    worker.drain()
    assert registry.refresh()
    assert not registry.known[device.id].available
    assert "worker first is stopping" in str(registry.known[device.id].reason)
    worker.close()
    registry.refresh()
    assert "no worker offers it" in str(registry.known[device.id].reason)
    hold("second").beat()
    registry.refresh()
    assert registry.known[device.id].available
    assert registry.away == {}
    let_pass(database, LOST_SECONDS + 12)
    registry.refresh()
    said = registry.known[device.id].reason
    assert "worker second was last heard of at 2" in str(said)
    assert registry.away == registry.known
    registry.refresh()
    assert registry.known[device.id].reason == said  # or each look would be told as news


def test_the_registry_counts_the_compile_slots_of_live_workers(
    hold: Callable[..., Holding], database: Database, registry: DeviceRegistry
) -> None:
    registry.refresh()
    assert registry.compile_slots("cpu-1") == 0
    first, second = hold("first"), hold("second", **ELSEWHERE, compile_slots=3)
    first.beat()
    second.beat()
    registry.refresh()
    assert (registry.compile_slots("cpu-1"), registry.compile_slots("cpu-2")) == (4, 0)
    let_pass(database, LOST_SECONDS)
    second.beat()
    registry.refresh()
    assert registry.compile_slots("cpu-1") == 3


def test_a_device_that_its_worker_cannot_use_says_so(
    hold: Callable[..., Holding], registry: DeviceRegistry, device: DeviceSpec
) -> None:
    hold("first", replace(device, available=False, reason="gcc: not found")).beat()
    registry.refresh()
    assert registry.known[device.id].reason == "gcc: not found"


def test_quarantine_comes_first_and_release_ends_it(
    hold: Callable[..., Holding], registry: DeviceRegistry, database: Database, device: DeviceSpec
) -> None:
    hold("first").beat()
    with database.write() as session:
        worker_queries.quarantine_device(session, device.id, "it burns")
    registry.refresh()
    assert "it burns" in str(registry.known[device.id].reason)
    with database.write() as session:
        worker_queries.release_device(session, device.id)
    assert registry.refresh()
    assert registry.known[device.id].available
