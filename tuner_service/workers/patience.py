"""Patience with a database that is away: what a task found is worth waiting for, within reason."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from tuner_service.errors import DatabaseFull, DatabaseProblem

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 3.0
T = TypeVar("T")


def patiently(action: Callable[[], T], *, seconds: float, cancelled: Callable[[], bool]) -> T:
    """Does something with the database, again and again while it is away. ``action`` must bear being repeated.

    Raises DatabaseProblem once ``seconds`` are over or ``cancelled()`` is true, and DatabaseFull at once: waiting makes
    no space.
    """
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE_SECONDS
    while True:
        try:
            return action()
        except DatabaseFull:
            raise
        except DatabaseProblem as problem:
            if cancelled() or time.monotonic() + pause >= deadline:
                raise
            log.info("waiting for the database: %s", problem)
        time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
        pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
