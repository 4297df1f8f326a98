"""Whether compiling went on beside something: counted where it begins and ends, asked for by who measures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CompileCount:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = self._started = 0

    @property
    def running(self) -> int:
        """How many compile now."""
        return self._running

    def begin(self) -> None:
        """Something begins to compile."""
        with self._lock:
            self._running += 1
            self._started += 1

    def end(self) -> None:
        """One of them has ended."""
        with self._lock:
            self._running -= 1

    @contextmanager
    def one(self) -> Iterator[None]:
        """Something compiles within the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def watch(self) -> Callable[[], bool]:
        """A function that says whether compiling went on at any moment since it was last asked."""
        with self._lock:
            seen, ran = self._started, self._running > 0

        def overlapped() -> bool:
            nonlocal seen, ran
            with self._lock:
                answer = ran or self._running > 0 or self._started != seen
                seen, ran = self._started, self._running > 0
            return answer

        return overlapped
