"""A job as lists show it, as its page does, and one case complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tuner_service.db.engine import Database
from tuner_service.db.json_text import parsed
from tuner_service.db.queries.job_lists import list_jobs
from tuner_service.db.queries.jobs import get_job, job_case_document
from tuner_service.errors import NotFound
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.opening import open_case
from tuner_service.jobs.submit import submit


def listed(database: Database) -> list[dict[str, Any]]:
    with database.read() as session:
        items: list[dict[str, Any]] = list_jobs(session)["items"]
        return items


@pytest.mark.databases("sqlite", "postgresql")
def test_a_list_says_what_a_job_is_about_and_how_far_it_is(
    database: Database, service: Any, resolve: Callable[..., Any], small: dict[str, Any]
) -> None:
    kernels = ("softmax", "rms_norm", "softmax")
    cases = [{"kernel": kernel, "dims": {"rows": 8, "cols": 33 + n}} for n, kernel in enumerate(kernels)]
    body = {**small, "cases": cases, "labels": {"b": "2", "a": "1"}, "priority": 3, "limits": {"wall_seconds": 60}}
    job_id = submit(database, resolve(body), idempotency_key=None, body_sha256="5" * 64)
    (queued,) = listed(database)
    assert (queued["id"], queued["state"], queued["started_at"]) == (job_id, "queued", None)
    assert (queued["kernels"], queued["case_count"], queued["settled_count"]) == (["softmax", "rms_norm"], 3, 0)
    assert queued["first_case"] == {
        "kernel": "softmax",
        "params": {},
        "dims": cases[0]["dims"],
        "dtypes": {"x": "float32", "y": "float32"},
    }
    assert (queued["labels"], queued["priority"]) == ({"a": "1", "b": "2"}, 3)
    assert queued["limits"] == {"device_seconds": None, "wall_seconds": 60}
    assert queued["device"] == {
        "id": "cpu:000000000000",
        "kind": "cpu",
        "name": "a CPU on paper",
        "identity_digest": "1" * 64,
        "toolchain_fingerprint": "2" * 64,
    }
    assert queued["progress"]["pending"] == queued["progress"]["enumerated"] == 12

    while not service.job(job_id)["progress"]["measured"]:
        service.advancer.advance(job_id)
        service.run(max(service.engine.tasks, key=lambda key: service.engine.tasks[key].queue))  # device before compile
    (running,) = listed(database)
    assert running["progress"] == service.job(job_id)["progress"]
    assert running["progress"]["rejected"] > 0 < running["progress"]["measured"]

    assert end_job(database, job_id, "cancelled")
    (ended,), whole = listed(database), service.job(job_id)
    assert (ended["state"], ended["settled_count"], ended["progress"]) == ("cancelled", 3, whole["progress"])
    assert ended["progress"]["not_run"] > 0 == ended["progress"]["pending"]
    shared = ended.keys() & whole.keys() - {"device"}
    assert {word: ended[word] for word in shared} == {word: whole[word] for word in shared}


@pytest.mark.databases("sqlite", "postgresql")
def test_one_case_has_all_that_its_job_shows_and_how_the_default_was_timed(
    database: Database, service: Any, submitted: str
) -> None:
    job = service.finish(submitted)
    assert "retimes" not in job["cases"][0]
    with database.read() as session:
        whole = get_job(session, submitted, retimes=True)["cases"][0]
        case = parsed(job_case_document(session, submitted, 0))
        for job_id, case_index in ((submitted, 1), ("job_1", 0)):
            with pytest.raises(NotFound):
                job_case_document(session, job_id, case_index)
    retimes = whole["retimes"]
    assert len(retimes) >= 5
    assert all(timing["samples_seconds"] and timing["median_seconds"] > 0 for timing in retimes)
    assert whole == {**job["cases"][0], "retimes": retimes}
    assert case == {"job_id": submitted, **whole}
    trial_id = case["winner"]["id"]
    assert case["revalidated"][trial_id]["trial"] == trial_id
    finals = case["finals"]
    assert set(finals["samples_seconds"]) == set(finals["median_seconds"]) == set(finals["order"])
    assert service.trials(submitted, outcome="measured")[0].keys() == case["winner"].keys()


def test_rows_that_come_in_pieces_are_counted_in_pieces(
    database: Database, service: Any, submitted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner_service.jobs.opening.CHUNK_TRIALS", 2)
    case_id = service.job(submitted)["cases"][0]["id"]
    pauses = iter((False, False, True))
    assert not open_case(database, submitted, case_id, stopped=lambda: next(pauses))
    torn = service.job(submitted)  # compares what the case counts with its rows
    assert open_case(database, submitted, case_id)
    assert torn["progress"]["rejected"] <= service.job(submitted)["progress"]["rejected"] == 1
