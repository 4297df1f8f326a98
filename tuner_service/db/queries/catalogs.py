"""Catalogs and aliases: rows in and out, and the settled cases that catalogs are frozen from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select, text
from sqlalchemy.orm import Session

from tuner_service.db import upsert
from tuner_service.db.clock import now
from tuner_service.db.models import Case, Job
from tuner_service.db.models_catalogs import AliasState, Catalog
from tuner_service.db.pages import decode_cursor, encode_cursor
from tuner_service.db.queries.cases import case_events
from tuner_service.db.queries.trials import default_trial_ids, get_trials
from tuner_service.errors import NotFound

HISTORY_STATES = 50
"""A manifest shows so many earlier states."""


def settled_job_cases(session: Session, job_id: str) -> list[dict[str, Any]]:
    """Every case of a job as freezing reads it, in the order of the request, those without a winner too.

    Each: ``job_id, case_id, case_index, case, program_digest, device, protocol, cache_context``, ``winner, reference,
    default`` (trial documents or None), ``tie_set, reference_tie_set, events, error, space, inert_knobs, enumerated``.
    """
    job = session.get(Job, job_id, populate_existing=True)
    if job is None:
        raise NotFound("job", job_id)
    cases = list(session.scalars(select(Case).where(Case.job_id == job_id).order_by(Case.position)))
    defaults = default_trial_ids(session, [job_id])
    chosen = [case.result[role] for case in cases if case.result for role in ("winner", "reference")]
    trials = get_trials(session, [trial for trial in (*chosen, *defaults.values()) if trial])
    events = case_events(session, [case.id for case in cases])
    found = []
    for case in cases:
        result: Mapping[str, Any] = case.result or {}
        found.append(
            {
                "job_id": job.id,
                "case_id": case.id,
                "case_index": case.position,
                "case": case.document,
                "program_digest": case.program_digest,
                "device": job.device,
                "protocol": job.request["protocol"],
                "cache_context": job.request.get("cache_context", "warm"),
                "winner": trials.get(result.get("winner") or ""),
                "reference": trials.get(result.get("reference") or ""),
                "default": trials.get(defaults.get(case.id, "")),
                "tie_set": result.get("tie_set", []),
                "reference_tie_set": result.get("reference_tie_set", []),
                "events": events.get(case.id, []),
                "error": result.get("error"),
                "untimed": result.get("untimed"),
                "space": case.space,
                "inert_knobs": case.inert_knobs,
                "enumerated": case.enumerated,
            }
        )
    return found


def insert_catalog(session: Session, row: Mapping[str, Any]) -> None:
    """Adds a catalog unless its digest is there: freezing again changes nothing, by whomever."""
    statement = upsert.insert(session, Catalog).values({**row, "created_at": now()})
    session.execute(statement.on_conflict_do_nothing(index_elements=[Catalog.digest]))


def catalog_row(session: Session, digest: str) -> dict[str, Any]:
    """Every column of a catalog. NotFound."""
    row = session.scalars(select(Catalog).where(Catalog.digest == digest)).first()
    if row is None:
        raise NotFound("catalog", digest)
    return {column.key: getattr(row, column.key) for column in Catalog.__table__.columns}


def catalog_summary(session: Session, digest: str) -> dict[str, Any]:
    """A catalog without its entries. NotFound."""
    row = session.scalars(select(Catalog).where(Catalog.digest == digest)).first()
    if row is None:
        raise NotFound("catalog", digest)
    return _summary(row)


def list_catalogs(
    session: Session, *, role: str | None = None, cursor: str | None = None, limit: int = 50
) -> dict[str, Any]:
    """One page of catalogs, newest first: ``{"items", "next", "total"}``. InvalidInput for a foreign cursor."""
    filters = [Catalog.role == role] if role is not None else []
    total = session.execute(select(func.count()).select_from(Catalog).where(*filters)).scalar_one()
    query = select(Catalog).where(*filters)
    if cursor is not None:
        query = query.where(Catalog.sequence < decode_cursor(cursor, "-catalog", [int])[0])
    rows = list(session.scalars(query.order_by(Catalog.sequence.desc()).limit(limit + 1)))
    following = encode_cursor("-catalog", [rows[limit - 1].sequence]) if len(rows) > limit else None
    return {"items": [_summary(row) for row in rows[:limit]], "next": following, "total": total}


def _summary(row: Catalog) -> dict[str, Any]:
    return {
        "digest": row.digest,
        "role": row.role,
        "reference": row.other if row.role == "candidate" else None,
        "candidate": row.other if row.role == "reference" else None,
        "device": row.device,
        "device_kind": row.device_kind,
        "toolchain": row.toolchain,
        "kernels": row.kernels,
        "entries": row.entries,
        "jobs": row.jobs,
        "labels": row.labels,
        "created_at": row.created_at,
    }


def lock_aliases(session: Session) -> None:
    """Nobody else moves an alias until this transaction ends; who reads one does not wait.

    A row to lock is not enough: a state is added after the newest, and the first one after none.
    """
    if session.get_bind().dialect.name != "sqlite":  # a writer there has the database to itself
        session.execute(text(f"LOCK TABLE {AliasState.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))


def alias_state(session: Session, alias: str) -> dict[str, Any] | None:
    """The newest state of an alias: every column; None when nothing was ever promoted."""
    query = select(AliasState).where(AliasState.alias == alias).order_by(AliasState.sequence.desc()).limit(1)
    row = session.scalars(query).first()
    return None if row is None else _state(row)


def alias_state_at(session: Session, sequence: int) -> dict[str, Any]:
    """A state by its number. NotFound."""
    row = session.get(AliasState, sequence)
    if row is None:
        raise NotFound("alias state", str(sequence))
    return _state(row)


def alias_history(session: Session, alias: str) -> list[dict[str, Any]]:
    """The states before the newest one, newest first, as a manifest shows them."""
    query = select(AliasState).where(AliasState.alias == alias).order_by(AliasState.sequence.desc())
    return [
        {
            "promoted_at": row.promoted_at,
            "action": row.action,
            "acceptance": row.acceptance_id,
            "entries": row.entries,
        }
        for row in session.scalars(query.offset(1).limit(HISTORY_STATES))
    ]


def alias_names(session: Session) -> list[str]:
    """Every alias, in order."""
    return list(session.scalars(select(AliasState.alias).distinct().order_by(AliasState.alias)))


def insert_alias_state(session: Session, row: Mapping[str, Any]) -> None:
    """Adds a state; it is the newest from then on."""
    session.execute(insert(AliasState), [{**row, "promoted_at": now()}])


def bodies(session: Session, digests: Iterable[str]) -> dict[str, str]:
    """Digest → canonical JSON of those catalogs that exist."""
    wanted: Sequence[str] = sorted(set(digests))
    query = select(Catalog.digest, Catalog.body).where(Catalog.digest.in_(wanted))
    return {row.digest: row.body for row in session.execute(query)} if wanted else {}


def _state(row: AliasState) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in AliasState.__table__.columns}
