"""How a job ends: state, trials, cases, claims and feed change in one transaction, and never again after it."""

from __future__ import annotations

from typing import Literal

from sqlalchemy.orm import Session

from search.documents import record_document
from search.events import CaseSettled
from tuner_service.db.clock import now
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases, claims, jobs, trials
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
            _settle_rest(session, job_id, _UNSETTLED[state])
        jobs.add_job_event(session, job_id, "job", {"state": state, "error": error})
    return True


def _settle_rest(session: Session, job_id: str, reason: str) -> None:
    """Gives every case without a result the one that it ends with."""
    result = CaseSettled(
        winner=None,
        reference=None,
        tie_set=(),
        reference_tie_set=(),
        noise_floor=None,
        regret=None,
        predicted=None,
        error=reason,
    )
    for case in cases.case_rows(session, job_id):
        if case["settled"]:
            continue
        document = record_document(result)
        # The new revision makes every copy of the case's state in memory stale.
        values = {"settled": True, "result": document, "revision": case["revision"] + 1}
        cases.update_case(session, case["id"], values)
        about = {"case_id": case["id"], "event": "case_settled", "winner": None, "reference": None, "error": reason}
        jobs.add_job_event(session, job_id, "case", about)
