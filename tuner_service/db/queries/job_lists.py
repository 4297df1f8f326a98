"""Lists of jobs: what a job is about and how far it is, without its cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Integer, cast, func, or_, select
from sqlalchemy.orm import Session

from search.errors import InvalidInput, Problem
from tuner_service.db.case_json import has_ended, progress
from tuner_service.db.models import PRUNING, Case, Job, JobLabel
from tuner_service.db.pages import choice, decode_cursor, encode_cursor
from tuner_service.db.queries.jobs import LIMITS

JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
_DEVICE = ("id", "kind", "name", "identity_digest", "toolchain_fingerprint")
"""What a list says of a job's device."""
_COUNTED = (Case.enumerated, Case.measured, Case.checked, Case.rejected)
_SUMMED = ("cases", "settled", *(column.key for column in _COUNTED))
_COLUMNS = (
    Job.id,
    Job.state,
    Job.priority,
    Job.device_seconds,
    Job.stopped_by,
    Job.error,
    Job.created_at,
    Job.started_at,
    Job.finished_at,
    Job.request["limits"].label("limits"),
    *(Job.device[word].as_string().label(f"device_{word}") for word in _DEVICE),
)


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
    """One page of jobs, newest first: ``{"items", "next", "total"}``; ``jobs.get_job`` has what they leave out.

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
    query = select(*_COLUMNS).where(*filters)
    if cursor is not None:
        query = query.where(Job.id < decode_cursor(cursor, "-id", [str])[0])
    jobs = session.execute(query.order_by(Job.id.desc()).limit(limit + 1)).all()
    following = encode_cursor("-id", [jobs[limit - 1].id]) if len(jobs) > limit else None
    return {"items": _summaries(session, jobs[:limit]), "next": following, "total": total}


def _summaries(session: Session, jobs: Sequence[Any]) -> list[dict[str, Any]]:
    """Jobs as lists show them, with a fixed number of queries."""
    if not jobs:
        return []
    ids = [job.id for job in jobs]
    summed = [func.sum(column).label(column.key) for column in _COUNTED]
    settled = func.sum(cast(Case.settled, Integer)).label("settled")
    by_kernel = (
        select(Case.job_id, Case.kernel, func.count().label("cases"), settled, *summed)
        .where(Case.job_id.in_(ids))
        .group_by(Case.job_id, Case.kernel)
        .order_by(Case.job_id, func.min(Case.position))
    )
    parts: dict[str, list[Any]] = {}
    for row in session.execute(by_kernel):
        parts.setdefault(row.job_id, []).append(row)
    begun = select(Case.job_id, Case.document).where(Case.job_id.in_(ids), Case.position == 0)
    first = {row.job_id: row.document for row in session.execute(begun)}
    labels: dict[str, dict[str, str]] = {}
    for label in session.scalars(select(JobLabel).where(JobLabel.job_id.in_(ids)).order_by(JobLabel.name)):
        labels.setdefault(label.job_id, {})[label.name] = label.value
    return [_summary(job, parts[job.id], first[job.id], labels.get(job.id, {})) for job in jobs]


def _summary(job: Any, parts: Sequence[Any], first: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """A job as lists show it. ``parts``: what its cases count, by kernel."""
    counts = {word: sum(getattr(part, word) for part in parts) for word in _SUMMED}
    return {
        "id": job.id,
        "state": job.state,
        "kernels": [part.kernel for part in parts],
        "case_count": counts["cases"],
        "settled_count": counts["settled"],
        "first_case": {part: first[part] for part in ("kernel", "params", "dims", "dtypes")},
        "device": {word: getattr(job, f"device_{word}") for word in _DEVICE},
        "labels": dict(labels),
        "priority": job.priority,
        "limits": {word: (job.limits or {}).get(word) for word in LIMITS},
        "device_seconds": job.device_seconds,
        "stopped_by": job.stopped_by,
        "progress": progress(**{column.key: counts[column.key] for column in _COUNTED}, ended=has_ended(job.state)),
        "error": job.error,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }
