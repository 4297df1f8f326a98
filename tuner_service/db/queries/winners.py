"""What winners are looked up by: the key of every settled case in columns, and one case as entries are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner_service.db.models import Case, Job, JobEvent
from tuner_service.db.queries.cases import case_events
from tuner_service.db.queries.trials import get_trials

_SUCCEEDED = Job.state == "succeeded"


def succeeded_jobs_mark(session: Session) -> tuple[int, int]:
    """Equal marks: the same jobs have succeeded. Their number, and that of the newest event of any job.

    A job that succeeds has an event of its own; one that is pruned is one less.
    """
    count = session.execute(select(func.count()).select_from(Job).where(_SUCCEEDED)).scalar_one()
    newest = session.execute(select(func.max(JobEvent.sequence))).scalar_one()
    return int(count), int(newest or 0)


def succeeded_job_ids(session: Session) -> list[str]:
    """Ids of all jobs that have succeeded."""
    return list(session.scalars(select(Job.id).where(_SUCCEEDED)))


def winner_keys(session: Session, job_ids: Sequence[str]) -> list[dict[str, Any]]:
    """The cases of these jobs that have a winner: ``case_id, job_id, position, case`` (document),
    ``program_digest``, ``device`` (identity digest), ``toolchain`` (fingerprint), ``cache_context`` (None: warm)."""
    query = (
        select(
            Case.id.label("case_id"),
            Case.job_id,
            Case.position,
            Case.document.label("case"),
            Case.program_digest,
            Job.device["identity_digest"].as_string().label("device"),
            Job.device["toolchain_fingerprint"].as_string().label("toolchain"),
            Job.request["cache_context"].as_string().label("cache_context"),
        )
        .join(Job, Job.id == Case.job_id)
        .where(
            Case.job_id.in_(job_ids),
            Case.settled,
            _SUCCEEDED,
            Case.result["winner"].as_string().is_not(None),
            Case.program_digest.is_not(None),
        )
    )
    return [dict(row._mapping) for row in session.execute(query)]


def settled_case(session: Session, case_id: str) -> dict[str, Any]:
    """A case with a winner, as ``search.selection.freeze.entry_of`` reads it. KeyError when there is no such case.

    ``job_id, case, program_digest, device`` (DeviceSpec document), ``protocol, cache_context``, ``winner, reference``
    (trial documents), ``tie_set, reference_tie_set``, ``events`` (event documents).
    """
    query = select(Case, Job).join(Job, Job.id == Case.job_id).where(Case.id == case_id, _SUCCEEDED)
    row = session.execute(query).first()
    if row is None or not row.Case.result:
        raise KeyError(case_id)
    result = row.Case.result
    trials = get_trials(session, [result[role] for role in ("winner", "reference") if result[role]])
    return {
        "job_id": row.Job.id,
        "case": row.Case.document,
        "program_digest": row.Case.program_digest,
        "device": row.Job.device,
        "protocol": row.Job.request["protocol"],
        "cache_context": row.Job.request.get("cache_context", "warm"),
        "winner": trials[result["winner"]],
        "reference": trials.get(result["reference"] or ""),
        "tie_set": result["tie_set"],
        "reference_tie_set": result["reference_tie_set"],
        "events": case_events(session, [case_id]).get(case_id, []),
    }
