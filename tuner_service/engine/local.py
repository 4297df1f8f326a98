"""Embedded engine: threads of this process. They only wait for killable children, so threads are enough.

A compile pool, and one slot per device. A *quiet* task runs with the compile pool idle: while one waits or runs, no
compile task starts (it is preferred, like the writer of a readers-writer lock, or a busy pool would starve it).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tuner_service.engine.contract import Handler, Task
from tuner_service.engine.overlap import CompileCount

log = logging.getLogger(__name__)


@dataclass(order=True)
class _Entry:
    """A task that waits or runs. Ordered by priority, then by time of submission."""

    priority: int
    sequence: int
    task: Task = field(compare=False)
    cancelled: threading.Event = field(compare=False, default_factory=threading.Event)


class LocalEngine:
    """``engine.contract.Engine`` on threads. One lock guards everything; handlers run outside it."""

    def __init__(
        self,
        *,
        handler: Handler,
        after: Callable[[str], None],
        on_failure: Callable[[Task, BaseException], None],
        compile_slots: int,
        devices: Sequence[str],
    ) -> None:
        self._handler, self._after, self._on_failure = handler, after, on_failure
        self._slots = ["compile"] * compile_slots
        self._waiting: dict[str, list[_Entry]] = {"compile": []}
        self._entries: dict[str, _Entry] = {}
        self._changed = threading.Condition()
        self._sequence = itertools.count()
        self._compiles = CompileCount()
        self._quiet_running = 0
        self._stopping = False
        self._started = False
        self._threads: list[threading.Thread] = []
        for device in devices:
            self.attach(device)

    def start(self) -> None:
        """Begin to run tasks."""
        with self._changed:
            self._started = True
            for slot in self._slots:
                self._start_thread(slot)

    def attach(self, device_id: str) -> None:
        """Give a device its slot, unless it has one."""
        slot = f"device:{device_id}"
        with self._changed:
            if slot in self._waiting or self._stopping:
                return
            self._waiting[slot] = []
            self._slots.append(slot)
            if self._started:
                self._start_thread(slot)

    @contextmanager
    def undisturbed(self) -> Iterator[bool]:
        """For work of the service's own that would disturb a measurement, such as probing. True: no quiet task starts
        before the block ends. False: one runs or waits; do the work another time."""
        with self._changed:
            free = not self._stopping and not self._quiet_waits()
            if free:
                self._count_compile(+1)
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._count_compile(-1)
                    self._changed.notify_all()

    def submit(self, task: Task) -> bool:
        """Queue a task; False when its key is in flight already or the engine stops.

        ValueError when there is no slot for it.
        """
        slot = _slot(task)
        if slot not in self._waiting:
            raise ValueError(f"no slot for {slot}")
        with self._changed:
            if self._stopping or task.key in self._entries:
                return False
            entry = _Entry(priority=task.priority, sequence=next(self._sequence), task=task)
            self._entries[task.key] = entry
            heapq.heappush(self._waiting[slot], entry)
            self._changed.notify_all()
            return True

    def in_flight(self, job_id: str) -> frozenset[str]:
        """Keys of this job's queued and running tasks."""
        with self._changed:
            return frozenset(key for key, entry in self._entries.items() if entry.task.job_id == job_id)

    def counts(self, job_id: str) -> Counter[str]:
        """How many tasks of this job are in flight, by queue."""
        with self._changed:
            return Counter(entry.task.queue for entry in self._entries.values() if entry.task.job_id == job_id)

    def depths(self) -> dict[str, dict[str, int]]:
        """Queue → tasks in it: ``{"waiting", "running"}``."""
        with self._changed:
            found = {slot: {"waiting": len(entries), "running": 0} for slot, entries in self._waiting.items()}
            for entry in self._entries.values():
                found[_slot(entry.task)]["running"] += 1
            for counts in found.values():
                counts["running"] -= counts["waiting"]
            return found

    def running(self, device_id: str) -> Task | None:
        """The task that holds a device's slot."""
        with self._changed:
            waiting = {entry.task.key for entries in self._waiting.values() for entry in entries}
            for key, entry in self._entries.items():
                if entry.task.queue == "device" and entry.task.device_id == device_id and key not in waiting:
                    return entry.task
            return None

    def withdraw(self, job_id: str) -> None:
        """Withdraw queued tasks of the job; running ones go on."""
        with self._changed:
            self._withdraw(lambda entry: entry.task.job_id == job_id)
            self._changed.notify_all()

    def cancel(self, job_id: str) -> None:
        """Withdraw queued tasks of the job and make ``cancelled()`` true for running ones."""
        with self._changed:
            for entry in self._entries.values():
                if entry.task.job_id == job_id:
                    entry.cancelled.set()
            self._withdraw(lambda entry: entry.task.job_id == job_id)
            self._changed.notify_all()

    def close(self, *, timeout_seconds: float) -> None:
        """Stop: withdraw queued tasks, cancel running ones, wait for them."""
        with self._changed:
            self._stopping = True
            for entry in self._entries.values():
                entry.cancelled.set()
            self._withdraw(lambda entry: True)
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def overlap_watch(self) -> Callable[[], bool]:
        """A function that says whether compiling went on at any moment since it was last asked."""
        return self._compiles.watch()

    def _withdraw(self, which: Callable[[_Entry], bool]) -> None:
        for slot, entries in self._waiting.items():
            for entry in filter(which, entries):
                del self._entries[entry.task.key]
            self._waiting[slot] = [entry for entry in entries if not which(entry)]
            heapq.heapify(self._waiting[slot])

    def _quiet_waits(self) -> bool:
        """A quiet task is next on some device (or runs): compile tasks hold back."""
        heads = (entries[0].task for entries in self._waiting.values() if entries)
        return self._quiet_running > 0 or any(task.quiet for task in heads)

    def _may_start(self, slot: str) -> bool:
        entries = self._waiting[slot]
        if not entries:
            return False
        if slot == "compile":
            return not self._quiet_waits()
        task = entries[0].task
        if task.builds:
            return not self._quiet_waits()
        return not task.quiet or self._compiles.running == 0

    def _start_thread(self, slot: str) -> None:
        name = f"{slot}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(slot,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, slot: str) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._may_start(slot))
                if self._stopping:
                    return
                entry = heapq.heappop(self._waiting[slot])
                self._count(entry.task, +1)
            try:
                self._handler(entry.task, entry.cancelled.is_set)
            except BaseException as error:
                self._report(entry.task, error)
            finally:
                with self._changed:
                    self._count(entry.task, -1)
                    del self._entries[entry.task.key]
                    self._changed.notify_all()
            try:
                self._after(entry.task.job_id)
            except Exception:
                log.exception("the end of task %s could not be announced", entry.task.key)

    def _count(self, task: Task, by: int) -> None:
        if task.queue == "compile" or task.builds:
            self._count_compile(by)
        elif task.quiet:
            self._quiet_running += by

    def _count_compile(self, by: int) -> None:
        if by > 0:
            self._compiles.begin()
        else:
            self._compiles.end()

    def _report(self, task: Task, error: BaseException) -> None:
        """A slot must outlive whatever a task or its report raises: the ledger is asked again anyway."""
        try:
            self._on_failure(task, error)
        except Exception:
            log.exception("the failure of task %s could not be recorded", task.key)


def _slot(task: Task) -> str:
    return "compile" if task.queue == "compile" else f"device:{task.device_id}"
