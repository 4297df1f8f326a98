"""The machinery of an API process whose jobs are measured elsewhere: it advances, and never compiles or measures."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from search.device.spec import DeviceSpec
from search.errors import InvalidInput
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.blobs import Blobs
from search.lowering.contract import Source
from search.lowering.store import ArtifactStore
from tuner_service.db.engine import Database
from tuner_service.db.leadership import Leadership, announce_wake
from tuner_service.db.queries import cases, jobs
from tuner_service.db.queries.queues import queue_depths
from tuner_service.db.queries.workers import present_workers
from tuner_service.engine.contract import Engine, Task
from tuner_service.engine.queue import Fetched
from tuner_service.errors import DatabaseProblem, NotFound
from tuner_service.jobs.acceptance import is_acceptance
from tuner_service.jobs.acceptance_advance import AcceptanceAdvancer
from tuner_service.jobs.acceptance_ledger import count_failure, end_acceptance
from tuner_service.jobs.advance import Advancer
from tuner_service.jobs.cancel import cancel
from tuner_service.jobs.claiming import release
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.ledger import Ledger
from tuner_service.workers.advancing import OPENING_SECONDS, AdvanceLoop
from tuner_service.workers.observing import observed_advance
from tuner_service.workers.perform import MAXIMUM_FAULTS_IN_A_ROW
from tuner_service.workers.registry import DeviceRegistry

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""How often the registry of devices is read again."""
SPARE_COMPILES = 4
"""One more compile task of a job waits for each so many slots: several may become free before the next advance."""


class RemoteEngine(Engine, Protocol):
    """An engine whose tasks run in other processes."""

    def running(self, device_id: str) -> Task | None:
        """The task that holds a device's slot."""
        ...


class Reaping(Protocol):
    """Gives tasks of lost workers up."""

    def start(self) -> None:
        """Begin."""
        ...

    def close(self) -> None:
        """End, also before any begin."""
        ...


class ScaleOutRuntime:
    """``api.context.Runtime`` on PostgreSQL. Any number of processes may run one; one of them advances the jobs."""

    def __init__(
        self,
        *,
        database: Database,
        engine: RemoteEngine,
        reaper: Callable[[Callable[[Fetched], None]], Reaping],
        artifacts: ArtifactCache,
        data_dir: Path,
        lost_seconds: float,
        advance_period_seconds: float,
        request_wait_seconds: float,
        stop_timeout_seconds: float,
    ) -> None:
        """``reaper`` makes the one that calls back with each lost task; it works from the first lead on."""
        self._database, self._hurried = database, database.within(request_wait_seconds)
        self._engine, self._artifacts, self._data_dir = engine, artifacts, data_dir
        self._stop_timeout_seconds, self._lost_seconds = stop_timeout_seconds, lost_seconds
        self._stopping = threading.Event()
        self._ledger = Ledger()
        self._registry = DeviceRegistry(database, lost_seconds=lost_seconds)
        self._losses = _Losses(database)
        self._reaper, self._reaps = reaper(self._on_lost), False
        advancer = Advancer(
            database=database,
            ledger=self._ledger,
            engine=engine,
            devices=lambda: self.devices,
            compile_slots=self._compile_slots,
            stopped=self._stopping.is_set,
            opening_seconds=OPENING_SECONDS,
            again=lambda job_id: self._loop.wake(job_id),
        )
        replays = AcceptanceAdvancer(database=database, engine=engine, devices=lambda: self.devices)
        self._leadership = Leadership(database, gained=self._on_lead, heard=self._on_heard)
        self._loop = AdvanceLoop(
            database=database,
            advance=observed_advance(lambda name: (replays if is_acceptance(name) else advancer).advance(name)),
            withdraw=engine.cancel,
            stopping=self._stopping,
            period_seconds=advance_period_seconds,
            leads=lambda: self._leadership.leads,
        )
        self._threads = [
            threading.Thread(target=self._loop.run, name="advance", daemon=True),
            threading.Thread(target=self._watch, name="registry", daemon=True),
        ]

    @property
    def devices(self) -> Mapping[str, DeviceSpec]:
        """Devices that workers offer or offered; of one kind, the one with the fewest unfinished jobs first."""
        return self._registry.known

    def away(self) -> Mapping[str, DeviceSpec]:
        """Devices that workers offered once and that cannot be used now: one may attach them again."""
        self._registry.refresh_quietly()
        return self._registry.away

    @property
    def looking(self) -> bool:
        """Never: workers look at their devices."""
        return False

    @property
    def leads(self) -> bool:
        """Whether this process is the one that advances jobs."""
        return self._leadership.leads

    def look(self, name: str | None = None) -> None:
        """Reads what the workers offer again. A database that does not answer changes nothing."""
        self._registry.refresh_quietly()

    def wait_looked(self, name: str, timeout_seconds: float) -> bool:
        """What workers told of their devices always holds."""
        self._registry.refresh_quietly()
        return True

    def wait_probed(self, timeout_seconds: float) -> bool:
        """Whether the registry was read; False when the time is over first."""
        return self._registry.wait_read(timeout_seconds)

    def leases(self) -> Mapping[str, Mapping[str, Any]]:
        """Device id → what holds its measuring slot now: ``{"job_id", "case_id", "step"}``. DatabaseProblem."""
        held = {id_: self._engine.running(id_) for id_, spec in self.devices.items() if spec.available}
        return {
            id_: {"job_id": task.job_id, "case_id": task.payload["case_id"], "step": task.payload["step"]["step"]}
            for id_, task in held.items()
            if task is not None
        }

    def waiting(self) -> Mapping[str, str]:
        """Jobs that wait for something on our side (a device, the database) → the reason."""
        return {**self._loop.waiting, **self._registry.waiting}

    def queues(self) -> Mapping[str, Mapping[str, int]]:
        """Queue → tasks in it: ``{"waiting", "running"}``; an empty queue is left out. DatabaseProblem."""
        with self._database.read() as session:
            return queue_depths(session)

    def live_workers(self) -> int | None:
        """Workers that were heard of lately. DatabaseProblem."""
        with self._database.read() as session:
            return len(present_workers(session, lost_seconds=self._lost_seconds))

    def reserve(self) -> None:
        """Nothing to take: API processes share everything. DataDirUnusable."""
        self._data_dir.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Begins; returns at once. The schema must be up to date."""
        self._engine.start()
        self._leadership.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops advancing. What workers perform goes on."""
        self._stopping.set()
        self._loop.wake()
        self._leadership.close()
        self._reaper.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(self._stop_timeout_seconds)
        self._engine.close(timeout_seconds=self._stop_timeout_seconds)
        self._artifacts.close()

    def wake(self, job_id: str) -> None:
        """See that the process which leads looks at this job soon."""
        if self._leadership.leads:
            self._loop.wake(job_id)
            return
        try:
            announce_wake(self._hurried, job_id)
        except DatabaseProblem as error:
            log.warning("job %s could not be announced; it is looked at all the same: %s", job_id, error)

    def cancel(self, job_id: str) -> None:
        """Stop a job or an acceptance: ledger first, then queued work, then running children.

        NotFound, DatabaseProblem.
        """
        if is_acceptance(job_id):
            end_acceptance(self._hurried, job_id, "cancelled")
            self._engine.cancel(job_id)
        else:
            cancel(self._hurried, self._engine, job_id)
        self.wake(job_id)

    @property
    def artifact_store(self) -> ArtifactStore:
        """The artifacts in the data directory."""
        return self._artifacts.store

    @property
    def shared_artifacts(self) -> Blobs | None:
        """The store that machines share, if there is one."""
        return self._artifacts.shared

    def load_source(self, source_sha256: str) -> Source | None:
        """A kernel's source from the artifact store; None when it is not there. ArtifactsUnavailable."""
        try:
            return self._artifacts.load_source(source_sha256)
        except InvalidInput:
            return None

    def load_library(self, sha256: str) -> bytes | None:
        """A compiled library from the artifact store, verified; None when it is not there, whole."""
        return self._artifacts.load_library(sha256)

    def _on_lead(self) -> None:
        # What was read before somebody else led may be old.
        self._registry.refresh_quietly()
        self._loop.want_active()
        if not self._reaps:
            self._reaps = True
            self._reaper.start()

    def _compile_slots(self, compile_key: str) -> int:
        slots = self._registry.compile_slots(compile_key)
        return slots + slots // SPARE_COMPILES

    def _on_heard(self, job_id: str) -> None:
        if self._leadership.leads:
            self._loop.wake(job_id)

    def _watch(self) -> None:
        """Reads the registry again and again: a device that came, or went, concerns the jobs bound to it."""
        while not self._stopping.is_set():
            if self._registry.refresh_quietly() and self._leadership.leads:
                self._loop.want_active()
            self._stopping.wait(REFRESH_SECONDS)

    def _on_lost(self, lost: Fetched) -> None:
        """A worker died with this task, which is charged if it had begun. DatabaseProblem leaves it in the queue."""
        task, reason = lost.task, "the worker that performed it was lost"
        try:
            if is_acceptance(task.job_id):
                if lost.begun:
                    count_failure(self._database, task.job_id, task.payload["attempt"], reason)
            elif not self._release(task, fault=reason if lost.begun else None):
                self._losses.count(task.job_id, reason)
        except NotFound:
            return
        self._loop.wake(task.job_id)

    def _release(self, task: Task, *, fault: str | None) -> bool:
        claimed_at, stopped = task.payload["claimed_at"], fault is None
        return release(self._database, self._ledger, task.key, fault=fault, stopped=stopped, claimed_at=claimed_at)


class _Losses:
    """Where nothing ever comes of a job's tasks but lost workers, the job fails; any progress starts the count anew."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: Counter[str] = Counter()
        self._progress: dict[str, int] = {}

    def count(self, job_id: str, reason: str) -> None:
        with self._database.read() as session:
            if jobs.job_row(session, job_id)["state"] != "running":
                return
            progress = sum(row["revision"] for row in cases.case_rows(session, job_id))
        if progress != self._progress.get(job_id):
            self._counts[job_id], self._progress[job_id] = 0, progress
        self._counts[job_id] += 1
        if self._counts[job_id] >= MAXIMUM_FAULTS_IN_A_ROW:
            message = f"{self._counts[job_id]} tasks in a row were lost: {reason}"
            end_job(self._database, job_id, "failed", error=message)
            del self._counts[job_id], self._progress[job_id]
