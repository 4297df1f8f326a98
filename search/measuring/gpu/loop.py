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
    """One kernel bound to each copy of its tensors. Whatever is timed, in whatever phase, takes the copy whose turn it
    is: the one that was used longest ago."""

    def __init__(self, driver: Clock, calls: Sequence[Call], *, in_flight: Callable[[], None] = lambda: None) -> None:
        self._driver, self._calls = driver, tuple(calls)
        self._start, self._end = driver.event(), driver.event()
        self._graphs: dict[int, Call] = {}
        self._next = 0
        self._in_flight = in_flight
        """Called while a batch runs on the device."""

    def run_first(self) -> None:
        """One call on the first copy, to its end: what is checked is there."""
        self._calls[0]()
        self._driver.synchronize()

    def settle(self) -> None:
        """One untimed call on each copy, to its end: after others ran, the caches are as between two calls of ours
        again. A warm loop has one copy, and finds it in them; a cold one finds none."""
        for call in self._turns(len(self._calls)):
            call()
        self._driver.synchronize()

    def device_seconds(self, count: int) -> float:
        """Device time of so many calls: of one, between two events around its launch; of more, of graphs of them."""
        if count == 1:
            (call,) = self._turns(1)
            return self._between(call, 1)
        replays = -(-count // MOST_NODES)
        copies = len(self._calls)
        nodes = -(-count // (replays * copies)) * copies  # each replay ends where the next one begins
        if nodes not in self._graphs:
            self._graphs[nodes] = self._driver.capture([self._calls[place % copies] for place in range(nodes)])
        for call in self._turns(-self._next % copies):  # a graph begins with the first copy: not timed until then
            call()
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
        turns = self._turns(count)
        start = time.perf_counter_ns()
        for call in turns:
            call()
        self._driver.synchronize()
        return max(time.perf_counter_ns() - start, 1) * 1e-9

    def _turns(self, count: int) -> list[Call]:
        """The next calls, each on the copy whose turn it is."""
        copies, first = len(self._calls), self._next
        self._next = (first + count) % copies
        return [self._calls[(first + place) % copies] for place in range(count)]

    def _between(self, call: Call, times: int) -> float:
        driver = self._driver
        driver.record(self._start)
        for _ in range(times):
            call()
        driver.record(self._end)
        self._in_flight()
        driver.synchronize()
        return max(driver.elapsed_seconds(self._start, self._end), _SHORTEST_SECONDS)
