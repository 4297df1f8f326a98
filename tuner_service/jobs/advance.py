"""Advance a job: read the ledger, ask ``search.steps`` what is missing, hand it out, settle what is done.

Short and idempotent: it may run at any time, any number of times, and after any crash. One thread does it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from search.device.spec import DeviceSpec
from search.steps import Settle, Step, is_quiet, missing, queue_of, step_document
from tuner_service.db.engine import Database
from tuner_service.db.queries import cases, jobs, trials
from tuner_service.db.queries.workers import database_now
from tuner_service.engine.contract import Engine, Task
from tuner_service.errors import DeviceAwaited, DeviceVanished, OurFault
from tuner_service.jobs.claiming import Claim, apart, claim, failed_too_often, release, standing_claims
from tuner_service.jobs.ending import end_at_limit, end_job
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.limits import limit_reached
from tuner_service.jobs.opening import open_case, tuned_case
from tuner_service.jobs.record import settle
from tuner_service.jobs.states import job_has_ended

DEVICE_TASKS = 2
"""Device tasks of one job in flight: one runs, one stands ready. What comes later is better decided later."""


class Advancer:
    """Advances jobs. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        *,
        database: Database,
        ledger: Ledger,
        engine: Engine,
        devices: Callable[[], Mapping[str, DeviceSpec]],
        compile_slots: int | Callable[[str], int],
        look: Callable[[str], bool] = lambda device_id: True,
        stopped: Callable[[], bool] = lambda: False,
        opening_seconds: float = math.inf,
        again: Callable[[str], None] = lambda job_id: None,
    ) -> None:
        """``look`` says whether what ``devices`` tells of one holds, and else has it looked at. ``stopped``: whether
        the service is told to stop: a large space must not keep it. ``opening_seconds``: how long one call may write
        the rows of a large space, so that other jobs get their turn; ``again`` hears of a job that is left with more
        to do. ``compile_slots``: how many compile tasks run at once, or how many do with one compile key; a job has one
        more in flight, so that none of them is idle and no other job waits for long."""
        self._database, self._ledger, self._engine, self._devices = database, ledger, engine, devices
        self._look, self._stopped = look, stopped
        self._opening_seconds, self._again = opening_seconds, again
        self._known: set[str] = set()
        """Cases whose program is the submitted one."""
        self._compile_slots = compile_slots

    def advance(self, job_id: str) -> None:
        """Does what can be done for a job now. NotFound; DatabaseProblem and DeviceAwaited (try again later)."""
        with self._database.read() as session:
            job = jobs.job_row(session, job_id)
            limit = limit_reached(session, job) if job["state"] == "running" else None
        if job_has_ended(job["state"]):
            return
        try:
            if limit is not None:
                self._stop_at_limit(job_id, limit)
                return
            bound = self._bound(job)
            self._check_device(bound)
            if bound["state"] == "queued":
                self._begin(job_id)
            self._work(bound)
        except OurFault as fault:
            end_job(self._database, job_id, "failed", error=str(fault))
            self._engine.cancel(job_id)

    def _bound(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """A job that has not begun takes its device as it is now, or another one of the kind that it asked for."""
        if job["state"] != "queued":
            return job
        devices, wanted = self._devices(), job["request"]["device"]
        fit = [spec for spec in devices.values() if spec.available and wanted in (spec.id, spec.kind)]
        spec = min(fit, key=lambda spec: spec.id != job["device_id"], default=None)
        then = (job["device_id"], job["device"]["toolchain_fingerprint"])
        if spec is None or (spec.id, spec.toolchain_fingerprint) == then:
            return job
        now_bound = {"device_id": spec.id, "device_kind": spec.kind, "device": spec.document()}
        with self._database.write() as session:
            if jobs.lock_job(session, job["id"])["state"] == "queued":
                jobs.update_job(session, job["id"], now_bound)
            return jobs.job_row(session, job["id"])

    def _check_device(self, job: Mapping[str, Any]) -> None:
        """Timings of one job come from one device with one toolchain. Raises DeviceVanished, or DeviceAwaited."""
        if not self._look(job["device_id"]):
            raise DeviceAwaited(f"device {job['device_id']} is being looked at")
        then, current = job["device"], self._devices().get(job["device_id"])
        verb = "begins" if job["state"] == "queued" else "goes on"
        if current is None:
            raise DeviceAwaited(f"device {job['device_id']} is not attached; the job {verb} when it is back")
        if not current.available:
            raise DeviceAwaited(
                f"device {current.id} is unavailable ({current.reason}); the job {verb} when it is back"
            )
        if current.toolchain_fingerprint != then["toolchain_fingerprint"]:
            raise DeviceVanished(
                f"the toolchain of device {current.id} changed under the job, from {then['toolchain_fingerprint']} "
                f"to {current.toolchain_fingerprint}; submit it again"
            )

    def _check_program(self, row: Mapping[str, Any]) -> None:
        """Trials of one case are of one program. The kernels of a process do not change. Raises ProgramChanged."""
        if row["id"] not in self._known:
            tuned_case(row)
            self._known.add(row["id"])

    def _begin(self, job_id: str) -> None:
        with self._database.write() as session:
            if jobs.enter_job(session, job_id) == "queued":
                jobs.update_job(session, job_id, {"state": "running", "started_at": database_now(session)})
                jobs.add_job_event(session, job_id, "job", {"state": "running"})

    def _work(self, job: Mapping[str, Any]) -> None:
        """Hands out steps, earlier cases first, as far as there is room; ends the job when every case is settled."""
        standing = standing_claims(self._database, job["id"], self._engine.in_flight(job["id"]))
        room = Counter({"compile": self._compiles(job), "device": DEVICE_TASKS})
        room.subtract(queue_of(one.step) for one in standing)
        with self._database.read() as session:
            rows = cases.case_rows(session, job["id"])
        open_rows, at_work = [row for row in rows if not row["settled"]], {one.case_id for one in standing}
        if not any(left > 0 for left in room.values()) and all(row["id"] in at_work for row in open_rows):
            return  # no room, and no case is settled while something of it is in flight: none need be read
        unsettled = 0
        for row in open_rows:
            self._check_program(row)
            if not (row["opened"] or self._open(job["id"], row["id"])):
                return
            unsettled += not self._advance_case(job, row, [c for c in standing if c.case_id == row["id"]], room)
            if not any(left > 0 for left in room.values()):
                return
        if unsettled == 0:
            end_job(self._database, job["id"], "succeeded")

    def _compiles(self, job: Mapping[str, Any]) -> int:
        """How many compile tasks of a job may be in flight."""
        slots = self._compile_slots
        return 1 + (slots if isinstance(slots, int) else slots(DeviceSpec.from_document(job["device"]).compile_key))

    def _open(self, job_id: str, case_id: str) -> bool:
        """Whether a case has all its rows now; otherwise the next call goes on where this one ends."""
        slice_ends = time.monotonic() + self._opening_seconds
        asked = itertools.count()

        def pause() -> bool:
            first = next(asked) == 0  # some rows come with every call, or a slow machine would never get anywhere
            return self._stopped() or (not first and time.monotonic() >= slice_ends)

        if open_case(self._database, job_id, case_id, stopped=pause):
            return True
        if not self._stopped():
            self._again(job_id)
        return False

    def _stop_at_limit(self, job_id: str, limit: str) -> None:
        """The job has reached a limit: nothing more is begun, and the job ends with its last task.

        Its device need not be there for that. Cases that lack nothing keep what they found.
        """
        self._engine.withdraw(job_id)
        standing = standing_claims(self._database, job_id, self._engine.in_flight(job_id))
        with self._database.read() as session:
            rows = [row for row in cases.case_rows(session, job_id) if not row["settled"]]
        if standing:
            return
        complete = [row["opened"] and self._settled_by_what_is_there(job_id, row["id"]) for row in rows]
        if all(complete):
            end_job(self._database, job_id, "succeeded")
        else:
            end_at_limit(self._database, self._ledger, job_id, limit)

    def _settled_by_what_is_there(self, job_id: str, case_id: str) -> bool:
        with self._database.read() as session:
            state = self._ledger.load(session, case_id)
        lacking = missing(state)
        if len(lacking) == 1 and isinstance(step := lacking[0], Settle):
            return settle(self._database, self._ledger, job_id, case_id, step.result)
        return False

    def _advance_case(
        self, job: Mapping[str, Any], row: Mapping[str, Any], standing: Sequence[Claim], room: Counter[str]
    ) -> bool:
        """Hands out what one case lacks; True when it is settled."""
        with self._database.read() as session:
            state = self._ledger.load(session, row["id"])
            losses = trials.losses(session, row["id"])
        lacking = missing(state, [one.step for one in standing], device_waits=room["device"] == DEVICE_TASKS)
        for step in apart(lacking, losses):
            if isinstance(step, Settle):
                return settle(self._database, self._ledger, job["id"], row["id"], step.result)
            queue = queue_of(step)
            if room[queue] <= 0:
                continue
            if reason := failed_too_often(row, step):
                raise OurFault(reason)
            room[queue] -= self._hand_out(job, row, step)
        return False

    def _hand_out(self, job: Mapping[str, Any], row: Mapping[str, Any], step: Step) -> bool:
        claimed = claim(self._database, job["id"], row["id"], step)
        if claimed is None:
            return False
        task = Task(
            key=claimed.key,
            job_id=job["id"],
            queue="compile" if queue_of(step) == "compile" else "device",
            device_id=job["device_id"],
            quiet=is_quiet(step),
            priority=-job["priority"],  # within a job the order is that in which steps are handed out
            compile_key=DeviceSpec.from_document(job["device"]).compile_key,
            payload={
                "case_id": row["id"],
                "case": row["document"],
                "step": step_document(step),
                "attempts": dict(claimed.attempts),
                "claimed_at": claimed.claimed_at,
            },
        )
        if self._engine.submit(task):
            return True
        release(self._database, self._ledger, claimed.key, fault=None, stopped=True)
        return False
