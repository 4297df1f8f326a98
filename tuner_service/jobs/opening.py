"""Opening a case: every candidate gets its row, in chunks that a crash cannot tear. Rejections by plan are outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from search.errors import InvalidInput
from search.planning.plan import PlannedCandidate, plan_case
from search.program.case import Case
from search.program.digest import program_digest
from search.program.resolve import resolve_case
from search.space.candidate import TargetKind
from search.space.resolve import resolve_space
from tuner_service.db.clock import new_id, now
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases, jobs, trials
from tuner_service.errors import ProgramChanged
from tuner_service.jobs.states import job_has_ended
from tuner_service.metrics import count_rejections

CHUNK_TRIALS = 500
"""Rows per transaction: a large space must not hold the write lock for long."""


def case_of(document: Mapping[str, Any]) -> Case:
    """The Case of a stored case document, whatever the limits and the built-in kernels are now."""
    return resolve_case(document, admitted=True)


def tuned_case(row: Mapping[str, Any]) -> Case:
    """The Case of a row (``document``, ``program_digest``) whose program is still the one that was submitted.

    ProgramChanged where the kernel's name stands for another program now, or for none.
    """
    kernel = row["document"]["kernel"]
    try:
        case = case_of(row["document"])
    except InvalidInput as error:
        raise ProgramChanged(f"the kernel {kernel} is not what it was when the job was submitted: {error}") from None
    now_digest = program_digest(case.program, case.params)
    if now_digest != row["program_digest"]:
        raise ProgramChanged(
            f"the program of {kernel} changed after the job was submitted, from {row['program_digest']} to "
            f"{now_digest}; submit it again"
        )
    return case


def open_case(database: Database, job_id: str, case_id: str, *, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Adds the rows that a case lacks, in canonical order; whether it is open now.

    It is not when the job has ended meanwhile, when another process opens it too, or when it was told to stop: nothing
    is added from then on, and what has no row yet is counted as ``not_run``, or comes with the next call. Idempotent;
    safe to be killed at any moment. Raises DatabaseProblem, ProgramChanged.
    """
    with database.read() as session:
        row = cases.case_row(session, case_id)
        job = jobs.job_row(session, job_id)
        assert row is not None
        done = trials.count_trials(session, case_id)
    if row["opened"]:
        return True
    if job_has_ended(job["state"]):
        return False
    planned = _plan(row, job, first=done)
    for first in itertools.count(done, CHUNK_TRIALS):
        if stopped():
            return False
        chunk = list(itertools.islice(planned, CHUNK_TRIALS))
        with database.write() as session:
            if job_has_ended(jobs.enter_job(session, job_id)):
                return False
            if trials.count_trials(session, case_id) != first:
                return False  # another process opens it too, and is ahead
            trials.insert_trials(
                session, [_row(job_id, case_id, first + place, item) for place, item in enumerate(chunk)]
            )
            cases.count_rejected(session, case_id, sum(item.in_space and item.rejection is not None for item in chunk))
            if len(chunk) < CHUNK_TRIALS:
                cases.update_case(session, case_id, {"opened": True, "revision": row["revision"] + 1})
                jobs.add_job_event(session, job_id, "case", {"case_id": case_id, "event": "opened"})
        count_rejections(item.rejection for item in chunk)
        if len(chunk) < CHUNK_TRIALS:
            return True
    raise AssertionError("unreachable: the last chunk is a short one")


def _plan(row: Mapping[str, Any], job: Mapping[str, Any], *, first: int) -> Iterator[PlannedCandidate]:
    case = tuned_case(row)
    target: TargetKind = job["device"]["target"]
    space = resolve_space(row["space"], case, target, exact=True)
    return plan_case(case, space, budget_scalars=job["request"]["private_budget_scalars"], first=first)


def _row(job_id: str, case_id: str, ordinal: int, planned: PlannedCandidate) -> dict[str, Any]:
    candidate, rejection, plan = planned.candidate, planned.rejection, planned.plan
    outcome = "rejected" if rejection else "pending"
    word = candidate.input
    stamp = now()
    return {
        "id": new_id("trl"),
        "job_id": job_id,
        "case_id": case_id,
        "ordinal": ordinal,
        "digest": candidate.digest,
        "candidate": candidate.document(),
        "width": candidate.width,
        "input": word if isinstance(word, str) else ",".join(f"{tensor}={choice}" for tensor, choice in word),
        "in_space": planned.in_space,
        "is_default": planned.is_default,
        "outcome": outcome,
        "stage": rejection.stage if rejection else None,
        "reason": rejection.reason if rejection else None,
        "detail": dict(rejection.detail) if rejection else None,
        "private_scalars": plan.private_scalars if plan else 0,
        "score": plan.score if plan else None,
        "plan": plan.document() if plan else None,
        "attempt": 1,
        "losses": 0,
        "created_at": stamp,
        "finished_at": None if outcome == "pending" else stamp,
    }
