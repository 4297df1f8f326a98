"""Retention: which jobs have ended long ago, what refers to them, and their removal piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, delete, func, select, text, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from tuner_service.db.models import (
    PRUNING,
    Base,
    Case,
    CaseEvent,
    Claim,
    IdempotencyKey,
    Job,
    JobEvent,
    JobLabel,
    Trial,
)
from tuner_service.db.models_catalogs import Acceptance, AcceptanceRecord, AliasState, Catalog

COUNTED = ("jobs", "cases", "trials", "events", "idempotency_keys", "queue_tasks")
_RUNS = text("SELECT count(*) FROM procrastinate_jobs WHERE args->>'job_id' = :job_id AND status = 'doing'")
_TASKS = text("DELETE FROM procrastinate_jobs WHERE args->>'job_id' = :job_id AND status <> 'doing'")


@dataclass(frozen=True, kw_only=True)
class References:
    """What is frozen, and the jobs that it refers to. Catalogs are never deleted: their number dates this."""

    catalogs: int
    by_job: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Job → in words, what refers to it: never empty."""


def references(session: Session) -> References:
    """Every job that a catalog was frozen from, with the aliases and acceptances that name those catalogs.

    An acceptance replays catalogs, and an alias names them: neither refers to a job that no catalog has.
    """
    rows = session.execute(select(Catalog.digest, Catalog.jobs)).all()
    named: dict[str, list[str]] = {}
    for alias, entries in session.execute(select(AliasState.alias, AliasState.entries).order_by(AliasState.alias)):
        for entry in entries:
            for digest in filter(None, (entry["digest"], entry.get("reference"))):
                _add(named, digest, f"alias {alias}")
    replays = select(Acceptance.id, Acceptance.catalog, Acceptance.reference, Acceptance.incumbent)
    for acceptance_id, *digests in session.execute(replays.order_by(Acceptance.id)):
        for digest in filter(None, digests):
            _add(named, digest, f"acceptance {acceptance_id}")
    by_job: dict[str, list[str]] = {}
    for digest, jobs in sorted((row.digest, row.jobs) for row in rows):
        for job_id in jobs:
            for word in (f"catalog {digest}", *named.get(digest, ())):
                _add(by_job, job_id, word)
    return References(catalogs=len(rows), by_job={job_id: tuple(words) for job_id, words in by_job.items()})


def count_catalogs(session: Session) -> int:
    """How many catalogs there are: another number than that of References says that those are old."""
    return int(session.execute(select(func.count()).select_from(Catalog)).scalar_one())


def old_job_ids(
    session: Session, state: str, *, before: str, labels: Mapping[str, str], after: str = "", limit: int = 100
) -> list[str]:
    """Jobs in a state that ended before a stamp and have all these labels, in the order of their ids, ``after`` one."""
    query = select(Job.id).where(Job.state == state, Job.finished_at < before, Job.id > after)
    for name, value in labels.items():
        same = select(JobLabel.job_id).where(JobLabel.job_id == Job.id, JobLabel.name == name, JobLabel.value == value)
        query = query.where(same.exists())
    return list(session.scalars(query.order_by(Job.id).limit(limit)))


def half_pruned_job_ids(session: Session) -> list[str]:
    """Jobs whose removal was begun and not ended."""
    return list(session.scalars(select(Job.id).where(Job.state == PRUNING).order_by(Job.id)))


def lock_for_removal(session: Session, job_id: str) -> str | None:
    """The state of a job that nobody else works on until this transaction ends; None when it is gone."""
    return session.scalars(select(Job.state).where(Job.id == job_id).with_for_update()).first()


def tasks_run(session: Session, job_id: str) -> bool:
    """Whether a worker has a task of this job, by the queue in the database."""
    if session.get_bind().dialect.name == "sqlite":
        return False
    return bool(session.execute(_RUNS, {"job_id": job_id}).scalar_one())


def count_rows(session: Session, job_ids: Sequence[str]) -> dict[str, int]:
    """What the removal of these jobs would remove: the words of COUNTED but tasks."""
    if not job_ids:
        return {}
    case_ids = select(Case.id).where(Case.job_id.in_(job_ids))
    return {
        "jobs": len(job_ids),
        "cases": _count(session, Case, Case.job_id.in_(job_ids)),
        "trials": _count(session, Trial, Trial.job_id.in_(job_ids)),
        "events": _count(session, JobEvent, JobEvent.job_id.in_(job_ids))
        + _count(session, CaseEvent, CaseEvent.case_id.in_(case_ids)),
        "idempotency_keys": _count(session, IdempotencyKey, IdempotencyKey.made_id.in_(job_ids)),
    }


def remove_some(session: Session, job_id: str, *, limit: int) -> tuple[dict[str, int], bool]:
    """Removes at most about ``limit`` trials and as many events of a job: how many rows went, and whether the job is
    gone with them. What is left is a job that no list shows, and another call goes on."""
    gone = dict.fromkeys(COUNTED, 0)
    case_ids = select(Case.id).where(Case.job_id == job_id)
    gone["trials"] = _delete_some(session, Trial.id, Trial.job_id == job_id, limit)
    gone["events"] = _delete_some(session, JobEvent.sequence, JobEvent.job_id == job_id, limit)
    gone["events"] += _delete_some(session, CaseEvent.id, CaseEvent.case_id.in_(case_ids), limit)
    if gone["trials"] == limit or gone["events"] >= limit:
        session.execute(update(Job).where(Job.id == job_id).values(state=PRUNING))
        return gone, False
    if session.get_bind().dialect.name != "sqlite":
        gone["queue_tasks"] = _rows(session.execute(_TASKS, {"job_id": job_id}))
    gone["idempotency_keys"] = _rows(session.execute(delete(IdempotencyKey).where(IdempotencyKey.made_id == job_id)))
    session.execute(delete(Claim).where(Claim.job_id == job_id))
    gone["cases"] = _rows(session.execute(delete(Case).where(Case.job_id == job_id)))
    session.execute(delete(JobLabel).where(JobLabel.job_id == job_id))
    gone["jobs"] = _rows(session.execute(delete(Job).where(Job.id == job_id)))
    return gone, True


def _delete_some(session: Session, key: InstrumentedAttribute[Any], where: ColumnElement[bool], limit: int) -> int:
    some = select(key).where(where).limit(limit)
    return _rows(session.execute(delete(key.class_).where(key.in_(some))))


def _count(session: Session, table: type[Base], where: ColumnElement[bool]) -> int:
    return int(session.execute(select(func.count()).select_from(table).where(where)).scalar_one())


def _rows(result: Any) -> int:
    return int(result.rowcount)


def _add(words: dict[str, list[str]], key: str, word: str) -> None:
    known = words.setdefault(key, [])
    if word not in known:
        known.append(word)


def artifacts_of_trials(session: Session, *, after: str, limit: int) -> list[tuple[str, str, str]]:
    """Of the next so many trials, in the order of their ids, ``after`` one: id, ``source_sha256``, artifact as text."""
    query = select(Trial.id, Trial.source_sha256, cast(Trial.artifact, Text)).where(Trial.id > after)
    return [(row[0], row[1] or "", row[2] or "") for row in session.execute(query.order_by(Trial.id).limit(limit))]


def texts_with_artifacts(session: Session) -> Iterator[str]:
    """Every other text that may name an artifact: events, claims, catalogs, acceptances with their records."""
    for column in (
        CaseEvent.document,
        Claim.step,
        Catalog.body,
        AcceptanceRecord.document,
        Acceptance.replay,
        Acceptance.step,
        Acceptance.result,
        Acceptance.evidence,
    ):
        texts = select(cast(column, Text)).execution_options(yield_per=100)
        yield from (text_ for text_ in session.scalars(texts) if text_)
