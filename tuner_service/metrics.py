"""What this process counts and times, for Prometheus. Names carry units; every label is from a closed or small set.

Processes are scraped one by one and summed there: each counts what it did itself. What is true of a whole deployment
(jobs by state, queues, devices) the service reads from the ledger when it is scraped: ``api.gauges``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from search.events import (
    BaselineMeasured,
    Built,
    DefaultRetimed,
    Event,
    FinalsMeasured,
    Revalidated,
    TrialChecked,
    TrialMeasured,
    TrialRejected,
)
from search.outcome import Rejected

REGISTRY = CollectorRegistry()
"""Of this process."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"
"""Route of a request that no route has."""
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

TRIALS = Counter(
    "tuner_trials",
    "Trials that ended, by outcome and by the stage of a rejection ('' for what was not rejected).",
    ("outcome", "stage"),
    registry=REGISTRY,
)
LOWER_SECONDS = Histogram(
    "tuner_lower_seconds", "Emission and TileLang lowering of one candidate.", buckets=_LONG, registry=REGISTRY
)
COMPILE_SECONDS = Histogram(
    "tuner_compile_seconds",
    "One candidate's share of its batch's compiler call; what the artifact store had is not in it.",
    buckets=_LONG,
    registry=REGISTRY,
)
MEASURE_SECONDS = Histogram(
    "tuner_measure_seconds",
    "Time that a device was held for one record, by kind of record.",
    ("record",),
    buckets=_LONG,
    registry=REGISTRY,
)
TASK_SECONDS = Histogram(
    "tuner_task_seconds",
    "Time that one task took, by its step and its end (done, failed).",
    ("step", "end"),
    buckets=_LONG,
    registry=REGISTRY,
)
ADVANCE_SECONDS = Histogram(
    "tuner_advance_seconds",
    "Time that it took to look at one job and hand out what it lacks.",
    buckets=_SHORT,
    registry=REGISTRY,
)
ARTIFACT_OUTAGES = Counter(
    "tuner_artifact_outages",
    "Steps that came to nothing because the shared artifact store could not be reached; they are asked for again.",
    registry=REGISTRY,
)
HTTP_REQUEST_SECONDS = Histogram(
    "tuner_http_request_seconds",
    "Time until the end of an answer, by method, route template and status; an event stream is open for long.",
    ("method", "route", "status"),
    buckets=_SHORT,
    registry=REGISTRY,
)

_MEASURED: dict[type[Event], str] = {
    TrialMeasured: "trial",
    DefaultRetimed: "retime",
    FinalsMeasured: "finals",
    BaselineMeasured: "baseline",
    Revalidated: "revalidation",
}


def count_request(method: str, route: str | None, status: int, seconds: float) -> None:
    """Times a request; ``route``: the template, or None. Status 0: cut before an answer."""
    known = method if method in METHODS else "other"
    HTTP_REQUEST_SECONDS.labels(known, route or UNMATCHED, str(status)).observe(seconds)


def count_event(event: Event, *, device_seconds: float) -> None:
    """Counts what was recorded of a case; ``device_seconds``: for how long the device was held for it."""
    if isinstance(event, Built):
        LOWER_SECONDS.observe(event.lower_seconds)
        if event.compile_seconds > 0:
            COMPILE_SECONDS.observe(event.compile_seconds)
    elif isinstance(event, TrialRejected):
        TRIALS.labels("rejected", event.rejection.stage).inc()
    elif isinstance(event, TrialMeasured | TrialChecked):
        TRIALS.labels("measured" if isinstance(event, TrialMeasured) else "checked", "").inc()
    kind = _MEASURED.get(type(event))
    if kind is not None and device_seconds > 0:
        MEASURE_SECONDS.labels(kind).observe(device_seconds)


def count_rejections(rejections: Iterable[Rejected | None]) -> None:
    """Counts candidates that were planned and stored; None: not rejected."""
    for stage, count in Counts(one.stage for one in rejections if one is not None).items():
        TRIALS.labels("rejected", stage).inc(count)


class BusyDevices:
    """For how long devices have been held by tasks of this process, the present tasks included. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._since: dict[str, float] = {}

    @contextmanager
    def held(self, device_id: str) -> Iterator[None]:
        """The block holds the device's slot."""
        with self._lock:
            self._since[device_id] = self._clock()
        try:
            yield
        finally:
            with self._lock:
                seconds = self._clock() - self._since.pop(device_id)
                self._seconds[device_id] = self._seconds.get(device_id, 0.0) + seconds

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        total = CounterMetricFamily(
            "tuner_device_busy_seconds",
            "Time that a task held a device's slot; its rate is the busy share of the device.",
            labels=("device",),
        )
        busy = GaugeMetricFamily("tuner_device_busy", "1 while a task holds a device's slot.", labels=("device",))
        with self._lock:
            now, since, seconds = self._clock(), dict(self._since), dict(self._seconds)
        for device_id in sorted(since.keys() | seconds.keys()):
            running = now - since[device_id] if device_id in since else 0.0
            total.add_metric((device_id,), seconds.get(device_id, 0.0) + running)
            busy.add_metric((device_id,), float(device_id in since))
        yield total
        yield busy


BUSY_DEVICES = BusyDevices()
REGISTRY.register(BUSY_DEVICES)
