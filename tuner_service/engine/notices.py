"""What wakes idle slots: a notice that something may wait for them; since notices get lost, one also looks for all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Set


class Notices:
    """Thread-safe. A slot is a device's id, or None for one that compiles."""

    def __init__(self) -> None:
        self._woken = threading.Condition()
        self._count = 0
        self._idle: Counter[str | None] = Counter()

    @property
    def count(self) -> int:
        """How many there were; taken before a look, so that none is missed after it."""
        return self._count

    @property
    def idle(self) -> Set[str | None]:
        """Slots that wait for something to do."""
        with self._woken:
            return (+self._idle).keys()

    def wake(self) -> None:
        """Something may wait, or something ends: every slot looks."""
        with self._woken:
            self._count += 1
            self._woken.notify_all()

    def wait(self, slot: str | None, seen: int, *, ended: Callable[[], bool]) -> None:
        """Until something was heard after ``seen``, or ``ended()``; who changes that answer wakes all."""
        with self._woken:
            self._idle[slot] += 1
            self._woken.wait_for(lambda: self._count != seen or ended())
            self._idle[slot] -= 1
