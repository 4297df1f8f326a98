"""What wakes idle slots: a notice that something may wait for them, or, since notices get lost, their own poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence


class Notices:
    """Thread-safe. Of the slots that look into the same queues, one at a time looks without being told to."""

    def __init__(self, *, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._woken = threading.Condition()
        self._count = 0
        self._polls: dict[tuple[str, ...], float] = {}
        """Slots' queues → when one of these slots looks without being told to (monotonic clock)."""

    @property
    def count(self) -> int:
        """How many there were; taken before a look, so that none is missed after it."""
        return self._count

    def wake(self) -> None:
        """Something may wait, or something ends: every slot looks."""
        with self._woken:
            self._count += 1
            self._woken.notify_all()

    def wait(self, queues: Sequence[str], seen: int) -> bool:
        """Until something was heard after ``seen``, or, False, it is this slot's turn to look: one of its kind does."""
        kind = tuple(queues)
        with self._woken:
            while True:
                poll = self._polls.setdefault(kind, time.monotonic() + self._poll_seconds)
                if self._woken.wait_for(lambda: self._count != seen, max(0.0, poll - time.monotonic())):
                    return True
                if time.monotonic() >= self._polls[kind]:
                    self._polls[kind] = time.monotonic() + self._poll_seconds
                    return False
