"""Once a job has ended nothing about it changes: not its counts, trials, cases, claims or events."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import inspect, text

from search.events import CaseSettled, TrialRejected
from search.outcome import Rejected
from tuner_service.db.engine import Database
from tuner_service.db.queries.jobs import list_job_events
from tuner_service.jobs import opening
from tuner_service.jobs.cancel import cancel
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.opening import open_case
from tuner_service.jobs.record import record, settle
from tuner_service.jobs.submit import submit

LARGE = {"width": [8, 16, 32, 64], "input": ["reload", "cache"], "vector": [1, 2, 4], "unroll": [1, 2, 3, 4]}
CHUNK = 10


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CHUNK_TRIALS", CHUNK)


@pytest.fixture
def large(database: Database, resolve: Any, small: Any) -> str:
    """A job of two cases, each of many chunks, some candidates over the budget."""
    two = [{"kernel": kernel, "dims": {"rows": 8, "cols": 33}} for kernel in ("softmax", "layer_norm")]
    body = {**small, "cases": two, "space": {**small["space"], **LARGE}}
    return submit(database, resolve(body), idempotency_key=None, body_sha256="6" * 64)


def everything(database: Database) -> dict[str, list[Any]]:
    """Every row of every table."""
    with database.read() as session:
        tables = inspect(session.connection()).get_table_names()
        return {name: sorted(map(repr, session.execute(text(f'SELECT * FROM "{name}"')))) for name in tables}


def ends_after_chunks(database: Database, end: Callable[[], object], chunks: int, monkeypatch: Any) -> None:
    """``end`` is called by someone else when so many chunks are written and the next one is planned."""
    plan_case, moments = opening.plan_case, [chunks * CHUNK + 3]

    def planned(*arguments: Any, **options: Any) -> Iterator[Any]:
        for place, item in enumerate(plan_case(*arguments, **options)):
            if place in moments:
                moments.clear()
                end()
            yield item

    monkeypatch.setattr(opening, "plan_case", planned)


@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_a_job_that_ends_while_a_case_is_opened_stays_as_it_ended(
    state: Any, chunks: int, service: Any, database: Database, large: str, check_sum: Any, monkeypatch: Any
) -> None:
    seen: list[Any] = []

    def end() -> None:
        assert end_job(database, large, state, error="as the test says")
        seen.append(everything(database))
        seen.append(service.job(large))

    ends_after_chunks(database, end, chunks, monkeypatch)
    service.advancer.advance(large)
    rows, job = seen
    assert everything(database) == rows
    service.finish(large)
    service.die()
    assert service.unfinished == []
    service.finish(large)
    assert everything(database) == rows
    assert len(service.trials(large)) == chunks * CHUNK
    assert service.job(large) == job
    assert check_sum(job)
    assert job["progress"]["pending"] == 0
    assert [case["state"] for case in job["cases"]] == ["settled", "settled"]
    assert all(case["winner"] is None and case["error"] for case in job["cases"])
    with database.read() as session:
        kinds = [event["kind"] for event in list_job_events(session, large, limit=10_000)]
    assert kinds[-3:] == ["case", "case", "job"]


@pytest.mark.parametrize("done", range(0, 9, 2))
def test_nothing_that_comes_late_is_stored(
    done: int, service: Any, database: Database, submitted: str, device: Any
) -> None:
    """Whatever was going on when the job was cancelled goes on, finds nothing to write, and writes nothing."""
    service.advancer.advance(submitted)
    for _ in range(done):
        if service.engine.tasks:
            service.run(next(iter(service.engine.tasks)))
        service.advancer.advance(submitted)
    late = dict(service.engine.tasks)
    assert cancel(database, service.engine, submitted)
    rows = everything(database)
    for task in late.values():
        service.worker.handle(task, lambda: False)
        service.worker.on_failure(task, RuntimeError("late"))
    case = service.job(submitted)["cases"][0]["id"]
    rejection = Rejected(stage="timing", reason="late", detail={})
    for trial in service.trials(submitted):
        event = TrialRejected(trial=trial["id"], rejection=rejection)
        attempts = {trial["id"]: trial["attempt"]}
        assert not record(database, service.ledger, submitted, case, event, attempts=attempts)
    result = CaseSettled(
        winner=None,
        reference=None,
        tie_set=(),
        reference_tie_set=(),
        noise_floor=None,
        regret=None,
        predicted=None,
        error="late",
    )
    assert not settle(database, service.ledger, submitted, case, result)
    assert not end_job(database, submitted, "succeeded")
    assert not end_job(database, submitted, "failed", error="late")
    service.advancer.advance(submitted)
    assert everything(database) == rows


def test_a_service_that_stops_stops_opening_and_goes_on_after_its_start(
    service: Any, database: Database, large: str
) -> None:
    case = service.job(large)["cases"][0]
    asked = itertools.count()
    assert not open_case(database, large, case["id"], stopped=lambda: next(asked) >= 2)
    assert len(service.trials(large)) == 2 * CHUNK
    assert open_case(database, large, case["id"])
    assert [trial["ordinal"] for trial in service.trials(large)] == list(range(case["progress"]["enumerated"] + 1))
