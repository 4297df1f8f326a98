"""A resolved request becomes a queued job with its cases, in one transaction. Candidates get their rows later."""

from __future__ import annotations

from search.program.digest import program_digest
from tuner_service.db.clock import new_id, now
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases, devices, idempotency, jobs
from tuner_service.jobs.request import ResolvedRequest


def submit(database: Database, resolved: ResolvedRequest, *, idempotency_key: str | None, body_sha256: str) -> str:
    """Id of the new job, or of the one that the same key and body created before.

    ``body_sha256``: hex digest of the request's bytes. Raises IdempotencyMismatch, DatabaseProblem; nothing is then
    created.
    """
    job_id = new_id("job")
    with database.write() as session:
        known = idempotency.made_before(session, idempotency_key, body_sha256, making=job_id)
        if known is not None:
            return known
        row = {
            "id": job_id,
            "state": "queued",
            "request": dict(resolved.document),
            "device_id": resolved.device.id,
            "device_kind": resolved.device.kind,
            "device": resolved.device.document(),
            "priority": resolved.priority,
            "error": None,
            "created_at": now(),
            "started_at": None,
            "finished_at": None,
        }
        jobs.insert_job(session, row, resolved.labels)
        cases.insert_cases(
            session,
            [
                {
                    "id": new_id("case"),
                    "job_id": job_id,
                    "position": position,
                    "kernel": item.case.kernel,
                    "document": item.case.document(),
                    "program_digest": program_digest(item.case.program, item.case.params),
                    "space": item.space.document(),
                    "inert_knobs": list(item.space.inert_knobs),
                    "enumerated": item.space.size,
                    "opened": False,
                    "revision": 0,
                    "settled": False,
                    "result": None,
                    "failures": {},
                }
                for position, item in enumerate(resolved.cases)
            ],
        )
        jobs.add_job_event(session, job_id, "job", {"state": "queued"})
        devices.remember_device(session, resolved.device.document())
        return job_id
