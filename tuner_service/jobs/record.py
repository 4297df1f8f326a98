"""The only place that writes results: once each, never for a claim that is void, never over what stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Stores an event in one transaction; False when it changes nothing or may not. See :func:`record_all`."""
    about = (database, ledger, job_id, case_id, (event,))
    return bool(record_all(*about, attempts=attempts, worker=worker, device_seconds=device_seconds))


def record_all(
    database: Database,
    ledger: Ledger,
    job_id: str,
    case_id: str,
    events: Sequence[Event],
    *,
    attempts: Mapping[str, int],
    worker: str | None = None,
    device_seconds: float = 0.0,
) -> list[Event]:
    """Stores events in one transaction; those that changed something and might.

    ``device_seconds``: for how long the task held the device since it last said so; it counts in any case.

    ``attempts``: trial id → the attempt that the claim was given. An event about one trial is refused when that
    trial's attempt has moved on (the claim was void), and every event once the job is not running any more. Events
    about the case as a whole need no fence: the first one stands. Raises DatabaseProblem; nothing is then stored.
    """
    with database.write() as session:
        try:
            state = jobs.enter_job(session, job_id, device_seconds=device_seconds)
        except NotFound:
            return []  # its worker was away for so long that the job ended and was pruned
        if state != "running":
            return []
        changes = ledger.changes(session, case_id, _standing(session, events, attempts), worker=worker)
        if not changes:
            return []
        seen = announce(session, job_id, *changes)
    ledger.keep(changes[-1], seen=seen)
    return [change.event for change in changes]


def settle(database: Database, ledger: Ledger, job_id: str, case_id: str, result: CaseSettled) -> bool:
    """Stores a case's result; False when it has one, or when its job does not run (any more)."""
    with database.write() as session:
        if jobs.enter_job(session, job_id) != "running":
            return False
        change = ledger.change(session, case_id, result, worker=None)
        if change is None:
            return False
        seen = announce(session, job_id, change)
    ledger.keep(change, seen=seen)
    return True


def announce(session: Session, job_id: str, *changes: Change) -> int:
    """Appends changes to the job's feed; the last number that they got. Ledgers elsewhere catch up by what it says."""
    told: list[tuple[str, dict[str, Any]]] = []
    for change in changes:
        about: dict[str, Any] = {"case_id": change.case_id, "event": change.kind}
        told += [("trial", about | _trial_news(trial)) for trial in change.trials]
        settled = change.entry.state.settled
        if settled is not None:
            about |= {"winner": settled.winner, "reference": settled.reference, "error": settled.error}
        if settled is not None or not change.trials:
            told.append(("case", about))
    return jobs.add_job_events(session, job_id, told)


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


def _standing(session: Session, events: Sequence[Event], attempts: Mapping[str, int]) -> list[Event]:
    """The events but those that come from a claim on their trial that is void by now."""
    fenced = Built | TrialMeasured | TrialChecked | TrialRejected
    claimed = {event.trial for event in events if isinstance(event, fenced) and event.trial in attempts}
    current = trials.attempts(session, claimed) if claimed else {}
    standing: list[Event] = []
    for event in events:
        if isinstance(event, fenced) and event.trial in attempts:
            stands = current.get(event.trial) == attempts[event.trial]
        else:
            # A re-timing may find the default broken without a claim on it; else no claim tells of other trials.
            stands = not isinstance(event, fenced) or (isinstance(event, TrialRejected) and event.after_measured)
        if stands:
            standing.append(event)
    return standing
