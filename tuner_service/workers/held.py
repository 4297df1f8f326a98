"""For how long tasks hold their devices: what was not counted in the ledger yet, also while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Held:
    """One task's time at its device that the ledger has not heard of. Recording does not count. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds; one that stands still for a task without a device."""
        self._clock, self._lock = clock, threading.Lock()
        self._since: float | None = clock()
        self._owed = 0.0

    def go_on(self) -> None:
        """The device is worked on again."""
        with self._lock:
            self._since = self._clock()

    def lap(self) -> float:
        """Seconds that were not told yet; none is added until :meth:`go_on`."""
        return self._told(stop=True)

    def so_far(self) -> float:
        """The same, and the lap goes on."""
        return self._told(stop=False)

    def owe(self, seconds: float) -> None:
        """What was told could not be counted: it is told again."""
        with self._lock:
            self._owed += seconds

    def _told(self, *, stop: bool) -> float:
        with self._lock:
            now, seconds = self._clock(), self._owed
            if self._since is not None:
                seconds += now - self._since
                self._since = None if stop else now
            self._owed = 0.0
            return seconds


class HeldDevices:
    """The tasks of a process that hold a device now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[Held, str] = {}

    @contextmanager
    def holding(self, held: Held, job_id: str) -> Iterator[None]:
        """The block is a task that holds its device."""
        with self._lock:
            self._tasks[held] = job_id
        try:
            yield
        finally:
            with self._lock:
                del self._tasks[held]

    def now(self) -> list[tuple[Held, str]]:
        """Those tasks, each with its job."""
        with self._lock:
            return list(self._tasks.items())
