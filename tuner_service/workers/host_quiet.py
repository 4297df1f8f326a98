"""One host is quiet or compiles: what the worker processes of a host agree on, through locked files.

Two groups, *compiling* and *quiet*. Members of one group do not disturb each other; the groups never overlap. A quiet
one that waits lets no compile begin, or a busy pool would starve it. Every lock is a ``flock``, so whatever a process
that dies held is free at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from search.measuring.device_lock import open_lock

POLL_SECONDS = 0.05


class HostQuietGate:
    """``engine.quiet.QuietGate`` across the processes that share a lock directory. Thread-safe: it holds no state."""

    def __init__(self, *, lock_dir: Path | None = None) -> None:
        self._lock_dir = lock_dir

    @contextlib.contextmanager
    def compiling(self, *, stopping: Callable[[], bool]) -> Iterator[bool]:
        """Waits until nothing is quiet, or wants to be, and keeps it so inside the block; false once ``stopping()``."""
        with self._lock("host-compiles") as mine:
            entered = _waited(lambda: self._compile_began(mine), stopping)
            try:
                yield entered
            finally:
                fcntl.flock(mine, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def quietly(self, *, stopping: Callable[[], bool]) -> Iterator[bool]:
        """Lets no compile begin, waits for those that run, and keeps it so inside; false once ``stopping()``."""
        with self._lock("host-quiet") as mine:
            with self._deciding():
                _share(mine)
            try:
                yield _waited(lambda: not self._taken("host-compiles"), stopping)
            finally:
                fcntl.flock(mine, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[bool]:
        """True, and nothing quiet begins inside the block; or at once False when something is quiet, or wants to be."""
        with self._lock("host-compiles") as mine:
            yield self._compile_began(mine)
            fcntl.flock(mine, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """For what is really compiled behind :meth:`compiling`, which idle slots enter as well: watches see it."""
        with self._lock("host-builds") as mine:
            with self._deciding() as starts:
                _share(mine)
                os.pwrite(starts, f"{_number(starts) + 1}\n".encode(), 0)
            try:
                yield
            finally:
                fcntl.flock(mine, fcntl.LOCK_UN)

    def overlap_watch(self) -> Callable[[], bool]:
        """A function that says whether compiling went on at any moment since it was last asked."""
        seen, ran = self._starts(), self._taken("host-builds")

        def overlapped() -> bool:
            nonlocal seen, ran
            starts, runs = self._starts(), self._taken("host-builds")
            answer = ran or runs or starts != seen
            seen, ran = starts, runs
            return answer

        return overlapped

    def _compile_began(self, mine: int) -> bool:
        with self._deciding():
            if self._free_now("host-quiet"):
                _share(mine)
                return True
            return False

    def _taken(self, name: str) -> bool:
        with self._deciding():
            return not self._free_now(name)

    def _starts(self) -> int:
        with self._deciding() as starts:
            return _number(starts)

    def _free_now(self, name: str) -> bool:
        """Whether no one has that lock. The look takes it for a moment: only inside :meth:`_deciding`."""
        with self._lock(name) as look:
            try:
                fcntl.flock(look, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    @contextlib.contextmanager
    def _deciding(self) -> Iterator[int]:
        """One at a time, for the moment that a decision takes; the file counts the builds that began."""
        with self._lock("host-decides") as mutex:
            fcntl.flock(mutex, fcntl.LOCK_EX)
            yield mutex

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[int]:
        """A descriptor of its own: locks belong to open files, so that threads exclude each other too."""
        descriptor = open_lock(name, lock_dir=self._lock_dir)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _share(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _number(descriptor: int) -> int:
    return int(os.pread(descriptor, 32, 0).split(b"\n")[0] or b"0")


def _waited(free: Callable[[], bool], stopping: Callable[[], bool]) -> bool:
    while not stopping():
        if free():
            return True
        time.sleep(POLL_SECONDS)
    return False
