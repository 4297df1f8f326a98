"""The running machinery with its real threads and engine, around a device on paper."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from search.children.child import ChildSurvived
from search.errors import Cancelled, InvalidInput, ToolchainUnavailable
from search.steps import Measure
from tuner_service.db.engine import Database
from tuner_service.db.queries.devices import list_devices
from tuner_service.db.queries.jobs import get_job
from tuner_service.errors import DataDirInUse, NotFound
from tuner_service.jobs.quarantine import Quarantines
from tuner_service.jobs.request import Limits, resolve_request
from tuner_service.jobs.submit import submit
from tuner_service.workers.runtime import Runtime

PATIENCE_SECONDS = 30.0
"""Upper bound of a wait; nothing is concluded from how long anything took."""


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def make_runtime(database: Database, tmp_path: Path, device: Any, tools: Any) -> Iterator[Callable[..., Runtime]]:
    made: list[Runtime] = []

    def make(**options: Any) -> Runtime:
        options = {"probe": lambda work, known: [device], "tools": lambda runtime: tools, **options}
        runtime = Runtime(database=database, data_dir=tmp_path, advance_period_seconds=0.05, **options)
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        runtime.close()


def state(database: Database, job_id: str) -> str:
    with database.read() as session:
        return str(get_job(session, job_id)["state"])


def test_a_job_that_was_there_before_the_start_is_finished(
    make_runtime: Any, database: Database, submitted: str, device: Any
) -> None:
    runtime = make_runtime()
    assert dict(runtime.devices) == {}
    runtime.start()
    assert runtime.wait_probed(PATIENCE_SECONDS)
    assert dict(runtime.devices) == {device.id: device}
    wait(lambda: state(database, submitted) == "succeeded")
    assert runtime.leases() == {}
    assert runtime.waiting() == {}
    with database.read() as session:
        assert [seen["id"] for seen in list_devices(session)] == [device.id]


def test_no_notice_is_needed(make_runtime: Any, database: Database, resolve: Any, small: Any) -> None:
    make_runtime().start()
    job_id = submit(database, resolve(small), idempotency_key=None, body_sha256="5")
    wait(lambda: state(database, job_id) == "succeeded")


def test_cancel_stops_the_running_task(make_runtime: Any, database: Database, tools: Any, submitted: str) -> None:
    runtime = make_runtime()
    perform, started, ended = tools.perform, threading.Event(), threading.Event()

    def hang(step: Any, state: Any, case: Any, *, device_id: str, cancelled: Callable[[], bool]) -> Any:
        if not isinstance(step, Measure):
            yield from perform(step, state, case, device_id=device_id, cancelled=cancelled)
            return
        started.set()
        while not cancelled():
            time.sleep(0.005)
        ended.set()
        raise Cancelled("told to stop")

    tools.perform = hang
    runtime.start()
    assert started.wait(PATIENCE_SECONDS)
    (lease,) = runtime.leases().values()
    assert (lease["job_id"], lease["step"]) == (submitted, "measure")
    runtime.cancel(submitted)
    assert state(database, submitted) == "cancelled"
    assert ended.wait(PATIENCE_SECONDS)
    wait(lambda: runtime.leases() == {})
    with database.read() as session:
        job = get_job(session, submitted)
    assert job["progress"]["pending"] == 0
    with pytest.raises(NotFound):
        runtime.cancel("job_none")


def test_one_service_per_data_directory(make_runtime: Any) -> None:
    first, second = make_runtime(), make_runtime()
    first.start()
    with pytest.raises(DataDirInUse, match="pid"):
        second.start()
    first.close()
    second.start()


def test_probing_is_tried_again_until_it_works(make_runtime: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner_service.workers.devices.PROBE_RETRY_SECONDS", 0.01)
    answers = iter([RuntimeError("not yet"), RuntimeError("not yet"), [device]])

    def probe(work: Path, known: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    runtime = make_runtime(probe=probe)
    assert not runtime.wait_probed(0.0)
    runtime.start()
    assert runtime.wait_probed(PATIENCE_SECONDS)
    assert list(runtime.devices) == [device.id]


def test_a_toolchain_that_breaks_fails_the_job_and_shows_at_the_device(
    make_runtime: Any, database: Database, tools: Any, submitted: str, make_device: Any, small: Any
) -> None:
    works = [True]
    probe = lambda work, known: [make_device() if works[0] else make_device(available=False, reason="gcc is gone")]  # noqa: E731

    def breaks(step: Any, state: Any) -> BaseException:
        works[0] = False
        return ToolchainUnavailable("gcc is gone")

    tools.faults = breaks
    runtime = make_runtime(probe=probe)
    runtime.start()
    wait(lambda: state(database, submitted) == "failed")
    with database.read() as session:
        assert "gcc is gone" in get_job(session, submitted)["error"]
    wait(lambda: not all(device.available for device in runtime.devices.values()))
    with pytest.raises(InvalidInput, match="gcc is gone"):
        resolve_request(small, devices=runtime.devices, limits=Limits())


def test_sources_come_from_the_artifact_store(make_runtime: Any) -> None:
    runtime = make_runtime()
    assert runtime.load_source("0" * 64) is None
    assert runtime.load_source("../../etc/passwd") is None


def test_a_device_in_quarantine_is_left_alone_until_it_is_released(
    make_runtime: Any, database: Database, tools: Any, submitted: str, device: Any
) -> None:
    runtime, stuck = make_runtime(), ChildSurvived("child 7 survived SIGKILL for 10 s")
    tools.faults = lambda step, state: stuck if isinstance(step, Measure) else None
    runtime.start()
    wait(lambda: "in quarantine" in runtime.waiting().get(submitted, ""))
    assert "child 7 survived" in runtime.waiting()[submitted]
    assert not runtime.devices[device.id].available
    tools.faults = lambda step, state: None
    tools.performed.clear()
    time.sleep(0.2)  # a few periods: a task that was handed out would have run by now
    assert not any(isinstance(step, Measure) for _, step in tools.performed)
    assert Quarantines(database).release(device.id)
    wait(lambda: state(database, submitted) == "succeeded")
