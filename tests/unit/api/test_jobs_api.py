"""Jobs, plans, trials and events over HTTP."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from search.lowering.contract import Source
from search.planning.plan import plan_case
from tuner_service.api import schemas, schemas_jobs
from tuner_service.client import ApiProblem, Client
from tuner_service.db.queries import jobs as job_queries
from tuner_service.db.queries import trials as trial_queries
from tuner_service.db.queries.cases import case_rows
from tuner_service.jobs.opening import open_case

REQUEST: dict[str, Any] = {
    "cases": [
        {"kernel": "rms_norm", "dims": {"rows": 4, "cols": 33}},
        {"kernel": "softmax", "dims": {"rows": 8, "cols": 8193}},
    ],
    "device": "cpu",
    "space": {"width": [8, 256], "input": ["reload", "cache"], "simd_scope": ["all"], "nontemporal": [False]},
    "labels": {"team": "kernels"},
}


def create(served: Any, request: dict[str, Any] = REQUEST, **headers: str) -> dict[str, Any]:
    response = served.http.post("/v1/jobs", json=request, headers=headers)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    return job


def open_cases(served: Any, job_id: str) -> None:
    """What ``advance`` does first: every candidate gets its row."""
    database = served.context.database
    with database.read() as session:
        rows = case_rows(session, job_id)
    for row in rows:
        open_case(database, job_id, row["id"])


def test_a_created_job_is_queued_with_every_default_resolved(served: Any) -> None:
    job = create(served)
    schemas.JobDocument.model_validate(job)
    assert job["state"] == "queued"
    assert job["request"]["private_budget_scalars"] == 64
    assert job["request"]["baselines"] == ["torch_eager"]
    assert job["request"]["cases"][0]["params"] == {"eps": 1e-6}
    assert job["request"]["cases"][0]["dtypes"]["x"] == "float32"
    assert job["request"]["space"]["fusion"] == ["separate"]
    assert job["progress"]["enumerated"] == sum(c["enumerated"] for c in plan(served)["cases"])
    assert job["id"] in served.context.runtime.woken
    again = served.http.get(f"/v1/jobs/{job['id']}").json()
    assert again == job


def test_the_echoed_request_is_a_request(served: Any) -> None:
    job = create(served)
    assert create(served, job["request"])["request"] == job["request"]


def test_an_idempotency_key_creates_once(served: Any) -> None:
    first = create(served, **{"Idempotency-Key": "once"})
    before = served.job_count()
    assert create(served, **{"Idempotency-Key": "once"})["id"] == first["id"]
    other = served.http.post("/v1/jobs", json={**REQUEST, "labels": {}}, headers={"Idempotency-Key": "once"})
    assert (other.status_code, other.json()["type"]) == (422, "/problems/idempotency-conflict")
    assert served.job_count() == before
    for key in ("", "a b", "x" * 300, "é".encode()):
        refused = served.http.post("/v1/jobs", json=REQUEST, headers={b"Idempotency-Key": key})  # type: ignore[dict-item]
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "/header/Idempotency-Key"
    assert served.job_count() == before


def test_jobs_are_listed_newest_first_in_pages_with_filters(served: Any) -> None:
    mine = [create(served, {**REQUEST, "labels": {"page": "yes"}})["id"] for _ in range(5)]
    seen: list[str] = []
    url = "/v1/jobs?label=page%3Dyes&limit=2"
    while True:
        response = served.http.get(url)
        page = response.json()
        schemas_jobs.JobPage.model_validate(page)
        assert page["total"] == 5
        seen += [job["id"] for job in page["items"]]
        if page["next"] is None:
            assert "link" not in response.headers
            break
        url = response.links["next"]["url"]
        assert "label=page%3Dyes" in url
    assert seen == mine[::-1]
    for query, expected in (
        ("label=page", 5),
        ("label=page%3Dno", 0),
        ("kernel=softmax&label=page", 5),
        ("kernel=layer_norm&label=page", 0),
        ("device=cpu&label=page", 5),
        ("device=cuda&label=page", 0),
        ("state=queued&label=page", 5),
        ("state=failed&label=page", 0),
    ):
        assert served.http.get(f"/v1/jobs?{query}").json()["total"] == expected, query


def test_a_case_has_a_page_of_its_own_and_an_index_that_is_none_is_said_to_be(served: Any) -> None:
    job = create(served)
    with Client(f"http://127.0.0.1:{served.port}") as client:
        case = client.job_case(job["id"], 0)
        with pytest.raises(ApiProblem) as raised:
            client.job_case(job["id"], 99)
    schemas_jobs.WholeCaseDocument.model_validate(case)
    assert {**job["cases"][0], "job_id": job["id"], "retimes": []} == case
    assert raised.value.status == 404
    assert f"{job['id']}/99" in str(raised.value)
    whole = served.http.get(f"/v1/jobs/{job['id']}", params={"retimes": "true"}).json()
    assert [one["retimes"] for one in whole["cases"]] == [[]] * len(job["cases"])


def plan(served: Any, **query: Any) -> dict[str, Any]:
    response = served.http.post("/v1/plans", json=REQUEST, params=query)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    schemas.PlanPage.model_validate(page)
    return page


def test_a_plan_has_every_candidate_with_plan_or_rejection_and_stores_nothing(served: Any) -> None:
    before = served.job_count()
    page = plan(served)
    assert served.job_count() == before
    for index, case in enumerate(page["cases"]):
        items = [item for item in page["items"] if item["case_index"] == index and item["in_space"]]
        assert case["enumerated"] == len(items) == case["planned"] + case["rejected"]
        assert case["rejected"] == sum(item["outcome"] == "rejected" for item in items)
        assert case["rejected"] == sum(case["reasons"].values())
        assert sum(item["is_default"] for item in page["items"] if item["case_index"] == index) == 1
    over = [item for item in page["items"] if item["reason"] == "private_budget"]
    assert over
    assert all(item["detail"]["private_scalars"] > 64 for item in over)


def test_plan_pages_add_up(served: Any) -> None:
    whole = plan(served)
    items, cursor = [], None
    while True:
        page = plan(served, limit=3, **({"cursor": cursor} if cursor else {}))
        assert page["total"] == whole["total"]
        items += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert items == whole["items"]
    refused = served.http.post("/v1/plans", json=REQUEST, params={"cursor": "from-x"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "/query/cursor")


def test_trials_are_filtered_sorted_paged_and_exported(served: Any) -> None:
    job_id = create(served)["id"]
    open_cases(served, job_id)
    path = f"/v1/jobs/{job_id}/trials"
    whole = served.http.get(path, params={"limit": 1000}).json()
    schemas.TrialPage.model_validate(whole)
    trials = whole["items"]
    assert len(trials) == whole["total"] == plan(served)["total"]

    rejected = served.http.get(path, params={"outcome": "rejected", "stage": "constraints", "limit": 1000}).json()
    assert [t["id"] for t in rejected["items"]] == [t["id"] for t in trials if t["outcome"] == "rejected"]
    by_reason = served.http.get(path, params={"reason": "private_budget", "kernel": "softmax"}).json()
    assert by_reason["total"] == sum(t["reason"] == "private_budget" for t in trials)
    for name, value in (("width", 8), ("input", "cache"), ("is_default", True), ("in_space", False), ("case_index", 1)):
        found = served.http.get(path, params={name: value, "limit": 1000}).json()["items"]
        place = {"width": "candidate", "input": "candidate"}.get(name)
        assert found == [t for t in trials if (t[place] if place else t)[name] == value], name

    descending: list[int] = []
    cursor = None
    while True:
        query = {"sort": "-private_scalars", "limit": 3, **({"cursor": cursor} if cursor else {})}
        page = served.http.get(path, params=query).json()
        descending += [t["plan"]["private_scalars"] if t["plan"] else 0 for t in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(descending) == len(trials)
    assert descending == sorted(descending, reverse=True)
    other_order = served.http.get(path, params={"sort": "-private_scalars", "limit": 3}).json()["next"]
    refused = served.http.get(path, params={"sort": "width", "cursor": other_order})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "/query/cursor")

    lines = served.http.get(f"{path}/export", params={"outcome": "rejected"}).text.splitlines()
    assert [json.loads(line) for line in lines] == rejected["items"]
    export = served.http.get(f"{path}/export", params={"format": "csv"})
    assert export.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(export.text)))
    assert [row["id"] for row in rows] == [t["id"] for t in trials]
    assert [row["reason"] for row in rows] == [t["reason"] or "" for t in trials]
    assert json.loads(rows[0]["dims"]) == trials[0]["case"]["dims"]
    one = served.http.get(f"/v1/trials/{trials[0]['id']}")
    assert one.json() == trials[0]


@pytest.mark.parametrize(
    "query", ["outcome=won", "stage=space", "sort=speed", "width=0", "is_default=maybe", "colour=1"]
)
def test_a_bad_trial_filter_is_named(served: Any, query: str) -> None:
    job_id = create(served)["id"]
    for path in (f"/v1/jobs/{job_id}/trials", f"/v1/jobs/{job_id}/trials/export"):
        response = served.http.get(f"{path}?{query}")
        assert response.status_code == 422
        assert response.json()["errors"][0]["field"] == f"/query/{query.partition('=')[0]}"


def test_a_source_is_shown_whole_in_parts_and_as_a_folder(served: Any) -> None:
    job_id = create(served)["id"]
    open_cases(served, job_id)
    pending = served.http.get(f"/v1/jobs/{job_id}/trials?outcome=pending&limit=1").json()["items"][0]["id"]
    path = f"/v1/trials/{pending}/source"
    assert served.http.get(path).json()["detail"].startswith("this trial was never compiled")

    source = Source(
        source_sha256="ab" * 32,
        tilelang_text="# tilelang\n",
        c_text="/* c */\n",
        header_name="tuner.h",
        header_text="/* header */\n",
        build_command=("gcc", "-O3", "kernel.c"),
        files={"../escape": "never", "extra.txt": "more"},
    )
    served.context.runtime.sources[source.source_sha256] = source
    with served.context.database.write() as session:
        trial_queries.update_trials(session, {pending: {"source_sha256": source.source_sha256}})
    document = served.http.get(path).json()
    schemas.SourceDocument.model_validate(document)
    assert document["build_command"] == ["gcc", "-O3", "kernel.c"]
    assert served.http.get(path, params={"format": "tilelang"}).text == "# tilelang\n"
    assert served.http.get(path, params={"format": "c"}).text == "/* c */\n"
    assert served.http.get(path, params={"format": "header"}).text == "/* header */\n"
    with tarfile.open(fileobj=io.BytesIO(served.http.get(path, params={"format": "tar"}).content)) as archive:
        names = sorted(member.name.removeprefix(f"{pending}/") for member in archive)
    assert names == ["BUILD.txt", "extra.txt", "kernel.c", "kernel.tilelang.py", "tuner.h"]
    assert served.http.get(path, params={"format": "exe"}).status_code == 422
    served.context.runtime.sources.clear()
    assert served.http.get(path).status_code == 404


def test_events_stream_from_any_point_to_the_end(served: Any) -> None:
    job_id = create(served)["id"]
    path = f"/v1/jobs/{job_id}/events"
    with served.http.stream("GET", path) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        first = next_event(lines)
        assert json.loads(first["data"])["data"]["state"] == "queued"
        with served.context.database.write() as session:
            job_queries.add_job_event(session, job_id, "note", {"text": "two\nlines"})
        second = next_event(lines)
        assert (second["event"], json.loads(second["data"])["data"]) == ("note", {"text": "two\nlines"})
        assert int(second["id"]) > int(first["id"])
        served.http.post(f"/v1/jobs/{job_id}/cancel")
        rest = []
        while not rest or rest[-1]["event"] != "end":
            rest.append(next_event(lines))
    assert json.loads(rest[-1]["data"]) == {"state": "cancelled"}

    resumed = served.http.get(path, headers={"Last-Event-ID": first["id"]}).text
    assert f"id: {first['id']}\n" not in resumed
    assert f"id: {second['id']}\n" in resumed
    assert resumed.rstrip().split("\n")[0] == "retry: 1000"
    last = rest[-1]["id"]
    assert served.http.get(path, headers={"Last-Event-ID": last}).status_code == 204
    for wrong in ("x", "-1", "1" * 30):
        refused = served.http.get(path, headers={"Last-Event-ID": wrong})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "/header/Last-Event-ID")


def next_event(lines: Any) -> dict[str, str]:
    event: dict[str, str] = {}
    for line in lines:
        if line == "" and "data" in event:
            return event
        name, colon, value = line.partition(": ")
        if colon and name:
            event[name] = value
    raise AssertionError("the stream ended")


def test_cancel_is_idempotent_and_refused_after_the_end(served: Any) -> None:
    from tuner_service.jobs.ending import end_job

    job_id = create(served)["id"]
    for _ in range(2):
        response = served.http.post(f"/v1/jobs/{job_id}/cancel")
        assert (response.status_code, response.json()["state"]) == (200, "cancelled")
    failed = create(served)["id"]
    assert end_job(served.context.database, failed, "failed", error="the disk is full")
    response = served.http.post(f"/v1/jobs/{failed}/cancel")
    assert (response.status_code, response.json()["type"]) == (409, "/problems/conflict")
    assert served.http.get(f"/v1/jobs/{failed}").json()["error"] == "the disk is full"


def test_kernels_say_what_may_be_chosen(http: httpx.Client) -> None:
    page = http.get("/v1/kernels").json()
    schemas.KernelPage.model_validate(page)
    assert {"softmax", "rms_norm", "layer_norm"} <= {kernel["name"] for kernel in page["items"]}
    one = http.get("/v1/kernels/softmax").json()
    assert one in page["items"]
    assert one["default_space"]["cpu"]["width"] == [8, 16, 32, 64]
    assert [knob["name"] for knob in one["knobs"]["cpu"]] == list(one["default_space"]["cpu"])


def test_devices_say_what_they_are(http: httpx.Client) -> None:
    page = http.get("/v1/devices").json()
    schemas.DevicePage.model_validate(page)
    assert [d["kind"] for d in page["items"]] == ["cpu"]
    assert page["probing"] is False
    one = http.get(f"/v1/devices/{page['items'][0]['id']}").json()
    assert one["id"] == page["items"][0]["id"]
    assert one["lease"] is None


def test_plans_say_the_same_as_the_planner(served: Any) -> None:
    from tuner_service.api.requests import resolve

    resolved = resolve(served.context, REQUEST)
    documents = [
        planned.document()
        for case in resolved.cases
        for planned in plan_case(case.case, case.space, budget_scalars=resolved.budget_scalars)
    ]
    items = plan(served)["items"]
    assert [{name: item[name] for name in documents[0]} for item in items] == json.loads(json.dumps(documents))


def test_a_locked_database_is_said_within_the_patience_of_a_request(serve: Any, tmp_path: Path) -> None:
    with serve(tmp_path, request_database_wait_seconds=0.05) as served:
        created = served.http.post("/v1/jobs", json=REQUEST).json()
        other = sqlite3.connect(tmp_path / "tuner.sqlite3", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        refused = served.http.post("/v1/jobs", json=REQUEST)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/storage-unavailable")
        assert "locked" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        ready = served.http.get("/readyz")
        assert (ready.status_code, ready.json()["ready"], ready.json()["database"]) == (503, False, "locked")
        assert "locked" in served.http.get(f"/v1/jobs/{created['id']}").json()["waiting"]
        other.execute("ROLLBACK")
        other.close()
        assert served.http.get("/readyz").json()["database"] == "ok"
        assert served.http.get(f"/v1/jobs/{created['id']}").json()["waiting"] is None
        assert served.http.post("/v1/jobs", json=REQUEST).status_code == 202
        assert served.job_count() == 2


def test_what_a_job_waits_for_is_in_its_json(served: Any) -> None:
    http, runtime = served.http, served.context.runtime
    job = http.post("/v1/jobs", json=REQUEST).json()
    assert job["waiting"] is None
    runtime.reasons[job["id"]] = "the database is locked"
    try:
        path = f"/v1/jobs/{job['id']}"
        assert http.get(path).json()["waiting"] == "the database is locked"
        listed = http.get("/v1/jobs", params={"limit": 2}).json()["items"]
        assert [item["waiting"] for item in listed if item["id"] == job["id"]] == ["the database is locked"]
        assert http.post(f"{path}/cancel").json()["waiting"] is None
    finally:
        runtime.reasons.clear()
