"""The only place that writes results: once each, never for a claim that is void, never over what stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from search.events import Built, CaseSettled, Event, TrialChecked, TrialMeasured, TrialRejected
from search.ledger import TrialState
from tuner_service.db.engine import Database
from tuner_service.db.queries import jobs, trials
from tuner_service.errors import NotFound
from tuner_service.jobs.ledger import Change, Ledger


def record(
    database: Database,
    ledger: Ledger,
    job_id: str,
    case_id: str,
    event: Event,
    *,
    attempts: Mapping[str, int],
    worker: str | None = None,
    device_seconds: float = 0.0,
) -> bool:
    """Stores an event in one transaction; False when it changes nothing or may not.

    ``device_seconds``: for how long the task held the device since it last said so; it counts in any case.

    ``attempts``: trial id → the attempt that the claim was given. An event about one trial is refused when that
    trial's attempt has moved on (the claim was void), and every event once the job is not running any more. Events
    about the case as a whole need no fence: the first one stands. Raises DatabaseProblem; nothing is then stored.
    """
    with database.write() as session:
        try:
            job = jobs.lock_job(session, job_id)
        except NotFound:
            return False  # its worker was away for so long that the job ended and was pruned
        if device_seconds:
            jobs.use_device(session, job_id, device_seconds)
        if job["state"] != "running" or _is_stale(session, event, attempts):
            return False
        change = ledger.change(session, case_id, event, worker=worker)
        if change is None:
            return False
        seen = announce(session, job_id, change)
    ledger.keep(change, seen=seen)
    return True


def settle(database: Database, ledger: Ledger, job_id: str, case_id: str, result: CaseSettled) -> bool:
    """Stores a case's result; False when it has one, or when its job does not run (any more)."""
    with database.write() as session:
        if jobs.lock_job(session, job_id)["state"] != "running":
            return False
        change = ledger.change(session, case_id, result, worker=None)
        if change is None:
            return False
        seen = announce(session, job_id, change)
    ledger.keep(change, seen=seen)
    return True


def announce(session: Session, job_id: str, change: Change) -> int:
    """Appends a change to the job's feed; the last number that it got. Ledgers elsewhere catch up by what it says."""
    seen = 0
    about: dict[str, Any] = {"case_id": change.case_id, "event": change.kind}
    for trial in change.trials:
        seen = jobs.add_job_event(session, job_id, "trial", about | _trial_news(trial))
    settled = change.entry.state.settled
    if settled is not None:
        about |= {"winner": settled.winner, "reference": settled.reference, "error": settled.error}
    if settled is not None or not change.trials:
        seen = jobs.add_job_event(session, job_id, "case", about)
    return seen


def _trial_news(trial: TrialState) -> dict[str, Any]:
    batch, rejection = trial.timing.get("device_batch"), trial.rejection
    return {
        "trial_id": trial.id,
        "ordinal": trial.ordinal,
        "in_space": trial.in_space,
        "outcome": trial.outcome,
        "stage": rejection.stage if rejection else None,
        "reason": rejection.reason if rejection else None,
        "median_seconds": batch.median_seconds if batch else None,
    }


def _is_stale(session: Session, event: Event, attempts: Mapping[str, int]) -> bool:
    """Whether the event comes from a claim on its trial that is void by now."""
    if not isinstance(event, Built | TrialMeasured | TrialChecked | TrialRejected):
        return False
    if event.trial not in attempts:
        # A re-timing may find the default broken without a claim on it; anything else about it is not this claim's.
        return not (isinstance(event, TrialRejected) and event.after_measured)
    return trials.attempts(session, [event.trial]).get(event.trial) != attempts[event.trial]
