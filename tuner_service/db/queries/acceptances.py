"""Acceptances and their records: rows in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.orm import Session, defer

from search.errors import InvalidInput, Problem
from tuner_service.db.clock import now
from tuner_service.db.models_catalogs import Acceptance, AcceptanceRecord
from tuner_service.db.pages import choice, decode_cursor, encode_cursor
from tuner_service.errors import NotFound

STATES = ("queued", "running", "succeeded", "failed", "cancelled")
BUILD_CASE, BUILD_ARM = -1, "build"
"""Where a round's builds stand among its records."""


def insert_acceptance(session: Session, row: Mapping[str, Any]) -> None:
    """Adds an acceptance."""
    session.execute(insert(Acceptance), [dict(row)])


def acceptance_row(session: Session, acceptance_id: str, *, lock: bool = False) -> dict[str, Any]:
    """Every column of an acceptance but the evidence. NotFound. ``lock``: see :func:`lock_acceptance`."""
    query = select(Acceptance).where(Acceptance.id == acceptance_id).options(defer(Acceptance.evidence))
    if lock:
        query = query.with_for_update(key_share=True)
    row = session.scalars(query.execution_options(populate_existing=True)).first()
    if row is None:
        raise NotFound("acceptance", acceptance_id)
    return _columns(row)


def lock_acceptance(session: Session, acceptance_id: str) -> dict[str, Any]:
    """Every column but the evidence of an acceptance that nobody else works on until this transaction ends. NotFound.

    Every transaction that writes about an acceptance begins with it, as with ``jobs.lock_job``.
    """
    return acceptance_row(session, acceptance_id, lock=True)


def evidence(session: Session, acceptance_id: str) -> tuple[str, str] | None:
    """The evidence bundle's text and sha256; None while there is none. NotFound."""
    query = select(Acceptance.evidence, Acceptance.evidence_sha256).where(Acceptance.id == acceptance_id)
    row = session.execute(query).first()
    if row is None:
        raise NotFound("acceptance", acceptance_id)
    return None if row.evidence is None else (row.evidence, row.evidence_sha256)


def update_acceptance(session: Session, acceptance_id: str, values: Mapping[str, Any]) -> None:
    """Changes columns of one acceptance."""
    session.execute(update(Acceptance).where(Acceptance.id == acceptance_id).values(**values))


def active_acceptance_ids(session: Session) -> list[str]:
    """Acceptances that have not ended, oldest first."""
    query = select(Acceptance.id).where(Acceptance.state.in_(("queued", "running"))).order_by(Acceptance.id)
    return list(session.scalars(query))


def accepted(session: Session, digest: str) -> list[dict[str, Any]]:
    """Accepted acceptances of a catalog, newest first: ``{"id", "incumbent", "alias"}``."""
    query = (
        select(Acceptance.id, Acceptance.incumbent, Acceptance.alias)
        .where(Acceptance.catalog == digest, Acceptance.state == "succeeded", Acceptance.verdict == "accepted")
        .order_by(Acceptance.id.desc())
    )
    return [dict(row._mapping) for row in session.execute(query)]


def list_acceptances(
    session: Session,
    *,
    catalog: str | None = None,
    state: str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """One page of acceptances' rows, newest first: ``{"items", "next", "total"}``. InvalidInput."""
    problems = choice("/state", state, STATES)
    if limit < 1:
        problems.append(Problem(field="/limit", value=limit, message="at least 1 is needed", allowed=">= 1"))
    if problems:
        raise InvalidInput(problems)
    filters: list[ColumnElement[bool]] = []
    if catalog is not None:
        filters.append(Acceptance.catalog == catalog)
    if state is not None:
        filters.append(Acceptance.state == state)
    total = session.execute(select(func.count()).select_from(Acceptance).where(*filters)).scalar_one()
    query = select(Acceptance).where(*filters).options(defer(Acceptance.evidence))
    if cursor is not None:
        query = query.where(Acceptance.id < decode_cursor(cursor, "-id", [str])[0])
    rows = list(session.scalars(query.order_by(Acceptance.id.desc()).limit(limit + 1)))
    following = encode_cursor("-id", [rows[limit - 1].id]) if len(rows) > limit else None
    return {"items": [_columns(row) for row in rows[:limit]], "next": following, "total": total}


def insert_record(
    session: Session, acceptance_id: str, *, number: int, case_index: int, arm: str, attempt: int, document: Any
) -> bool:
    """Stores a record once; False when this attempt has it already."""
    same = select(AcceptanceRecord.sequence).where(
        AcceptanceRecord.acceptance_id == acceptance_id,
        AcceptanceRecord.round == number,
        AcceptanceRecord.case_index == case_index,
        AcceptanceRecord.arm == arm,
        AcceptanceRecord.attempt == attempt,
    )
    if session.execute(same).first() is not None:
        return False
    row = {
        "acceptance_id": acceptance_id,
        "round": number,
        "case_index": case_index,
        "arm": arm,
        "attempt": attempt,
        "document": document,
        "created_at": now(),
    }
    session.execute(insert(AcceptanceRecord), [row])
    return True


def records(session: Session, acceptance_id: str) -> list[dict[str, Any]]:
    """Every record of an acceptance, superseded attempts included, in the order recorded: all columns."""
    query = (
        select(AcceptanceRecord)
        .where(AcceptanceRecord.acceptance_id == acceptance_id)
        .order_by(AcceptanceRecord.sequence)
    )
    return [
        {column.key: getattr(row, column.key) for column in AcceptanceRecord.__table__.columns}
        for row in session.scalars(query)
    ]


def count_records(session: Session, acceptance_ids: list[str]) -> dict[str, int]:
    """Acceptance id → timed arms recorded, each round, case and arm once."""
    once = (
        select(
            AcceptanceRecord.acceptance_id, AcceptanceRecord.round, AcceptanceRecord.case_index, AcceptanceRecord.arm
        )
        .where(AcceptanceRecord.acceptance_id.in_(acceptance_ids), AcceptanceRecord.case_index != BUILD_CASE)
        .distinct()
        .subquery()
    )
    query = select(once.c.acceptance_id, func.count().label("number")).group_by(once.c.acceptance_id)
    return {row.acceptance_id: row.number for row in session.execute(query)}


def _columns(row: Acceptance) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in Acceptance.__table__.columns if column.key != "evidence"}
