"""The ledger of an acceptance: its state from its records, and the only way that records get in."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy.orm import Session

from search.replay.records import (
    ArmTimed,
    ReplayRecord,
    ReplayState,
    RoundBuilt,
    built_from_document,
    expected_records,
    replay_document,
    replay_from_document,
    resolved,
    timed_from_document,
)
from tuner_service.db.clock import now
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances
from tuner_service.db.queries.acceptances import BUILD_ARM, BUILD_CASE
from tuner_service.jobs.states import job_may_move

MAXIMUM_FAILURES = 3
"""An acceptance whose steps come to nothing so often in a row has failed."""


def load_state(session: Session, acceptance_id: str) -> ReplayState:
    """What was recorded. A round that was begun again counts with its last attempt alone. NotFound."""
    row = acceptances.acceptance_row(session, acceptance_id)
    built: dict[int, RoundBuilt] = {}
    attempts: dict[int, int] = {}
    timed: dict[int, list[ArmTimed]] = {}
    for record in acceptances.records(session, acceptance_id):
        number = record["round"]
        if record["case_index"] == BUILD_CASE:
            built.setdefault(number, built_from_document(record["document"]))
            continue
        if record["attempt"] > attempts.get(number, -1):
            attempts[number], timed[number] = record["attempt"], []
        if record["attempt"] == attempts[number]:
            timed[number].append(timed_from_document(record["document"]))
    return resolved(
        ReplayState(
            replay=replay_from_document(row["replay"]),
            built=built,
            timed={number: tuple(records) for number, records in timed.items()},
        )
    )


def record(database: Database, acceptance_id: str, attempt: int, one: ReplayRecord, *, again: bool = False) -> bool:
    """Stores a record in one transaction; False when its attempt is void or has it, or the acceptance does not run.

    ``again``: an earlier call got no answer and may have stored it; that it is there is fine then.
    """
    with database.write() as session:
        row = acceptances.lock_acceptance(session, acceptance_id)
        if row["state"] != "running" or row["attempt"] != attempt:
            return False
        stored = acceptances.insert_record(
            session,
            acceptance_id,
            number=one.round,
            case_index=BUILD_CASE if isinstance(one, RoundBuilt) else one.case,
            arm=BUILD_ARM if isinstance(one, RoundBuilt) else one.arm,
            attempt=attempt,
            document=replay_document(one),
        )
        return stored or again


def forget_failures(database: Database, acceptance_id: str) -> None:
    """A step was done as a whole: earlier failures count no more."""
    with database.write() as session:
        row = acceptances.lock_acceptance(session, acceptance_id)
        if row["state"] == "running" and row["failures"]:
            acceptances.update_acceptance(session, acceptance_id, {"failures": 0})


def count_failure(database: Database, acceptance_id: str, attempt: int, message: str) -> bool:
    """A step came to nothing on our side; True when the acceptance has failed by that."""
    with database.write() as session:
        row = acceptances.lock_acceptance(session, acceptance_id)
        if row["state"] != "running" or row["attempt"] != attempt:
            return False
        acceptances.update_acceptance(session, acceptance_id, {"failures": row["failures"] + 1})
    if row["failures"] + 1 < MAXIMUM_FAILURES:
        return False
    return end_acceptance(database, acceptance_id, "failed", error=message)


def end_acceptance(
    database: Database,
    acceptance_id: str,
    state: Literal["succeeded", "failed", "cancelled"],
    *,
    error: str | None = None,
    values: dict[str, Any] | None = None,
) -> bool:
    """Ends an acceptance; False when it may not go to that state any more. NotFound, DatabaseProblem."""
    with database.write() as session:
        if not job_may_move(acceptances.lock_acceptance(session, acceptance_id)["state"], state):
            return False
        changed = {"state": state, "error": error, "finished_at": now(), "step": None, **(values or {})}
        acceptances.update_acceptance(session, acceptance_id, changed)
    return True


def acceptance_document(row: dict[str, Any], recorded: int) -> dict[str, Any]:
    """The JSON of an acceptance. ``recorded``: timed arms that are there."""
    result = row["result"] or {}
    replay = replay_from_document(row["replay"])
    waiting = [
        {
            "index": case.index,
            **{name: case.case[name] for name in ("kernel", "params", "dims", "dtypes")},
            "key_digest": case.key_digest,
            "metrics": None,
            "spread": None,
            "margin": None,
            "state": None,
        }
        for case in replay.cases
    ]
    return {
        "id": row["id"],
        "state": row["state"],
        "catalog": row["catalog"],
        "reference": row["reference"],
        "incumbent": row["incumbent"],
        "alias": row["alias"],
        "rounds": row["rounds"],
        "device": row["device"],
        "progress": {"records": recorded, "expected": expected_records(replay)},
        "cases": result.get("cases") or waiting,
        "deltas": result.get("deltas", []),
        "verdict": row["verdict"],
        "reasons": result.get("reasons", []),
        "statements": result.get("statements", []),
        "evidence_sha256": row["evidence_sha256"],
        "error": row["error"],
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "finished_at": row["finished_at"],
    }


def get_acceptance(session: Session, acceptance_id: str) -> dict[str, Any]:
    """One acceptance as JSON. NotFound."""
    row = acceptances.acceptance_row(session, acceptance_id)
    counts = acceptances.count_records(session, [acceptance_id])
    return acceptance_document(row, counts.get(acceptance_id, 0))


def list_acceptances(session: Session, **query: Any) -> dict[str, Any]:
    """One page of acceptances as JSON. InvalidInput."""
    page = acceptances.list_acceptances(session, **query)
    counts = acceptances.count_records(session, [row["id"] for row in page["items"]])
    items = [acceptance_document(row, counts.get(row["id"], 0)) for row in page["items"]]
    return {**page, "items": items}
