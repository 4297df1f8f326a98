"""Jobs: rows in and out, the JSON of a job, its feed of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, insert, or_, select, update
from sqlalchemy.orm import Session

from search.errors import InvalidInput, Problem
from tuner_service.db.case_json import SHOWN_EVENTS, case_document
from tuner_service.db.clock import now
from tuner_service.db.models import PRUNING, Case, Job, JobEvent, JobLabel
from tuner_service.db.pages import choice, decode_cursor, encode_cursor
from tuner_service.db.queries.cases import case_events
from tuner_service.db.queries.trials import best_trial_ids, count_by_outcome, default_trial_ids, get_trials
from tuner_service.errors import NotFound

JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
LIMITS = ("device_seconds", "wall_seconds")
"""What a job can be limited in: the time that its tasks hold the device, and the time since it began."""
PROGRESS = ("enumerated", "rejected", "measured", "checked", "pending", "not_run")


def insert_job(session: Session, row: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Adds a job and its labels."""
    session.execute(insert(Job), [dict(row)])
    if labels:
        rows = [{"job_id": row["id"], "name": name, "value": value} for name, value in labels.items()]
        session.execute(insert(JobLabel), rows)


def job_row(session: Session, job_id: str) -> dict[str, Any]:
    """Every column of one job. NotFound."""
    job = session.get(Job, job_id, populate_existing=True)
    if job is None or job.state == PRUNING:
        raise NotFound("job", job_id)
    return {column.key: getattr(job, column.key) for column in Job.__table__.columns}


def lock_job(session: Session, job_id: str) -> dict[str, Any]:
    """Every column of one job that nobody else works on until this transaction ends. NotFound.

    Every transaction that writes about a job begins with it: what it then reads stays as it is, and events of a job
    become visible in the order of their numbers.
    """
    query = select(Job).where(Job.id == job_id).with_for_update(key_share=True)
    job = session.scalars(query.execution_options(populate_existing=True)).first()
    if job is None or job.state == PRUNING:
        raise NotFound("job", job_id)
    return {column.key: getattr(job, column.key) for column in Job.__table__.columns}


def update_job(session: Session, job_id: str, values: Mapping[str, Any]) -> None:
    """Changes columns of one job."""
    session.execute(update(Job).where(Job.id == job_id).values(**values))


def use_device(session: Session, job_id: str, seconds: float) -> None:
    """Counts time for which a task of the job held its device."""
    session.execute(update(Job).where(Job.id == job_id).values(device_seconds=Job.device_seconds + seconds))


def active_job_ids(session: Session) -> list[str]:
    """Jobs that have not ended, oldest first."""
    return list(session.scalars(select(Job.id).where(Job.state.in_(("queued", "running"))).order_by(Job.id)))


def newest_job_ids(session: Session, *states: str, limit: int) -> list[str]:
    """The newest jobs, newest first; with states, only jobs in one of them."""
    query = select(Job.id).where(Job.state.in_(states) if states else Job.state != PRUNING)
    return list(session.scalars(query.order_by(Job.id.desc()).limit(limit)))


def get_job(session: Session, job_id: str) -> dict[str, Any]:
    """The JSON of a job, with its progress and its cases. NotFound."""
    job = session.get(Job, job_id)
    if job is None or job.state == PRUNING:
        raise NotFound("job", job_id)
    return _documents(session, [job])[0]


def list_jobs(
    session: Session,
    *,
    state: str | None = None,
    kernel: str | None = None,
    device: str | None = None,
    label: str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """One page of jobs, newest first: ``{"items", "next", "total"}``.

    ``device`` is a kind or an id; ``label`` is ``name`` or ``name=value``. InvalidInput for unknown words and
    foreign cursors.
    """
    problems = choice("/state", state, JOB_STATES)
    if limit < 1:
        problems.append(Problem(field="/limit", value=limit, message="at least 1 is needed", allowed=">= 1"))
    if problems:
        raise InvalidInput(problems)
    filters: list[ColumnElement[bool]] = [Job.state == state if state is not None else Job.state != PRUNING]
    if device is not None:
        filters.append(or_(Job.device_kind == device, Job.device_id == device))
    if kernel is not None:
        filters.append(select(Case.id).where(Case.job_id == Job.id, Case.kernel == kernel).exists())
    if label is not None:
        name, has_value, value = label.partition("=")
        labelled = select(JobLabel.job_id).where(JobLabel.job_id == Job.id, JobLabel.name == name)
        filters.append((labelled.where(JobLabel.value == value) if has_value else labelled).exists())
    total = session.execute(select(func.count()).select_from(Job).where(*filters)).scalar_one()
    query = select(Job).where(*filters)
    if cursor is not None:
        query = query.where(Job.id < decode_cursor(cursor, "-id", [str])[0])
    jobs = list(session.scalars(query.order_by(Job.id.desc()).limit(limit + 1)))
    following = encode_cursor("-id", [jobs[limit - 1].id]) if len(jobs) > limit else None
    return {"items": _documents(session, jobs[:limit]), "next": following, "total": total}


def add_job_event(session: Session, job_id: str, kind: str, document: Mapping[str, Any]) -> None:
    """Appends to a job's feed."""
    session.execute(
        insert(JobEvent), [{"job_id": job_id, "kind": kind, "document": dict(document), "created_at": now()}]
    )


def list_job_events(session: Session, job_id: str, *, after: int = 0, limit: int = 500) -> list[dict[str, Any]]:
    """Events of a job's feed after a sequence number: ``{"sequence", "kind", "data", "created_at"}``."""
    query = (
        select(JobEvent)
        .where(JobEvent.job_id == job_id, JobEvent.sequence > after)
        .order_by(JobEvent.sequence)
        .limit(limit)
    )
    return [
        {"sequence": row.sequence, "kind": row.kind, "data": row.document, "created_at": row.created_at}
        for row in session.scalars(query)
    ]


def _documents(session: Session, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The JSON of several jobs with a fixed number of queries."""
    if not jobs:
        return []
    ids = [job.id for job in jobs]
    cases = list(session.scalars(select(Case).where(Case.job_id.in_(ids)).order_by(Case.job_id, Case.position)))
    counts = count_by_outcome(session, ids)
    best, defaults = best_trial_ids(session, ids), default_trial_ids(session, ids)
    events = case_events(session, [case.id for case in cases], kinds=SHOWN_EVENTS)
    chosen = [c.result[role] for c in cases if c.result for role in ("winner", "reference") if c.result[role]]
    trials = get_trials(session, [*chosen, *best.values(), *defaults.values()])
    documents = []
    for job in jobs:
        of_job = [
            case_document(
                case,
                job_state=job.state,
                counts=counts.get(case.id, {}),
                events=events.get(case.id, []),
                trials=trials,
                best_id=best.get(case.id),
                default_id=defaults.get(case.id),
            )
            for case in cases
            if case.job_id == job.id
        ]
        documents.append(
            {
                "id": job.id,
                "state": job.state,
                "request": job.request,
                "device": job.device,
                "priority": job.priority,
                "limits": {word: job.request.get("limits", {}).get(word) for word in LIMITS},
                "device_seconds": job.device_seconds,
                "stopped_by": job.stopped_by,
                "progress": {word: sum(case["progress"][word] for case in of_job) for word in PROGRESS},
                "cases": of_job,
                "error": job.error,
                "created_at": job.created_at,
                "started_at": job.started_at,
                "finished_at": job.finished_at,
            }
        )
    return documents
