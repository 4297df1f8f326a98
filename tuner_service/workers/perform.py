"""The handler of tasks: a step is performed, and its events go to the ledger as soon as they come."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from search.errors import (
    ArtifactsUnavailable,
    ArtifactTooLarge,
    Cancelled,
    ChildFailed,
    DeviceContended,
    DeviceUnavailable,
    LocksUnusable,
    ToolchainUnavailable,
)
from search.events import Event
from search.ledger import CaseState
from search.program.case import Case
from search.steps import Step, step_from_document
from tuner_service.db.engine import Database
from tuner_service.db.queries import claims, jobs
from tuner_service.engine.contract import Task
from tuner_service.errors import DatabaseFull, DatabaseProblem, OurFault
from tuner_service.jobs.claiming import release
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.limits import limit_reached
from tuner_service.jobs.opening import case_of
from tuner_service.jobs.record import record_all
from tuner_service.metrics import ARTIFACT_OUTAGES, count_event
from tuner_service.workers.held import Held, HeldDevices
from tuner_service.workers.patience import patiently
from tuner_service.workers.recording import Recording

log = logging.getLogger(__name__)

MAXIMUM_FAULTS_IN_A_ROW = 6
"""Tasks of one job that end in a fault of ours, none with a result between them: the job fails, whatever its trials."""
OUTAGE_PAUSE_SECONDS = 1.0
"""Before a step is asked for again that found the artifact store unreachable, or the database full."""
COUNT_WAIT_SECONDS = 1.0
"""How long the time of running tasks waits for its row: it is counted again soon."""
T = TypeVar("T")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def outage_pause() -> None:
    """Waits a moment, and counts, after a step that found the artifact store unreachable."""
    ARTIFACT_OUTAGES.inc()
    time.sleep(OUTAGE_PAUSE_SECONDS)


def not_recorded(task: Task, problem: DatabaseProblem) -> None:
    """Says so, and waits a moment where there is no space left: the next claim may fit, and its result not either."""
    log.warning("task %s could not record its results: %s", task.key, problem)
    if isinstance(problem, DatabaseFull):
        time.sleep(OUTAGE_PAUSE_SECONDS)


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
        broke: Callable[[BaseException], None] = lambda error: None,
        out_of_space: Callable[[str], bool] | None = None,
        name: str | None = None,
        patience_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``recorded`` hears of each event that changed the ledger; ``cancel_tasks`` stops a failed job's tasks;
        ``broke`` hears of failures after which the device should be looked at. ``out_of_space`` hears that this
        machine's disk is full, or its lock folder unusable, and answers whether that is news: the task is asked for
        again, elsewhere or later. None: there is no elsewhere, and the job fails.

        ``patience_seconds``: how long a result is kept while the database is away; after that its claim may be void.
        ``clock``: seconds, for the time that tasks hold their device.
        """
        self._database, self._ledger, self._tools = database, ledger, tools
        self._recorded, self._cancel_tasks, self._broke = recorded, cancel_tasks, broke
        self._out_of_space, self._held = out_of_space, HeldDevices()
        self._patience_seconds, self._clock = patience_seconds, clock
        self._faults: Counter[str] = Counter()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"

    def handle(self, task: Task, cancelled: Callable[[], bool]) -> None:
        """Performs a task whose claim stands; see ``engine.contract.Handler``."""
        begun = self._patiently(partial(self._begin, task), cancelled)
        if begun is None:
            return  # void: the job was cancelled, or the step is another task's by now
        state, limit = begun
        if limit is not None:
            self._patiently(partial(self._release, task, fault=None, stopped=True), cancelled)
            return
        step, case = step_from_document(task.payload["step"]), case_of(task.payload["case"])
        held = Held(self._clock if task.queue == "device" else lambda: 0.0)
        events = _closing(self._tools.perform(step, state, case, device_id=task.device_id, cancelled=cancelled))
        stopped = False
        with self._held.holding(held, task.job_id):
            try:
                if task.queue == "device":
                    for event in events:
                        self._patiently(partial(self._record, task, (event,), held.lap()), cancelled)
                        held.go_on()
                else:
                    self._record_together(task, events, cancelled)
            except Cancelled:
                stopped = True
            except BaseException:
                self._use_device(task, held.lap())
                raise
        stopped = stopped or cancelled()
        end = partial(self._release, task, fault=None, stopped=stopped, seconds=held.lap())
        if not self._patiently(end, cancelled):
            self._count_fault(task.job_id, "a task ended without a result")

    def on_failure(self, task: Task, error: BaseException) -> None:
        """Decides what an exception means: the job waits, its trials are tried again, or it fails."""
        if isinstance(error, DatabaseProblem):
            not_recorded(task, error)
            return  # the ledger is the problem: the claim turns void, and the next advance asks again
        if isinstance(error, ArtifactsUnavailable):
            outage_pause()
        if isinstance(error, DeviceContended | ArtifactsUnavailable):
            log.warning("task %s came to nothing: %s; it is asked for again", task.key, error)
            self._patiently(partial(self._release, task, fault=None, stopped=True))
            return  # neither somebody else's load nor our storage is a trial's fault
        if isinstance(error, DeviceUnavailable):
            log.warning("task %s has no device: %s; it is asked for again when it is back", task.key, error)
            self._broke(error)
            self._patiently(partial(self._release, task, fault=None, stopped=True))
            self._count_fault(task.job_id, f"the device cannot be used: {error}")
            return  # no trial's fault; and where it seems to be back each time, the job ends after some tries
        if self._out_of_space is not None and (full := no_space(error)):
            log.error("task %s is handed back: %s", task.key, full)
            self._patiently(partial(self._release, task, fault=None, stopped=True))
            if self._out_of_space(full):
                self._count_fault(task.job_id, full)  # where there seems to be room each time, the job ends
            return
        log.error("task %s failed", task.key, exc_info=error)
        message = f"{type(error).__name__}: {error}"
        if reason := fatal(error):
            self._fail(task.job_id, reason)
        else:
            self._patiently(partial(self._release, task, fault=message))
            self._count_fault(task.job_id, message)
        if isinstance(error, ToolchainUnavailable | ChildFailed):
            self._broke(error)

    def count_held(self) -> None:
        """Counts for how long running tasks have held their devices until now: if this process is killed, nobody else
        knows. A database that does not answer is told later."""
        for held, job_id in self._held.now():
            if not (seconds := held.so_far()):
                continue
            try:
                with self._database.within(COUNT_WAIT_SECONDS).write() as session:
                    jobs.use_device(session, job_id, seconds)
            except DatabaseProblem as problem:
                held.owe(seconds)
                log.info("device time of job %s is counted later: %s", job_id, problem)

    def _begin(self, task: Task) -> tuple[CaseState, str | None] | None:
        """The case as it stands, and the limit that its job has reached; None when the task's claim does not stand."""
        with self._database.read() as session:
            claim = claims.get_claim(session, task.key)
            if claim is None or claim["created_at"] != task.payload["claimed_at"]:
                return None
            job = jobs.job_row(session, task.job_id)
            return self._ledger.load(session, claim["case_id"]), limit_reached(session, job)

    def _patiently(self, action: Callable[[], T], cancelled: Callable[[], bool] = lambda: False) -> T:
        return patiently(action, seconds=self._patience_seconds, cancelled=cancelled)

    def _record_together(self, task: Task, events: Iterable[Event], cancelled: Callable[[], bool]) -> None:
        """What is built need not wait until what was built before it is written."""
        write = partial(self._record, task, device_seconds=0.0)
        with Recording(lambda made: self._patiently(partial(write, made), cancelled)) as recording:
            for event in events:
                recording.put(event)

    def _record(self, task: Task, events: Sequence[Event], device_seconds: float) -> None:
        stored = record_all(
            self._database,
            self._ledger,
            task.job_id,
            task.payload["case_id"],
            events,
            attempts=task.payload["attempts"],
            worker=self.name,
            device_seconds=device_seconds,
        )
        for event in stored:
            count_event(event, device_seconds=device_seconds)
            self._faults.pop(task.job_id, None)
            self._recorded(task.job_id, event)

    def _release(self, task: Task, *, fault: str | None, stopped: bool = False, seconds: float = 0.0) -> bool:
        return release(
            self._database,
            self._ledger,
            task.key,
            fault=fault,
            stopped=stopped,
            claimed_at=task.payload["claimed_at"],
            device_seconds=seconds,
        )

    def _use_device(self, task: Task, seconds: float) -> None:
        """Counts the time of a task that broke off; it is lost where the database cannot take it."""
        with contextlib.suppress(DatabaseProblem), self._database.write() as session:
            jobs.use_device(session, task.job_id, seconds)

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
    if isinstance(error, OurFault | ArtifactTooLarge):
        return str(error)
    return no_space(error)


def no_space(error: BaseException) -> str | None:
    """What found no space left on this machine's disks, or no folder for its locks; None for any other error."""
    if isinstance(error, LocksUnusable):
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
