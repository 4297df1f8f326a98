"""Services that share a PostgreSQL: one key makes one job, and a restart of the server is an answer, not an end."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

BODY = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}],
    "space": {"width": [8], "input": ["reload"]},
    "baselines": [],
}


@pytest.fixture
def services(serve: Any, tmp_path: Path, postgres_url: str) -> Iterator[list[Any]]:
    """Three services, as three processes have them, on one database."""
    with ExitStack() as running:
        yield [
            running.enter_context(serve(tmp_path / str(number), database_url=postgres_url, database_connections=8))
            for number in range(3)
        ]


def test_one_key_from_fifty_clients_makes_one_job(services: list[Any]) -> None:
    def post(number: int) -> httpx.Response:
        url = f"http://127.0.0.1:{services[number % 3].port}/v1/jobs"
        return httpx.post(url, json=BODY, headers={"Idempotency-Key": "k"}, timeout=60, trust_env=False)

    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(post, range(50)))
    assert {answer.status_code for answer in answers} == {202}
    (job_id,) = {answer.json()["id"] for answer in answers}
    for served in services:
        page = served.http.get("/v1/jobs").json()
        assert [job["id"] for job in page["items"]] == [job_id]


def test_a_restart_of_the_server_is_503_until_it_is_back(services: list[Any], postgres: Any) -> None:
    http = services[0].http
    job = http.post("/v1/jobs", json=BODY).json()
    postgres.stop("immediate")
    try:
        for served in services:
            for answer in (
                served.http.get("/v1/jobs"),
                served.http.get(f"/v1/jobs/{job['id']}"),
                served.http.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "later"}),
                served.http.post(f"/v1/jobs/{job['id']}/cancel"),
            ):
                assert (answer.status_code, answer.json()["type"]) == (503, "/problems/storage-unavailable")
                assert answer.headers["Retry-After"]
            assert served.http.get("/healthz").status_code == 200
            ready = served.http.get("/readyz")
            assert (ready.status_code, ready.json()["database"]) == (503, "unavailable")
    finally:
        postgres.start()
    for served in services:
        assert served.http.get("/readyz").json()["database"] == "ok"
        assert [one["id"] for one in served.http.get("/v1/jobs").json()["items"]] == [job["id"]]
    made = http.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "later"})
    assert made.status_code == 202, "a key that came while the server was away made nothing"


def test_a_database_that_was_upgraded_under_a_service_is_said(services: list[Any], postgres: Any) -> None:
    database = services[0].context.database
    postgres.execute("UPDATE alembic_version SET version_num = '9999'", database.url.database)
    ready = services[0].http.get("/readyz")
    assert (ready.status_code, ready.json()["database"]) == (503, "outdated")
    assert "9999" in ready.json()["reason"]
    assert "update tuner" in ready.json()["reason"]


def forged(*key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


@pytest.mark.databases("sqlite", "postgresql")
def test_ids_and_cursors_that_no_service_made_are_answered_as_such(served: Any) -> None:
    job_id = served.http.post("/v1/jobs", json=BODY).json()["id"]
    for path in ("/v1/jobs/job_%00", "/v1/trials/trl_%00", f"/v1/jobs/{job_id}%00", "/v1/jobs/%F0%9F%92%A9"):
        assert served.http.get(path).status_code == 404, path
    trials = f"/v1/jobs/{job_id}/trials"
    for cursor in (forged("width", 2**40, 0, 0), forged("width", 8, 2**62, 2**62)):
        answer = served.http.get(trials, params={"sort": "width", "cursor": cursor})
        assert (answer.status_code, answer.json()["items"]) == (200, [])
    for sort, cursor in (
        ("width", forged("width", 2**70, 0, 0)),
        ("width", forged("width", True, 0, 0)),
        ("finished_at", forged("finished_at", "a\0", 0, 0)),
        ("finished_at", forged("finished_at", "\ud800", 0, 0)),
    ):
        answer = served.http.get(trials, params={"sort": sort, "cursor": cursor})
        assert answer.status_code == 422, cursor
        assert answer.json()["errors"][0]["field"] == "/query/cursor"
