"""The running machinery of a service: devices, engine, workers, and the thread that advances jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from search.device.gpu import ABSENT_KIND
from search.device.spec import DeviceSpec
from search.errors import DeviceUnavailable, InvalidInput, ToolchainUnavailable
from search.events import Built, Event
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.blobs import Blobs
from search.lowering.contract import Source
from search.lowering.store import ArtifactStore
from tuner_service.db.engine import Database
from tuner_service.db.queries import devices as device_queries
from tuner_service.db.sole_use import SoleUse
from tuner_service.engine.local import LocalEngine
from tuner_service.errors import DatabaseProblem
from tuner_service.jobs.acceptance import is_acceptance
from tuner_service.jobs.acceptance_advance import AcceptanceAdvancer
from tuner_service.jobs.acceptance_ledger import end_acceptance
from tuner_service.jobs.advance import Advancer
from tuner_service.jobs.cancel import cancel
from tuner_service.jobs.ending import end_job
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.quarantine import Quarantines
from tuner_service.jobs.recover import recover
from tuner_service.workers.acceptance import AcceptanceWorker, ReplayTools
from tuner_service.workers.advancing import OPENING_SECONDS, AdvanceLoop
from tuner_service.workers.compile_only import CompileOnlyDevices, Look
from tuner_service.workers.datadir import DataDir
from tuner_service.workers.devices import Devices, Probe, not_attached
from tuner_service.workers.handlers import Handlers
from tuner_service.workers.observing import observed, observed_advance, observed_failure
from tuner_service.workers.perform import Tools, Worker

log = logging.getLogger(__name__)


class Runtime:
    """Runs the jobs of one data directory. Every public method is thread-safe."""

    def __init__(
        self,
        *,
        database: Database,
        data_dir: Path,
        compile_slots: int = 1,
        child_timeout_seconds: float = 60.0,
        advance_period_seconds: float = 2.0,
        stop_timeout_seconds: float = 15.0,
        request_wait_seconds: float = 3.0,
        compile_only: Sequence[str] = (),
        artifacts: ArtifactCache | None = None,
        probe: Probe | None = None,
        look: Look | None = None,
        tools: Callable[[Runtime], RuntimeTools] | None = None,
    ) -> None:
        """``compile_only``: names of compile-only devices. ``artifacts``: the data directory's own, if no others are
        given. ``probe``, ``look``, ``tools`` stand in for this machine's devices and compilers.

        ``request_wait_seconds``: how long a cancel waits for a locked database; results are waited for longer.
        """
        self._hurried = database.within(request_wait_seconds)
        self.database, self.data_dir = database, DataDir(data_dir)
        self.artifacts = artifacts or ArtifactCache(self.data_dir.artifacts)
        self.compile_slots, self.child_timeout_seconds = compile_slots, child_timeout_seconds
        self._period_seconds, self._stop_timeout_seconds = advance_period_seconds, stop_timeout_seconds
        self._make_tools = tools or _toolbox
        self._engine: LocalEngine | None = None
        self._advance_one: Callable[[str], None] = lambda job_id: None
        self._tools: RuntimeTools | None = None
        self._worker: Worker | None = None
        self._ledger = Ledger()
        self._probed, self._stopping = threading.Event(), threading.Event()
        self._devices = Devices(
            database=database,
            work=self.data_dir.work,
            probe=probe or self._probe_this_machine,
            compile_only=CompileOnlyDevices(compile_only, look or self._look_at_compile_only),
            stopping=self._stopping,
        )
        self._quarantines = Quarantines(database)
        self._advancing = AdvanceLoop(
            database=database,
            advance=lambda job_id: self._advance_one(job_id),
            withdraw=lambda job_id: self._engine.cancel(job_id) if self._engine else None,
            stopping=self._stopping,
            period_seconds=advance_period_seconds,
            leads=lambda: self._sole_use.held,
            looked=self._look_after,
            rest=lambda: self._tools.rest() if self._tools else None,
        )
        self._sole_use = SoleUse(database, gained=self._advancing.want_active, within=data_dir)
        self._thread = threading.Thread(target=self._run, name="advance", daemon=True)
        self._watch = threading.Thread(target=self._watch_devices, name="devices", daemon=True)

    @property
    def devices(self) -> Mapping[str, DeviceSpec]:
        """Attached devices by id, empty until probed; and the compile-only ones, as :meth:`look` found them last."""
        return self._quarantines.applied(self._devices.known)

    def away(self) -> Mapping[str, DeviceSpec]:
        """Devices that were attached once, or are in quarantine, and that a job may wait for. DatabaseProblem."""
        with self._hurried.read() as session:
            rows = device_queries.list_devices(session)
        rows.sort(key=lambda row: row["heartbeat_at"], reverse=True)
        here, gone = self.devices, self._devices.gone | self._quarantines.known.keys()
        known = [here.get(row["id"]) or not_attached(DeviceSpec.from_document(row)) for row in rows]
        # What times nothing is attached by a setting, and what stands for absent GPUs by nothing.
        return {
            spec.id: spec
            for spec in known
            if spec.id in gone or (spec.id not in here and spec.timed and spec.kind != ABSENT_KIND)
        }

    @property
    def looking(self) -> bool:
        """Whether a look at devices that was asked for has not ended yet."""
        return self._devices.looking

    def look(self, name: str | None = None) -> None:
        """Asks that a compile-only device be looked at; without a name, every one. Returns at once."""
        self._devices.look(name)

    def wait_looked(self, name: str, timeout_seconds: float) -> bool:
        """Wait until what is known of a device holds; False when the time is over first."""
        return self._devices.wait_looked(name, timeout_seconds)

    def reserve(self) -> None:
        """Takes the data directory, so that no other service touches what is in it. DataDirInUse, DataDirUnusable."""
        self.data_dir.lock()

    def start(self) -> None:
        """Reserves data directory and database, and begins; returns soon. The schema must be up to date.

        As reserve raises; and DatabaseInUse, DatabaseUnavailable.
        """
        self.data_dir.lock()
        self._sole_use.take()
        self._thread.start()

    def close(self) -> None:
        """Stops running work (charged to nobody), kills children, gives the data directory back."""
        self._stopping.set()
        self._advancing.wake()
        self._devices.stop()
        for thread in (self._thread, self._watch):
            if thread.ident is not None:
                thread.join(self._stop_timeout_seconds)
        if self._engine is not None:
            self._engine.close(timeout_seconds=self._stop_timeout_seconds)
        if self._tools is not None:
            self._tools.close()
        self.artifacts.close()
        self._sole_use.give_back()
        self.data_dir.unlock()

    def wait_probed(self, timeout_seconds: float) -> bool:
        """Wait until every device was looked for; False when the time is over first."""
        return self._probed.wait(timeout_seconds)

    def wake(self, job_id: str) -> None:
        """Look at this job soon."""
        self._advancing.wake(job_id)

    def cancel(self, job_id: str) -> None:
        """Stop a job or an acceptance: ledger first, then queued work, then running children.

        NotFound, DatabaseProblem.
        """
        engine = self._engine
        if is_acceptance(job_id):
            end_acceptance(self._hurried, job_id, "cancelled")
            if engine is not None:
                engine.cancel(job_id)
        elif engine is not None:
            cancel(self._hurried, engine, job_id)
        else:
            end_job(self._hurried, job_id, "cancelled")
        self.wake(job_id)

    def leases(self) -> Mapping[str, Mapping[str, Any]]:
        """Device id → what holds its measuring slot now: ``{"job_id", "case_id", "step"}``."""
        engine = self._engine
        running = {} if engine is None else {device: engine.running(device) for device in self.devices}
        return {
            device: {"job_id": task.job_id, "case_id": task.payload["case_id"], "step": task.payload["step"]["step"]}
            for device, task in running.items()
            if task is not None
        }

    def waiting(self) -> Mapping[str, str]:
        """Jobs that wait for something on our side (disk, database, an absent device) → the reason."""
        return self._advancing.waiting

    def queues(self) -> Mapping[str, Mapping[str, int]]:
        """Queue → tasks in it: ``{"waiting", "running"}``."""
        return {} if self._engine is None else self._engine.depths()

    @property
    def leads(self) -> bool:
        """One process is the whole service: whenever it has its database to itself."""
        return self._sole_use.held

    def live_workers(self) -> int | None:
        """None: this process compiles and measures by itself."""
        return None

    @property
    def artifact_store(self) -> ArtifactStore:
        """The artifacts in the data directory."""
        return self.artifacts.store

    @property
    def shared_artifacts(self) -> Blobs | None:
        """The store that machines share, if there is one."""
        return self.artifacts.shared

    def load_source(self, source_sha256: str) -> Source | None:
        """A kernel's source from the artifact store; None when it is not there. ArtifactsUnavailable."""
        try:
            return self.artifacts.load_source(source_sha256)
        except InvalidInput:
            return None

    def load_library(self, sha256: str) -> bytes | None:
        """A compiled library from the artifact store, verified; None when it is not there, whole.

        ArtifactsUnavailable.
        """
        return self.artifacts.load_library(sha256)

    def overlap_watch(self) -> Callable[[], bool]:
        """A function that says whether compiling went on at any moment since it was last asked."""
        assert self._engine is not None
        return self._engine.overlap_watch()

    def _run(self) -> None:
        """The advance thread: probe, recover, then advance what is wanted until told to stop."""
        self.data_dir.sweep()
        if not self._devices.probe_first():
            return
        self._tools = self._make_tools(self)
        self._worker = worker = Worker(
            database=self.database,
            ledger=self._ledger,
            tools=self._tools,
            recorded=self._on_recorded,
            cancel_tasks=lambda job_id: engine.cancel(job_id),
            broke=self._broke,
        )
        handlers = Handlers(
            database=self.database,
            ledger=self._ledger,
            worker=worker,
            replays=AcceptanceWorker(database=self.database, tools=self._tools, broke=self._broke),
            quarantines=self._quarantines,
            devices=lambda: self.devices,
            leaving=self._stopping,
        )
        engine = LocalEngine(
            handler=observed(handlers.handle, worker_id=worker.name),
            after=self.wake,
            on_failure=observed_failure(handlers.on_failure, worker_id=worker.name),
            compile_slots=self.compile_slots,
            devices=list(self.devices),
        )
        self._engine = engine
        advancer = Advancer(
            database=self.database,
            ledger=self._ledger,
            engine=engine,
            devices=lambda: self.devices,
            look=self._devices.look,
            compile_slots=self.compile_slots,
            stopped=self._stopping.is_set,
            opening_seconds=OPENING_SECONDS,
            again=self.wake,
        )
        replays = AcceptanceAdvancer(database=self.database, engine=engine, devices=lambda: self.devices)
        self._advance_one = observed_advance(lambda name: (replays if is_acceptance(name) else advancer).advance(name))
        self._patiently(lambda: recover(self.database))
        self._patiently(self._quarantines.refresh)
        self._advancing.want_active()
        engine.start()
        self._probed.set()
        self._watch.start()
        self._advancing.run()

    def _look_after(self) -> None:
        self._quarantines.refresh()
        if self._worker is not None:
            self._worker.count_held()

    def _on_recorded(self, job_id: str, event: Event) -> None:
        """An idle device need not wait for the rest of a build batch."""
        if isinstance(event, Built) and self._engine is not None and not self._engine.counts(job_id)["device"]:
            self.wake(job_id)

    def _watch_devices(self) -> None:
        engine = self._engine
        assert engine is not None
        self._devices.watch(engine.undisturbed, engine.attach, self._advancing.want_active)

    def _broke(self, error: BaseException) -> None:
        lost = isinstance(error, DeviceUnavailable)
        self._devices.doubt(toolchains=isinstance(error, ToolchainUnavailable) and not lost)

    def _probe_this_machine(self, work: Path, known: Sequence[DeviceSpec]) -> Sequence[DeviceSpec]:
        from search.measuring.attach import attached_devices

        return attached_devices(work, known=known, cancelled=self._stopping.is_set)

    def _look_at_compile_only(self, names: Sequence[str]) -> Sequence[DeviceSpec]:
        from search.measuring.attach_cuda import compile_only_devices

        return compile_only_devices(names, self.data_dir.work, cancelled=self._stopping.is_set)

    def _patiently(self, action: Callable[[], object]) -> None:
        """Does something with the database, trying again while it has a problem, until told to stop."""
        while not self._stopping.is_set():
            try:
                action()
                return
            except DatabaseProblem as error:
                log.warning("the database has a problem, trying again: %s", error)
                self._stopping.wait(self._period_seconds)


class RuntimeTools(Tools, ReplayTools, Protocol):
    """Tools that hold children."""

    def rest(self) -> None:
        """Ends idle children; the next step starts new ones."""
        ...

    def close(self) -> None:
        """Ends every child."""
        ...


def _toolbox(runtime: Runtime) -> RuntimeTools:
    from tuner_service.workers.toolbox import Toolbox

    return Toolbox(
        devices=lambda: runtime.devices,
        artifacts=runtime.artifacts,
        work=runtime.data_dir.work,
        child_timeout_seconds=runtime.child_timeout_seconds,
        overlap_watch=runtime.overlap_watch,
    )
