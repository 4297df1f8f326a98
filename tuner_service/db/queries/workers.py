"""Worker processes and their leases of devices. Every age is taken by the database's clock, never by a host's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from tuner_service.db.models import Device, Job
from tuner_service.db.models_catalogs import Acceptance
from tuner_service.db.models_workers import DeviceLease, Worker
from tuner_service.errors import Conflict, NotFound

FORGET_AFTER_SECONDS = 7 * 86_400.0
"""Rows of workers that are gone, or were lost, are kept so long for people to look at."""
MISSED_SECONDS = 3600.0
"""A lost worker is missed for so long; then it counts as gone, whether or not somebody looked after it."""
WORKER_STATES = ("running", "draining", "full", "lost", "gone")


def database_now(session: Session) -> str:
    """This moment by the database's clock, RFC 3339 UTC with microseconds."""
    if session.get_bind().dialect.name == "sqlite":
        return str(session.scalar(select(func.strftime("%Y-%m-%dT%H:%M:%f000Z", "now"))))
    moment = "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
    return str(session.scalar(select(text(moment))))


def register_worker(session: Session, row: Mapping[str, Any]) -> None:
    """Adds a worker that was heard of just now; ``row``: every column but its stamps."""
    stamp = database_now(session)
    session.add(Worker(**row, started_at=stamp, heartbeat_at=stamp))
    session.execute(delete(Worker).where(Worker.heartbeat_at < earlier(stamp, FORGET_AFTER_SECONDS)))


def beat_worker(
    session: Session,
    worker_id: str,
    *,
    devices: Sequence[str],
    compile_keys: Sequence[str],
    state: str,
    queue_worker: int | None = None,
) -> bool:
    """Notes that a worker lives, with what it serves now; False when nobody knows it (any more)."""
    served: dict[str, Any] = {"devices": list(devices), "compile_keys": list(compile_keys)}
    served["queue_worker"] = queue_worker
    values = {"heartbeat_at": database_now(session), "state": state, **served}
    changed = session.execute(update(Worker).where(Worker.id == worker_id).values(values))
    return bool(changed.rowcount)  # type: ignore[attr-defined]


def list_workers(session: Session) -> list[dict[str, Any]]:
    """Every worker that is remembered, the last started first, with ``silent_seconds`` since its last heartbeat."""
    stamp = database_now(session)
    query = select(Worker).order_by(Worker.started_at.desc(), Worker.id.desc())
    return [
        {**_columns(row), "silent_seconds": seconds_between(row.heartbeat_at, stamp)} for row in session.scalars(query)
    ]


def worker_state(worker: Mapping[str, Any], *, lost_seconds: float) -> str:
    """One of ``WORKER_STATES`` for a row of :func:`list_workers`: what it said of itself, unless it fell silent."""
    silent_seconds = worker["silent_seconds"]
    if worker["state"] == "gone" or silent_seconds >= max(MISSED_SECONDS, lost_seconds):
        return "gone"
    return "lost" if silent_seconds >= lost_seconds else str(worker["state"])


def forget_worker(session: Session, worker_id: str, *, lost_seconds: float) -> dict[str, Any]:
    """Removes a worker that is lost or gone, and its leases; what was known of it. If it lives, it is back with its
    next sign of life. NotFound; Conflict when it was heard of lately."""
    row = session.get(Worker, worker_id, with_for_update=True, populate_existing=True)
    if row is None:
        raise NotFound("worker", worker_id)
    known = {**_columns(row), "silent_seconds": seconds_between(row.heartbeat_at, database_now(session))}
    known["state"] = worker_state(known, lost_seconds=lost_seconds)
    if known["state"] not in ("lost", "gone"):
        message = f"worker {worker_id} is {known['state']}, heard of {known['silent_seconds']:.0f} s ago"
        raise Conflict(f"{message}; a worker that lives is stopped with SIGTERM, and is gone then")
    drop_leases(session, worker_id)
    session.delete(row)
    return known


def present_workers(session: Session, *, lost_seconds: float) -> list[dict[str, Any]]:
    """As :func:`list_workers`, those alone that run or drain and were heard of within ``lost_seconds``."""
    return [
        worker
        for worker in list_workers(session)
        if worker["state"] != "gone" and worker["silent_seconds"] < lost_seconds
    ]


def take_lease(
    session: Session,
    device_id: str,
    worker_id: str,
    *,
    lost_seconds: float,
    dead: Callable[[Mapping[str, Any]], bool] = lambda worker: False,
) -> dict[str, Any] | None:
    """Takes a device for a worker, or renews what it holds; else the live worker that has it.

    A lease that was not renewed for ``lost_seconds``, or whose worker is gone, or ``dead`` for sure, is taken over. The
    row is locked until the transaction ends, so of two that ask at once one gets it.
    """
    stamp = database_now(session)
    row = {"device_id": device_id, "worker_id": worker_id, "taken_at": stamp, "renewed_at": stamp}
    insert = sqlite_insert if session.get_bind().dialect.name == "sqlite" else postgresql_insert
    session.execute(insert(DeviceLease).values(row).on_conflict_do_nothing())
    lease = session.get(DeviceLease, device_id, with_for_update=True, populate_existing=True)
    assert lease is not None
    if lease.worker_id != worker_id:
        holder = session.get(Worker, lease.worker_id, populate_existing=True)
        silent = seconds_between(max(lease.renewed_at, holder.heartbeat_at if holder else ""), stamp)
        if holder is not None and holder.state != "gone" and silent < lost_seconds and not dead(_columns(holder)):
            return {**_columns(holder), "silent_seconds": silent}
        _bereave(session, lease.worker_id, device_id)
        lease.worker_id, lease.taken_at = worker_id, stamp
    lease.renewed_at = stamp
    return None


def retire_replaced(
    session: Session, worker_id: str, *, lost_seconds: float, dead: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Says that those are gone in whose place a worker was started: on its host, after they were heard of last, and
    serving all that they served. They must be lost or ``dead`` for sure; one that lives says so again by itself."""
    workers = {worker["id"]: worker for worker in list_workers(session)}
    mine = workers[worker_id]
    for other in workers.values():
        silent = other["silent_seconds"] >= lost_seconds or dead(other)
        if other["state"] == "gone" or not silent or not _replaces(mine, other):
            continue
        query = select(Worker).where(Worker.id == other["id"]).with_for_update(skip_locked=True)  # as below
        if (row := session.scalar(query)) is not None and row.heartbeat_at == other["heartbeat_at"]:
            row.state = "gone"


def _replaces(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    serves_all = all(set(other[what]) <= set(mine[what]) for what in ("devices", "compile_keys"))
    return serves_all and mine["host"] == other["host"] and mine["started_at"] > other["heartbeat_at"]


def drop_leases(session: Session, worker_id: str, device_ids: Iterable[str] | None = None) -> None:
    """Gives a worker's leases back: of these devices, or all."""
    query = delete(DeviceLease).where(DeviceLease.worker_id == worker_id)
    if device_ids is not None:
        query = query.where(DeviceLease.device_id.in_(list(device_ids)))
    session.execute(query)


def lease_ages(session: Session) -> dict[str, float]:
    """Leased device → seconds since its lease was renewed."""
    stamp = database_now(session)
    return {row.device_id: seconds_between(row.renewed_at, stamp) for row in session.scalars(select(DeviceLease))}


def quarantine_device(session: Session, device_id: str, reason: str) -> bool:
    """Takes a device out of use until somebody releases it; False when it is in quarantine already. NotFound."""
    row = _device(session, device_id)
    if row.quarantine_reason is not None:
        return False
    row.quarantine_reason, row.quarantined_at = reason, database_now(session)
    return True


def release_device(session: Session, device_id: str) -> bool:
    """Lets a device be used again; False when it was in no quarantine. NotFound."""
    row = _device(session, device_id)
    if row.quarantine_reason is None:
        return False
    row.quarantine_reason = row.quarantined_at = None
    return True


def quarantines(session: Session) -> dict[str, dict[str, str]]:
    """Devices in quarantine → ``{"reason", "since"}``."""
    query = select(Device).where(Device.quarantine_reason.is_not(None))
    return {
        row.id: {"reason": str(row.quarantine_reason), "since": str(row.quarantined_at)}
        for row in session.scalars(query)
    }


def unfinished_work(session: Session) -> dict[str, str]:
    """Every unfinished job and acceptance → the id of the device that it is bound to."""
    found: dict[str, str] = {}
    for table in (Job, Acceptance):
        query = select(table.id, table.device_id).where(table.state.in_(("queued", "running")))
        found |= {row.id: row.device_id for row in session.execute(query)}
    return found


def earlier(stamp: str, seconds: float) -> str:
    """A stamp so much before another."""
    moment = datetime.fromisoformat(stamp) - timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_between(first: str, second: str) -> float:
    """From the first of two stamps to the second."""
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def _bereave(session: Session, worker_id: str, device_id: str) -> None:
    """A lost worker's row offers the device no longer; with nothing left it is gone. It says more when it is back."""
    # One that holds its own row is back already; waiting for it here could be a deadlock.
    query = select(Worker).where(Worker.id == worker_id).with_for_update(skip_locked=True)
    worker = session.scalar(query)
    if worker is not None:
        worker.devices = [other for other in worker.devices if other != device_id]
        worker.state = worker.state if worker.devices else "gone"


def _device(session: Session, device_id: str) -> Device:
    row = session.get(Device, device_id, with_for_update=True, populate_existing=True)
    if row is None:
        raise NotFound("device", device_id)
    return row


def _columns(row: Worker) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in Worker.__table__.columns}
