"""The handler of tasks: a step is performed, and each event goes to the ledger as soon as it comes."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from search.errors import Cancelled, ChildFailed, DeviceContended, ToolchainUnavailable
from search.events import Event
from search.ledger import CaseState
from search.program.case import Case
from search.steps import Step, step_from_document
from tuner_service.db.engine import Database
from tuner_service.db.queries import claims
from tuner_service.engine.contract import Task
from tuner_service.errors import DatabaseFull, DatabaseProblem, OurFault
from tuner_service.jobs.claiming import release
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.opening import case_of
from tuner_service.jobs.record import record

log = logging.getLogger(__name__)

MAXIMUM_FAULTS_IN_A_ROW = 6
"""Tasks of one job that end in a fault of ours, none with a result between them: the job fails, whatever its trials."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Tools(Protocol):
    """Performs steps: ``workers.toolbox`` with a real compiler and device."""

    def perform(
        self, step: Step, state: CaseState, case: Case, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        """Events of a step as they happen. Raises what ``search.errors`` lists, never for a candidate's fault."""
        ...


class Worker:
    """Handles tasks. Thread-safe: every thread of the engine calls it."""

    def __init__(
        self,
        *,
        database: Database,
        ledger: Ledger,
        tools: Tools,
        recorded: Callable[[str, Event], None] = lambda job_id, event: None,
        cancel_tasks: Callable[[str], None] = lambda job_id: None,
        toolchain_broke: Callable[[], None] = lambda: None,
        name: str | None = None,
    ) -> None:
        """``recorded`` hears of each event that changed the ledger; ``cancel_tasks`` stops a failed job's tasks."""
        self._database, self._ledger, self._tools = database, ledger, tools
        self._recorded, self._cancel_tasks, self._toolchain_broke = recorded, cancel_tasks, toolchain_broke
        self._faults: Counter[str] = Counter()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"

    def handle(self, task: Task, cancelled: Callable[[], bool]) -> None:
        """Performs a task whose claim stands; see ``engine.contract.Handler``."""
        with self._database.read() as session:
            claim = claims.get_claim(session, task.key)
            if claim is None or claim["created_at"] != task.payload["claimed_at"]:
                return  # void: the job was cancelled, or the step is another task's by now
            state = self._ledger.load(session, claim["case_id"])
        step, case = step_from_document(task.payload["step"]), case_of(task.payload["case"])
        events = self._tools.perform(step, state, case, device_id=task.device_id, cancelled=cancelled)
        stopped = False
        try:
            for event in _closing(events):
                self._record(task, event)
        except Cancelled:
            stopped = True
        if not self._release(task, fault=None, stopped=stopped or cancelled()):
            self._count_fault(task.job_id, "a task ended without a result")

    def on_failure(self, task: Task, error: BaseException) -> None:
        """Decides what an exception means: the job waits, its trials are tried again, or it fails."""
        if isinstance(error, DatabaseProblem) and not isinstance(error, DatabaseFull):
            log.warning("task %s could not record its results: %s", task.key, error)
            return  # the ledger is the problem: the claim turns void, and the next advance asks again
        if isinstance(error, DeviceContended):
            log.warning("task %s measured nothing: %s; it is asked for again", task.key, error)
            self._release(task, fault=None, stopped=True)
            return  # somebody else's load is no trial's fault
        log.error("task %s failed", task.key, exc_info=error)
        message = f"{type(error).__name__}: {error}"
        if reason := fatal(error):
            self._fail(task.job_id, reason)
        else:
            self._release(task, fault=message)
            self._count_fault(task.job_id, message)
        if isinstance(error, ToolchainUnavailable):
            self._toolchain_broke()

    def _record(self, task: Task, event: Event) -> None:
        attempts = task.payload["attempts"]
        case_id = task.payload["case_id"]
        stored = record(self._database, self._ledger, task.job_id, case_id, event, attempts=attempts, worker=self.name)
        if stored:
            self._faults.pop(task.job_id, None)
            self._recorded(task.job_id, event)

    def _release(self, task: Task, *, fault: str | None, stopped: bool = False) -> bool:
        claimed_at = task.payload["claimed_at"]
        return release(self._database, self._ledger, task.key, fault=fault, stopped=stopped, claimed_at=claimed_at)

    def _count_fault(self, job_id: str, message: str) -> None:
        self._faults[job_id] += 1
        if self._faults[job_id] >= MAXIMUM_FAULTS_IN_A_ROW:
            self._fail(job_id, f"{self._faults[job_id]} tasks in a row failed on our side: {message}")

    def _fail(self, job_id: str, reason: str) -> None:
        end_job(self._database, job_id, "failed", error=reason)
        self._faults.pop(job_id, None)
        self._cancel_tasks(job_id)


def fatal(error: BaseException) -> str | None:
    """Why a job cannot go on after this error; None when trying again makes sense."""
    if isinstance(error, ToolchainUnavailable):
        return f"the toolchain does not work any more: {error}"
    if isinstance(error, DatabaseFull | OurFault):
        return str(error)
    full = isinstance(error, OSError) and error.errno in NO_SPACE
    # A child says in words what it ran into.
    if full or (isinstance(error, ChildFailed) and any(os.strerror(number) in str(error) for number in NO_SPACE)):
        return f"no space left on disk: {error}"
    return None


def _closing(events: Iterable[Event]) -> Iterator[Event]:
    """The events; the generator that makes them is closed whatever happens, so that its children end."""
    try:
        yield from events
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()
