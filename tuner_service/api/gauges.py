"""What is true of the whole deployment now, for Prometheus: read from the ledger when it is scraped, at most every few
seconds, whichever process of the service is asked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from tuner_service.api.context import Context
from tuner_service.db.queries import counts
from tuner_service.db.queries import workers as worker_queries
from tuner_service.errors import DatabaseProblem

KEPT_SECONDS = 5.0
"""An answer serves every scrape within this time."""
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
CAUSES = ("database", "device", "other")
"""Why jobs wait on our side."""


class Gauges:
    """A collector of one service. While the database is away, what it would say is left out, and said to be."""

    def __init__(self, context: Context, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._lock = threading.Lock()
        self._kept: tuple[float, tuple[Metric, ...]] | None = None

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape; two that come together read once."""
        with self._lock:
            if self._kept is None or self._clock() - self._kept[0] >= KEPT_SECONDS:
                self._kept = self._clock(), tuple(self._read())
            yield from self._kept[1]

    def _read(self) -> Iterator[Metric]:
        runtime = self._context.runtime
        yield _gauge("tuner_leader", "1 where this process is the one that advances jobs.", {(): float(runtime.leads)})
        waiting = Counter(cause(reason) for reason in runtime.waiting().values())
        yield _gauge(
            "tuner_waiting_jobs",
            "Jobs and acceptances that wait for something on our side, by cause.",
            {(name,): waiting[name] for name in CAUSES},
            "cause",
        )
        devices = sorted(runtime.devices.values(), key=lambda device: device.id)
        yield _gauge(
            "tuner_device_available",
            "1 while a device can be used.",
            {(device.id, device.kind): float(device.available) for device in devices},
            "device",
            "kind",
        )
        try:
            found = tuple(self._of_the_ledger())
        except DatabaseProblem:
            found = ()
        yield _gauge("tuner_database_readable", "1 while the database answers.", {(): float(bool(found))})
        yield from found

    def _of_the_ledger(self) -> Iterator[Metric]:
        context = self._context
        with context.database.read() as session:
            jobs, acceptances = counts.jobs_by_state(session), counts.acceptances_by_state(session)
            quarantined = worker_queries.quarantines(session)
            ages = worker_queries.lease_ages(session)
            workers = worker_queries.list_workers(session)
        queues = context.runtime.queues()
        yield _gauge("tuner_jobs", "Jobs by state.", {(state,): jobs.get(state, 0) for state in JOB_STATES}, "state")
        yield _gauge(
            "tuner_acceptances",
            "Acceptances by state.",
            {(state,): acceptances.get(state, 0) for state in JOB_STATES},
            "state",
        )
        yield _gauge(
            "tuner_queue_tasks",
            "Tasks in each queue: one per device, and one per kind of artifact for compiling.",
            {(name, state): found[state] for name, found in sorted(queues.items()) for state in sorted(found)},
            "queue",
            "state",
        )
        yield _gauge(
            "tuner_device_quarantined",
            "1 for each device in quarantine.",
            {(device_id,): 1.0 for device_id in sorted(quarantined)},
            "device",
        )
        yield _gauge(
            "tuner_device_lease_age_seconds",
            "Time since a worker renewed its lease of a device.",
            {(device_id,): age for device_id, age in sorted(ages.items())},
            "device",
        )
        lost_seconds = context.settings.worker_lost_seconds
        states = Counter(worker_queries.worker_state(one, lost_seconds=lost_seconds) for one in workers)
        present = [worker for worker in workers if worker["state"] != "gone"]
        yield _gauge(
            "tuner_workers",
            "Worker processes that did not say that they leave, by state; full: no space left on its disk, it takes no "
            "task; lost: silent for too long.",
            {(state,): states[state] for state in ("running", "draining", "full", "lost")},
            "state",
        )
        heard = [one["silent_seconds"] for one in present if one["silent_seconds"] < lost_seconds]
        yield _gauge(
            "tuner_worker_silent_seconds",
            "Time since the last heartbeat of the live worker that was silent longest.",
            {(): max(heard, default=0.0)},
        )


def cause(reason: str) -> str:
    """One of ``CAUSES`` for the reason that people read."""
    if reason.startswith("device "):
        return "device"
    return "database" if "database" in reason else "other"


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
