"""How a job ends: state, trials, cases, claims and feed change in one transaction, and never again after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from sqlalchemy.orm import Session

from search.documents import record_document
from search.events import CaseSettled
from search.steps import cut_short
from tuner_service.db.clock import now
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases, claims, jobs, trials
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.states import job_may_move

_UNSETTLED = {
    "cancelled": "the job was cancelled before a winner was selected",
    "failed": "the job failed before a winner was selected",
}


def end_job(
    database: Database, job_id: str, state: Literal["succeeded", "failed", "cancelled"], *, error: str | None = None
) -> bool:
    """Ends a job; False when it may not go to that state any more. NotFound, DatabaseProblem.

    Trials that were pending are ``not_run``, cases without a result get one that names no winner, and candidates that
    have no rows yet get none: they count as ``not_run``. From then on everything else that writes is refused.
    """
    with database.write() as session:
        if not job_may_move(jobs.lock_job(session, job_id)["state"], state):
            return False
        jobs.update_job(session, job_id, {"state": state, "error": error, "finished_at": now()})
        claims.delete_claims(session, job_id)
        if state != "succeeded":
            trials.end_pending(session, job_id, finished_at=now())
            result = CaseSettled(
                winner=None,
                reference=None,
                tie_set=(),
                reference_tie_set=(),
                noise_floor=None,
                regret=None,
                predicted=None,
                error=_UNSETTLED[state],
            )
            _settle_rest(session, job_id, lambda case: result)
        jobs.add_job_event(session, job_id, "job", {"state": state, "error": error})
    return True


def end_at_limit(database: Database, ledger: Ledger, job_id: str, limit: str) -> bool:
    """Ends a running job that has reached a limit; False when it does not run, or something of it does.

    It has succeeded in what it was given the time for: pending trials are ``not_run`` with the limit as their reason,
    and cases without a result say by which limit, and where, their search was cut short. DatabaseProblem.
    """
    with database.write() as session:
        job = jobs.lock_job(session, job_id)
        if job["state"] != "running" or claims.list_claims(session, job_id):
            return False
        why = f"the job's limit of {job['request']['limits'][limit]:g} {limit} was reached"
        jobs.update_job(session, job_id, {"state": "succeeded", "stopped_by": limit, "finished_at": now()})

        def result(case: Mapping[str, Any]) -> CaseSettled:
            return cut_short(ledger.load(session, case["id"]), case["enumerated"], why)

        _settle_rest(session, job_id, result)
        trials.end_pending(session, job_id, finished_at=now(), reason=limit)
        jobs.add_job_event(session, job_id, "job", {"state": "succeeded", "error": None, "stopped_by": limit})
    return True


def _settle_rest(session: Session, job_id: str, result_of: Callable[[Mapping[str, Any]], CaseSettled]) -> None:
    """Gives every case without a result the one that it ends with."""
    for case in cases.case_rows(session, job_id):
        if case["settled"]:
            continue
        result = result_of(case)
        # The new revision makes every copy of the case's state in memory stale.
        values = {"settled": True, "result": record_document(result), "revision": case["revision"] + 1}
        cases.update_case(session, case["id"], values)
        cases.recount(session, case["id"])  # processes of a version that did not count may have worked on it
        about = {"case_id": case["id"], "event": "case_settled", "winner": None, "reference": None}
        jobs.add_job_event(session, job_id, "case", about | {"error": result.error})
