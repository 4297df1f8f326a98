"""Worker processes are listed with what became of them; one that is lost has an end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from tuner_service.api import schemas_operations
from tuner_service.api.gauges import Gauges
from tuner_service.db.queries import workers

HOUR_SECONDS = 3600.0


@pytest.fixture
def five(served: Any) -> Iterator[list[str]]:
    """Workers, the last started first: running, full, lost, missed for too long, gone; the lost one only compiles."""
    database = served.context.database
    row = {"place": "p", "version": "1", "compile_keys": ["cpu-1"], "compile_slots": 2, "pid": 7}
    silent = {"running": 0.0, "full": 3.0, "lost": 40.0, "missed": HOUR_SECONDS + 1, "gone": 5.0}
    with database.write() as session:
        for name in reversed(silent):
            state = "running" if name in ("lost", "missed") else name
            devices = [f"dev-{name}"] if name != "lost" else []
            host = "far" if name == "full" else "near"
            workers.register_worker(
                session, {"id": f"{host}:7:{name}", "host": host, "state": state, "devices": devices, **row}
            )
        now = workers.database_now(session)
        for number, (name, seconds) in enumerate(silent.items()):
            heard, started = (workers.earlier(now, age) for age in (seconds, HOUR_SECONDS + number))
            session.execute(
                text("UPDATE workers SET heartbeat_at = :heard, started_at = :started WHERE id LIKE :name"),
                {"heard": heard, "started": started, "name": f"%:{name}"},
            )
        workers.take_lease(session, "dev-missed", "near:7:missed", lost_seconds=30)
    yield [f"{'far' if name == 'full' else 'near'}:7:{name}" for name in silent]
    with database.write() as session:
        session.execute(text("DELETE FROM workers"))
        session.execute(text("DELETE FROM device_leases"))


def test_workers_are_listed_the_last_started_first(http: httpx.Client, five: list[str]) -> None:
    answer = http.get("/v1/workers")
    assert answer.status_code == 200
    page = schemas_operations.WorkerPage.model_validate(answer.json())
    assert [one.id for one in page.items] == five
    assert [one.state for one in page.items] == ["running", "full", "lost", "gone", "gone"]
    assert page.items[2].silent_seconds >= 40
    assert "place" not in answer.text, "where its pid means something is nobody's business"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"state": "lost"}, ["lost"]),
        ({"state": "gone"}, ["missed", "gone"]),
        ({"host": "far"}, ["full"]),
        ({"device": "dev-running"}, ["running"]),
        ({"host": "near", "state": "running"}, ["running"]),
        ({"device": "nowhere"}, []),
    ],
)
def test_filters_hold_together(http: httpx.Client, five: list[str], query: dict[str, str], found: list[str]) -> None:
    answer = http.get("/v1/workers", params=query).json()
    assert [one["id"].rpartition(":")[2] for one in answer["items"]] == found
    assert answer["total"] == len(found)


def test_pages_give_every_worker_once(http: httpx.Client, five: list[str]) -> None:
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = http.get("/v1/workers", params={"limit": 2, **cursor})
        page = answer.json()
        seen += [one["id"] for one in page["items"]]
        assert page["total"] == 5
        assert ("Link" in answer.headers) == (page["next"] is not None)
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == five


@pytest.mark.parametrize("query", [{"state": "asleep"}, {"cursor": "x"}, {"limit": "0"}, {"name": "x"}])
def test_wrong_questions_are_named(http: httpx.Client, query: dict[str, str]) -> None:
    answer = http.get("/v1/workers", params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].endswith(next(iter(query)))


def test_a_lost_worker_is_forgotten_and_nobody_is_alerted(served: Any, http: httpx.Client, five: list[str]) -> None:
    running, full, lost, missed, gone = five

    def counted_as_lost() -> float:
        (found,) = [one for one in Gauges(served.context).collect() if one.name == "tuner_workers"]
        return {sample.labels["state"]: sample.value for sample in found.samples}["lost"]

    assert counted_as_lost() == 1, "not the one that was missed for an hour"
    for alive in (running, full):
        refused = http.post(f"/v1/workers/{alive}/forget")
        assert refused.status_code == 409
        assert "SIGTERM" in refused.json()["detail"]
    for silent, state in ((lost, "lost"), (missed, "gone"), (gone, "gone")):
        forgotten = http.post(f"/v1/workers/{silent}/forget")
        assert forgotten.status_code == 200
        assert schemas_operations.WorkerDocument.model_validate(forgotten.json()).state == state
        assert http.post(f"/v1/workers/{silent}/forget").status_code == 404
    assert counted_as_lost() == 0
    assert [one["id"] for one in http.get("/v1/workers").json()["items"]] == [running, full]
    with served.context.database.read() as session:
        assert "dev-missed" not in workers.lease_ages(session)
