"""Jobs: rows in and out, the JSON of a job, its feed of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from tuner_service.db.case_json import CASE_COLUMNS, EVENT_COLUMNS, RETIMES, SHOWN_EVENTS, case_document
from tuner_service.db.clock import now
from tuner_service.db.json_text import parsed
from tuner_service.db.models import PRUNING, Case, CaseEvent, Job, JobEvent, JobLabel
from tuner_service.db.queries.trials import best_trial_ids, default_trial_ids, trial_documents
from tuner_service.errors import NotFound

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


def job_state(session: Session, job_id: str) -> str:
    """The state of a job, and nothing else of it. NotFound."""
    state = session.scalar(select(Job.state).where(Job.id == job_id, Job.state != PRUNING))
    if state is None:
        raise NotFound("job", job_id)
    return state


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


def enter_job(session: Session, job_id: str, *, device_seconds: float = 0.0) -> str:
    """Locks a job as :func:`lock_job` does; its state is all that is read. NotFound.

    ``device_seconds``: for how long a task of the job held its device; it is counted.
    """
    there = (Job.id == job_id, Job.state != PRUNING)
    if device_seconds:
        used = update(Job).where(*there).values(device_seconds=Job.device_seconds + device_seconds)
        state = session.execute(used.returning(Job.state)).scalar_one_or_none()
    else:
        query = select(Job.state).where(*there).with_for_update(key_share=True)
        state = session.execute(query).scalar_one_or_none()
    if state is None:
        raise NotFound("job", job_id)
    return state


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


def get_job(session: Session, job_id: str, *, retimes: bool = False) -> dict[str, Any]:
    """The JSON of a job, every record parsed. NotFound."""
    document: dict[str, Any] = parsed(job_document(session, job_id, retimes=retimes))
    return document


def job_document(session: Session, job_id: str, *, retimes: bool = False) -> dict[str, Any]:
    """The JSON of a job with its progress and its cases, whose records are JsonText. NotFound.

    ``retimes``: also how the default of each case was timed again and again. There are as many as searches are long.
    """
    job = session.get(Job, job_id)
    if job is None or job.state == PRUNING:
        raise NotFound("job", job_id)
    cases = _case_documents(session, job, retimes=retimes)
    return {
        "id": job.id,
        "state": job.state,
        "request": job.request,
        "device": job.device,
        "priority": job.priority,
        "limits": {word: job.request.get("limits", {}).get(word) for word in LIMITS},
        "device_seconds": job.device_seconds,
        "stopped_by": job.stopped_by,
        "progress": {word: sum(case["progress"][word] for case in cases) for word in PROGRESS},
        "cases": cases,
        "error": job.error,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }


def job_case_document(session: Session, job_id: str, case_index: int) -> dict[str, Any]:
    """The JSON of one case of a job, complete; its records are JsonText. NotFound."""
    job = session.get(Job, job_id)
    if job is None or job.state == PRUNING:
        raise NotFound("job", job_id)
    found = _case_documents(session, job, retimes=True, case_index=case_index)
    if not found:
        raise NotFound("case", f"{job_id}/{case_index}")
    return {"job_id": job_id, **found[0]}


def _case_documents(
    session: Session, job: Job, *, retimes: bool, case_index: int | None = None
) -> list[dict[str, Any]]:
    """The cases of a job, or one of them, with a fixed number of queries."""
    query = select(*CASE_COLUMNS).where(Case.job_id == job.id).order_by(Case.position)
    if case_index is not None:
        query = query.where(Case.position == case_index)
    cases = session.execute(query).all()
    case_ids = [case.id for case in cases]
    best, defaults = best_trial_ids(session, case_ids), default_trial_ids(session, [job.id])
    defaults = {case_id: defaults[case_id] for case_id in case_ids if case_id in defaults}
    kinds = (*SHOWN_EVENTS, RETIMES) if retimes else SHOWN_EVENTS
    told = select(*EVENT_COLUMNS).where(CaseEvent.case_id.in_(case_ids), CaseEvent.kind.in_(kinds))
    events: dict[str, list[Any]] = {}
    for event in session.execute(told.order_by(CaseEvent.id)):
        events.setdefault(event.case_id, []).append(event)
    chosen = [c.result[role] for c in cases if c.result for role in ("winner", "reference") if c.result[role]]
    trials = trial_documents(session, [*chosen, *best.values(), *defaults.values()])
    return [
        case_document(
            case,
            job_state=job.state,
            events=events.get(case.id, []),
            trials=trials,
            best_id=best.get(case.id),
            default_id=defaults.get(case.id),
            retimes=retimes,
        )
        for case in cases
    ]


def add_job_event(session: Session, job_id: str, kind: str, document: Mapping[str, Any]) -> int:
    """Appends to a job's feed; the event's sequence number."""
    return add_job_events(session, job_id, [(kind, document)])


def add_job_events(session: Session, job_id: str, events: Sequence[tuple[str, Mapping[str, Any]]]) -> int:
    """Appends several, kind and document each, in their order; the last one's sequence number."""
    stamp = now()
    rows = [{"job_id": job_id, "kind": kind, "document": dict(told), "created_at": stamp} for kind, told in events]
    inserted = insert(JobEvent).returning(JobEvent.sequence, sort_by_parameter_order=True)
    return list(session.scalars(inserted, rows))[-1]


def last_sequence(session: Session, job_id: str) -> int:
    """The number of the last event of a job's feed; 0 for none."""
    return session.execute(select(func.max(JobEvent.sequence)).where(JobEvent.job_id == job_id)).scalar_one() or 0


def news(session: Session, job_id: str, *, after: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Number and document of the events that a job's feed has after a number."""
    query = select(JobEvent.sequence, JobEvent.document).where(JobEvent.job_id == job_id, JobEvent.sequence > after)
    return [(row.sequence, row.document) for row in session.execute(query.order_by(JobEvent.sequence).limit(limit))]


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
