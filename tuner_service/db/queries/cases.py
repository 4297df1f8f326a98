"""Cases: rows in and out, and what was recorded about a case as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from tuner_service.db.clock import now
from tuner_service.db.models import Case, CaseEvent, Trial

COUNTED = ("measured", "checked", "rejected")
"""Outcomes that a case counts, over the candidates of its space; what else there is follows from ``enumerated``."""


def insert_cases(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds the cases of a job."""
    session.execute(insert(Case), [dict(row) for row in rows])


def case_row(session: Session, case_id: str) -> dict[str, Any] | None:
    """Every column of one case."""
    case = session.get(Case, case_id, populate_existing=True)
    return None if case is None else _columns(case)


def case_revision(session: Session, case_id: str) -> tuple[str, int] | None:
    """A case's job, and the revision of its ledger."""
    row = session.execute(select(Case.job_id, Case.revision).where(Case.id == case_id)).first()
    return None if row is None else (row.job_id, row.revision)


def case_rows(session: Session, job_id: str) -> list[dict[str, Any]]:
    """Every column of a job's cases, in the order of the request."""
    return [
        _columns(case) for case in session.scalars(select(Case).where(Case.job_id == job_id).order_by(Case.position))
    ]


def update_case(session: Session, case_id: str, values: Mapping[str, Any]) -> None:
    """Changes columns of one case."""
    session.execute(update(Case).where(Case.id == case_id).values(**values))


def count_rejected(session: Session, case_id: str, number: int) -> None:
    """Counts so many more candidates as rejected."""
    session.execute(update(Case).where(Case.id == case_id).values(rejected=Case.rejected + number))


def recount(session: Session, case_id: str) -> None:
    """Counts a case's outcomes anew, from its trials."""
    mine = select(func.count()).select_from(Trial).where(Trial.case_id == case_id, Trial.in_space)
    counts = {outcome: mine.where(Trial.outcome == outcome).scalar_subquery() for outcome in COUNTED}
    update_case(session, case_id, counts)


def add_case_event(session: Session, case_id: str, kind: str, name: str, document: Mapping[str, Any]) -> bool:
    """Stores an event document once; False when the case has one of that kind and name already."""
    same = select(CaseEvent.id).where(CaseEvent.case_id == case_id, CaseEvent.kind == kind, CaseEvent.name == name)
    if session.execute(same).first() is not None:
        return False
    row = CaseEvent(case_id=case_id, kind=kind, name=name, document=dict(document), created_at=now())
    session.add(row)
    session.flush()
    return True


def case_events(
    session: Session, case_ids: Sequence[str], *, kinds: Sequence[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Case id → its event documents, in the order recorded; of these kinds alone, if any are named."""
    query = select(CaseEvent.case_id, CaseEvent.document).where(CaseEvent.case_id.in_(case_ids))
    if kinds is not None:
        query = query.where(CaseEvent.kind.in_(kinds))
    events: dict[str, list[dict[str, Any]]] = {}
    for case_id, document in session.execute(query.order_by(CaseEvent.id)):
        events.setdefault(case_id, []).append(document)
    return events


def sent_programs(session: Session, kernel: str) -> list[dict[str, Any]]:
    """The program documents that cases of that name came with, the newest first, equal ones once."""
    query = select(Case.document).where(Case.kernel == kernel).order_by(Case.id.desc())
    found: dict[str, dict[str, Any]] = {}
    for document in session.scalars(query):
        if "program" in document:
            found.setdefault(json.dumps(document["program"], sort_keys=True), document["program"])
    return list(found.values())


def _columns(case: Case) -> dict[str, Any]:
    return {column.key: getattr(case, column.key) for column in Case.__table__.columns}
