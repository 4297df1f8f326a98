"""Metrics: what is scraped from the service, which labels there can be, and that the reference page lists them all."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from search.events import TrialMeasured, TrialRejected
from search.measuring.protocol import Checks
from search.outcome import Rejected
from tuner_service import metrics
from tuner_service.api.gauges import CAUSES, KEPT_SECONDS, Gauges, cause
from tuner_service.db.queries import counts, workers
from tuner_service.engine.contract import Task
from tuner_service.errors import DatabaseUnavailable
from tuner_service.metrics import REGISTRY, BusyDevices, count_event, count_request
from tuner_service.telemetry import JsonFormatter
from tuner_service.workers.observing import observed, observed_failure

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
JOB = {"cases": [{"kernel": "softmax", "dims": {"rows": 4, "cols": 8}}], "device": "cpu", "space": {"width": [8]}}


def scraped(http: httpx.Client) -> dict[str, Metric]:
    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float | None:
    for family in families.values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


def test_the_reference_page_lists_every_metric_with_its_labels(served: Any) -> None:
    rows = re.findall(r"^\| `(tuner_\w+)` \| (\w+) \| (.*?) \|", PAGE.read_text(), flags=re.MULTILINE)
    listed = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    served.http.get("/healthz")
    families = [*REGISTRY.collect(), *Gauges(served.context).collect()]
    ours = {one._name: one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)}
    known = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        known[name] = (family.type, frozenset(vars(ours.get(family.name, family))["_labelnames"]))
    assert listed == known


def test_requests_are_timed_by_route_template_and_strangers_make_no_series(served: Any) -> None:
    http = served.http
    before = scraped(http)
    for job_id in ("job_a", "job_b"):
        http.get(f"/v1/jobs/{job_id}")
    http.get("/no/such/page/one")
    http.request("BREW", "/no/such/page/two")
    after = scraped(http)

    def grown(**labels: str) -> float:
        name = "tuner_http_request_seconds_count"
        return (value(after, name, **labels) or 0.0) - (value(before, name, **labels) or 0.0)

    assert grown(method="GET", route="/v1/jobs/{job_id}", status="404") == 2
    assert grown(method="GET", route="unmatched", status="404") == 1
    routes = {sample.labels["route"] for sample in after["tuner_http_request_seconds"].samples}
    assert not [route for route in routes if "job_a" in route or "such" in route]
    methods = {sample.labels["method"] for sample in after["tuner_http_request_seconds"].samples}
    assert "BREW" not in methods


class Now:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def gauges(served: Any) -> tuple[Gauges, Now]:
    now = Now()
    return Gauges(served.context, clock=now), now


def collected(gauges: Gauges) -> dict[str, Metric]:
    return {metric.name: metric for metric in gauges.collect()}


def test_the_deployment_is_counted_and_read_once_in_a_while(
    served: Any, gauges: tuple[Gauges, Now], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, now = gauges
    monkeypatch.setattr(served.context.runtime, "depths", {"device:x": {"waiting": 3, "running": 1}})
    monkeypatch.setattr(
        served.context.runtime, "reasons", {"job_1": "device x is unavailable: gone", "job_2": "the database is locked"}
    )
    first = collected(collector)
    queued = value(first, "tuner_jobs", state="queued")
    assert queued is not None
    assert value(first, "tuner_queue_tasks", queue="device:x", state="waiting") == 3
    assert value(first, "tuner_waiting_jobs", cause="device") == 1
    assert value(first, "tuner_waiting_jobs", cause="database") == 1
    assert value(first, "tuner_leader") == 1
    assert value(first, "tuner_database_readable") == 1
    assert value(first, "tuner_device_available", kind="cpu") == 1
    assert served.http.post("/v1/jobs", json=JOB).status_code == 202
    assert value(collected(collector), "tuner_jobs", state="queued") == queued, "within its time an answer is kept"
    now.seconds += KEPT_SECONDS
    assert value(collected(collector), "tuner_jobs", state="queued") == queued + 1


def test_workers_and_leases_have_ages(served: Any, gauges: tuple[Gauges, Now]) -> None:
    row = {"host": "h", "pid": 1, "place": "p", "version": "1", "devices": [], "compile_keys": [], "compile_slots": 1}
    with served.context.database.write() as session:
        workers.register_worker(session, {"id": "h:1:a", "state": "running", **row})
        workers.register_worker(session, {"id": "h:2:a", "state": "full", **row, "pid": 2})
        workers.take_lease(session, "gpu-1", "h:1:a", lost_seconds=30)
    found = collected(gauges[0])
    assert value(found, "tuner_workers", state="running") == 1
    assert value(found, "tuner_workers", state="full") == 1
    assert value(found, "tuner_workers", state="lost") == 0
    age = value(found, "tuner_device_lease_age_seconds", device="gpu-1")
    assert age is not None
    assert 0 <= age < 300
    assert 0 <= (value(found, "tuner_worker_silent_seconds") or 0) < 30


def test_a_killed_worker_is_lost_until_another_has_its_devices(served: Any) -> None:
    row = {"host": "h", "place": "p", "version": "1", "state": "running", "compile_keys": [], "compile_slots": 1}
    with served.context.database.write() as session:
        for pid, devices in ((11, ["gpu-11", "gpu-12"]), (12, [])):
            workers.register_worker(session, {"id": f"h:{pid}:a", "pid": pid, "devices": devices, **row})
        for device_id in ("gpu-11", "gpu-12"):
            assert workers.take_lease(session, device_id, "h:11:a", lost_seconds=30) is None
    offered = []
    for device_id in ("gpu-11", "gpu-12"):
        with served.context.database.write() as session:
            assert workers.take_lease(session, device_id, "h:12:a", lost_seconds=30) is not None
            assert workers.take_lease(session, device_id, "h:12:a", lost_seconds=30, dead=lambda _: True) is None
        with served.context.database.read() as session:
            killed = next(one for one in workers.list_workers(session) if one["pid"] == 11)
        offered.append((killed["state"], killed["devices"]))
    assert offered == [("running", ["gpu-12"]), ("gone", [])]
    with served.context.database.write() as session:
        assert workers.beat_worker(session, "h:11:a", devices=[], compile_keys=[], state="running")
        present = [one["pid"] for one in workers.present_workers(session, lost_seconds=30) if one["pid"] > 10]
    assert sorted(present) == [11, 12], "it was only cut off"


def test_a_scrape_works_while_the_database_does_not(
    served: Any, gauges: tuple[Gauges, Now], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> dict[str, int]:
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(counts, "jobs_by_state", away)
    found = collected(gauges[0])
    assert value(found, "tuner_database_readable") == 0
    assert "tuner_jobs" not in found
    assert value(found, "tuner_leader") == 1


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("device cpu:1 is unavailable: no worker offers it", "device"),
        ("the database /d/tuner.sqlite3 stayed locked by another process", "database"),
        ("no space left for the database x", "database"),
        ("something new", "other"),
    ],
)
def test_causes_are_a_closed_set(reason: str, word: str) -> None:
    assert cause(reason) == word
    assert word in CAUSES


def test_a_device_is_busy_for_as_long_as_it_is_held() -> None:
    now = Now()
    busy = BusyDevices(clock=now)

    def seconds(device: str) -> tuple[float | None, float | None]:
        found = {metric.name: metric for metric in busy.collect()}
        return (
            value(found, "tuner_device_busy_seconds_total", device=device),
            value(found, "tuner_device_busy", device=device),
        )

    assert seconds("gpu") == (None, None)
    with busy.held("gpu"):
        now.seconds += 2
        assert seconds("gpu") == (2.0, 1.0), "a long task counts while it runs"
    now.seconds += 5
    assert seconds("gpu") == (2.0, 0.0)
    with busy.held("gpu"):
        now.seconds += 1
    assert seconds("gpu") == (3.0, 0.0)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_trials_count_by_how_they_ended_and_device_time_by_what_it_was_for() -> None:
    before = (
        sample("tuner_trials_total", outcome="rejected", stage="timeout"),
        sample("tuner_trials_total", outcome="measured", stage=""),
    )
    measured_before = sample("tuner_measure_seconds_sum", record="trial")
    rejected = Rejected(stage="timeout", reason="kernel_timeout", detail={})
    count_event(TrialRejected(trial="t", rejection=rejected), device_seconds=1.0)
    checks = Checks.__new__(Checks)
    count_event(TrialMeasured(trial="t", timing={}, checks=checks, overlapped=False), device_seconds=0.5)
    assert sample("tuner_trials_total", outcome="rejected", stage="timeout") == before[0] + 1
    assert sample("tuner_trials_total", outcome="measured", stage="") == before[1] + 1
    assert sample("tuner_measure_seconds_sum", record="trial") == measured_before + 0.5
    count_request("GET", None, 0, 0.1)
    assert sample("tuner_http_request_seconds_count", method="GET", route="unmatched", status="0") >= 1


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(JsonFormatter().format(record)))


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    handler, logger = Lines(), logging.getLogger("search.children.child")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def task(step: dict[str, Any], queue: Any = "device") -> Task:
    payload = {"step": step, "case_id": "case_1"}
    return Task(key="k", job_id="job_1", queue=queue, device_id="gpu", quiet=False, priority=0, payload=payload)


def test_what_is_said_during_a_task_carries_its_ids_also_of_a_child_that_ended(lines: list[dict[str, Any]]) -> None:
    from search.children.child import Child, ChildGone

    def work(_: Task, cancelled: Any) -> None:
        child = Child.start("search.children.no_such_module")
        with pytest.raises(ChildGone):
            child.receive(timeout_seconds=30)
        raise ValueError("task failed")

    failed = sample("tuner_task_seconds_count", step="measure", end="failed")
    with pytest.raises(ValueError, match="task failed"):
        observed(work, worker_id="h:1:a")(task({"step": "measure", "trials": ["trl_1"]}), lambda: False)
    assert sample("tuner_task_seconds_count", step="measure", end="failed") == failed + 1
    (line,) = lines
    assert {name: line[name] for name in ("job_id", "trial_id", "worker_id", "device_id", "step", "case_id")} == {
        "job_id": "job_1",
        "trial_id": "trl_1",
        "worker_id": "h:1:a",
        "device_id": "gpu",
        "step": "measure",
        "case_id": "case_1",
    }
    assert "no_such_module" in line["log_tail"]
    assert line["exit_code"] == 1
    heard: list[dict[str, Any]] = []

    def decide(_: Task, error: BaseException) -> None:
        logging.getLogger("search.children.child").info("decided")
        heard.append(lines[-1])

    shared = task({"step": "share_code", "trials": [["trl_2", "trl_1"], ["trl_3", "trl_1"]]})
    observed_failure(decide, worker_id="h:1:a")(shared, ValueError())
    assert heard[0]["trial_ids"] == ["trl_2", "trl_3"]
    logging.getLogger("search.children.child").info("after")
    assert "job_id" not in lines[-1]
