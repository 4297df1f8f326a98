"""After a start: which jobs go on. The claims of the process that is gone are void, and nobody is charged for it.

Nothing else is needed. Claims whose tasks do not exist are voided by the next ``advance``; children of the dead
process were killed with it (PDEATHSIG), and one that is still dying holds the device lock, for which the measuring
side waits. A service that was killed is not a candidate's doing: candidate code runs in children only.
"""

from __future__ import annotations

from tuner_service.db.engine import Database
from tuner_service.db.queries import jobs
from tuner_service.jobs.claiming import standing_claims


def recover(database: Database) -> list[str]:
    """Voids every claim; answers the jobs that still need something, oldest first. Call before any task runs."""
    with database.read() as session:
        unfinished = jobs.active_job_ids(session)
    for job_id in unfinished:
        standing_claims(database, job_id, alive=())
    return unfinished
