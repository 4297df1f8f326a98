"""The compile cores of a host: each is one task's at a time, among all worker processes of the host.

Two compilers that share a core end no sooner than one after the other, and the first result comes twice as late: the
device waits for it. A core is a locked file (``flock``), so whatever a process that died held is free at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from search.measuring.device_lock import DeviceLock

POLL_SECONDS = 0.02
LOOK_SECONDS = 0.2
"""How often one that stands behind another of its process asks whether it is still wanted."""
PATIENCE_SECONDS = 120.0
"""Who has its core for longer may have been stopped: the others go on beside it, which costs time and nothing else."""


class HostCores:
    """Thread-safe."""

    def __init__(
        self,
        cores: Callable[[], Sequence[int]],
        *,
        lock_dir: Path | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """``cores``: CPU ids that this process compiles on, as of now; where none is known nobody waits."""
        self._cores, self._lock_dir, self._patience_seconds = cores, lock_dir, patience_seconds
        self._front = threading.Lock()
        """Of who looks for a core: one thread does for all that wait here, or they would take one to do so."""
        self._in_vain = False
        """Somebody lost patience, and no core was seen free since: nobody waits for that long again."""

    @contextlib.contextmanager
    def one(self, *, stopping: Callable[[], bool]) -> Iterator[bool]:
        """Waits until a core is nobody's, and has it inside the block; false once ``stopping()``."""
        mine: DeviceLock | None = None
        while not (stopped := stopping()):
            if self._front.acquire(timeout=LOOK_SECONDS):
                try:
                    mine, stopped = self._waited(stopping)
                finally:
                    self._front.release()
                break
        try:
            yield not stopped
        finally:
            if mine is not None:
                mine.close()

    def _waited(self, stopping: Callable[[], bool]) -> tuple[DeviceLock | None, bool]:
        """A core, None where none is known or when it took too long; and whether it was ``stopping()``."""
        deadline = time.monotonic() + self._patience_seconds
        while cores := self._cores():
            mine = next((taken for core in cores if (taken := self._taken(core)) is not None), None)
            if mine is not None:
                self._in_vain = False
                return mine, False
            if stopping():
                return None, True
            if self._in_vain or time.monotonic() >= deadline:
                self._in_vain = True
                break
            time.sleep(POLL_SECONDS)
        return None, False

    def _taken(self, core: int) -> DeviceLock | None:
        """A lock of its own that has the core, so that threads exclude each other too; None when it is taken."""
        lock, taken = DeviceLock(f"host-core-{core}", lock_dir=self._lock_dir), False
        try:
            taken = lock.try_acquire()
        finally:
            if not taken:
                lock.close()
        return lock if taken else None
