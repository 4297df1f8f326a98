"""Claims: which steps were handed to the engine, and which attempts their results must carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from tuner_service.db.clock import now
from tuner_service.db.models import Claim


def insert_claim(
    session: Session, *, key: str, job_id: str, case_id: str, step: Mapping[str, Any], attempts: Mapping[str, int]
) -> str:
    """Adds a claim; its stamp, which tells it from others of the same key."""
    row = {"key": key, "job_id": job_id, "case_id": case_id, "step": dict(step), "attempts": dict(attempts)}
    stamp = now()
    session.execute(insert(Claim), [{**row, "created_at": stamp}])
    return stamp


def get_claim(session: Session, key: str) -> dict[str, Any] | None:
    """A claim: ``{"key", "job_id", "case_id", "step", "attempts", "created_at"}``."""
    row = session.get(Claim, key, populate_existing=True)
    return None if row is None else _document(row)


def list_claims(session: Session, job_id: str) -> list[dict[str, Any]]:
    """A job's claims, in the order made."""
    query = select(Claim).where(Claim.job_id == job_id).order_by(Claim.created_at, Claim.key)
    return [_document(row) for row in session.scalars(query)]


def in_flight(session: Session, job_id: str) -> list[dict[str, Any]]:
    """What a job's tasks do, or wait to do: ``{"step", "trials"}`` for each kind of step, with how many trials."""
    counts: dict[str, int] = {}
    for (step,) in session.execute(select(Claim.step).where(Claim.job_id == job_id).order_by(Claim.created_at)):
        counts[step["step"]] = counts.get(step["step"], 0) + len(step.get("trials", ()))
    return [{"step": word, "trials": trials} for word, trials in counts.items()]


def delete_claim(session: Session, key: str) -> None:
    """Removes a claim if it is there."""
    session.execute(delete(Claim).where(Claim.key == key))


def delete_claims(session: Session, job_id: str) -> None:
    """Removes every claim of a job."""
    session.execute(delete(Claim).where(Claim.job_id == job_id))


def _document(row: Claim) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in Claim.__table__.columns}
