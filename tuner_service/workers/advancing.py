"""The loop that advances jobs: what is announced at once, and every unfinished one once in a while."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances as acceptance_queries
from tuner_service.db.queries import jobs as job_queries
from tuner_service.errors import DatabaseProblem, DeviceAwaited, NotFound
from tuner_service.jobs.acceptance import is_acceptance
from tuner_service.jobs.acceptance_ledger import end_acceptance
from tuner_service.jobs.ending import end_job

log = logging.getLogger(__name__)

REST_AFTER_SECONDS = 60.0
"""Idle children hold memory (the compiler library above all): they end after so long without work."""
OPENING_SECONDS = 0.5
"""The rows of a large space are written in slices: other jobs get their turn between them."""
ROUTINE_SHARE = 0.25
"""Looking at every unfinished job takes at most about this share of the loop's time, however many there are."""
MAXIMUM_ADVANCE_ERRORS = 3
"""A job whose advance fails so often in a row, for a reason that waiting does not mend, has failed."""


class AdvanceLoop:
    """One thread runs it; everything else may be called from any."""

    def __init__(
        self,
        *,
        database: Database,
        advance: Callable[[str], None],
        withdraw: Callable[[str], None],
        stopping: threading.Event,
        period_seconds: float,
        leads: Callable[[], bool] = lambda: True,
        looked: Callable[[], None] = lambda: None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        """``advance`` does what can be done for a job or an acceptance, ``withdraw`` takes its tasks back; ``leads``:
        whether this process is the one to advance; ``looked`` is called before all jobs are looked at, ``rest`` after a
        while without anything to do."""
        self._database, self._advance_one, self._withdraw = database, advance, withdraw
        self._stopping, self._period_seconds, self._leads = stopping, period_seconds, leads
        self._looked, self._rest = looked, rest
        self._wanted: dict[str, None] = {}
        """Jobs that something was heard of, in that order."""
        self._routine: dict[str, None] = {}
        """Jobs to look at without a reason, when no other is wanted."""
        self._routine_seconds = 0.0
        """What looking at them has taken since they were listed."""
        self._woken = threading.Condition()
        self._errors: Counter[str] = Counter()
        self._waiting: dict[str, str] = {}

    @property
    def waiting(self) -> Mapping[str, str]:
        """Jobs that wait for something on our side (disk, database, an absent device) → the reason."""
        return dict(self._waiting)

    def wake(self, job_id: str | None = None) -> None:
        """Look at this job soon; without one, notice soon that the service stops."""
        with self._woken:
            if job_id is not None:
                self._wanted[job_id] = None
            self._woken.notify_all()

    def want_active(self) -> None:
        """No lost notice may stall a job: every unfinished one is looked at once in a while."""
        try:
            self._looked()
            with self._database.read() as session:
                active = [*job_queries.active_job_ids(session), *acceptance_queries.active_acceptance_ids(session)]
        except DatabaseProblem as error:
            log.warning("jobs cannot be listed: %s", error)
            return
        with self._woken:
            self._routine.update(dict.fromkeys(active))
            self._woken.notify_all()
        for job_id in self._waiting.keys() - set(active):
            self._waiting.pop(job_id, None)

    def run(self) -> None:
        """Advances until told to stop."""
        looked = busy = time.monotonic()
        while not self._stopping.is_set():
            job_id, routine = self._next()
            if job_id is not None and self._leads():
                began = time.monotonic()
                self._advance(job_id)
                busy = time.monotonic()
                self._routine_seconds += routine * (busy - began)
            pause_seconds = max(self._period_seconds, self._routine_seconds / ROUTINE_SHARE)
            if not self._routine and time.monotonic() - looked >= pause_seconds and self._leads():
                looked, self._routine_seconds = time.monotonic(), 0.0
                self.want_active()
            if time.monotonic() - busy >= REST_AFTER_SECONDS:
                self._rest()
                busy = time.monotonic()

    def _next(self) -> tuple[str | None, bool]:
        """The job to look at now, and whether that is routine; none after a period without any, or when stopped."""
        with self._woken:
            self._woken.wait_for(lambda: self._wanted or self._routine or self._stopping.is_set(), self._period_seconds)
            if self._stopping.is_set() or not (self._wanted or self._routine):
                return None, False
            routine = not self._wanted
            job_id = next(iter(self._wanted or self._routine))
            self._wanted.pop(job_id, None)
            self._routine.pop(job_id, None)
            return job_id, routine

    def _advance(self, job_id: str) -> None:
        try:
            self._advance_one(job_id)
        except NotFound:
            return
        except (DatabaseProblem, DeviceAwaited) as error:
            if self._waiting.get(job_id) != str(error):
                log.warning("job %s waits: %s", job_id, error)
            self._waiting[job_id] = str(error)
            return
        except Exception as error:
            log.exception("job %s could not be advanced", job_id)
            self._errors[job_id] += 1
            if self._errors[job_id] >= MAXIMUM_ADVANCE_ERRORS:
                self._give_up(job_id, f"the job could not be advanced: {type(error).__name__}: {error}")
            return
        self._errors.pop(job_id, None)
        self._waiting.pop(job_id, None)

    def _give_up(self, job_id: str, reason: str) -> None:
        try:
            end = end_acceptance if is_acceptance(job_id) else end_job
            end(self._database, job_id, "failed", error=reason)
        except DatabaseProblem as error:
            log.warning("the failure of job %s could not be recorded yet: %s", job_id, error)
        self._withdraw(job_id)
