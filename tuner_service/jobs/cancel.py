"""Cancel: the ledger first, then queued work is withdrawn and running children are killed."""

from __future__ import annotations

from tuner_service.db.engine import Database
from tuner_service.engine.contract import Engine
from tuner_service.jobs.ending import end_job


def cancel(database: Database, engine: Engine, job_id: str) -> bool:
    """Cancels a job; False when it has ended already, which is no error. NotFound, DatabaseProblem."""
    cancelled = end_job(database, job_id, "cancelled")
    engine.cancel(job_id)
    return cancelled
