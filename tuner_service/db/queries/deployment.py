"""Facts of a deployment: recorded once, changed on purpose."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from tuner_service.db.leadership import LOCK_NUMBER
from tuner_service.db.models_deployment import DeploymentFact
from tuner_service.db.queries.workers import database_now
from tuner_service.db.upsert import insert

COPIES_REST = "copies_rest_seconds"
"""Name of a fact: copies of artifacts that no machine used for so long are to go, as of when it was recorded."""
_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND (application_name LIKE 'tuner%' OR application_name = current_setting('application_name'))
"""
"""The URL, or PGAPPNAME, may name the sessions of a deployment otherwise: then ours has the same name."""


def facts(session: Session) -> dict[str, dict[str, Any]]:
    """Every fact by name: ``{"name", "value", "recorded_at", "recorded_by"}``."""
    rows = session.scalars(select(DeploymentFact).order_by(DeploymentFact.name))
    columns = [column.key for column in DeploymentFact.__table__.columns]
    return {row.name: {column: getattr(row, column) for column in columns} for row in rows}


def record_fact(session: Session, name: str, value: str, *, by: str, replace: bool = False) -> None:
    """Records a fact; one that is there stays, unless it is to be replaced."""
    row = {"value": value, "recorded_at": database_now(session), "recorded_by": by[:320]}
    new = insert(session, DeploymentFact).values(name=name, **row)
    known = [DeploymentFact.name]
    session.execute(
        new.on_conflict_do_update(index_elements=known, set_=row)
        if replace
        else new.on_conflict_do_nothing(index_elements=known)
    )


def other_processes(session: Session) -> int:
    """Sessions that other processes of ours have in this database, at least one where one leads. PostgreSQL only.

    None leads before the transaction ends.
    """
    found = int(session.scalar(text(_SESSIONS)) or 0)
    free = session.scalar(text("SELECT pg_try_advisory_xact_lock(:number)"), {"number": LOCK_NUMBER})
    return found if free else max(1, found)
