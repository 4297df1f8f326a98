"""The service is killed in mid-job, with real children, and started again: nothing recorded is lost or repeated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process_tree import alive, descendants

from search.measuring.attach import attached_devices
from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade
from tuner_service.db.queries.cases import case_events
from tuner_service.db.queries.jobs import get_job, list_job_events
from tuner_service.db.queries.trials import list_trials
from tuner_service.jobs.request import Limits, resolve_request
from tuner_service.jobs.submit import submit

pytestmark = pytest.mark.toolchain

PATIENCE_SECONDS = 300.0
"""Upper bound of a wait on a busy machine; nothing is concluded from how long anything took."""
SERVICE = """
import sys, threading, signal
from pathlib import Path
from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade
from tuner_service.workers.runtime import Runtime
data = Path(sys.argv[1])
database = Database(f"sqlite:///{data / 'tuner.sqlite3'}")
upgrade(database)
runtime = Runtime(database=database, data_dir=data, advance_period_seconds=0.5)
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
runtime.start()
print("started", flush=True)
stop.wait()
runtime.close()
"""
BODY: dict[str, Any] = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}],
    "space": {
        "width": [8, 16],
        "input": ["reload", "cache"],
        "materialize": ["private"],
        "simd_scope": ["none", "all"],
        "nontemporal": [False],
    },
    "private_budget_scalars": 8,
}


class Service:
    """A service process on a data directory, and what its ledger says."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.process: subprocess.Popen[str] | None = None
        self.database = Database(f"sqlite:///{data / 'tuner.sqlite3'}")
        upgrade(self.database)

    def submit(self, **changes: Any) -> str:
        devices = {device.id: device for device in attached_devices(self.data / "work")}
        resolved = resolve_request({**BODY, **changes}, devices=devices, limits=Limits())
        return submit(self.database, resolved, idempotency_key=None, body_sha256="0" * 64)

    def start(self) -> None:
        with (self.data / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVICE, str(self.data)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n", (self.data / "log").read_text()

    def stop(self, number: int) -> int:
        assert self.process is not None
        children = descendants(self.process.pid)
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        self.wait(lambda: not any(alive(child) for child in children))
        return status

    def wait(self, condition: Callable[[], bool], *, period_seconds: float = 0.05) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.data / "log").read_text()[-4000:]
            time.sleep(period_seconds)

    def wait_for_the_end(self, job_id: str) -> None:
        """Looking at a job takes as long as building a kernel."""
        self.wait(lambda: self.job(job_id)["state"] not in ("queued", "running"), period_seconds=0.5)

    def job(self, job_id: str) -> dict[str, Any]:
        with self.database.read() as session:
            return get_job(session, job_id)

    def trials(self, job_id: str) -> list[dict[str, Any]]:
        with self.database.read() as session:
            return list_trials(session, job_id, limit=1000)["items"]

    def events(self, job_id: str) -> list[dict[str, Any]]:
        with self.database.read() as session:
            return list_job_events(session, job_id, limit=100_000)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    if service.process is not None:
        service.stop(signal.SIGKILL)
    service.database.close()


def recorded(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """What must never change again: how each trial ended, when, and with which samples of the search."""
    ended = (trial for trial in trials if trial["outcome"] != "pending")
    return {
        t["id"]: (t["outcome"], t["stage"], t["finished_at"], (t["timing"] or {}).get("device_batch")) for t in ended
    }


def adds_up(progress: dict[str, int]) -> bool:
    return progress["enumerated"] == sum(progress[part] for part in ("measured", "rejected", "pending", "not_run"))


def test_killed_again_and_again_it_finishes_and_keeps_every_recorded_trial(service: Service) -> None:
    job_id = service.submit()
    kept: dict[str, Any] = {}
    # Before any build, among measurements, around the finals, before the fresh build's comparison.
    for events_before_kill in (3, 13, 21, 24):
        service.start()
        service.wait(lambda: len(service.events(job_id)) >= events_before_kill)  # noqa: B023 - waited for at once
        service.stop(signal.SIGKILL)
        job, trials = service.job(job_id), service.trials(job_id)
        assert adds_up(job["progress"])
        assert kept.items() <= recorded(trials).items()
        kept = recorded(trials)
    service.start()
    service.wait_for_the_end(job_id)
    service.stop(signal.SIGTERM)

    job, trials = service.job(job_id), service.trials(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert kept.items() <= recorded(trials).items()
    assert job["progress"]["enumerated"] == 8
    assert job["progress"]["measured"] + job["progress"]["rejected"] == 8
    case = job["cases"][0]
    assert case["winner"] is not None
    assert case["error"] is None
    assert case["baselines"]["torch_eager"]["median_seconds"] > 0
    assert not any(trial["stage"] == "lost_worker" for trial in trials)
    ends = Counter(
        event["data"]["trial_id"] for event in service.events(job_id) if event["data"].get("event") == "trial_measured"
    )
    assert set(ends.values()) == {1}
    with service.database.read() as session:
        told = case_events(session, [case["id"]])[case["id"]]
    # Finals may be followed by the further phases of a winner that the search did not expect: another event.
    names = Counter(json.dumps([e["event"], e.get("sequence"), e.get("trial"), e.get("phases_only")]) for e in told)
    assert max(names.values()) == 1


def test_a_clean_stop_charges_nobody_and_a_second_service_is_refused(service: Service) -> None:
    job_id = service.submit(baselines=[])
    service.start()
    service.wait(lambda: len(service.events(job_id)) >= 5)
    assert service.process is not None
    second = subprocess.run(
        [sys.executable, "-c", SERVICE, str(service.data)], capture_output=True, text=True, check=False
    )
    assert second.returncode != 0
    assert f"pid {service.process.pid}" in second.stderr
    assert service.stop(signal.SIGTERM) == 0
    before = recorded(service.trials(job_id))
    assert service.job(job_id)["state"] == "running"
    assert not any(outcome[1] == "lost_worker" for outcome in before.values())
    service.start()
    service.wait_for_the_end(job_id)
    assert service.job(job_id)["state"] == "succeeded"
    assert before.items() <= recorded(service.trials(job_id)).items()
