"""The reaper: tasks whose worker gave no sign of life for too long are taken off the queue, and the ledger is told.

One process of a deployment runs it (the leader); two do no harm. Ages are the database's clock's. While the database
was away nobody could give a sign of life: nothing is taken for lost before everyone had the time to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from tuner_service.engine.queue import Fetched, PostgresQueue
from tuner_service.errors import DatabaseProblem

log = logging.getLogger(__name__)

LOST_SECONDS = 30.0
"""Default age of a worker's last sign of life at which its tasks are lost."""
FORGET_AFTER = 20
"""A worker that runs nothing is forgotten after so many times the lost time: it may come back until then."""


class Reaper:
    """Looks for lost tasks in a thread of its own."""

    def __init__(
        self,
        *,
        database_url: str,
        on_lost: Callable[[Fetched], None],
        lost_seconds: float = LOST_SECONDS,
        period_seconds: float = 3.0,
    ) -> None:
        """``on_lost`` releases the task's claim, and is called before the task leaves the queue; what it raises leaves
        the task for the next round. A restart amid the two calls it again: it must be idempotent."""
        self._on_lost, self._lost_seconds, self._period_seconds = on_lost, lost_seconds, period_seconds
        self._queue = PostgresQueue(database_url)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._seen_since: float | None = None
        """Since when the database has answered every time (this machine's monotonic clock)."""

    def start(self) -> None:
        """Begins; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Ends; a task that is just being given up is given up wholly."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._queue.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(self._period_seconds)

    def look(self) -> None:
        """One round."""
        try:
            self._look()
        except DatabaseProblem as problem:
            if self._seen_since is not None:
                log.warning("no worker can be taken for lost while the database is away: %s", problem)
            self._seen_since = None
        except Exception:
            log.exception("lost tasks could not be looked for")

    def _look(self) -> None:
        lost = self._queue.lost(self._lost_seconds)
        if self._seen_since is None:
            self._seen_since = time.monotonic()
        if time.monotonic() - self._seen_since < self._lost_seconds:
            return
        for one in lost:
            if self._stopping.is_set():
                return
            if self._queue.give_up(one.id, self._lost_seconds, partial(self._on_lost, one)):
                log.warning("task %s lost its worker%s", one.task.key, "" if one.begun else " before it began")
        self._queue.forget_workers(FORGET_AFTER * self._lost_seconds)
