"""What a process says of the tasks it performs: the ids in its log lines, the times in its metrics."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tuner_service.engine.contract import Handler, Task
from tuner_service.metrics import ADVANCE_SECONDS, BUSY_DEVICES, TASK_SECONDS
from tuner_service.telemetry import log_ids

log = logging.getLogger(__name__)

MOST_TRIALS_NAMED = 8
"""A log line names so many trials of a step at most."""
OnFailure = Callable[[Task, BaseException], None]


def observed(handler: Handler, *, worker_id: str) -> Handler:
    """The handler, timed; whatever is logged meanwhile carries the ids of the task."""

    @functools.wraps(handler)
    def handle(task: Task, cancelled: Callable[[], bool]) -> None:
        end, began = "failed", time.perf_counter()
        held = BUSY_DEVICES.held(task.device_id) if task.queue == "device" else nullcontext()
        try:
            with _ids(task, worker_id), held:
                log.info("step begins")
                handler(task, cancelled)
            end = "done"
        finally:
            TASK_SECONDS.labels(task.payload["step"]["step"], end).observe(time.perf_counter() - began)

    return handle


def observed_failure(on_failure: OnFailure, *, worker_id: str) -> OnFailure:
    """The same for what decides about a failed task."""

    @functools.wraps(on_failure)
    def decide(task: Task, error: BaseException) -> None:
        with _ids(task, worker_id):
            on_failure(task, error)

    return decide


def observed_advance(advance: Callable[[str], None]) -> Callable[[str], None]:
    """What advances a job or an acceptance, timed; what is logged meanwhile carries its id."""

    @functools.wraps(advance)
    def timed(job_id: str) -> None:
        with log_ids(job_id=job_id), ADVANCE_SECONDS.time():
            advance(job_id)

    return timed


def _ids(task: Task, worker_id: str) -> AbstractContextManager[None]:
    trials = task.payload["step"].get("trials") or ()
    # A step that shares code names pairs; the first of each is the trial that it is about.
    named = [one if isinstance(one, str) else one[0] for one in trials[:MOST_TRIALS_NAMED]]
    about: dict[str, Any] = {"trial_id": named[0]} if len(named) == 1 else {"trial_ids": named or None}
    return log_ids(
        worker_id=worker_id,
        job_id=task.job_id,
        case_id=task.payload.get("case_id"),
        step=task.payload["step"]["step"],
        device_id=task.device_id,
        **about,
    )
