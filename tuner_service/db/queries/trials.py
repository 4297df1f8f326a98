"""Trials: rows in and out, as the JSON of a trial, and as what the ledger reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, func, insert, literal_column, select, update
from sqlalchemy.orm import Session

from search.errors import InvalidInput, Problem
from search.outcome import STAGES
from tuner_service.db.json_text import parsed
from tuner_service.db.models import Case, Trial
from tuner_service.db.pages import choice, decode_cursor, encode_cursor, following
from tuner_service.db.queries.twins import merged_reloads
from tuner_service.db.trial_json import TRIAL_COLUMNS, trial_document
from tuner_service.errors import NotFound

OUTCOMES = ("pending", "measured", "checked", "rejected", "not_run")
SORTS: dict[str, tuple[Any, tuple[type, ...]]] = {
    "ordinal": (None, ()),
    "median_seconds": (Trial.median_seconds, (float, int, type(None))),
    "private_scalars": (Trial.private_scalars, (int,)),
    "width": (Trial.width, (int,)),
    "score": (Trial.score, (float, int, type(None))),
    "registers": (Trial.registers, (int, type(None))),
    "spill_bytes": (Trial.spill_bytes, (int, type(None))),
    "finished_at": (Trial.finished_at, (str, type(None))),
}
"""Sort word → its column and the types of its values in a cursor. Ties, and ``ordinal``: canonical order."""


def trial_documents(session: Session, trial_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Those trials that exist, by id; their records are JsonText.

    Their cases are few, and read apart: they are long, and every trial would carry one.
    """
    wanted = sorted(set(trial_ids))
    found = session.execute(select(*TRIAL_COLUMNS).where(Trial.id.in_(wanted))).all() if wanted else []
    if not found:
        return {}
    of_cases = select(Case.id, Case.position, cast(Case.document, Text).label("document"))
    case_ids = sorted({trial.case_id for trial in found})
    cases = {case.id: case for case in session.execute(of_cases.where(Case.id.in_(case_ids)))}
    merged = merged_reloads(session, found)
    return {trial.id: trial_document(trial, cases[trial.case_id], merged.get(trial.id)) for trial in found}


def get_trial(session: Session, trial_id: str) -> dict[str, Any]:
    """One trial. NotFound."""
    found = get_trials(session, [trial_id])
    if not found:
        raise NotFound("trial", trial_id)
    return found[trial_id]


def get_trials(session: Session, trial_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Those trials that exist, by id."""
    found: dict[str, dict[str, Any]] = parsed(trial_documents(session, trial_ids))
    return found


def list_trials(session: Session, job_id: str, **query: Any) -> dict[str, Any]:
    """:func:`trial_page` with every record parsed."""
    page: dict[str, Any] = parsed(trial_page(session, job_id, **query))
    return page


def trial_page(
    session: Session,
    job_id: str,
    *,
    outcome: str | None = None,
    stage: str | None = None,
    reason: str | None = None,
    kernel: str | None = None,
    case_index: int | None = None,
    width: int | None = None,
    input: str | None = None,  # noqa: A002 - the filter has the knob's name
    is_default: bool | None = None,
    in_space: bool | None = None,
    max_registers: int | None = None,
    spills: bool | None = None,
    sort: str = "ordinal",
    cursor: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """One page of a job's trials: ``{"items", "next", "total"}``; ``-`` before a sort word descends, nulls are last.
    The items' records are JsonText.

    ``max_registers`` and ``spills`` are about the machine code: trials without code, and of targets whose code names no
    registers, match neither.

    InvalidInput for unknown words and foreign cursors.
    """
    problems = choice("/outcome", outcome, OUTCOMES) + choice("/stage", stage, STAGES)
    problems += choice("/sort", sort.removeprefix("-"), SORTS)
    if limit < 1:
        problems.append(Problem(field="/limit", value=limit, message="at least 1 is needed", allowed=">= 1"))
    if problems:
        raise InvalidInput(problems)
    filters: list[ColumnElement[bool]] = [Trial.job_id == job_id]
    unindexed = {
        Trial.stage: stage,
        Trial.reason: reason,
        Case.kernel: kernel,
        Case.position: case_index,
        Trial.width: width,
        Trial.input: input,
    }
    equals = {**unindexed, Trial.outcome: outcome, Trial.is_default: is_default, Trial.in_space: in_space}
    filters += [column == value for column, value in equals.items() if value is not None]
    if max_registers is not None:
        filters.append(Trial.registers <= max_registers)
    if spills is not None:
        filters.append(Trial.spill_bytes > 0 if spills else Trial.spill_bytes == 0)
    counted = select(func.count()).select_from(Trial).where(*filters)
    if kernel is not None or case_index is not None:
        counted = counted.join(Case, and_(Case.id == Trial.case_id, Case.job_id == job_id))
    word, descending = sort.removeprefix("-"), sort.startswith("-")
    column, types = SORTS[word]
    ranks: list[tuple[Any, bool]] = [(of, descending and column is None) for of in (Case.position, Trial.ordinal)]
    if column is not None:
        ranks.insert(0, (column, descending))
    # First which ones, out of an index alone: whole records are long, and a job may have many thousands.
    key = [of.label(f"key_{number}") for number, (of, _) in enumerate(ranks)]
    query: Any = select(Trial.id, *key).join(Case, and_(Case.id == Trial.case_id, Case.job_id == job_id))
    query = query.where(*filters)
    # Where neither counting nor sorting has an index of its own, they share one reading of what matches.
    shared = column is not None and any(value is not None for value in (*unindexed.values(), max_registers, spills))
    if shared:
        matching = query.cte("matching")
        ranks = [(matching.c[label.name], down) for label, (_, down) in zip(key, ranks, strict=True)]
        query = select(matching, select(func.count()).select_from(matching).scalar_subquery().label("total"))
    key_types: list[Any] = [int, int] if column is None else [types, int, int]
    if cursor is not None:
        query = query.where(following(ranks, decode_cursor(cursor, sort, key_types)))
    order: list[ColumnElement[Any]] = [of.desc() if down else of.asc() for of, down in ranks]
    if column is not None:
        order.insert(0, ranks[0][0].is_(None))
    found = session.execute(query.order_by(*order).limit(limit + 1)).all()
    total = found[0].total if shared and found else session.execute(counted).scalar_one()
    shown = found[:limit]
    records = trial_documents(session, [row.id for row in shown])
    following_page = encode_cursor(sort, list(shown[-1])[1 : 1 + len(key)]) if len(found) > limit else None
    return {"items": [records[row.id] for row in shown], "next": following_page, "total": total}


def trial_source_sha(session: Session, trial_id: str) -> str | None:
    """sha256 of the trial's source in the artifact store; None when it was never built. NotFound."""
    row = session.execute(select(Trial.id, Trial.source_sha256).where(Trial.id == trial_id)).first()
    if row is None:
        raise NotFound("trial", trial_id)
    return row.source_sha256 and str(row.source_sha256)


def best_trial_ids(session: Session, case_ids: Sequence[str]) -> dict[str, str]:
    """Case id → its in-space trial with the smallest in-search median so far."""
    best = (
        select(Trial.id)
        .where(Trial.case_id == Case.id, Trial.outcome == "measured", Trial.in_space)
        .order_by(Trial.median_seconds, Trial.ordinal)
        .limit(1)
        .correlate(Case)
        .scalar_subquery()
    )
    query = select(Case.id, best.label("trial_id")).where(Case.id.in_(case_ids))
    return {row.id: row.trial_id for row in session.execute(query) if row.trial_id is not None}


def default_trial_ids(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    """Case id → its untuned default."""
    query = select(Trial.case_id, Trial.id).where(Trial.job_id.in_(job_ids), literal_column("trials.is_default"))
    # The condition in these words, and this order, have SQLite use the index of defaults: it has counted nothing.
    query = query.order_by(Trial.job_id, Trial.case_id, Trial.id)
    return {row.case_id: row.id for row in session.execute(query)}


LEDGER_COLUMNS = (
    Trial.id,
    Trial.ordinal,
    Trial.candidate,
    Trial.in_space,
    Trial.is_default,
    Trial.outcome,
    Trial.stage,
    Trial.reason,
    Trial.detail,
    Trial.private_scalars,
    Trial.score,
    Trial.plan,
    Trial.artifact,
    Trial.code,
    Trial.build,
    Trial.checks,
    Trial.timing,
    Trial.overlapped,
    Trial.same_code_as,
)


def ledger_rows(session: Session, case_id: str, *, only: Iterable[str] | None = None) -> list[Mapping[str, Any]]:
    """A case's trials in canonical order, with what the ledger reads; ``only`` those of these ids."""
    query = select(*LEDGER_COLUMNS).where(Trial.case_id == case_id).order_by(Trial.ordinal)
    if only is not None:
        query = query.where(Trial.id.in_(sorted(only)))
    return [row._mapping for row in session.execute(query)]  # type: ignore[misc]


def insert_trials(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Adds rows; the unique keys refuse a candidate that the case has already."""
    if rows:
        session.execute(insert(Trial), [dict(row) for row in rows])


def update_trials(session: Session, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Changes columns of trials: trial id → column → value."""
    if values:
        session.execute(update(Trial), [{"id": trial_id, **columns} for trial_id, columns in values.items()])


def count_trials(session: Session, case_id: str) -> int:
    """How many rows a case has."""
    return session.execute(select(func.count()).select_from(Trial).where(Trial.case_id == case_id)).scalar_one()


def attempts(session: Session, trial_ids: Iterable[str]) -> dict[str, int]:
    """Trial id → its current attempt."""
    query = select(Trial.id, Trial.attempt).where(Trial.id.in_(sorted(trial_ids)))
    return {row.id: row.attempt for row in session.execute(query)}


def losses(session: Session, case_id: str) -> dict[str, int]:
    """Pending trials of a case that lost a task on our side → how often."""
    query = select(Trial.id, Trial.losses).where(Trial.case_id == case_id, Trial.outcome == "pending", Trial.losses > 0)
    return {row.id: row.losses for row in session.execute(query)}


def new_attempt(session: Session, trial_ids: Iterable[str], *, lost: bool) -> None:
    """Refuses late results of pending trials from now on; ``lost`` counts a loss too."""
    pending = update(Trial).where(Trial.id.in_(sorted(trial_ids)), Trial.outcome == "pending")
    session.execute(pending.values(attempt=Trial.attempt + 1, losses=Trial.losses + (1 if lost else 0)))


def end_pending(session: Session, job_id: str, *, finished_at: str, reason: str | None = None) -> None:
    """Every pending trial of a job becomes ``not_run``."""
    pending = update(Trial).where(Trial.job_id == job_id, Trial.outcome == "pending")
    ended = {"outcome": "not_run", "reason": reason, "finished_at": finished_at}
    session.execute(pending.values(attempt=Trial.attempt + 1, **ended))
