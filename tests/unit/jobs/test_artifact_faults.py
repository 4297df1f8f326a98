"""An artifact store that is away, or a full database, charges nobody; a store that cannot take an artifact says so;
queues are counted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from search.errors import ArtifactLost, ArtifactsUnavailable, ArtifactTooLarge
from search.steps import Build, Measure
from tuner_service.engine.contract import Task
from tuner_service.engine.local import LocalEngine
from tuner_service.errors import DatabaseFull
from tuner_service.metrics import REGISTRY
from tuner_service.workers import perform


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform, "OUTAGE_PAUSE_SECONDS", 0.0)


def outages() -> float:
    return REGISTRY.get_sample_value("tuner_artifact_outages_total") or 0.0


@pytest.mark.parametrize("kind", [Build, Measure])
def test_an_outage_of_the_store_is_nobodys_fault(service: Any, tools: Any, submitted: str, kind: type) -> None:
    times = iter(range(9))  # more than the losses that a trial, and the faults that a job, may have
    before = outages()

    def faults(step: Any, state: Any) -> BaseException | None:
        away = isinstance(step, kind) and next(times, None) is not None
        return ArtifactsUnavailable("the artifact directory /shared is not mounted") if away else None

    tools.faults = faults
    job = service.finish(submitted)
    assert next(times, None) is None
    assert job["state"] == "succeeded"
    assert job["progress"]["measured"] == 3
    assert service.trials(submitted, stage="lost_worker") == []
    assert outages() == before + 9


@pytest.mark.parametrize("kind", [Build, Measure])
def test_results_that_do_not_fit_into_a_full_database_fail_no_job(
    service: Any, tools: Any, submitted: str, kind: type
) -> None:
    """Small writes, such as claims, may fit where results do not: the job is handed out again and again."""
    times = iter(range(9))

    def faults(step: Any, state: Any) -> BaseException | None:
        full = isinstance(step, kind) and next(times, None) is not None
        return DatabaseFull("no space left for the database") if full else None

    tools.faults = faults
    job = service.finish(submitted)
    assert next(times, None) is None
    assert (job["state"], job["progress"]["measured"]) == ("succeeded", 3)
    assert service.trials(submitted, stage="lost_worker") == []


def test_an_artifact_that_the_store_does_not_take_fails_the_job_in_words(
    service: Any, tools: Any, submitted: str
) -> None:
    message = "libraries/ab has 9 bytes, and the artifact store takes 8"
    tools.faults = lambda step, state: ArtifactTooLarge(message) if isinstance(step, Build) else None
    job = service.finish(submitted)
    assert (job["state"], job["error"]) == ("failed", message)


def test_an_artifact_that_is_lost_for_good_is_told_of_its_trial(service: Any, tools: Any, submitted: str) -> None:
    def faults(step: Any, state: Any) -> BaseException | None:
        ordinals = [trial.ordinal for trial in state.trials if trial.id in getattr(step, "trials", ())]
        return ArtifactLost("the artifact stores lost it") if isinstance(step, Measure) and 2 in ordinals else None

    tools.faults = faults
    job = service.finish(submitted)
    assert job["state"] == "succeeded"
    (lost,) = service.trials(submitted, stage="lost_worker")
    assert lost["ordinal"] == 2
    assert "the artifact stores lost it" in lost["detail"]["message"]


def test_the_embedded_queues_are_counted() -> None:
    going, go = threading.Event(), threading.Event()

    def work(_: Task, cancelled: Any) -> None:
        going.set()
        assert go.wait(60)

    engine = LocalEngine(
        handler=work, after=lambda job: None, on_failure=lambda task, error: None, compile_slots=1, devices=["gpu"]
    )
    fields: dict[str, Any] = {"job_id": "j", "device_id": "gpu", "quiet": False, "priority": 0, "payload": {}}
    empty = {"waiting": 0, "running": 0}
    assert engine.depths() == {"compile": empty, "device:gpu": empty}
    for key in ("a", "b", "c"):
        assert engine.submit(Task(key=key, queue="compile", **fields))
    engine.start()
    try:
        assert going.wait(60)
        assert engine.depths() == {"compile": {"waiting": 2, "running": 1}, "device:gpu": empty}
    finally:
        go.set()
        engine.close(timeout_seconds=60)
    assert engine.depths()["compile"] == empty
