"""Who may compile while something is measured quietly: a readers-writer lock that prefers the quiet side.

Compiling and other compiling go together, and so do quiet tasks on several devices; a quiet task and compiling never
do. While a quiet task waits or runs, no compile task starts: a busy compile pool would starve it otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

LOOK_SECONDS = 0.05
"""How often a waiting one asks whether it is still wanted."""


class Compiling(Protocol):
    """Lets a compile task in."""

    def __call__(self, *, stopping: Callable[[], bool]) -> AbstractContextManager[bool]:
        """As :meth:`QuietGate.compiling`."""
        ...


class QuietGate(Protocol):
    """Thread-safe. A gate covers what would disturb one another: this process, or the whole host."""

    def compiling(self, *, stopping: Callable[[], bool]) -> AbstractContextManager[bool]:
        """Waits until nothing quiet waits or runs; the block may compile if the value is true.

        False, without waiting on, once ``stopping()`` is true.
        """
        ...

    def quietly(self, *, stopping: Callable[[], bool]) -> AbstractContextManager[bool]:
        """Holds new compiling back, waits until none is left; the block may measure quietly if the value is true.

        False, without waiting on, once ``stopping()`` is true.
        """
        ...


class ProcessQuietGate:
    """The gate of one process that has its host to itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._compiling = 0
        self._quiet = 0
        """Quiet ones that wait or run."""

    @contextmanager
    def compiling(self, *, stopping: Callable[[], bool]) -> Iterator[bool]:
        """See :class:`QuietGate`."""
        with self._changed:
            entered = self._wait(lambda: self._quiet == 0, stopping)
            self._compiling += entered
        try:
            yield entered
        finally:
            with self._changed:
                self._compiling -= entered
                self._changed.notify_all()

    @contextmanager
    def quietly(self, *, stopping: Callable[[], bool]) -> Iterator[bool]:
        """See :class:`QuietGate`."""
        with self._changed:
            self._quiet += 1
        try:
            with self._changed:
                entered = self._wait(lambda: self._compiling == 0, stopping)
            yield entered
        finally:
            with self._changed:
                self._quiet -= 1
                self._changed.notify_all()

    def _wait(self, free: Callable[[], bool], stopping: Callable[[], bool]) -> bool:
        while not stopping():
            if self._changed.wait_for(free, LOOK_SECONDS):
                return True
        return False
