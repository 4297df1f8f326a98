"""One worker process: it offers devices of its host, compiles and measures what waits for them, and drains."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from search.device.spec import DeviceSpec
from search.errors import DeviceUnavailable, LocksUnusable, ToolchainUnavailable
from search.events import Built, Event
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.blobs import DirectoryBlobs
from search.measuring.device_lock import default_lock_dir
from tuner_service.counting import counted
from tuner_service.db.engine import Database
from tuner_service.db.leadership import announce_wake
from tuner_service.db.queries import devices as device_queries
from tuner_service.engine.contract import Task
from tuner_service.engine.postgres import PostgresEngine
from tuner_service.errors import DatabaseProblem, NotFound
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.quarantine import Quarantines
from tuner_service.workers.acceptance import AcceptanceWorker
from tuner_service.workers.compile_only import CompileOnlyDevices, Look
from tuner_service.workers.datadir import DataDir
from tuner_service.workers.devices import Devices, Probe
from tuner_service.workers.disk_room import DiskRoom
from tuner_service.workers.handlers import Handlers
from tuner_service.workers.holding import Holding, this_place
from tuner_service.workers.host_cores import HostCores
from tuner_service.workers.host_quiet import HostQuietGate
from tuner_service.workers.observing import observed, observed_failure
from tuner_service.workers.own_copies import OwnCopies
from tuner_service.workers.perform import Worker
from tuner_service.workers.runtime import RuntimeTools
from tuner_service.workers.selection import check_selection, compile_only_names, is_selected, named
from tuner_service.workers.toolbox import Toolbox

log = logging.getLogger(__name__)

START_PATIENCE_SECONDS = 5.0
"""Pause before the database is asked again at the start."""
REST_AFTER_SECONDS = 60.0
"""Idle children hold memory: they end after so long without work."""
CLOSE_SECONDS = 10.0
"""What was told to stop at once gets so long."""
WAKE_AGAIN_SECONDS = 0.5
"""A job's builds are announced no more often than this."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What one worker process is started with."""

    devices: tuple[str, ...] = ()
    """Kinds or ids of devices to attach; none: whatever is attached to the host."""
    compile_only: bool = False
    """Nothing is measured: no device but those that exist in the compiler alone."""
    compile_slots: int = 1
    compile_only_devices: tuple[str, ...] = ()
    """Compile-only devices to offer where none is named."""
    name: str | None = None
    """Of the host, for the ids of devices that have no number of their own."""
    version: str = "unknown"
    child_timeout_seconds: float = 60.0
    drain_seconds: float = 30.0
    lost_seconds: float = 30.0


class WorkerProcess:
    """One per process. ``run`` until ``stop``; the database must be at this version's schema."""

    def __init__(
        self,
        *,
        database: Database,
        data_dir: DataDir,
        options: WorkerOptions,
        artifacts: ArtifactCache | None = None,
        probe: Probe | None = None,
        look: Look | None = None,
        tools: Callable[[WorkerProcess], RuntimeTools] | None = None,
    ) -> None:
        """``artifacts``: where built things are kept for all machines; none: in the data directory alone. ``probe``,
        ``look`` and ``tools`` stand in for this machine's devices and compilers."""
        self.database, self.data_dir, self.options = database, data_dir, options
        self.artifacts = artifacts or ArtifactCache(data_dir.artifacts)
        self.worker_id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._leaving, self._hurried = threading.Event(), threading.Event()
        self._quarantines = Quarantines(database)
        self._gate = HostQuietGate()
        self._cores = HostCores(self._compile_cores)
        self._room = DiskRoom(self._written_folders(), locks=[default_lock_dir()], changed=lambda: self._holding.soon())
        self._worker: Worker | None = None
        self._engine: PostgresEngine | None = None
        self._used = time.monotonic()
        self._announced: dict[str, float] = {}
        self._compile_only = CompileOnlyDevices(
            compile_only_names(options.devices, options.compile_only_devices), look or self._look_at_compile_only
        )
        probe_host = probe or self._probe_this_host
        self._devices = Devices(
            database=None,  # what this worker holds is noted with its signs of life
            work=data_dir.work,
            probe=lambda work, known: named(probe_host(work, known), options.name),
            compile_only=self._compile_only,
            stopping=self._leaving,
        )
        self._make_tools = tools or _toolbox
        self._holding = Holding(
            database=database,
            row={
                "id": self.worker_id,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "place": this_place(),
                "version": options.version,
                "compile_slots": options.compile_slots,
            },
            devices=lambda: self.offered,
            compile_keys=self._compile_keys,
            is_full=lambda: self._room.reason is not None,
            queue_worker=lambda: self._engine.queue_worker if self._engine else None,
            lost_seconds=options.lost_seconds,
            beaten=self._on_beat,
        )

    @property
    def devices(self) -> Mapping[str, DeviceSpec]:
        """Every device of this host, by id."""
        return self._devices.known

    @property
    def offered(self) -> dict[str, DeviceSpec]:
        """The devices that this worker is to serve."""
        return {id_: spec for id_, spec in self.devices.items() if self._is_offered(spec)}

    def run(self, ready: Callable[[str], None] = lambda line: None) -> None:
        """Works until told to stop; ``ready`` gets one line when tasks are taken.

        InvalidInput when the host has none of the devices that were named; DataDirInUse, DataDirUnusable.
        """
        self.data_dir.lock()
        try:
            self.data_dir.sweep()
            if self._prepare():
                self._work(ready)
        finally:
            self._holding.close()
            self.data_dir.unlock()

    def stop(self) -> None:
        """Take nothing more, finish what is short or hand it back; told a second time, at once. Returns at once."""
        if self._leaving.is_set():
            self._hurried.set()
        self._leaving.set()

    def overlap_watch(self) -> Callable[[], bool]:
        """A function that says whether this host compiled at any moment since it was last asked."""
        return self._gate.overlap_watch()

    def building_devices(self) -> Mapping[str, DeviceSpec]:
        """Every device of the team, this host's own as they are here: what is compiled for one is compiled here."""
        return _Everywhere(self.database, self.devices)

    def _prepare(self) -> bool:
        """Finds the devices and says hello; False when told to stop before."""
        if not self._devices.probe_first():
            return False
        check_selection(list(self.devices.values()), self.options.devices)
        self._compile_only.look()
        while not self._leaving.is_set():
            try:
                self._holding.start()
            except DatabaseProblem as error:
                log.warning("the database has a problem, trying again: %s", error)
                self._leaving.wait(START_PATIENCE_SECONDS)
            else:
                return True
        return False

    def _work(self, ready: Callable[[str], None]) -> None:
        tools = self._make_tools(self)
        ledger = Ledger()
        self._worker = worker = Worker(
            database=self.database,
            ledger=ledger,
            tools=tools,
            recorded=self._on_recorded,
            cancel_tasks=lambda job_id: engine.cancel(job_id),
            broke=self._broke,
            out_of_space=self._room.ran_out,
            name=self.worker_id,
            patience_seconds=self.options.lost_seconds,
        )
        replays = AcceptanceWorker(
            database=self.database,
            tools=tools,
            broke=self._broke,
            out_of_space=self._room.ran_out,
            patience_seconds=self.options.lost_seconds,
        )
        handlers = Handlers(
            database=self.database,
            ledger=ledger,
            worker=worker,
            replays=replays,
            quarantines=self._quarantines,
            devices=lambda: self.devices,
            serves=self._holding.serves,
            leaving=self._leaving,
        )
        self._engine = engine = PostgresEngine(
            database_url=self.database.url.render_as_string(hide_password=False),
            worker_id=self.worker_id,
            handler=observed(
                lambda task, cancelled: self._perform(handlers, task, cancelled), worker_id=self.worker_id
            ),
            after=self._announce,
            on_failure=observed_failure(handlers.on_failure, worker_id=self.worker_id),
            compile_slots=self.options.compile_slots,
            devices=list(self.offered),
            compile_queues=self._compile_keys,
            quiet=self._gate,
            compiling=self._compiling,
            takes=self._may_take,
        )
        watch = threading.Thread(target=self._watch_devices, args=(engine,), name="devices", daemon=True)
        try:
            engine.start()
            watch.start()
            ready(self._ready_line())
            copies = OwnCopies(self.database, self.artifacts.store)
            while not self._leaving.wait(1.0):
                self._room.look()
                copies.look()
                if time.monotonic() - self._used >= REST_AFTER_SECONDS:
                    tools.rest()
                    self._used = time.monotonic()
            self._drain(engine)
        finally:
            self._leaving.set()
            self._devices.stop()
            engine.close(timeout_seconds=CLOSE_SECONDS)
            tools.close()
            if watch.ident is not None:
                watch.join(CLOSE_SECONDS)
            self.artifacts.close()

    def _drain(self, engine: PostgresEngine) -> None:
        """What runs may end by itself for a while; then it is handed back, charged to nobody."""
        log.info("worker %s takes nothing more; what runs has %g s", self.worker_id, self.options.drain_seconds)
        self._holding.drain()
        deadline = time.monotonic() + self.options.drain_seconds
        while not self._hurried.is_set() and (left := deadline - time.monotonic()) > 0:
            if engine.drain(timeout_seconds=min(0.2, left)):
                log.info("worker %s has ended what it ran", self.worker_id)
                return
        log.warning("worker %s hands back what still runs", self.worker_id)

    def _perform(self, handlers: Handlers, task: Task, cancelled: Callable[[], bool]) -> None:
        with self._gate.building() if task.queue == "compile" or task.builds else nullcontext():
            handlers.handle(task, cancelled)

    @contextmanager
    def _compiling(self, *, stopping: Callable[[], bool]) -> Iterator[bool]:
        """A core first: who waits for one must not keep what is quiet from beginning."""
        with ExitStack() as entered:
            try:
                core = entered.enter_context(self._cores.one(stopping=stopping))
                granted = entered.enter_context(self._gate.compiling(stopping=stopping))
            except LocksUnusable as error:
                self._room.ran_out(str(error))
                core = granted = False
            yield core and granted

    def _compile_cores(self) -> Sequence[int]:
        return next((spec.compile_cpus for spec in self.devices.values() if spec.compile_cpus), ())

    def _ready_line(self) -> str:
        nothing = "compiles, and measures nothing" if self.options.compile_only else "no device that it may use now"
        held = ", ".join(self._holding.held) or nothing
        waits = "".join(f"; {id_} is held by {who}" for id_, who in sorted(self._holding.others.items()))
        return f"worker {self.worker_id} ready: {held}; {counted(self.options.compile_slots, 'compile slot')}{waits}"

    def _is_offered(self, spec: DeviceSpec) -> bool:
        if not spec.timed:
            return spec.available
        return not self.options.compile_only and is_selected(spec, self.options.devices)

    def _written_folders(self) -> list[Path]:
        shared = self.artifacts.shared
        mounted = [shared.folder] if isinstance(shared, DirectoryBlobs) else []
        return [self.data_dir.work, self.data_dir.artifacts, Path(tempfile.gettempdir()), *mounted]

    def _may_take(self, device_id: str | None) -> bool:
        if device_id is None or self._room.reason is not None:
            return self._room.reason is None
        spec = self.devices.get(device_id)
        usable = spec is not None and spec.available and device_id not in self._quarantines.known
        return usable and self._holding.serves(device_id)

    def _compile_keys(self) -> list[str]:
        return sorted({spec.compile_key for spec in self.devices.values() if spec.available})

    def _on_beat(self) -> None:
        self._quarantines.refresh()
        if self._worker is not None:
            self._worker.count_held()

    def _on_recorded(self, job_id: str, event: Event) -> None:
        """An idle device need not wait for the rest of a build batch."""
        now = time.monotonic()
        if isinstance(event, Built) and now - self._announced.get(job_id, 0.0) >= WAKE_AGAIN_SECONDS:
            self._announced = {job_id: now}
            self._announce(job_id)

    def _announce(self, job_id: str) -> None:
        self._used = time.monotonic()
        try:
            announce_wake(self.database, job_id)
        except DatabaseProblem as error:
            log.warning("job %s could not be announced; it is looked at all the same: %s", job_id, error)

    def _broke(self, error: BaseException) -> None:
        doubted = isinstance(error, ToolchainUnavailable) and not isinstance(error, DeviceUnavailable)
        self._devices.doubt(toolchains=doubted)
        if doubted:
            self._devices.look()

    def _watch_devices(self, engine: PostgresEngine) -> None:
        attach = (lambda device_id: None) if self.options.compile_only else engine.attach
        self._devices.watch(self._gate.undisturbed, attach, self._holding.soon)

    def _probe_this_host(self, work: Path, known: Sequence[DeviceSpec]) -> Sequence[DeviceSpec]:
        from search.measuring.attach import attached_devices

        return attached_devices(work, known=known, cancelled=self._leaving.is_set)

    def _look_at_compile_only(self, names: Sequence[str]) -> Sequence[DeviceSpec]:
        from search.measuring.attach_cuda import compile_only_devices

        return compile_only_devices(names, self.data_dir.work, cancelled=self._leaving.is_set)


class _Everywhere(Mapping[str, DeviceSpec]):
    """Devices by id: this host's, and any other that is known, to compile for with the cores of this host."""

    def __init__(self, database: Database, mine: Mapping[str, DeviceSpec]) -> None:
        self._database, self._mine = database, mine

    def __getitem__(self, device_id: str) -> DeviceSpec:
        if device_id in self._mine:
            return self._mine[device_id]
        try:
            with self._database.read() as session:
                known = DeviceSpec.from_document(device_queries.get_device(session, device_id))
        except NotFound:
            raise KeyError(device_id) from None
        cores = next((spec.compile_cpus for spec in self._mine.values() if spec.compile_cpus), ())
        return replace(known, available=True, reason=None, compile_cpus=cores, measure_cpus=())

    def __iter__(self) -> Iterator[str]:
        return iter(self._mine)

    def __len__(self) -> int:
        return len(self._mine)


def _toolbox(process: WorkerProcess) -> RuntimeTools:
    return Toolbox(
        devices=process.building_devices,
        artifacts=process.artifacts,
        work=process.data_dir.work,
        child_timeout_seconds=process.options.child_timeout_seconds,
        overlap_watch=process.overlap_watch,
    )
