"""Claims: a step is handed to the engine, comes back, or is lost. Losses on our side are counted per trial.

A trial whose task was lost is tried again alone, so that it cannot drag others along; lost twice it is rejected
``lost_worker``, provided that other trials of the case came through the same kind of step: where nothing ever works
the fault is ours, and the job's. A clean stop, a cancel and the death of the whole service count for nothing:
candidate code never runs in the service, so it cannot have been the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from search.events import TrialRejected
from search.ledger import CaseState
from search.outcome import Rejected
from search.steps import Build, Check, Measure, ShareCode, Step, conflicts, step_document, step_from_document, step_key
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases, claims, jobs, trials
from tuner_service.jobs.ledger import Change, Ledger
from tuner_service.jobs.record import announce

_SPLIT = Build | Measure | Check
"""Steps whose trials can be worked on one by one."""
MAXIMUM_LOSSES = 2
"""A trial that loses its task so often is rejected."""
MAXIMUM_FAILURES = 3
"""A step about the case as a whole that comes to nothing so often fails its job."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A step that was handed out."""

    key: str
    case_id: str
    step: Step
    attempts: Mapping[str, int]
    claimed_at: str
    """Tells it from earlier and later claims of the same key: whoever ends a task ends no other's claim."""


def claim(database: Database, job_id: str, case_id: str, step: Step) -> Claim | None:
    """Claims a step's trials; None when the job is not running any more, or another process has claimed the step."""
    key = f"{case_id}/{step_key(step)}"
    with database.write() as session:
        if jobs.enter_job(session, job_id) != "running" or claims.get_claim(session, key) is not None:
            return None
        attempts = trials.attempts(session, conflicts(step))
        claimed_at = claims.insert_claim(
            session, key=key, job_id=job_id, case_id=case_id, step=step_document(step), attempts=attempts
        )
    return Claim(key=key, case_id=case_id, step=step, attempts=attempts, claimed_at=claimed_at)


def standing_claims(database: Database, job_id: str, alive: Iterable[str]) -> list[Claim]:
    """The job's claims whose tasks exist; the others are void: their trials get a new attempt, charged to no one.

    ``alive`` must have been read before this call, by the one thread that submits.
    """
    keys = set(alive)
    with database.read() as session:
        rows = claims.list_claims(session, job_id)
    lost = [row for row in rows if row["key"] not in keys]
    if lost:
        with database.write() as session:
            jobs.enter_job(session, job_id)
            there = claims.list_claims(session, job_id)
            for row in (row for row in lost if row in there):
                trials.new_attempt(session, conflicts(step_from_document(row["step"])), lost=False)
                claims.delete_claim(session, row["key"])
    return [
        Claim(
            key=row["key"],
            case_id=row["case_id"],
            step=step_from_document(row["step"]),
            attempts=row["attempts"],
            claimed_at=row["created_at"],
        )
        for row in rows
        if row["key"] in keys
    ]


def release(
    database: Database,
    ledger: Ledger,
    key: str,
    *,
    fault: str | None,
    stopped: bool = False,
    claimed_at: str | None = None,
    device_seconds: float = 0.0,
) -> bool:
    """A task is over: its claim goes, and what it left undone is counted. Idempotent; False when all went well.

    ``fault``: what went wrong on our side, None when the task ended by itself; ``stopped``: it was told to stop,
    which is nobody's fault. ``claimed_at``: of the claim that the task was given; one that was made since stays.
    ``device_seconds``: for how long it held the device since it last said so.
    """
    change: Change | None = None
    seen = 0
    went_well = True
    with database.write() as session:
        row = claims.get_claim(session, key)
        if row is not None:
            jobs.enter_job(session, row["job_id"])
            row = claims.get_claim(session, key)
        if row is None or claimed_at not in (None, row["created_at"]):
            return True
        if device_seconds:
            jobs.use_device(session, row["job_id"], device_seconds)
        claims.delete_claim(session, key)
        step = step_from_document(row["step"])
        state = ledger.load(session, row["case_id"])
        undone = _undone(step, state)
        message = fault or "the task ended without a result"
        if stopped:
            trials.new_attempt(session, undone, lost=False)
        elif undone and (fault is not None or not isinstance(step, ShareCode)):
            went_well = False
            trials.new_attempt(session, undone, lost=True)
            lost = trials.losses(session, row["case_id"])
            if len(conflicts(step)) == 1 and lost[undone[0]] >= MAXIMUM_LOSSES and _works_for_others(step, state):
                rejection = Rejected(
                    stage="lost_worker", reason="lost_worker", detail={"losses": lost[undone[0]], "message": message}
                )
                change = ledger.change(
                    session, row["case_id"], TrialRejected(trial=undone[0], rejection=rejection), worker=None
                )
        elif not undone and (fault is not None or not isinstance(step, Build | ShareCode)):
            went_well = fault is None
            _count_failure(session, row["case_id"], step, message)
        if change is not None:
            seen = announce(session, row["job_id"], change)
    if change is not None:
        ledger.keep(change, seen=seen)
    return went_well


def apart(steps: Sequence[Step], losses: Mapping[str, int]) -> Iterator[Step]:
    """The same work, with trials that lost a task before each in a step of its own."""
    for step in steps:
        if not isinstance(step, _SPLIT) or len(step.trials) < 2 or not losses.keys() & set(step.trials):
            yield step
            continue
        sound = tuple(trial for trial in step.trials if trial not in losses)
        if sound:
            yield replace(step, trials=sound)
        for trial in step.trials:
            if trial in losses:
                yield Measure(trials=(trial,), retimes=0) if isinstance(step, Measure) else type(step)(trials=(trial,))


def failed_too_often(case: Mapping[str, Any], step: Step) -> str | None:
    """Why a step is given up, or None."""
    failed = case["failures"].get(step_key(step))
    if failed is None or failed["count"] < MAXIMUM_FAILURES:
        return None
    word = step_document(step)["step"]
    return f"the step {word} of case {case['position']} failed {failed['count']} times: {failed['message']}"


def _undone(step: Step, state: CaseState) -> list[str]:
    """Trials that the step was to bring further and did not."""
    if not isinstance(step, Build | Measure | Check | ShareCode):
        return []
    asked = conflicts(step)
    pending = [trial for trial in state.trials if trial.id in asked and trial.outcome == "pending"]
    return [trial.id for trial in pending if trial.artifact is None or not isinstance(step, Build)]


def _works_for_others(step: Step, state: CaseState) -> bool:
    """Whether steps of this kind have brought some trial of the case further."""
    if isinstance(step, Build):
        return any(trial.artifact is not None for trial in state.trials)
    return any(trial.outcome in ("measured", "checked") for trial in state.trials)


def _count_failure(session: Session, case_id: str, step: Step, message: str) -> None:
    row = cases.case_row(session, case_id)
    assert row is not None
    known = row["failures"].get(step_key(step), {"count": 0})
    counted = {"count": known["count"] + 1, "message": message}
    cases.update_case(session, case_id, {"failures": {**row["failures"], step_key(step): counted}})
