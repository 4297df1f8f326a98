"""Scale-out engine: tasks wait in PostgreSQL, and any process takes what its slots can do. Workers only dial out.

The slots are threads that wait for killable children, as in the embedded engine. They are ours and not Procrastinate's
Worker: that one ends when the database is away, waits for everything it runs before it comes back, and gives no sign of
life meanwhile, so that a task of minutes would be taken for lost. Here a task goes on through an outage, and only what
could not be said in time is void.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from tuner_service.engine.contract import Handler, Task
from tuner_service.engine.notices import Notices
from tuner_service.engine.outage import Outage, pauses
from tuner_service.engine.overlap import CompileCount
from tuner_service.engine.queue import Fetched, PostgresQueue, compile_queue, device_queue
from tuner_service.engine.quiet import Compiling, ProcessQuietGate, QuietGate
from tuner_service.errors import DatabaseProblem

log = logging.getLogger(__name__)

BEAT_SECONDS = 3.0
"""Between two signs of life."""
POLL_SECONDS = 1.0
"""A notice may get lost: what waits for idle slots is looked for, and running tasks are asked after, so often."""
LAST_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class _Running:
    """A task that this process has taken."""

    row: Fetched
    cancelled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    """It is being taken off the queue: that its row is gone says nothing any more."""

    @property
    def task(self) -> Task:
        return self.row.task


class PostgresEngine:
    """``engine.contract.Engine`` on PostgreSQL. Without slots it only submits, cancels and looks."""

    def __init__(
        self,
        *,
        database_url: str,
        handler: Handler,
        after: Callable[[str], None],
        on_failure: Callable[[Task, BaseException], None],
        worker_id: str = "",
        compile_slots: int = 0,
        devices: Sequence[str] = (),
        compile_queues: Callable[[], Sequence[str]] = lambda: ("",),
        quiet: QuietGate | None = None,
        compiling: Compiling | None = None,
        takes: Callable[[str | None], bool] = lambda device_id: True,
    ) -> None:
        """``worker_id``: name of this process in its log. ``compile_queues``: the compile keys whose tasks its compile
        slots take now, none while no compiler works. ``quiet``: who keeps compiling and quiet measurements apart;
        default: this process alone. ``compiling``: lets a compile slot in before it takes a task; default: as soon as
        nothing is quiet. ``takes``: whether this process may use a device now, or, asked with None, compile;
        what waits for it is left alone otherwise.

        Nothing connects before ``start`` or the first question.
        """
        self._handler, self._after, self._on_failure = handler, after, on_failure
        self.worker_id = worker_id
        self._queue = PostgresQueue(database_url)
        self._quiet: QuietGate = quiet or ProcessQuietGate()
        self._compiling: Compiling = compiling or self._quiet.compiling
        self._takes = takes
        self._compile_queues = compile_queues
        self._slots: list[str | None] = [None] * compile_slots + list(devices)
        """Each of a device, or one that compiles."""
        self._lock = threading.Lock()
        self._fetching = threading.Lock()
        """Held while a task is taken: whoever has it knows all that this process has taken."""
        self._asking = False
        """A task is being taken."""
        self._worker: int | None = None
        self._running: dict[int, _Running] = {}
        self._doubtful = False
        """A task may have been taken without our hearing of it."""
        self._notices = Notices()
        self._draining, self._stopping, self._gave_up = threading.Event(), threading.Event(), threading.Event()
        self._compiles = CompileCount()
        self._outage = Outage(worker_id)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to run tasks; returns at once, whether or not the database is there."""
        if not self._slots:
            return
        for number, slot in enumerate(self._slots):
            name = f"{'compile' if slot is None else 'device'}-{number}"
            self._threads.append(threading.Thread(target=self._work, args=(slot,), name=name, daemon=True))
        self._threads.append(threading.Thread(target=self._watch, name="signs-of-life", daemon=True))
        for thread in self._threads:
            thread.start()
        queues = sorted({queue for slot in self._slots for queue in self._queues(slot)})
        self._queue.listen(queues, on_task=self._notices.wake, on_stop=self._cancel_row)

    def attach(self, device_id: str) -> None:
        """Give a device its slot, if it has none. Its first tasks are looked for, not announced."""
        with self._lock:
            if device_id in self._slots or self._is_leaving():
                return
            self._slots.append(device_id)
            name = f"device-{len(self._slots) - 1}"
            self._threads.append(threading.Thread(target=self._work, args=(device_id,), name=name, daemon=True))
            self._threads[-1].start()

    def submit(self, task: Task) -> bool:
        """Queue a task; False when its key is in flight already, wherever, or the engine stops. DatabaseProblem."""
        return not self._stopping.is_set() and self._queue.submit(task)

    def in_flight(self, job_id: str) -> frozenset[str]:
        """Keys of this job's queued and running tasks, of every process. DatabaseProblem."""
        return self._queue.in_flight(job_id)

    def withdraw(self, job_id: str) -> None:
        """Withdraw queued tasks of the job; running ones go on. DatabaseProblem."""
        self._queue.withdraw(job_id)

    def cancel(self, job_id: str) -> None:
        """Withdraw queued tasks of the job, make ``cancelled()`` true for running ones, wherever. DatabaseProblem."""
        try:
            self._queue.cancel(job_id)  # first: a slot that becomes free takes the next task
        finally:
            with self._lock:
                mine = [running for running in self._running.values() if running.task.job_id == job_id]
            for running in mine:
                running.cancelled.set()

    def running(self, device_id: str) -> Task | None:
        """The task that holds a device's slot, in whatever process. DatabaseProblem."""
        return self._queue.holder(device_id)

    @property
    def queue_worker(self) -> int | None:
        """The number under which this process takes tasks; None before the first try."""
        return self._worker

    def drain(self, *, timeout_seconds: float) -> bool:
        """Takes nothing more and waits for what runs; False when something still runs after that time."""
        self._draining.set()
        self._notices.wake()
        deadline = time.monotonic() + timeout_seconds
        while self._is_busy():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def close(self, *, timeout_seconds: float) -> None:
        """Stop: take nothing more, cancel what runs here, wait for it. What waits in the queue is for the others.

        What still runs after that time is not waited for; its worker gives no further sign of life.
        """
        self._stopping.set()
        with self._lock:
            for running in self._running.values():
                running.cancelled.set()
        self._notices.wake()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._gave_up.set()
        if self._worker is not None and not self._is_busy():
            self._leave(self._worker)
        self._queue.close()

    def overlap_watch(self) -> Callable[[], bool]:
        """A function that says whether compiling went on here at any moment since it was last asked."""
        return self._compiles.watch()

    def _queues(self, slot: str | None) -> tuple[str, ...]:
        """What a slot takes tasks from now."""
        return tuple(map(compile_queue, self._compile_queues())) if slot is None else (device_queue(slot),)

    def _work(self, slot: str | None) -> None:
        """One slot: takes tasks until it is told to stop, whatever happens to the database."""
        waits = pauses()
        while not (self._stopping.is_set() or self._draining.is_set()):
            seen, queues = self._notices.count, self._queues(slot)
            try:
                worked = bool(queues) and self._take(queues)
            except DatabaseProblem as problem:
                self._outage.begins(problem)
                self._stopping.wait(next(waits))
                continue
            except Exception:  # a bug of ours must not cost a slot
                log.exception("a slot of worker %s broke", self.worker_id)
                self._stopping.wait(next(waits))
                continue
            waits = pauses()
            if not worked:
                self._notices.wait(slot, seen, ended=self._is_leaving)

    def _take(self, queues: Sequence[str]) -> bool:
        """Takes a task and does it; False when there was none. DatabaseProblem, and nothing is taken then."""
        if queues[0].startswith("device:"):
            running = self._fetch(queues) if self._takes(queues[0].partition(":")[2]) else None
            if running is not None:
                try:
                    with self._gate(running) as granted:
                        if granted and self._begin(running):
                            self._perform(running)
                except Exception as error:  # of the gate: what was taken must not stay so for ever
                    self._report(running.task, error)
        elif not self._takes(None):
            running = None
        else:
            # The gate first: what this host may not compile now, another one may.
            with self._compiling(stopping=self._is_leaving) as granted:
                running = self._fetch(queues) if granted else None
                if running is not None and not running.cancelled.is_set():
                    self._perform(running)
        if running is None:
            return False
        self._finish(running)
        return True

    def _gate(self, running: _Running) -> AbstractContextManager[bool]:
        """Lets a device's task in; not once it is cancelled, or this process begins nothing more."""

        def stopping() -> bool:
            return running.cancelled.is_set() or self._is_leaving()

        if running.task.builds:
            return self._quiet.compiling(stopping=stopping)
        return self._quiet.quietly(stopping=stopping) if running.task.quiet else nullcontext(True)

    def _begin(self, running: _Running) -> bool:
        """Notes that a task which may have waited at its gate begins now; False when it was given up meanwhile."""
        if not running.task.gated:
            return True
        try:
            return self._queue.begin(running.row.id)
        except DatabaseProblem as problem:  # it is performed all the same: if it is lost, nobody is charged for it
            self._outage.begins(problem)
            return True

    def _fetch(self, queues: Sequence[str]) -> _Running | None:
        with self._fetching:
            with self._lock:
                if self._is_leaving():
                    return None
                self._asking = True
            row = None
            try:
                row = self._ask(queues)
            finally:
                running = None if row is None else _Running(row=row)
                with self._lock:
                    self._asking = False
                    if running is not None:
                        self._running[running.row.id] = running
                        if self._stopping.is_set():
                            running.cancelled.set()
            self._outage.ends()
            return running

    def _ask(self, queues: Sequence[str]) -> Fetched | None:
        if self._worker is None:
            self._worker = self._queue.register()
            log.info("worker %s takes tasks (row %d)", self.worker_id, self._worker)
        if self._doubtful:
            self._hand_back_unknown(self._worker)
        self._doubtful = True  # until the answer is here
        row = self._queue.fetch(self._worker, queues)
        self._doubtful = False
        return row

    def _leave(self, worker: int) -> None:
        try:
            if self._doubtful:
                self._hand_back_unknown(worker)
            self._queue.unregister(worker)
        except DatabaseProblem as problem:
            log.info("worker %s could not say that it leaves: %s", self.worker_id, problem)

    def _hand_back_unknown(self, worker: int) -> None:
        """Tasks that we took in an answer that never came: the ledger asks for them again."""
        for row_id, (task, _) in self._queue.doing(worker).items():
            if row_id not in self._running:
                log.warning("task %s was taken as the database went away; it is handed back", task.key)
                self._queue.finish(row_id)
                self._announce(task)

    def _perform(self, running: _Running) -> None:
        task = running.task
        try:
            with self._compiles.one() if task.queue == "compile" else nullcontext():
                self._handler(task, running.cancelled.is_set)
        except BaseException as error:
            self._report(task, error)

    def _finish(self, running: _Running) -> None:
        """Takes the task off the queue, as soon as the database lets us."""
        running.over.set()
        for pause in pauses():
            try:
                self._queue.finish(running.row.id)
                break
            except DatabaseProblem as problem:
                self._outage.begins(problem)
            if self._gave_up.wait(pause):
                break
        with self._lock:
            del self._running[running.row.id]
        self._announce(running.task)

    def _announce(self, task: Task) -> None:
        try:
            self._after(task.job_id)
        except Exception:
            log.exception("the end of task %s could not be announced", task.key)

    def _report(self, task: Task, error: BaseException) -> None:
        """A slot must outlive whatever a task or its report raises: the ledger is asked again anyway."""
        try:
            self._on_failure(task, error)
        except Exception:
            log.exception("the failure of task %s could not be recorded", task.key)

    def _watch(self) -> None:
        """Signs of life, tasks that are not ours any more, and tasks that no notice told of. Goes on until everything
        has ended."""
        beaten = time.monotonic() - BEAT_SECONDS
        while not self._gave_up.is_set():
            try:
                if self._worker is not None and time.monotonic() - beaten >= BEAT_SECONDS:
                    self._beat(self._worker)
                    beaten = time.monotonic()
                self._look_after()
                self._look_for()
            except DatabaseProblem as problem:
                self._outage.begins(problem)
            if self._stopping.is_set() and not self._is_busy():
                return
            if not self._stopping.wait(POLL_SECONDS):
                continue
            self._gave_up.wait(LAST_LOOK_SECONDS)

    def _beat(self, worker: int) -> None:
        if not self._queue.beat(worker):
            with self._fetching:
                if self._worker == worker:
                    log.warning("worker %s was away for so long that it was forgotten; it comes back", self.worker_id)
                    self._worker = None

    def _look_after(self) -> None:
        """Stops what was cancelled elsewhere, and what was given up as lost and may run elsewhere by now."""
        with self._lock:
            mine = dict(self._running)
        if not mine or self._worker is None:
            return
        standing = self._queue.doing(self._worker)
        for row_id, running in mine.items():
            if row_id not in standing and not (running.over.is_set() or running.cancelled.is_set()):
                log.warning("task %s was given up while this worker was away; it stops", running.task.key)
                running.cancelled.set()
            elif row_id in standing and standing[row_id][1]:
                running.cancelled.set()

    def _cancel_row(self, row_id: int) -> None:
        with self._lock:
            running = self._running.get(row_id)
        if running is not None:
            running.cancelled.set()

    def _look_for(self) -> None:
        """One question for all idle slots: does anything wait that no notice told of?"""
        queues = {queue for slot in self._notices.idle for queue in self._queues(slot)}
        if queues and not self._is_leaving() and self._queue.waits(sorted(queues)):
            self._notices.wake()

    def _is_leaving(self) -> bool:
        return self._stopping.is_set() or self._draining.is_set()

    def _is_busy(self) -> bool:
        with self._lock:
            return self._asking or bool(self._running)
