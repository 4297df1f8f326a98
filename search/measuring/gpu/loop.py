"""Calls of one kernel, in turn over copies of its tensors, and how long they take. Child side; no numpy.

A batch is a graph of launches that was recorded once, replayed between two events: no host is in it, so short kernels
are not timed by how fast Python launches them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from search.measuring.gpu.driver import Call, Clock

MOST_NODES = 1024
"""Launches in one graph; a longer batch replays it."""
_WARM_PARTS = 8
"""A warm-up is about so many batches."""
_SHORTEST_SECONDS = 1e-7


class Loop:
    """One kernel bound to each copy of its tensors."""

    def __init__(self, driver: Clock, calls: Sequence[Call], *, in_flight: Callable[[], None] = lambda: None) -> None:
        self._driver, self._calls = driver, tuple(calls)
        self._start, self._end = driver.event(), driver.event()
        self._graphs: dict[int, Call] = {}
        self._in_flight = in_flight
        """Called while a batch runs on the device."""

    def run_once(self) -> None:
        """One call on the first copy, to its end."""
        self._calls[0]()
        self._driver.synchronize()

    def device_seconds(self, count: int) -> float:
        """Device time of so many calls: of one, between two events around its launch; of more, of graphs of them."""
        if count == 1:
            return self._between(self._calls[0], 1)
        replays = -(-count // MOST_NODES)
        copies = len(self._calls)
        nodes = -(-count // (replays * copies)) * copies  # each replay begins with the copy that was used longest ago
        if nodes not in self._graphs:
            self._graphs[nodes] = self._driver.capture([self._calls[place % copies] for place in range(nodes)])
        return self._between(self._graphs[nodes], replays) * count / (nodes * replays)

    def warm_seconds_per_call(self, seconds: float) -> float:
        """Keep the device busy for so long by its own clock (at least two batches); seconds per call of the last."""
        per_call = self.device_seconds(1)
        batch = max(2, min(MOST_NODES, round(seconds / _WARM_PARTS / per_call)))
        spent = 0.0
        while True:
            last = self.device_seconds(batch)
            spent += last
            if spent >= seconds:
                return last / batch

    def host_seconds(self, count: int) -> float:
        """Wall time of so many calls from Python and of waiting for the last."""
        copies = len(self._calls)
        turns = [self._calls[place % copies] for place in range(count)]
        start = time.perf_counter_ns()
        for call in turns:
            call()
        self._driver.synchronize()
        return max(time.perf_counter_ns() - start, 1) * 1e-9

    def _between(self, call: Call, times: int) -> float:
        driver = self._driver
        driver.record(self._start)
        for _ in range(times):
            call()
        driver.record(self._end)
        self._in_flight()
        driver.synchronize()
        return max(driver.elapsed_seconds(self._start, self._end), _SHORTEST_SECONDS)
