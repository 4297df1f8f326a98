"""How a job ends: its state, pending trials and claims change in one transaction, before anything is stopped."""

from __future__ import annotations

from typing import Literal

from tuner_service.db.clock import now
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases, claims, jobs, trials
from tuner_service.jobs.ledger import touch
from tuner_service.jobs.states import job_may_move


def end_job(
    database: Database, job_id: str, state: Literal["succeeded", "failed", "cancelled"], *, error: str | None = None
) -> bool:
    """Ends a job; False when it may not go to that state any more. NotFound, DatabaseProblem.

    From then on results of its tasks are refused, and trials that were pending are ``not_run``.
    """
    with database.write() as session:
        if not job_may_move(jobs.job_row(session, job_id)["state"], state):
            return False
        jobs.update_job(session, job_id, {"state": state, "error": error, "finished_at": now()})
        claims.delete_claims(session, job_id)
        if state != "succeeded":
            trials.end_pending(session, job_id, finished_at=now())
            for case in cases.case_rows(session, job_id):
                touch(session, case["id"])
        jobs.add_job_event(session, job_id, "job", {"state": state, "error": error})
    return True
