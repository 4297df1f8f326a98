"""A ledger's copy catches up with what other processes record, by the job's feed, and is then as if read anew."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from search.events import Event
from search.ledger import CaseState
from search.outcome import Rejected
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases
from tuner_service.db.queries import trials as trial_queries
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.ledger import Ledger
from tuner_service.workers.perform import Worker


def load(database: Database, ledger: Ledger, job_id: str) -> CaseState:
    with database.read() as session:
        return ledger.load(session, cases.case_rows(session, job_id)[0]["id"])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trials each read of trials gave."""
    found: list[int] = []
    real = trial_queries.ledger_rows

    def counted(*arguments: Any, **options: Any) -> Any:
        rows = real(*arguments, **options)
        found.append(len(rows))
        return rows

    monkeypatch.setattr(trial_queries, "ledger_rows", counted)
    return found


@pytest.mark.databases("sqlite", "postgresql")
def test_a_copy_is_at_every_event_what_a_fresh_one_is(
    database: Database, service: Any, tools: Any, submitted: str, reads: list[int]
) -> None:
    tools.code = lambda ordinal: f"{ordinal // 2:064x}"  # two of one code: one shares the other's time
    tools.rejects = {2: Rejected(stage="correctness", reason="wrong", detail={})}
    other, seen = Ledger(), []

    def compare(job_id: str, event: Event) -> None:
        assert load(database, other, job_id) == load(database, Ledger(), job_id)
        seen.append(type(event).__name__)

    # The worker has a memory of its own, as another process would: the advancer's catches up as well.
    service.worker = Worker(database=database, ledger=Ledger(), tools=tools, recorded=compare)
    job = service.finish(submitted)
    assert job["state"] == "succeeded", job["error"]
    assert {"Built", "TrialMeasured", "TrialRejected", "DefaultRetimed", "FinalsMeasured", "Revalidated"} <= set(seen)
    assert load(database, other, submitted) == load(database, Ledger(), submitted)


def test_catching_up_reads_the_trials_that_changed(
    database: Database, service: Any, tools: Any, submitted: str, reads: list[int]
) -> None:
    service.advancer.advance(submitted)
    other = Ledger()
    whole = len(load(database, other, submitted).trials)
    recorded: list[str] = []
    caught: list[int] = []

    def look(job_id: str, event: Event) -> None:
        recorded.append(type(event).__name__)
        reads.clear()
        load(database, other, job_id)
        caught.extend(reads)

    service.worker = Worker(database=database, ledger=Ledger(), tools=tools, recorded=look)
    service.run(next(iter(service.engine.tasks)))
    assert set(recorded) == {"Built"}
    assert sum(caught) == len(recorded) < whole


def test_a_job_that_was_cancelled_is_read_anew(database: Database, service: Any, submitted: str) -> None:
    service.advancer.advance(submitted)
    other = Ledger()
    assert {trial.outcome for trial in load(database, other, submitted).trials} == {"pending", "rejected"}
    end_job(database, submitted, "cancelled")
    after = load(database, other, submitted)
    assert after == load(database, Ledger(), submitted)
    assert {trial.outcome for trial in after.trials} == {"not_run", "rejected"}


@pytest.mark.parametrize("end", ["settled", "cancelled", "failed"])
def test_what_ends_counts_what_processes_of_an_older_version_recorded(
    database: Database, service: Any, submitted: str, end: Literal["settled", "cancelled", "failed"]
) -> None:
    service.advancer.advance(submitted)
    while (task := next(iter(service.engine.tasks.values()))).payload["step"]["step"] != "revalidate":
        service.run(task.key)
        service.advancer.advance(submitted)
    uncounted = dict.fromkeys(cases.COUNTED, 0)
    with database.write() as session:
        cases.update_case(session, cases.case_rows(session, submitted)[0]["id"], uncounted)
    if end == "settled":
        service.finish(submitted)
    else:
        end_job(database, submitted, end)
    progress = service.job(submitted)["progress"]
    assert progress == {"enumerated": 4, "rejected": 1, "measured": 3, "checked": 0, "pending": 0, "not_run": 0}
