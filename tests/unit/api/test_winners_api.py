"""Exact lookup over HTTP: a hit, or a miss that says what differs."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from catalogs.format import Entry, sha256_hex
from search.device.spec import DeviceSpec
from tuner_service.api import schemas
from tuner_service.db.queries import cases as case_queries
from tuner_service.db.queries import jobs as job_queries
from tuner_service.db.queries import trials as trial_queries
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.opening import open_case

SAMPLES = [2e-6, 1e-6, 4e-6]


def settle(served: Any, rows: int, *, eps: float = 1e-6, finals: bool = False, width: int = 8) -> tuple[str, str]:
    """A finished job whose winner is its first trial; answers job and trial ids."""
    request = {
        "cases": [{"kernel": "rms_norm", "dims": {"rows": rows, "cols": 33}, "params": {"eps": eps}}],
        "device": "cpu",
        "space": {"width": [width], "input": ["reload"], "simd_scope": ["all"], "nontemporal": [False]},
    }
    job_id = served.http.post("/v1/jobs", json=request).json()["id"]
    database = served.context.database
    with database.read() as session:
        case = case_queries.case_rows(session, job_id)[0]
    open_case(database, job_id, case["id"])
    trial = served.http.get(f"/v1/jobs/{job_id}/trials?outcome=pending").json()["items"][0]
    timing = {"device_batch": {"samples_seconds": SAMPLES, "median_seconds": 2e-6, "calls_per_sample": 10}}
    settled = {
        "winner": trial["id"],
        "reference": trial["id"],
        "tie_set": [trial["id"]],
        "reference_tie_set": [trial["id"]],
        "noise_floor": 0.01,
        "regret": 0.0,
        "predicted": trial["id"],
        "error": None,
    }
    with database.write() as session:
        measured = {"outcome": "measured", "timing": timing, "code": {"source_sha256": "ab" * 32}}
        trial_queries.update_trials(session, {trial["id"]: measured})
        case_queries.update_case(session, case["id"], {"settled": True, "result": settled})
        if finals:
            samples = {"protocol": "finals", "samples_seconds": {trial["id"]: [3e-6, 5e-6, 9e-6]}}
            event = {"event": "finals_measured", "samples": samples}
            case_queries.add_case_event(session, case["id"], "finals_measured", "1", event)
        job_queries.update_job(session, job_id, {"state": "running"})
    assert end_job(database, job_id, "succeeded")
    return job_id, trial["id"]


def ask(http: httpx.Client, **query: Any) -> httpx.Response:
    return http.get("/v1/winners", params={"kernel": "rms_norm", **query})


def test_an_exact_key_hits_with_a_complete_entry(served: Any) -> None:
    job_id, trial_id = settle(served, 101)
    response = ask(served.http, dims="rows:101,cols:33")
    assert response.status_code == 200, response.text
    document = response.json()
    schemas.EntryDocument.model_validate(document)
    entry = Entry.from_document(document)
    assert response.headers["etag"] == f'"{entry.digest}"'
    assert (entry.job_id, entry.trial_id) == (job_id, trial_id)
    assert entry.key.dims == {"rows": 101, "cols": 33}
    assert entry.median_seconds == 2e-6
    assert entry.samples_sha256 == sha256_hex(SAMPLES)
    assert entry.protocol["name"] == "search"
    [device] = served.context.runtime.devices.values()
    for name in (device.id, device.kind, device.identity_digest):
        assert ask(served.http, dims="rows:101,cols:33", device=name).json() == document
    for toolchain in ("any", device.toolchain_fingerprint):
        found = ask(served.http, dims="cols:33,rows:101", params="eps:1e-6", dtypes="x:float32", toolchain=toolchain)
        assert found.json() == document


def test_the_finals_decide_what_the_entry_says(served: Any) -> None:
    settle(served, 102, finals=True)
    document = ask(served.http, dims="rows:102,cols:33").json()
    assert (document["median_seconds"], document["protocol"]["name"]) == (5e-6, "finals")
    assert document["protocol"]["samples"] == 3, "those that were taken, whatever this version would take"


def test_the_newest_job_wins(served: Any) -> None:
    settle(served, 103)
    newest, _ = settle(served, 103, width=16)
    assert ask(served.http, dims="rows:103,cols:33").json()["job_id"] == newest


def test_a_lookup_reads_the_cases_that_it_answers_with_and_no_others(serve: Any, tmp_path: Path) -> None:
    read: list[tuple[str, int]] = []

    def told(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        for table in ("trials", "case_events"):
            if f"FROM {table}" in statement and statement.startswith("SELECT"):
                read.append((table, len(parameters)))

    with serve(tmp_path) as served:
        for rows in range(400, 412):
            settle(served, rows)
        event.listen(served.context.database.engine, "before_cursor_execute", told)
        assert ask(served.http, dims="rows:405,cols:33").status_code == 200
        assert sorted(read) == [("case_events", 1), ("trials", 1)], "one case, whose winner is its reference"
        read.clear()
        assert ask(served.http, dims="rows:405,cols:33").status_code == 200
        assert read == [], "what was answered is remembered"
        assert ask(served.http, dims="rows:1,cols:33").status_code == 404
        assert len(read) <= 2 * 5
        newest, _ = settle(served, 405, width=16)
        assert ask(served.http, dims="rows:405,cols:33").json()["job_id"] == newest, "a job that ended since is seen"


def test_a_case_without_a_winner_is_no_winner(serve: Any, tmp_path: Path) -> None:
    """Every candidate was rejected: the job has succeeded all the same."""
    with serve(tmp_path) as served:
        job_id, _ = settle(served, 64)
        with served.context.database.write() as session:
            [case] = case_queries.case_rows(session, job_id)
            nobody = {**case["result"], "winner": None, "reference": None}
            case_queries.update_case(session, case["id"], {"result": nobody})
        missed = ask(served.http, dims="rows:64,cols:33")
        assert (missed.status_code, missed.json()["misses"]) == (404, [])


def test_lookups_while_jobs_end_find_what_has_ended(serve: Any, tmp_path: Path) -> None:
    """Readers see the ledger as it was at different moments, and share one index."""
    stop = threading.Event()
    strange: list[str] = []

    with serve(tmp_path) as served:

        def look() -> None:
            with httpx.Client(base_url=served.http.base_url, trust_env=False, timeout=30) as http:
                for turn in itertools.count():
                    if stop.is_set():
                        return
                    found = ask(http, dims=f"rows:{600 + turn % 5},cols:33")
                    if found.status_code not in (200, 404):
                        strange.append(found.text)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for rows in range(600, 605):
                settle(served, rows)
                assert ask(served.http, dims=f"rows:{rows},cols:33").status_code == 200
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert strange == []


def test_a_winner_of_an_extent_beyond_the_present_limit_is_found(serve: Any, tmp_path: Path) -> None:
    """What was admitted stays admitted, and a lookup allocates nothing."""
    with serve(tmp_path, max_dim=2**26, max_tensor_bytes=2**40) as served:
        settle(served, 2**25)
        settle(served, 64)
        assert ask(served.http, dims=f"rows:{2**25},cols:33").status_code == 200
        assert ask(served.http, dims="rows:64,cols:33").status_code == 200


def test_a_miss_names_the_nearest_entries_and_their_differences(served: Any) -> None:
    for rows in (200, 210, 220, 230, 240, 250, 260):
        settle(served, rows)
    response = ask(served.http, dims="rows:244,cols:33")
    assert response.status_code == 404
    problem = response.json()
    assert problem["type"] == "/problems/no-winner"
    assert problem["reason"]
    assert len(problem["misses"]) == 5
    assert problem["misses"][0]["differs"] == {"dims.rows": [244, 240]}
    assert len(problem["misses"][0]["entry"]) == 64
    other_param = ask(served.http, dims="rows:240,cols:33", params="eps:0.5").json()
    assert other_param["misses"][0]["differs"] == {"params.eps": [0.5, 1e-6]}
    elsewhere = ask(served.http, dims="rows:240,cols:33", device="0" * 64, toolchain="any").json()
    assert set(elsewhere["misses"][0]["differs"]) == {"device"}
    aged = ask(served.http, dims="rows:240,cols:33", toolchain="f" * 64).json()
    assert set(aged["misses"][0]["differs"]) == {"toolchain"}


def test_a_miss_lists_a_key_once_with_its_newest_job(served: Any) -> None:
    for rows in (300, 310):
        for _ in range(3):
            newest, _trial = settle(served, rows)
    misses = ask(served.http, dims="rows:309,cols:33").json()["misses"]
    assert [miss["differs"]["dims.rows"][1] for miss in misses[:2]] == [310, 300]
    assert misses[0]["job_id"] == newest
    assert len({str(miss["differs"]) for miss in misses}) == len(misses) == 5


def test_a_kernel_without_winners_is_a_miss_with_the_reason(http: httpx.Client) -> None:
    problem = ask(http, kernel="softmax", dims="rows:1,cols:8").json()
    assert (problem["status"], problem["misses"]) == (404, [])
    assert "softmax" in problem["reason"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"dims": "rows:4"}, "/query/dims/cols"),
        ({"dims": "rows:4,cols:0"}, "/query/dims/cols"),
        ({"dims": "rows:4,cols:3.5"}, "/query/dims/cols"),
        ({"dims": "rows:4,cols:nan"}, "/query/dims/cols"),
        ({"dims": "rows:4,cols:" + "9" * 5000}, "/query/dims"),
        ({"dims": "rows:4,cols:" + "9" * 500}, "/query/dims/cols"),
        ({"dims": "rows=4"}, "/query/dims"),
        ({"dims": "rows:4,rows:5,cols:3"}, "/query/dims"),
        ({"dims": ""}, "/query/dims/rows"),
        ({"dims": "rows:4,cols:33", "kernel": "nope"}, "/query/kernel"),
        ({"dims": "rows:4,cols:33", "params": "epsilon:1"}, "/query/params/epsilon"),
        ({"dims": "rows:4,cols:33", "dtypes": "x:float64"}, "/query/dtypes/x"),
        ({"dims": "rows:4,cols:33", "device": "tpu"}, "/query/device"),
        ({"dims": "rows:4,cols:33", "toolchain": "gcc"}, "/query/toolchain"),
        ({"dims": "rows:4,cols:33", "device": "0" * 64}, "/query/toolchain"),
        ({}, "/query/dims"),
    ],
)
def test_a_question_that_no_key_can_answer_is_refused(http: httpx.Client, query: dict[str, str], field: str) -> None:
    response = ask(http, **query)
    assert response.status_code == 422, response.text
    assert field in [error["field"] for error in response.json()["errors"]]


def test_two_attached_devices_of_one_kind_must_be_told_apart(served: Any) -> None:
    [device] = served.context.runtime.devices.values()
    other = DeviceSpec(**{**vars(device), "id": "cpu:other", "identity_digest": "e" * 64})
    served.context.runtime.known[other.id] = other
    try:
        response = ask(served.http, dims="rows:4,cols:33")
        assert response.json()["errors"][0]["field"] == "/query/device"
        assert other.id in response.json()["errors"][0]["allowed"]
        assert ask(served.http, dims="rows:4,cols:33", device=device.id).status_code == 404
    finally:
        del served.context.runtime.known[other.id]
