"""Retention: what goes, what stays whoever asks, and what two processes at once make of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import func, select, text

from search.errors import InvalidInput
from search.events import TrialRejected
from search.outcome import Rejected
from tuner_service.db.engine import Database
from tuner_service.db.models import Base, Trial
from tuner_service.db.queries import jobs as job_queries
from tuner_service.db.queries.counts import jobs_by_state
from tuner_service.db.queries.job_lists import list_jobs
from tuner_service.errors import Conflict, NotFound
from tuner_service.jobs import prune as pruning
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.prune import PruneRequest, prune, read_prune_request
from tuner_service.jobs.record import record
from tuner_service.jobs.submit import submit

NOW = PruneRequest(older_than_seconds=0)
BOTH = pytest.mark.databases("sqlite", "postgresql")


@pytest.fixture
def finished(database: Database, service: Any, resolve: Any, small: dict[str, Any]) -> Callable[..., str]:
    def finished(*, key: str | None = None, **changes: Any) -> str:
        job_id = submit(database, resolve({**small, **changes}), idempotency_key=key, body_sha256="5" * 64)
        assert service.finish(job_id)["state"] == "succeeded"
        return job_id

    return finished


def run(database: Database, request: PruneRequest = NOW, *, for_seconds: float = 60.0) -> dict[str, Any]:
    return prune(database, request, for_seconds=for_seconds)


def rows(database: Database) -> dict[str, int]:
    """Table → rows, those of the queue too, without what is no job's."""
    with database.read() as session:
        found = {
            name: session.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in Base.metadata.tables.items()
        }
        if not database.is_sqlite:
            found["procrastinate_jobs"] = session.execute(text("SELECT count(*) FROM procrastinate_jobs")).scalar_one()
    return {name: number for name, number in found.items() if number and name != "devices"}


def known_jobs(database: Database) -> set[str]:
    with database.read() as session:
        return {job["id"] for job in list_jobs(session)["items"]}


@BOTH
def test_everything_of_a_job_goes_and_a_frozen_one_stays_with_all_that_it_had(
    database: Database, service: Any, finished: Callable[..., str], small: dict[str, Any], resolve: Any
) -> None:
    frozen = finished(labels={"team": "a"})
    digests = freeze_jobs(database, FreezeRequest(jobs=(frozen,)))
    kept_rows = rows(database)
    goes = [finished(key=f"key {n}", labels={"team": "b"}) for n in range(2)]
    if not database.is_sqlite:
        with database.write() as session:
            session.execute(
                text("INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES ('q', 't', :args)"),
                {"args": f'{{"job_id": "{goes[0]}"}}'},
            )
    planned = run(database, PruneRequest(older_than_seconds=0, dry_run=True))
    assert known_jobs(database) == {frozen, *goes}
    done = run(database)
    assert done["complete"]
    assert done["removed"] == planned["removed"] | {"queue_tasks": 0 if database.is_sqlite else 1}
    assert (done["removed"]["jobs"], done["removed"]["idempotency_keys"]) == (2, 2)
    assert rows(database) == kept_rows
    assert known_jobs(database) == {frozen}
    (kept,) = done["kept"]
    assert kept["job_id"] == frozen
    assert set(kept["referred_to_by"]) == {f"catalog {digests[role]['digest']}" for role in ("candidate", "reference")}
    # What was frozen is frozen again to the same bytes: nothing of it is missing.
    again = freeze_jobs(database, FreezeRequest(jobs=(frozen,)))
    assert again["candidate"]["digest"] == digests["candidate"]["digest"]
    # The key is free: the same request makes a new job.
    new = submit(database, resolve({**small, "labels": {"team": "b"}}), idempotency_key="key 0", body_sha256="5" * 64)
    assert new not in goes


def test_only_ended_jobs_of_the_age_states_and_labels_go(
    database: Database, service: Any, finished: Callable[..., str], submitted: str
) -> None:
    red, blue = finished(labels={"colour": "red", "size": "s"}), finished(labels={"colour": "blue", "size": "s"})
    assert run(database, PruneRequest(older_than_seconds=3600))["removed"]["jobs"] == 0
    assert run(database, PruneRequest(older_than_seconds=0, states=("failed",)))["removed"]["jobs"] == 0
    assert run(database, PruneRequest(older_than_seconds=0, labels={"colour": "red", "size": "m"}))["kept_total"] == 0
    assert known_jobs(database) == {red, blue, submitted}
    assert (
        run(database, PruneRequest(older_than_seconds=0, labels={"size": "s", "colour": "red"}))["removed"]["jobs"] == 1
    )
    assert known_jobs(database) == {blue, submitted}
    assert run(database)["removed"]["jobs"] == 1
    assert known_jobs(database) == {submitted}, "a job that has not ended stays, whatever its age"
    assert service.finish(submitted)["state"] == "succeeded", "and goes on"


@BOTH
def test_whoever_is_killed_half_way_is_followed_by_the_next_call(
    database: Database, finished: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = finished()
    monkeypatch.setattr(pruning, "TRIALS_AT_ONCE", 2)
    with database.read() as session:
        trials = session.execute(select(func.count()).select_from(Trial)).scalar_one()
    writes = 0
    whole = database.write

    @contextmanager
    def killed() -> Any:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise KeyboardInterrupt
        with whole() as session:
            yield session

    monkeypatch.setattr(database, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(database)
    monkeypatch.setattr(database, "write", whole)
    assert rows(database)["trials"] == trials - 2
    with database.write() as session:
        assert list_jobs(session)["total"] == 0
        assert jobs_by_state(session) == {}
        assert job_queries.newest_job_ids(session, limit=5) == []
        for read in (job_queries.get_job, job_queries.job_row, job_queries.lock_job):
            with pytest.raises(NotFound):
                read(session, job_id)
    with pytest.raises(InvalidInput, match="no such job"):
        freeze_jobs(database, FreezeRequest(jobs=(job_id,)))
    assert not run(database, PruneRequest(older_than_seconds=10**8), for_seconds=0.0)["complete"], "no time at all"
    rest = run(database, PruneRequest(older_than_seconds=10**8))
    assert (rest["removed"]["jobs"], rest["removed"]["trials"]) == (1, trials - 2)
    assert rows(database) == {}


@BOTH
@pytest.mark.parametrize("first", ["freeze", "prune"])
def test_a_freeze_and_a_prune_at_once_leave_a_whole_job_or_none(
    database: Database, finished: Callable[..., str], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The freeze has read everything and is about to store it when the prune looks: one of them must notice."""
    job_id = finished()
    at_lock, go_on = threading.Event(), threading.Event()
    lock = job_queries.lock_job
    frozen: list[Any] = []
    pruned: list[dict[str, Any]] = []

    def slow(session: Any, wanted: str) -> Any:
        row = lock(session, wanted) if first == "freeze" else None
        at_lock.set()
        go_on.wait(30)
        return row or lock(session, wanted)

    def freeze() -> None:
        try:
            frozen.append(freeze_jobs(database, FreezeRequest(jobs=(job_id,))))
        except Conflict as conflict:
            frozen.append(conflict)

    monkeypatch.setattr(job_queries, "lock_job", slow)
    threads = [threading.Thread(target=freeze), threading.Thread(target=lambda: pruned.append(run(database)))]
    threads[0].start()
    assert at_lock.wait(30)
    threads[1].start()
    if first == "prune" and not database.is_sqlite:  # SQLite's one writer is the freeze already
        threads[1].join()
    go_on.set()
    for thread in threads:
        thread.join()
    if first == "freeze" or database.is_sqlite:
        assert frozen[0]["candidate"]["jobs"] == [job_id]
        assert (pruned[0]["removed"]["jobs"], pruned[0]["kept_total"]) == (0, 1)
        assert known_jobs(database) == {job_id}
    else:
        assert "pruned just now" in str(frozen[0])
        assert pruned[0]["removed"]["jobs"] == 1


def test_a_worker_that_comes_back_after_its_job_was_pruned_changes_nothing(
    database: Database, service: Any, finished: Callable[..., str]
) -> None:
    job_id = finished()
    with database.read() as session:
        trial = session.scalars(select(Trial)).first()
        assert trial is not None
        case_id, trial_id = trial.case_id, trial.id
    run(database)
    event = TrialRejected(trial=trial_id, rejection=Rejected(stage="run", reason="crashed", detail={}))
    assert not record(database, service.ledger, job_id, case_id, event, attempts={trial_id: 1}, device_seconds=1.0)
    assert rows(database) == {}


@pytest.mark.databases("postgresql")
def test_a_job_of_which_a_task_runs_stays_until_it_has_ended(database: Database, finished: Callable[..., str]) -> None:
    job_id = finished()
    with database.write() as session:
        session.execute(
            text(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status) VALUES ('q', 't', :args, 'doing')"
            ),
            {"args": f'{{"job_id": "{job_id}"}}'},
        )
    (kept,) = run(database)["kept"]
    assert (kept["job_id"], kept["reason"]) == (job_id, "a task of it still runs")
    with database.write() as session:
        session.execute(text("DELETE FROM procrastinate_jobs"))
    assert run(database)["removed"]["jobs"] == 1


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["/older_than"]),
        ({"older_than": 30, "states": []}, ["/older_than", "/states"]),
        ({"older_than": "-1d", "states": ["running"], "dry_run": 1}, ["/older_than", "/states", "/dry_run"]),
        ({"older_than": "101y", "labels": []}, ["/older_than", "/labels"]),
        ({"older_than": "36501d", "olderthan": 1}, ["/olderthan", "/older_than"]),
        ({"older_than": "١d"}, ["/older_than"]),
    ],
)
def test_a_bad_request_names_every_fault(body: Any, fields: list[str]) -> None:
    with pytest.raises(InvalidInput) as error:
        read_prune_request(body)
    assert [problem.field for problem in error.value.problems] == fields
    assert all(problem.allowed for problem in error.value.problems)


def test_ages_have_units() -> None:
    ages = {"0s": 0, "90m": 5400, "2h": 7200, "30d": 2_592_000, "52w": 31_449_600}
    for text_, seconds in ages.items():
        assert read_prune_request({"older_than": text_}).older_than_seconds == seconds
