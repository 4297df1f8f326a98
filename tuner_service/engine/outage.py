"""A database that is away: said once, not at every try, and asked again after pauses that grow."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator

from tuner_service.errors import DatabaseProblem

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.2, 5.0)
"""First and longest pause between two tries."""


class Outage:
    """Whether the queue is away, as one process knows it. Thread-safe."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._away = False

    def begins(self, problem: DatabaseProblem) -> None:
        """A try failed."""
        if not self._was(True):
            log.warning("worker %s goes on without the queue: %s", self._worker_id, problem)

    def ends(self) -> None:
        """A try went well."""
        if self._was(False):
            log.info("worker %s is back at the queue", self._worker_id)

    def _was(self, away: bool) -> bool:
        with self._lock:
            known, self._away = self._away, away
            return known


def pauses() -> Iterator[float]:
    """Pauses between tries: each about twice the last, a little by chance, so that not all come at once."""
    pause, longest = BACKOFF_SECONDS
    while True:
        yield pause * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        pause = min(longest, pause * 2)
