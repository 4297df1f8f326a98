"""The handler of acceptance tasks: a step is performed, and each record goes to the ledger as soon as it comes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Protocol, cast

from search.errors import (
    ArtifactsUnavailable,
    Cancelled,
    ChildFailed,
    DeviceContended,
    DeviceUnavailable,
    ToolchainUnavailable,
)
from search.replay.records import ReplayRecord, ReplayState, ReplayStep, missing, step_from_document
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances
from tuner_service.engine.contract import Task
from tuner_service.errors import DatabaseProblem, OurFault
from tuner_service.jobs.acceptance_ledger import count_failure, end_acceptance, forget_failures, load_state, record
from tuner_service.workers.patience import patiently
from tuner_service.workers.perform import fatal, no_space, not_recorded, outage_pause

log = logging.getLogger(__name__)


class ReplayTools(Protocol):
    """Performs steps of a replay: ``workers.toolbox`` with a real compiler and device."""

    def replay(
        self, step: ReplayStep, state: ReplayState, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[ReplayRecord]:
        """Records of a step as they come. Raises what ``search.errors`` lists, never for an arm's fault."""
        ...


class AcceptanceWorker:
    """Handles tasks of acceptances. Thread-safe."""

    def __init__(
        self,
        *,
        database: Database,
        tools: ReplayTools,
        patience_seconds: float = 0.0,
        broke: Callable[[BaseException], None] = lambda error: None,
        out_of_space: Callable[[str], bool] | None = None,
    ) -> None:
        """``patience_seconds``: how long a record is kept while the database is away; ``broke`` hears of failures after
        which the device should be looked at; ``out_of_space`` as in ``workers.perform.Worker``."""
        self._database, self._tools, self._broke = database, tools, broke
        self._out_of_space = out_of_space
        self._patience_seconds = patience_seconds

    def handle(self, task: Task, cancelled: Callable[[], bool]) -> None:
        """Performs a step whose attempt is the present one; see ``engine.contract.Handler``."""
        attempt = task.payload["attempt"]
        with self._database.read() as session:
            row = acceptances.acceptance_row(session, task.job_id)
            if row["attempt"] != attempt or row["state"] != "running":
                return
            state = load_state(session, task.job_id)
        step = step_from_document(task.payload["step"])
        found = self._tools.replay(step, state, device_id=task.device_id, cancelled=cancelled)
        try:
            with closing(cast("_Closable", found)):
                for one in found:
                    if not self._record(task, one, cancelled):
                        return  # void: the acceptance was cancelled, or the step is another task's by now
        except Cancelled:
            return
        with self._database.read() as session:
            undone = missing(load_state(session, task.job_id)) == step
        if not undone:
            forget_failures(self._database, task.job_id)
        elif not cancelled():
            count_failure(self._database, task.job_id, attempt, f"the step {task.payload['step']} came to nothing")

    def _record(self, task: Task, one: ReplayRecord, cancelled: Callable[[], bool]) -> bool:
        tries = itertools.count()

        def store() -> bool:
            again = next(tries) > 0
            return record(self._database, task.job_id, task.payload["attempt"], one, again=again)

        return patiently(store, seconds=self._patience_seconds, cancelled=cancelled)

    def on_failure(self, task: Task, error: BaseException) -> None:
        """Decides what an exception means: the step is tried again, or the acceptance fails."""
        if isinstance(error, DatabaseProblem):
            not_recorded(task, error)
            return  # the ledger is the problem: the next advance asks again
        if isinstance(error, ArtifactsUnavailable):
            log.warning("task %s came to nothing: %s; it is asked for again", task.key, error)
            outage_pause()
            return
        if isinstance(error, DeviceContended):
            log.warning("task %s measured nothing: %s; it is asked for again", task.key, error)
            return  # somebody else's load is no arm's fault, and not ours
        if isinstance(error, ToolchainUnavailable | ChildFailed):
            self._broke(error)
        if isinstance(error, DeviceUnavailable):
            log.warning("task %s has no device: %s; it is asked for again when it is back", task.key, error)
            count_failure(self._database, task.job_id, task.payload["attempt"], f"the device cannot be used: {error}")
            return
        if self._out_of_space is not None and (full := no_space(error)):
            log.error("task %s is handed back: %s", task.key, full)
            if self._out_of_space(full):
                count_failure(self._database, task.job_id, task.payload["attempt"], full)
            return
        log.error("task %s failed", task.key, exc_info=error)
        reason = fatal(error)
        if reason is not None or isinstance(error, OurFault | ToolchainUnavailable):
            end_acceptance(self._database, task.job_id, "failed", error=reason or str(error))
        else:
            count_failure(self._database, task.job_id, task.payload["attempt"], f"{type(error).__name__}: {error}")


class _Closable(Protocol):
    def close(self) -> None: ...
