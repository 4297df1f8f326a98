"""The devices of a team, as the database knows them: what live workers offer, and why the others cannot be used."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from search.device.gpu import ABSENT_KIND
from search.device.spec import DeviceSpec
from tuner_service.db.engine import Database
from tuner_service.db.queries import devices as device_queries
from tuner_service.db.queries import workers as worker_queries
from tuner_service.db.queries.queues import tasks_by_worker, uncompiled_jobs
from tuner_service.engine.contract import has_begun
from tuner_service.errors import DatabaseProblem
from tuner_service.jobs.quarantine import quarantine_text

log = logging.getLogger(__name__)

_NOBODY_COMPILES = (
    "no running worker compiles for it; start one that has compile slots, on a host with the same compilers: "
    "tuner worker --compile-only"
)


class DeviceRegistry:
    """Thread-safe. What it knows is as old as the last :meth:`refresh`."""

    def __init__(self, database: Database, *, lost_seconds: float) -> None:
        """``lost_seconds``: a worker that was silent for so long offers nothing any more."""
        self._database, self._lost_seconds = database, lost_seconds
        self._known: dict[str, DeviceSpec] = {}
        self._away: dict[str, DeviceSpec] = {}
        self._waiting: dict[str, str] = {}
        self._slots: dict[str, int] = {}
        self._read = threading.Event()

    @property
    def known(self) -> Mapping[str, DeviceSpec]:
        """Every device by id. Of one kind, the one with the fewest unfinished jobs comes first."""
        return self._known

    @property
    def away(self) -> Mapping[str, DeviceSpec]:
        """Those that cannot be used now, by id; the one that was seen last comes first."""
        return self._away

    @property
    def waiting(self) -> Mapping[str, str]:
        """Unfinished jobs and acceptances whose device cannot be used now, or waits for its host or for code → the
        reason."""
        return self._waiting

    def wait_read(self, timeout_seconds: float) -> bool:
        """Whether the registry was read within this time."""
        return self._read.wait(timeout_seconds)

    def compile_slots(self, compile_key: str) -> int:
        """Compile tasks that the live workers can do at once for this key."""
        return self._slots.get(compile_key, 0)

    def refresh(self) -> bool:
        """Reads it again; True when a device came, went or changed. DatabaseProblem."""
        with self._database.read() as session:
            rows = device_queries.list_devices(session)
            workers = worker_queries.list_workers(session)
            quarantined = worker_queries.quarantines(session)
            bound = worker_queries.unfinished_work(session)
            slots = self._count_slots(workers)
            uncompiled = uncompiled_jobs(session, [key for key, number in slots.items() if number])
            held_up = self._held_up(session, workers)
        load = dict.fromkeys((row["id"] for row in rows), 0)
        for device_id in bound.values():
            load[device_id] = load.get(device_id, 0) + 1
        rows.sort(key=lambda row: (load[row["id"]], row["id"]))
        before, known = self._known, {}
        for row in rows:
            spec = DeviceSpec.from_document(row)
            reason = self._absence(spec.id, workers)
            if spec.id in quarantined:
                reason = quarantine_text(quarantined[spec.id])
            known[spec.id] = spec if reason is None else replace(spec, available=False, reason=reason)
        self._waiting = {
            job_id: f"device {bound[job_id]}: {_NOBODY_COMPILES}" for job_id in uncompiled if job_id in bound
        }
        self._waiting |= held_up | {
            job_id: f"device {device_id} is unavailable: {known[device_id].reason}"
            for job_id, device_id in bound.items()
            if device_id in known and not known[device_id].available
        }
        rows.sort(key=lambda row: str(row["heartbeat_at"]), reverse=True)
        unusable = (known[row["id"]] for row in rows if not known[row["id"]].available)
        self._away = {spec.id: spec for spec in unusable if spec.kind != ABSENT_KIND}
        self._known, self._slots = known, slots
        self._read.set()
        return before != known

    def refresh_quietly(self) -> bool:
        """As :meth:`refresh`; a database that cannot be asked is noted, and what is known stays."""
        try:
            return self.refresh()
        except DatabaseProblem as error:
            log.warning("the devices of the workers cannot be read: %s", error)
            return False

    def _count_slots(self, workers: list[dict[str, Any]]) -> dict[str, int]:
        slots: Counter[str] = Counter()
        for worker in workers:
            if worker["state"] == "running" and worker["silent_seconds"] < self._lost_seconds:
                slots.update(dict.fromkeys(worker["compile_keys"], worker["compile_slots"]))
        return dict(slots)

    def _held_up(self, session: Session, workers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Jobs whose measurement waits for a host to become quiet which a lost worker may keep busy → the reason.

        A process that was stopped (SIGSTOP, a paused container) keeps the locks that it has.
        """
        states = [(worker, worker_queries.worker_state(worker, lost_seconds=self._lost_seconds)) for worker in workers]
        lost = {worker["host"]: worker for worker, state in states if state == "lost"}
        doing = tasks_by_worker(session) if lost else {}
        found: dict[str, str] = {}
        for worker, state in states:
            silent = lost.get(worker["host"])
            if silent is None or state not in ("running", "draining"):
                continue
            host = f"host {worker['host']}, where worker {silent['id']} may"
            reason = f"waits until nothing compiles on {host}: it was last heard of at {silent['heartbeat_at']}"
            found |= {
                task["job_id"]: f"device {task['device_id']} {reason}; if its process hangs, end it"
                for task in doing.get(worker["queue_worker"], ())
                if not has_begun(task)
            }
        return found

    def _absence(self, device_id: str, workers: list[dict[str, Any]]) -> str | None:
        """Why no worker offers a device now; None when one does. ``workers``: the last started first."""
        offering = [
            worker
            for worker in workers
            if device_id in worker["devices"]
            and worker_queries.worker_state(worker, lost_seconds=self._lost_seconds) != "gone"
        ]
        for worker in offering:
            if worker["state"] == "running" and worker["silent_seconds"] < self._lost_seconds:
                return None
        for worker in offering:
            if worker["state"] == "draining":
                return f"worker {worker['id']} is stopping; the device is back when a worker attaches it again"
            if worker["state"] == "full" and worker["silent_seconds"] < self._lost_seconds:
                full = "has no space left on its disk, or cannot use its lock folder"
                return f"worker {worker['id']} {full}; it goes on when it can"
            if worker["state"] in ("running", "full"):
                # A moment, not an age: whoever shows reasons that change would show it again at every look.
                return f"worker {worker['id']} was last heard of at {worker['heartbeat_at']}"
        return "no worker offers it; attach it with tuner worker"
